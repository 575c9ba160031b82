"""Interrupts at random moments of a real engine's life: nothing is left, ever.

    pytest tests/faults/test_real_interrupts.py -m engine      K3PERF_INTERRUPTS=5 for fewer

The engine is vLLM's CPU build with a shipped stand-in model.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3perf.engine.process_tree import process_list
from k3perf.engine.shared_memory import files_present, inodes_used_by
from tests.faults.bench import PATIENT, Bench
from tests.faults.inner import inner_command, write_inner_suite

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

COUNT = int(os.environ.get("K3PERF_INTERRUPTS", "30"))
LIFE_S = float(os.environ.get("K3PERF_INTERRUPT_LIFE_S", "60"))  # about what a start takes, and a while of serving
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
CACHE = {"VLLM_CACHE_ROOT": os.environ.get("K3PERF_INTERRUPT_CACHE", "/tmp/k3perf-interrupt-cache")}
MODELS = Path(__file__).parents[2] / "perf_tests" / "models"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "1" if (os.cpu_count() or 1) > 1 else "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@pytest.mark.parametrize("number", range(COUNT))
def test_an_interrupt_at_a_random_moment(bench: Bench, engine_python: Path, number: int) -> None:
    draw = random.Random(f"interrupt {number}")
    after_s, what = draw.uniform(0.5, LIFE_S), SIGNALS[number % len(SIGNALS)]
    model = bench.work / bench.model
    shutil.copytree(Path(os.environ.get("K3PERF_INTERRUPT_MODEL", MODELS / "cpu-gqa")), model)
    flags = ("--max-model-len", "1024", "--max-num-seqs", "8", "--dtype", "bfloat16", "--load-format", "dummy")
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
        *flags,
    )
    compile_flag = () if number % 2 else ("--enforce-eager",)
    spec = {
        "argv": [*argv, *compile_flag],
        "model_name": str(model),
        "environment": {**ENVIRONMENT, **CACHE},
        "deadlines": PATIENT.model_dump(),
    }
    write_inner_suite(bench.work, spec)
    shared_before = set(files_present())
    with (bench.work / "output").open("wb") as output:
        environment = {**os.environ, "TMPDIR": str(bench.temporary), "PYTEST_ADDOPTS": ""}
        process = subprocess.Popen(
            inner_command(bench.work), stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=bench.work, start_new_session=True
        )
    try:
        time.sleep(after_s)
        text = (bench.work / "output").read_text()
        assert process.poll() is None, text
        process.send_signal(what)
        status = process.wait(90)
    finally:
        process.kill()
    stages = (bench.work / "stages").read_text().split() if (bench.work / "stages").exists() else ["collecting"]
    sys.stdout.write(
        json.dumps({"number": number, "signal": what.name, "after_s": round(after_s, 1), "stage": stages[-1], "status": status}) + "\n"
    )
    assert status == (-signal.SIGKILL if what is signal.SIGKILL else 2), (bench.work / "output").read_text()
    bench.assert_nothing_left(within_s=30 if what is signal.SIGKILL else 0)
    assert list((bench.work / "locks").glob("*")) == []
    end_s = time.monotonic() + 5  # other programs' files come and go; what is ours and left stays, and nobody uses it
    while (left := set(files_present()) - shared_before - inodes_used_by(process_list())) and time.monotonic() < end_s:
        time.sleep(0.2)
    assert left == set()
