"""What the background sampler costs: ``python benchmarks/sampler_cost.py [--seconds 20] [--pairs 12] [--no-nvml]``.

Prints JSON. Two figures, both ratios taken in one run: the processor time of the sampler over the time it ran (limit: 1 % of one core), and
the throughput of a busy loop with the sampler over its throughput without, in alternating pairs (mean of the pairs' differences and
its standard error; no loss may be seen beyond 1 %). Exit status 1 when a limit is broken.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from statistics import fmean, stdev

from k3perf.engine.process_tree import ProcessTree
from k3perf.telemetry.devices import DevicesLost, DeviceSource
from k3perf.telemetry.sampler import Sampler

CORE_LIMIT_RATIO = 0.01
LOSS_LIMIT_RATIO = 0.01
_CHUNK_S = 1.0


def no_nvml() -> DeviceSource:
    raise DevicesLost("switched off for this benchmark")


def core_ratio(seconds: float, *, nvml: bool) -> float:
    """Processor seconds of this otherwise idle process over the seconds that a sampler ran in it."""
    options = {} if nvml else {"open_source": no_nvml}
    with Sampler(ProcessTree("benchmark", os.getpid()).pids, **options):
        wall_s, core_s = time.monotonic(), time.process_time()
        time.sleep(seconds)
        return (time.process_time() - core_s) / (time.monotonic() - wall_s)


def loops_per_s() -> float:
    """Throughput of a loop that keeps one thread busy."""
    began_s = time.perf_counter()
    count = 0
    while time.perf_counter() - began_s < _CHUNK_S:
        sum(range(1000))
        count += 1
    return count / (time.perf_counter() - began_s)


def paired_losses(pairs: int, *, nvml: bool) -> list[float]:
    """Loss of throughput with a sampler, pair by pair; the order within a pair alternates."""
    options = {} if nvml else {"open_source": no_nvml}
    losses = []
    for pair in range(pairs):
        rates = {}
        for sampled in (pair % 2 == 0, pair % 2 == 1):
            if sampled:
                with Sampler(ProcessTree("benchmark", os.getpid()).pids, **options):
                    rates[True] = loops_per_s()
            else:
                rates[False] = loops_per_s()
        losses.append(1 - rates[True] / rates[False])
    return losses


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--no-nvml", action="store_true")
    arguments = parser.parse_args()
    ratio = core_ratio(arguments.seconds, nvml=not arguments.no_nvml)
    losses = paired_losses(arguments.pairs, nvml=not arguments.no_nvml)
    loss, error = fmean(losses), stdev(losses) / len(losses) ** 0.5
    fine = ratio < CORE_LIMIT_RATIO and loss - 2 * error < LOSS_LIMIT_RATIO
    sys.stdout.write(
        json.dumps({"core_ratio": ratio, "loss_ratio": loss, "standard_error": error, "pairs": len(losses), "fine": fine}) + "\n"
    )
    return 0 if fine else 1


if __name__ == "__main__":
    raise SystemExit(main())
