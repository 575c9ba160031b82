"""vLLM's own CPU engine with a shipped stand-in model, for the faults that the fake
engine cannot stand in for.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from k3perf.config.models import StageDeadlines
from k3perf.engine.launch import EngineLaunch
from tests.faults.bench import PATIENT, Bench

RealLaunch = Callable[..., EngineLaunch]
"""Flags, ``load_format`` and ``deadlines`` to a launch of the real engine in the test's
bench.
"""
REPOSITORY = Path(__file__).parents[2]
MODELS = REPOSITORY / "perf_tests" / "models"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "1" if (os.cpu_count() or 1) > 1 else "0",
    "VLLM_CACHE_ROOT": os.environ.get("K3PERF_INTERRUPT_CACHE", "/tmp/k3perf-interrupt-cache"),
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_SERVER_DEV_MODE": "1",
    "PYTHONPATH": str(REPOSITORY / "src"),
}


def real_engine_launch(
    bench: Bench,
    engine_python: Path,
    *flags: str,
    load_format: str = "dummy",
    deadlines: StageDeadlines = PATIENT,
) -> EngineLaunch:
    """A launch of the real engine with a model directory of the bench's own, so that
    its name marks the command lines.
    """
    model = bench.work / bench.model
    if not model.exists():
        shutil.copytree(Path(os.environ.get("K3PERF_INTERRUPT_MODEL", MODELS / "cpu-gqa")), model)
    argv = (
        str(engine_python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--host",
        "127.0.0.1",
        "--port",
        "{port}",
    )
    small = (
        "--max-model-len",
        "1024",
        "--max-num-seqs",
        "8",
        "--dtype",
        "bfloat16",
        "--load-format",
        load_format,
    )
    probe = ("--worker-extension-cls", "k3perf_probe.worker_extension.ProbeExtension")
    return EngineLaunch(
        argv=(*argv, *small, *probe, *flags),
        model_name=str(model),
        environment=dict(ENVIRONMENT),
        deadlines=deadlines,
    )
