"""What supervision and sampling add to a whole suite run: ``python
benchmarks/supervision_cost.py [--sessions 3] [--cell fp8_kv]``.

Runs ``pytest perf_tests`` on the real CPU stand-in, once, with this module as a plugin,
and prints JSON. Two figures, both ratios within that run:

* ``added_ratio``: what supervision and sampling took, over the run's wall time (limit 1
  %). Counted are the wall time of everything that the harness waits for (pre-flight,
  windows of readings, looks at the tree, freezing and thawing, reading the log) and the
  processor time of everything else (the sampler's and the death watch's threads,
  watching a start, ending an engine, the guardians).
* ``round_difference``: how much longer a round takes while the sampler runs than while
  it is paused, from neighbouring rounds of one engine in the order on, off, off, on;
  the mean with its 95 % interval (Student's t). Sampling has no measurable cost when 0
  lies inside.

Exit status 1 when the limit is broken or rounds are measurably longer with sampling.
Needs K3PERF_ENGINE_PYTHON and a quiet machine.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

LIMIT_RATIO = 0.01
CONFIDENCE = 0.95
ROOT = Path(__file__).resolve().parent.parent
REPORT_VARIABLE = "K3PERF_SUPERVISION_COST_FILE"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Meter:
    """Seconds by part of the calls that it wraps; a call inside a metered call counts
    with the outer one.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.rounds: list[dict[str, Any]] = []
        self.paused = False
        self._inside = threading.local()
        self._lock = threading.Lock()
        self.began_s = time.monotonic()

    def add(self, part: str, seconds: float) -> None:
        with self._lock:
            self.seconds[part] += seconds

    def wrap(self, owner: Any, name: str, part: str, clock: Callable[[], float]) -> None:
        """Meter ``owner.name``: with ``time.monotonic`` what its caller waits, with
        ``time.thread_time`` what it costs.
        """
        function = getattr(owner, name)

        @functools.wraps(function)
        def metered(*arguments: Any, **options: Any) -> Any:
            if getattr(self._inside, "yes", False):
                return function(*arguments, **options)
            self._inside.yes, began_s = True, clock()
            try:
                return function(*arguments, **options)
            finally:
                self._inside.yes = False
                self.add(part, clock() - began_s)

        setattr(owner, name, metered)


def process_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def sampling_is_on(pair_index: int) -> bool:
    """On, off, off, on: a drift over four rounds falls on both alike."""
    return pair_index % 4 in (0, 3)


def install(meter: Meter) -> None:
    """Meter the harness of this process, and pause the sampler's thread in every second
    round.
    """
    from k3perf.engine import supervisor
    from k3perf.engine.death_watch import DeathWatch
    from k3perf.engine.guardian import Guardian
    from k3perf.engine.log_reader import LogReader
    from k3perf.engine.running import Engine
    from k3perf.records.samples import RoundKind
    from k3perf.run import pool, rounds
    from k3perf.telemetry.sampler import Sampler

    take, measure, release = Sampler.sample, rounds.measure_round, Guardian.release

    def sample(self: Any, *, thorough: bool = False) -> None:
        if thorough or not meter.paused:
            take(self, thorough=thorough)

    def measure_round(log: Any, place: Any, *rest: Any) -> Any:
        measured = place.kind is RoundKind.MEASURED
        meter.paused = measured and not sampling_is_on(place.pair_index)
        record = measure(log, place, *rest)
        meter.paused = False
        if measured:
            row = {
                "series": log.session_id,
                "pair": place.pair_index,
                "s": (record.end_ns - record.start_ns) / 1e9,
                "valid": record.valid,
            }
            meter.rounds.append(row)
        return record

    def end_guardian(self: Any) -> None:
        meter.add("guardians", process_seconds(self.pid))
        release(self)

    Sampler.sample, rounds.measure_round, Guardian.release = (
        sample,
        measure_round,
        end_guardian,
    )
    meter.wrap(Sampler, "_run", "sampler thread", time.thread_time)
    meter.wrap(DeathWatch, "_watch", "death watch", time.thread_time)
    meter.wrap(supervisor, "_wait_until_ready", "watching starts", time.thread_time)
    meter.wrap(Engine, "stop", "ending engines", time.thread_time)
    meter.wrap(Sampler, "window", "windows of readings", time.monotonic)
    meter.wrap(pool, "require_ready", "pre-flight", time.monotonic)
    for name in ("freeze", "thaw"):
        meter.wrap(Engine, name, "freezing and thawing", time.monotonic)
    for owner, name in ((Engine, "look"), (LogReader, "drain"), (Engine, "pids")):
        meter.wrap(owner, name, "looks and log", time.monotonic)


def pytest_configure(config: Any) -> None:
    """The plugin's half: this module is loaded into the measured run with ``-p``."""
    report = os.environ.get(REPORT_VARIABLE)
    if not report:
        return
    meter = Meter()
    install(meter)
    config.add_cleanup(
        lambda: Path(report).write_text(
            json.dumps(
                {
                    "wall_s": time.monotonic() - meter.began_s,
                    "seconds": meter.seconds,
                    "rounds": meter.rounds,
                }
            )
        )
    )


def differences(rounds: list[dict[str, Any]]) -> list[float]:
    """Log of a sampled round's duration over that of its unsampled neighbour, pair by
    pair (0, 1), (2, 3), ... of each series.
    """
    series: dict[str, dict[int, float]] = defaultdict(dict)
    for row in rounds:
        if row["valid"]:
            series[row["series"]][row["pair"]] = row["s"]
    found = []
    for durations in series.values():
        for first in range(0, max(durations) + 1, 2):
            if first in durations and first + 1 in durations:
                step = math.log(durations[first] / durations[first + 1])
                found.append(step if sampling_is_on(first) else -step)
    return found


def interval(values: list[float]) -> dict[str, Any]:
    """Mean with its 95 % interval."""
    from k3perf.stats.quantiles import upper_quantile

    half = (
        upper_quantile((1 - CONFIDENCE) / 2, len(values) - 1) * stdev(values) / len(values) ** 0.5
    )
    mean = fmean(values)
    return {
        "mean_ratio": mean,
        "low_ratio": mean - half,
        "high_ratio": mean + half,
        "pairs": len(values),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sessions",
        type=int,
        default=3,
        help="engine starts of the run (default: %(default)s, about five minutes)",
    )
    parser.add_argument("--target", default="cpu-hybrid")
    parser.add_argument("--cell", default="fp8_kv", help="-k expression that chooses the cell")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="k3perf-cost-") as scratch:
        report = Path(scratch) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "perf_tests",
            "-p",
            "no:cacheprovider",
            "-p",
            "benchmarks.supervision_cost",
            "--k3-plain",
        ]
        command += [
            "--k3-target",
            arguments.target,
            "-k",
            arguments.cell,
            "--k3-record",
            "--k3-sessions",
            str(arguments.sessions),
        ]
        command += ["--k3-results", f"{scratch}/results"]
        run = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, REPORT_VARIABLE: str(report)},
            stdout=sys.stderr,
            check=False,
        )
        if not report.is_file():
            sys.stderr.write(f"the run ended with status {run.returncode} and left no report\n")
            return 1
        seen = json.loads(report.read_text())
    added_ratio = sum(seen["seconds"].values()) / seen["wall_s"]
    changes = differences(seen["rounds"])
    result = {
        "wall_s": round(seen["wall_s"], 1),
        "seconds": {part: round(value, 3) for part, value in sorted(seen["seconds"].items())},
        "added_ratio": added_ratio,
        "round_difference": interval(changes) if len(changes) > 1 else None,
        "run_status": run.returncode,
    }
    fine = added_ratio < LIMIT_RATIO and len(changes) > 1 and interval(changes)["low_ratio"] <= 0
    sys.stdout.write(json.dumps({**result, "fine": fine}) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
