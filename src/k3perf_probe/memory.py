"""A worker's live objects -> its memory parts in bytes. Reads only; ``reset_peaks``
restarts high-water marks.

Every part is read on its own: when a vLLM release moves an attribute, that part is None
and named in ``absent``, and the rest still stands. Nothing is ever reported as 0
because it could not be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from k3perf_probe.answers import rank_of


class NotOffered(Exception):
    """This release, platform or start mode does not offer the part."""


def read_memory(worker: Any) -> dict[str, Any]:
    """All of ``MEMORY_FIELDS`` of one rank, its ``rank``, and ``absent``: names of the
    parts not offered, ``why`` with the reasons.
    """
    reading: dict[str, Any] = {"rank": rank_of(worker)}
    why: dict[str, str] = {}
    for name, read in _READERS.items():
        try:
            reading[name] = int(read(worker))
        except Exception as problem:
            # any surprise inside an unknown release is "not offered", with its reason,
            # for this part alone
            reading[name] = None
            why[name] = f"{type(problem).__name__}: {problem}"
    reading["absent"] = sorted(why)
    reading["why"] = why
    return reading


def weights_bytes(worker: Any) -> int:
    """Storage of all parameters and buffers of the model (and of a draft model), each
    storage counted once, plus packed weights.

    vLLM's CPU backend packs a linear layer's weight for its matrix library and empties
    or keeps the parameter: the packed form lives in the closure of the layer's
    ``cpu_linear``. Tensors that are neither registered nor packed (scratch, caches) do
    not count.
    """
    registered = storage_bytes(
        tensor for model in _models(worker) for tensor in _registered_tensors(model)
    )
    return registered + sum(
        _packed_bytes(name, module)
        for model in _models(worker)
        for name, module in model.named_modules()
    )


def kv_cache_bytes(worker: Any) -> int:
    """Storage behind ``model_runner.kv_caches``; layers of a hybrid model share
    storage, which is counted once.
    """
    caches = _attribute(worker, "model_runner.kv_caches")
    total = storage_bytes(_flatten(caches))
    if total == 0:
        raise NotOffered("model_runner.kv_caches holds no tensors")
    return total


def storage_bytes(tensors: Iterable[Any]) -> int:
    """Bytes of the distinct storages. A view or a tied weight adds nothing."""
    sizes: dict[tuple[str, int], int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[(str(tensor.device), storage.data_ptr())] = int(storage.nbytes())
    return sum(sizes.values())


def reset_peaks(worker: Any) -> dict[str, Any]:
    """Restart the allocator's and the process's high-water marks. ``reset`` lists what
    was restarted, ``why`` what was not.
    """
    done: list[str] = []
    why: dict[str, str] = {}
    for name, action in (
        ("peak_allocated_bytes", _reset_allocator),
        ("peak_resident_bytes", _reset_resident),
    ):
        try:
            action(worker)
            done.append(name)
        except (
            Exception
        ) as problem:  # as above: a part that cannot be reset is named, the other is still reset
            why[name] = f"{type(problem).__name__}: {problem}"
    return {"rank": rank_of(worker), "reset": done, "why": why}


def find_model(worker: Any) -> Any:
    """The module whose weights are served. The runner's getter unwraps graph wrappers;
    ``model`` is the older name.
    """
    runner = _attribute(worker, "model_runner")
    getter = getattr(runner, "get_model", None)
    return getter() if callable(getter) else _attribute(runner, "model")


def is_cuda(worker: Any) -> bool:
    """Whether this rank computes on a CUDA (or ROCm) device."""
    return getattr(getattr(worker, "device", None), "type", "cpu") == "cuda"


def _models(worker: Any) -> Iterator[Any]:
    yield find_model(worker)
    runner = _attribute(worker, "model_runner")
    getter = getattr(runner, "get_draft_model", None)
    draft = (
        getter() if callable(getter) else getattr(getattr(runner, "drafter", None), "model", None)
    )
    if hasattr(draft, "parameters"):
        yield draft


def _packed_bytes(name: str, module: Any) -> int:
    """Bytes of the packed weight that a layer's ``cpu_linear`` closes over; 0 when it
    works on the parameter itself.
    """
    weight: Any = getattr(module, "weight", None)
    cells = getattr(getattr(module, "cpu_linear", None), "__closure__", None) or ()
    for content in (cell.cell_contents for cell in cells):
        if hasattr(content, "untyped_storage"):
            return 0 if content.data_ptr() == weight.data_ptr() else storage_bytes((content,))
        if isinstance(getattr(content, "n", None), int) and isinstance(
            getattr(content, "k", None), int
        ):
            return int(content.n) * int(content.k) * int(weight.element_size())
    if (
        hasattr(weight, "numel")
        and weight.numel() == 0
        and getattr(module, "cpu_linear", None) is not None
    ):
        raise NotOffered(f"the weight of {name} is packed away and its size cannot be found")
    return 0


def _registered_tensors(model: Any) -> Iterator[Any]:
    yield from model.parameters()
    yield from model.buffers()


def _flatten(item: Any) -> Iterator[Any]:
    if hasattr(item, "untyped_storage"):
        yield item
    elif isinstance(item, dict):
        for part in item.values():
            yield from _flatten(part)
    elif isinstance(item, list | tuple):
        for part in item:
            yield from _flatten(part)


def _attribute(root: Any, dotted: str) -> Any:
    found = root
    for name in dotted.split("."):
        if not hasattr(found, name):
            raise NotOffered(f"{type(found).__name__} has no attribute {name!r} (wanted {dotted})")
        found = getattr(found, name)
    return found


def _peak_activation_bytes(worker: Any) -> int:
    """The profile run's transient peak. vLLM adds its graph estimate to the attribute
    when that is switched on; taken off again.
    """
    peak = int(_attribute(worker, "peak_activation_memory"))
    from vllm import envs

    applied = bool(getattr(envs, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False))
    return peak - (int(getattr(worker, "cudagraph_memory_estimate", 0)) if applied else 0)


def _graph_pool_estimate_bytes(worker: Any) -> int:
    return int(_attribute(worker, "cudagraph_memory_estimate"))


def _graph_pool_bytes(worker: Any) -> int:
    """Reserved bytes of the allocator's private pools that hold CUDA graphs, from the
    allocator's own segment list.
    """
    torch = _cuda_torch(worker)
    pools = set(_graph_pool_ids(worker))
    if not pools:
        raise NotOffered("no CUDA-graph pool is known to this process")
    segments = torch.cuda.memory_snapshot()
    return sum(
        int(segment["total_size"])
        for segment in segments
        if tuple(segment.get("segment_pool_id", (0, 0))) in pools
    )


def _graph_pool_ids(worker: Any) -> Iterator[tuple[int, int]]:
    from vllm.platforms import current_platform

    shared = getattr(type(current_platform), "_global_graph_pool", None)
    manager = getattr(getattr(worker, "model_runner", None), "cudagraph_manager", None)
    for pool in (shared, getattr(manager, "pool", None)):
        if isinstance(pool, tuple):
            yield pool


def _non_torch_bytes(worker: Any) -> int:
    """Device memory in use beyond torch's reservation. Of the whole device: another
    process on it counts too.
    """
    torch = _cuda_torch(worker)
    return _device_used_bytes(worker) - int(torch.cuda.memory_reserved(worker.device))


def _device_used_bytes(worker: Any) -> int:
    free, total = _cuda_torch(worker).cuda.mem_get_info(worker.device)
    return int(total) - int(free)


def _peak_allocated_bytes(worker: Any) -> int:
    return int(_cuda_torch(worker).cuda.max_memory_allocated(worker.device))


def _reset_allocator(worker: Any) -> None:
    _cuda_torch(worker).cuda.reset_peak_memory_stats(worker.device)


def _reset_resident(worker: Any) -> None:
    # Linux resets the high-water mark of a whole process: proc(5), clear_refs, value 5
    del worker
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _cuda_torch(worker: Any) -> Any:
    if not is_cuda(worker):
        raise NotOffered("not a CUDA device")
    import torch

    return torch


def _process_status_bytes(field: str) -> int:
    for line in (
        Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    ):
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise NotOffered(f"/proc/self/status has no {field}")


_READERS: dict[str, Callable[[Any], int]] = {
    "weights_bytes": weights_bytes,
    "kv_cache_bytes": kv_cache_bytes,
    "peak_activation_bytes": _peak_activation_bytes,
    "graph_pool_estimate_bytes": _graph_pool_estimate_bytes,
    "graph_pool_bytes": _graph_pool_bytes,
    "non_torch_bytes": _non_torch_bytes,
    "peak_allocated_bytes": _peak_allocated_bytes,
    "resident_bytes": lambda _: _process_status_bytes("VmRSS"),
    "peak_resident_bytes": lambda _: _process_status_bytes("VmHWM"),
    "device_used_bytes": _device_used_bytes,
}
MEMORY_FIELDS = tuple(_READERS)
