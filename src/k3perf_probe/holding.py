"""Injected memory faults: real bytes of a chosen kind, held until released. Nothing
else in the engine changes.
"""

from __future__ import annotations

from typing import Any

from k3perf_probe import memory
from k3perf_probe.answers import rank_of

KINDS = ("weights", "device", "host")
_BUFFER_PREFIX = "k3perf_held_"


def hold_bytes(
    worker: Any, kind: str, size_bytes: int, only_rank: int | None = None
) -> dict[str, Any]:
    """Hold ``size_bytes`` more of ``kind``; 0 releases everything of that kind. Returns
    what is held now, by kind.

    Nothing changes on a rank other than ``only_rank``, where that is given.

    ``weights``: a buffer registered on the served model, on its device; ``device``: a
    tensor that is not registered; ``host``: touched pages.
    """
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r} is unknown; use one of {', '.join(KINDS)}")
    if size_bytes < 0:
        raise ValueError(f"size_bytes is {size_bytes}; it must be 0 or more")
    held, rank = _held(worker), rank_of(worker)
    if only_rank in (None, rank):
        if size_bytes == 0:
            _release(worker, kind, held)
        else:
            _hold(worker, kind, size_bytes, held)
    return {"rank": rank, "held": {name: sum(map(_size, blocks)) for name, blocks in held.items()}}


def _held(worker: Any) -> dict[str, list[Any]]:
    if not hasattr(worker, "k3perf_held"):
        worker.k3perf_held = {kind: [] for kind in KINDS}
    held: dict[str, list[Any]] = worker.k3perf_held
    return held


def _hold(worker: Any, kind: str, size_bytes: int, held: dict[str, list[Any]]) -> None:
    if kind == "host":
        held[kind].append(
            bytearray(b"\x01") * size_bytes
        )  # a repeated non-zero byte touches every page
        return
    block = _tensor(worker, size_bytes)
    held[kind].append(block)
    if kind == "weights":
        memory.find_model(worker).register_buffer(
            f"{_BUFFER_PREFIX}{len(held[kind])}", block, persistent=False
        )


def _release(worker: Any, kind: str, held: dict[str, list[Any]]) -> None:
    if kind == "weights":
        model = memory.find_model(worker)
        for number in range(1, len(held[kind]) + 1):
            delattr(model, f"{_BUFFER_PREFIX}{number}")
    held[kind].clear()


def _tensor(worker: Any, size_bytes: int) -> Any:
    import torch

    return torch.full((size_bytes,), 1, dtype=torch.uint8, device=worker.device)


def _size(block: Any) -> int:
    return len(block) if isinstance(block, bytearray) else int(block.numel())
