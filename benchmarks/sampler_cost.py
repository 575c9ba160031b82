"""What the background sampler costs: ``python benchmarks/sampler_cost.py [--seconds 30]
[--loop-pairs 30] [--engine-pairs 16] [--no-nvml]``.

Prints JSON. All figures are ratios taken in one run:

* ``core_ratio``: processor time of the sampler over the time it ran, while it watches
  the processes that it also watches below (limit 1 % of one core).
* ``loop``: throughput of a busy loop in another process, on the processor that engines
  use, lost while the sampler runs on this one's.
* ``engine``: output tokens per second that a real CPU engine loses while it is sampled;
  only with K3PERF_ENGINE_PYTHON.

The losses are means of neighbouring pairs in the order on, off, off, on, with their 95
% intervals (Student's t). A loss is measurable when its interval lies above 0. Exit
status 1 when the core limit is broken or a loss is measurable. Takes about five
minutes; needs a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from k3perf.config.suite import Suite, load_suite
from k3perf.engine.model_directory import materialise
from k3perf.engine.render import measured_launch
from k3perf.engine.running import Engine
from k3perf.engine.supervisor import start_engine
from k3perf.load.generator import run_round
from k3perf.stats.quantiles import upper_quantile
from k3perf.telemetry.devices import DevicesLost, DeviceSource
from k3perf.telemetry.sampler import Sampler
from k3perf.workload.request_plan import expand

CORE_LIMIT_RATIO = 0.01
CONFIDENCE = 0.95
ROOT = Path(__file__).resolve().parent.parent
WARM_UP_ROUNDS = 3
# counts for a second at every line that it is sent
LOOP = """
import sys, time
for line in sys.stdin:
    began_s, count = time.perf_counter(), 0
    while time.perf_counter() - began_s < 1:
        sum(range(1000)); count += 1
    print(count / (time.perf_counter() - began_s), flush=True)
"""

Pids = Callable[[], Iterable[int]]


def no_nvml() -> DeviceSource:
    raise DevicesLost("switched off for this benchmark")


def sampler(pids: Pids, *, nvml: bool) -> Sampler:
    return Sampler(pids) if nvml else Sampler(pids, open_source=no_nvml)


def core_ratio(pids: Pids, seconds: float, *, nvml: bool) -> float:
    """Processor seconds of this otherwise idle process over the seconds that a sampler
    ran in it.
    """
    with sampler(pids, nvml=nvml):
        wall_s, core_s = time.monotonic(), time.process_time()
        time.sleep(seconds)
        return (time.process_time() - core_s) / (time.monotonic() - wall_s)


def loss(rate: Callable[[], float], pids: Pids, pairs: int, *, nvml: bool) -> dict[str, Any]:
    """Loss of ``rate`` with a sampler over without, pair by pair, with its interval."""
    losses = []
    for pair in range(pairs):
        rates = {}
        for sampled in (True, False) if pair % 2 == 0 else (False, True):
            with sampler(pids, nvml=nvml) if sampled else nullcontext():
                rates[sampled] = rate()
        losses.append(1 - rates[True] / rates[False])
    half = upper_quantile((1 - CONFIDENCE) / 2, pairs - 1) * stdev(losses) / pairs**0.5
    mean = fmean(losses)
    return {
        "loss_ratio": mean,
        "low_ratio": mean - half,
        "high_ratio": mean + half,
        "pairs": pairs,
        "measurable": mean - half > 0,
    }


@contextmanager
def busy_loop() -> Iterator[Callable[[], float]]:
    """Loops per second of a process on the last processor; this process keeps to the
    others where there are any.
    """
    cpus = sorted(os.sched_getaffinity(0))
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    os.sched_setaffinity(process.pid, cpus[-1:])
    os.sched_setaffinity(0, cpus[:-1] or cpus)
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None
    assert stdout is not None

    def rate() -> float:
        stdin.write("\n")
        stdin.flush()
        return float(stdout.readline())

    try:
        rate()
        yield rate
    finally:
        os.sched_setaffinity(0, cpus)
        process.communicate()


@contextmanager
def engine(
    suite: Suite, target_name: str, work: Path
) -> Iterator[tuple[Engine, Callable[[], float]]]:
    """A real engine of a CPU target, and its output tokens per second over one round of
    the target's workload.
    """
    target = suite.target(target_name)
    assert target.model.directory is not None
    launch = measured_launch(
        target,
        suite.engine_arguments(target, suite.config("default")),
        model=str(materialise(suite.root / target.model.directory, work / "models")),
        engine_python=Path(os.environ["K3PERF_ENGINE_PYTHON"]),
        python_path=str(ROOT / "src"),
        cache_directory=work,
    )
    plan = expand(
        suite.workload(target.workloads[0]), vocabulary_size=suite.vocabulary_size(target)
    )
    cpus, rounds = os.sched_getaffinity(0), iter(range(100_000))
    with start_engine(launch, work_directory=work / "engine") as started:
        os.sched_setaffinity(0, set(target.pinning.client_cpus) & cpus or cpus)

        def rate() -> float:
            seen = run_round(
                plan.for_round(next(rounds)),
                base_url=started.base_url,
                model_name=started.model_name,
            )
            return (
                sum(sample.output_token_count for sample in seen.samples)
                / (seen.end_ns - seen.start_ns)
                * 1e9
            )

        for _ in range(WARM_UP_ROUNDS):
            rate()
        yield started, rate
    os.sched_setaffinity(0, cpus)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    nvml = not arguments.no_nvml
    result: dict[str, Any] = {}
    with busy_loop() as rate:
        result["loop"] = loss(rate, lambda: (os.getpid(),), arguments.loop_pairs, nvml=nvml)
    if not os.environ.get("K3PERF_ENGINE_PYTHON") or not arguments.engine_pairs:
        return {
            "core_ratio": core_ratio(lambda: (os.getpid(),), arguments.seconds, nvml=nvml),
            **result,
            "engine": None,
        }
    with (
        tempfile.TemporaryDirectory(prefix="k3perf-cost-") as work,
        engine(load_suite(ROOT / "perf_tests"), arguments.target, Path(work)) as (started, rate),
    ):
        result["core_ratio"] = core_ratio(started.pids, arguments.seconds, nvml=nvml)
        result["engine"] = loss(rate, started.pids, arguments.engine_pairs, nvml=nvml)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=30, help="for the share of a core")
    parser.add_argument("--loop-pairs", type=int, default=30)
    parser.add_argument("--engine-pairs", type=int, default=16, help="0: without an engine")
    parser.add_argument("--target", default="cpu-hybrid")
    parser.add_argument("--no-nvml", action="store_true")
    result = measure(parser.parse_args())
    measurable = [
        name for name in ("loop", "engine") if result[name] and result[name]["measurable"]
    ]
    fine = result["core_ratio"] < CORE_LIMIT_RATIO and not measurable
    sys.stdout.write(json.dumps({**result, "fine": fine}) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
