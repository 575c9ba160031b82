"""Interrupts at random moments of a real engine's life: nothing is left, ever.

    pytest tests/faults/test_real_interrupts.py -m engine      K3PERF_INTERRUPTS=5 for fewer

The engine is vLLM's CPU build with a shipped stand-in model.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from k3perf.engine.process_tree import process_list
from k3perf.engine.shared_memory import files_present, inodes_used_by
from tests.faults.bench import Bench
from tests.faults.inner import inner_command, write_inner_suite
from tests.faults.real_engine import RealLaunch

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(300)]

COUNT = int(os.environ.get("K3PERF_INTERRUPTS", "30"))
LIFE_S = float(
    os.environ.get("K3PERF_INTERRUPT_LIFE_S", "60")
)  # about what a start takes, and a while of serving
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


@pytest.mark.parametrize("number", range(COUNT))
def test_an_interrupt_at_a_random_moment(
    bench: Bench, real_launch: RealLaunch, number: int
) -> None:
    draw = random.Random(f"interrupt {number}")
    after_s, what = draw.uniform(0.0, LIFE_S), SIGNALS[number % len(SIGNALS)]
    launch = real_launch(*(() if number % 2 else ("--enforce-eager",)))
    spec = {
        "argv": launch.argv,
        "model_name": launch.model_name,
        "environment": launch.environment,
        "deadlines": launch.deadlines.model_dump(),
    }
    write_inner_suite(bench.work, spec)
    shared_before = set(files_present())
    with (bench.work / "output").open("wb") as output:
        environment = {**os.environ, "TMPDIR": str(bench.temporary), "PYTEST_ADDOPTS": ""}
        process = subprocess.Popen(
            inner_command(bench.work),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=bench.work,
            start_new_session=True,
        )
    try:
        end_s = time.monotonic() + 120
        while not (
            bench.work / "stages"
        ).exists():  # written right before the engine is started: its life begins
            assert process.poll() is None, (bench.work / "output").read_text()
            assert time.monotonic() < end_s
            time.sleep(0.01)
        time.sleep(after_s)
        text = (bench.work / "output").read_text()
        assert process.poll() is None, text
        process.send_signal(what)
        status = process.wait(90)
    finally:
        process.kill()
    stages = (bench.work / "stages").read_text().split()
    sys.stdout.write(
        json.dumps(
            {
                "number": number,
                "signal": what.name,
                "after_s": round(after_s, 1),
                "stage": stages[-1],
                "status": status,
            }
        )
        + "\n"
    )
    assert status == (-signal.SIGKILL if what is signal.SIGKILL else 2), (
        bench.work / "output"
    ).read_text()
    bench.assert_nothing_left(within_s=30 if what is signal.SIGKILL else 0)
    assert list((bench.work / "locks").glob("*")) == []
    end_s = (
        time.monotonic() + 30
    )  # other programs' files come and go, unused for a while; what is ours and left stays
    while (
        left := set(files_present()) - shared_before - inodes_used_by(process_list())
    ) and time.monotonic() < end_s:
        time.sleep(0.2)
    assert left == set()
