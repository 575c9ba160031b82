"""What the probe and its reader rely on inside vLLM, as data, and a check of it:
``python -m k3perf_probe.contract`` in the engine's Python.

Starts nothing and needs no device. Prints JSON with the release and one sentence for
every name that has moved; exit status 1 if any has. An attribute counts as there when
the class has it or when the source of the class or of a parent assigns it to ``self``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from k3perf_probe.identity import read_identity
from k3perf_probe.worker_extension import ProbeExtension


@dataclass(frozen=True)
class Relied:
    """Names of one class or module, and what is lost without them."""

    module: str
    owner: str  # a class, or empty for the module itself
    names: tuple[str, ...]
    needed_for: str


_WORKER = ("model_runner", "device", "rank", "vllm_config", "execute_model", "sample_tokens")

RELIED_ON: tuple[Relied, ...] = (
    Relied(
        "vllm.v1.worker.gpu_worker",
        "Worker",
        _WORKER,
        "every reading and the injected slow-down on a GPU",
    ),
    Relied(
        "vllm.config",
        "VllmConfig",
        ("parallel_config",),
        "which of all data-parallel ranks answers",
    ),
    Relied(
        "vllm.config",
        "ParallelConfig",
        ("data_parallel_index", "world_size"),
        "which of all data-parallel ranks answers",
    ),
    Relied(
        "vllm.v1.worker.gpu_worker", "Worker", ("peak_activation_memory",), "peak_activation_bytes"
    ),
    Relied(
        "vllm.v1.worker.gpu_worker",
        "Worker",
        ("cudagraph_memory_estimate",),
        "graph_pool_estimate_bytes",
    ),
    Relied(
        "vllm.v1.worker.cpu_worker",
        "CPUWorker",
        _WORKER,
        "every reading and the injected slow-down on a CPU",
    ),
    Relied("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", ("get_model",), "weights_bytes"),
    Relied("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", ("kv_caches",), "kv_cache_bytes"),
    Relied(
        "vllm.v1.worker.gpu.model_runner",
        "GPUModelRunner",
        ("get_model", "kv_caches"),
        "weights_bytes and kv_cache_bytes (V2 runner)",
    ),
    Relied(
        "vllm.v1.worker.cpu_model_runner",
        "CPUModelRunner",
        ("get_model", "kv_caches"),
        "weights_bytes and kv_cache_bytes on a CPU",
    ),
    Relied("vllm.platforms.interface", "Platform", ("_global_graph_pool",), "graph_pool_bytes"),
    Relied(
        "vllm.envs",
        "",
        ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS",),
        "peak_activation_bytes without the graph estimate",
    ),
    Relied(
        "vllm.model_executor.layers.utils",
        "",
        ("dispatch_cpu_unquantized_gemm",),
        "weights_bytes of packed layers on a CPU",
    ),
    Relied(
        "vllm.config",
        "SchedulerConfig",
        ("async_scheduling",),
        "the injected slow-down under asynchronous scheduling",
    ),
    Relied(
        "vllm.config",
        "CacheConfig",
        (
            "block_size",
            "effective_attention_block_size",
            "kv_cache_size_tokens",
            "kv_cache_max_concurrency",
            "num_gpu_blocks",
        ),
        "capacity metrics and the effective block size",
    ),
    Relied(
        "vllm.entrypoints.serve.dev.rpc.api_router",
        "",
        ("collective_rpc",),
        "every call of the probe",
    ),
    Relied(
        "vllm.entrypoints.serve.dev.server_info.api_router",
        "",
        ("show_server_info",),
        "the resolved configuration",
    ),
    Relied(
        "vllm.entrypoints.serve.dev.cache.api_router",
        "",
        ("reset_prefix_cache",),
        "prefix-sharing checks",
    ),
)

# The extension is mixed into these; a shared name would make vLLM refuse the start.
WORKERS: tuple[tuple[str, str], ...] = (
    ("vllm.v1.worker.gpu_worker", "Worker"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker"),
)


def broken(relied_on: tuple[Relied, ...] = RELIED_ON) -> Iterator[str]:
    """One sentence for every name that is not where it is looked for."""
    for relied in relied_on:
        try:
            owner = _owner(relied)
        except (ImportError, AttributeError) as problem:
            yield (
                f"{relied.module} {relied.owner or '(module)'} cannot be found ({problem}); needed"
                f" for {relied.needed_for}"
            )
            continue
        for name in relied.names:
            if not _offers(owner, name):
                yield (
                    f"{relied.module}.{relied.owner or ''} no longer has {name!r}; needed for"
                    f" {relied.needed_for}"
                )


def clashes(workers: tuple[tuple[str, str], ...] = WORKERS) -> Iterator[str]:
    """One sentence for every public name of the extension that a worker class has
    too.
    """
    names = [name for name in dir(ProbeExtension) if not name.startswith("__")]
    for module, owner in workers:
        worker = getattr(importlib.import_module(module), owner)
        for name in names:
            if hasattr(worker, name):
                yield (
                    f"{module}.{owner} has an attribute {name!r} of its own; vLLM would refuse the"
                    " worker extension"
                )


def _owner(relied: Relied) -> object:
    module = importlib.import_module(relied.module)
    return getattr(module, relied.owner) if relied.owner else module


def _offers(owner: object, name: str) -> bool:
    if hasattr(owner, name):
        return True
    classes = owner.__mro__[:-1] if isinstance(owner, type) else ()
    annotated = any(name in vars(cls).get("__annotations__", {}) for cls in classes)
    return annotated or any(
        f"self.{name}" in inspect.getsource(cls) for cls in classes if cls.__module__ != "builtins"
    )


def main() -> int:
    """Print the check's JSON."""
    problems = [*broken(), *clashes()]
    sys.stdout.write(
        json.dumps({"vllm_version": read_identity()["vllm_version"], "problems": problems}) + "\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
