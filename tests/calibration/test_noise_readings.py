"""What docs/gpu.md reads from the devices' power: computed again from the energy that every recorded round holds."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import correlation, fmean, median
from typing import Any, Final

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FIRST_K3: Final = "h200-k3-[123]-2026-11-29.json"
FIRST_K2: Final = "superseded/h200-k2-[23]-2026-11-29.json"  # of what is called h200-k2-small now
ROWS: Final = (
    (FIRST_K3, ("default", "prefix_caching_on"), 10),
    (FIRST_K3, ("fp8_weights",), 4),
    (FIRST_K3, ("batched_tokens_down",), 3),
    (FIRST_K2, ("default", "batched_tokens_16k", "prefix_caching_on", "block_size_64"), 18),
    (FIRST_K2, ("batched_tokens_down",), 4),
)


@cache
def valid_rounds(pattern: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Config and valid rounds of every session of the files."""
    return [
        (cell["config"], [entry["values"] for entry in session["rounds"] if not entry["invalid_reasons"]])
        for path in sorted((REPOSITORY / "perf_tests" / "recordings").glob(pattern))
        for cell in json.loads(path.read_text())["cells"]
        for session in cell["sessions"]
    ]


def duration(values: dict[str, Any]) -> float:
    """In proportion to the round's, since every round makes as many tokens."""
    return float(1 / values["output_tokens_per_s"]["value"])


def power_w(values: dict[str, Any]) -> float:
    return float(values["energy_per_output_token_j"]["value"] * values["output_tokens_per_s"]["value"])


def over_sessions(pattern: str, configs: tuple[str, ...], sessions: int) -> float:
    chosen = [rounds for config, rounds in valid_rounds(pattern) if config in configs]
    assert len(chosen) == sessions
    return correlation([fmean(map(duration, rounds)) for rounds in chosen], [fmean(map(power_w, rounds)) for rounds in chosen])


def page() -> str:
    return " ".join((REPOSITORY / "docs" / "gpu.md").read_text().split())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][0])
def test_a_slow_session_draws_less_power(row: tuple[str, tuple[str, ...], int]) -> None:
    assert over_sessions(*row) < -0.8


def test_the_page_has_the_figures_of_the_recordings() -> None:
    told = ", ".join(f"{over_sessions(*row):.2f}" for row in ROWS)
    assert f"row by row {told}." in page()


def test_rounds_of_the_small_proxy_wait_too() -> None:
    ((_, rounds),) = valid_rounds("h200-k3-small-2026-11-29.json")
    power = [power_w(values) for values in rounds]
    told = f"{correlation([duration(values) for values in rounds], power):.2f} over its {len(rounds)} rounds, at {min(power):.0f} to {max(power):.0f} W"
    assert told in page()


def test_rounds_beside_busy_neighbours_are_slower() -> None:
    """Rounds that the first limit of others' processor use refused, against the median of their sessions' valid rounds."""
    found: list[tuple[float, float, float]] = []
    for path in (REPOSITORY / "perf_tests" / "recordings").rglob("h200-*-2026-11-29.json"):
        for cell in json.loads(path.read_text())["cells"]:
            for session in cell["sessions"] if cell["workload"] == "serve_1k" else ():
                valid = [entry["values"] for entry in session["rounds"] if not entry["invalid_reasons"]]
                for entry in session["rounds"]:
                    for reason in entry["invalid_reasons"]:
                        if reason["rule"] == "foreign_cpu_ratio" and reason["limit"] == 0.1:
                            change = [
                                100 * (entry["values"][name]["value"] / median(values[name]["value"] for values in valid) - 1)
                                for name in ("output_tokens_per_s", "tpot_mean_ms")
                            ]
                            found.append((reason["reading"], *change))
    rates, times = fmean(rate for _, rate, _ in found), fmean(time for _, _, time in found)
    assert f"the {len(found)} rounds of `serve_1k`" in page()
    assert f"{100 * min(found)[0]:.0f} to {100 * max(found)[0]:.0f} %, {-rates:.1f} % less throughput and {times:.1f} % more TPOT" in page()
    assert f"{-max(found)[1]:.1f} % less and {max(found)[2]:.1f} % more" in page()
