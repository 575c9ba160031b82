"""The table of estimators in docs/studies/2026-11-30-gate-on-h200.md, computed again from
the K3 proxy's recordings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, median, variance
from typing import Final

import numpy as np
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
METRICS: Final = {"output_tokens_per_s": -1, "tpot_mean_ms": 1, "ttft_mean_ms": 1}
ROUNDS: Final = 6
# bound by the host's launches and not gated; its noise says nothing of its siblings
APART: Final = "batched_tokens_down"

Series = Sequence[float]


def quantile(share: float) -> Callable[[Series], float]:
    return lambda losses: float(np.quantile(losses, share))


def middle_half(losses: Series) -> float:
    cut = len(losses) // 4
    return fmean(sorted(losses)[cut : len(losses) - cut])


LOCATIONS: Final[dict[str, Callable[[Series], float]]] = {
    "mean": fmean,
    "median": median,
    "mean of the middle half": middle_half,
    "lower quartile": quantile(0.25),
    "best of six": min,
    "upper quartile": quantile(0.75),
    "90th percentile": quantile(0.9),
}


@cache
def sessions() -> dict[str, list[list[dict[str, float]]]]:
    """By config: sessions of rounds of losses, that is logarithms of which the larger
    is the worse.
    """
    found: dict[str, list[list[dict[str, float]]]] = {}
    for path in sorted(
        (REPOSITORY / "perf_tests" / "recordings").glob("h200-k3-[1-4]-2026-11-29.json")
    ):
        for cell in json.loads(path.read_text())["cells"]:
            for session in cell["sessions"]:
                valid = [
                    entry["values"] for entry in session["rounds"] if not entry["invalid_reasons"]
                ][:ROUNDS]
                losses = [
                    {name: sign * math.log(values[name]["value"]) for name, sign in METRICS.items()}
                    for values in valid
                ]
                found.setdefault(cell["config"], []).append(losses)
    found.pop(APART)
    return found


def pooled_deviation(metric: str, location: Callable[[Series], float]) -> float:
    """Standard deviation between sessions of one config, pooled over configs."""
    values = [
        [location([entry[metric] for entry in rounds]) for rounds in of_config]
        for of_config in sessions().values()
    ]
    degrees = sum(len(of_config) - 1 for of_config in values)
    return math.sqrt(
        sum(variance(of_config) * (len(of_config) - 1) for of_config in values) / degrees
    )


def documented() -> dict[str, list[str]]:
    lines = (
        (REPOSITORY / "docs" / "studies" / "2026-11-30-gate-on-h200.md").read_text().splitlines()
    )
    rows = (
        [part.strip() for part in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ")
    )
    return {row[0]: row[1:] for row in rows if row[0] in LOCATIONS and len(row) == 1 + len(METRICS)}


@pytest.mark.parametrize("name", LOCATIONS)
def test_the_table_is_what_the_recordings_say(name: str) -> None:
    assert documented()[name] == [
        f"{100 * pooled_deviation(metric, LOCATIONS[name]):.2f} %" for metric in METRICS
    ]
