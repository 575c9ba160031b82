"""Every source of the calibration, judged by the gate as it is: ``python -m
tests.calibration.lab.source_table CLEAN_RUNS LOST_RUNS [SOURCE...]`` prints a table.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from tests.calibration.lab.parts_trial import COUNTED, judged
from tests.calibration.lab.replay import Setting
from tests.calibration.lab.selftest import rate
from tests.calibration.lab.trial_sources import trial_sources

RED, INVALID_RUN, REGRESSED, GREEN = map(
    COUNTED.index, ("red", "invalid_run", "regressed", "green")
)
HEAD: Final = (
    "| source | clean runs red | of accepted metrics | clean runs INVALID | red at half |"
    " 1.5 tolerances caught | green |"
)


def clean_reds(setting: Setting, runs: int) -> int:
    """Of that many runs without a change, how many are red."""
    return sum(run[0][RED] for run in judged(setting, "", range(runs), losses=(0.0,)))


def source_rows(clean_runs: int, lost_runs: int, names: Sequence[str]) -> Iterator[str]:
    """Of a source with a red clean run also the red runs if only metrics that ``baseline
    accept`` takes are gated.
    """
    for name, make in trial_sources().items():
        if names and name not in names:
            continue
        setting = make()
        metrics = len(setting.sources) * setting.repeats * len(setting.tolerances)
        clean = np.array(judged(setting, "", range(clean_runs), losses=(0.0,)))[:, 0]
        red = int(clean[:, RED].sum())
        accepted = (
            rate(clean_reds(replace(setting, only_testable=True), clean_runs), clean_runs)
            if red
            else "-"
        )
        lost = np.array(judged(setting, "", range(lost_runs), losses=(0.5, 1.5)))
        yield (
            f"| {name} | {rate(red, clean_runs)} | {accepted} |"
            f" {clean[:, INVALID_RUN].mean():.1%} | {lost[:, 0, RED].sum()} of {lost_runs} |"
            f" {lost[:, 1, REGRESSED].mean() / metrics:.1%} |"
            f" {lost[:, 1, GREEN].mean() / metrics:.1%} |"
        )


if __name__ == "__main__":
    print(HEAD)
    print("| --- " * HEAD.count(" | ") + "| --- |")
    for row in source_rows(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]):
        print(row, flush=True)
