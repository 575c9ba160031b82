"""A worker's live modules -> the names of the kernels' backends that were chosen at
load. Reads only.

With ``auto`` the server's configuration keeps saying "auto"; what was chosen shows on
the loaded layers alone. A name that cannot be read is omitted, so a release that moves
it shows as a key that is gone, never as an empty choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from k3perf_probe import memory

_NAMED_ATTRIBUTES = (
    "kda_prefill_backend",
    "kda_decode_backend",
    "kda_spec_decode_backend",
    "gdn_prefill_backend",
    "gdn_decode_backend",
)


def read_backends(worker: Any) -> dict[str, str]:
    """Chosen backends by kind, several joined in order of name. Never raises."""
    found: dict[str, set[str]] = {}
    for kind, name in _safely(_choices(worker)):
        found.setdefault(kind, set()).add(name)
    return {kind: ", ".join(sorted(names)) for kind, names in sorted(found.items())}


def _safely(choices: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """The choices up to the first surprise inside an unknown release."""
    try:
        yield from choices
    except Exception:
        return


def _choices(worker: Any) -> Iterator[tuple[str, str]]:
    yield from _sampling(worker)
    for _, module in memory.find_model(worker).named_modules():
        yield from _safely(_of_module(module))


def _of_module(module: Any) -> Iterator[tuple[str, str]]:
    for name in _NAMED_ATTRIBUTES:
        value = getattr(module, name, None)
        if isinstance(value, str):
            yield name.removesuffix("_backend"), value
    method = getattr(module, "quant_method", None)
    if method is not None:
        kind = "moe" if "moe" in type(method).__name__.lower() else "linear"
        yield kind, _method_name(method)
    prefill = getattr(module, "prefill_backend", None)
    if prefill is not None:
        yield "mla_prefill", type(prefill).__name__
    getter = getattr(module, "get_attn_backend", None)
    if callable(getter):
        yield "attention", str(getter().get_name())


def _method_name(method: Any) -> str:
    """The quantisation method and its kernels (attributes in ``_backend``)."""
    chosen = [
        f"{name}={getattr(value, 'name', value)}"
        for name, value in sorted(vars(method).items())
        if name.endswith("_backend") and (isinstance(value, str) or hasattr(value, "name"))
    ]
    return type(method).__name__ + (f"({', '.join(chosen)})" if chosen else "")


def _sampling(worker: Any) -> Iterator[tuple[str, str]]:
    sampler = getattr(getattr(worker, "model_runner", None), "sampler", None)
    if sampler is None:
        return
    inner = getattr(sampler, "topk_topp_sampler", None)
    forward = getattr(getattr(inner, "forward", None), "__name__", None)
    yield (
        "sampling",
        type(sampler).__name__ + (f"({type(inner).__name__}.{forward})" if forward else ""),
    )
