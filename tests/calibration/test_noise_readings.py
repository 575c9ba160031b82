"""What docs/studies/2026-11-30-h200.md says of the noise, computed again from the energy
that every recorded round holds, and from the readings of later ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from statistics import correlation, fmean, median, pstdev
from typing import Any, Final

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
FIRST_K3: Final = "h200-k3-[123]-2026-11-29.json"
# of what is called h200-k2-small now
FIRST_K2: Final = "superseded/h200-k2-[23]-2026-11-29.json"
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
        (
            cell["config"],
            [entry["values"] for entry in session["rounds"] if not entry["invalid_reasons"]],
        )
        for path in sorted((REPOSITORY / "perf_tests" / "recordings").glob(pattern))
        for cell in json.loads(path.read_text())["cells"]
        for session in cell["sessions"]
    ]


def duration(values: dict[str, Any]) -> float:
    """In proportion to the round's, since every round makes as many tokens."""
    return float(1 / values["output_tokens_per_s"]["value"])


def power_w(values: dict[str, Any]) -> float:
    return float(
        values["energy_per_output_token_j"]["value"] * values["output_tokens_per_s"]["value"]
    )


def over_sessions(pattern: str, configs: tuple[str, ...], sessions: int) -> float:
    chosen = [rounds for config, rounds in valid_rounds(pattern) if config in configs]
    assert len(chosen) == sessions
    return correlation(
        [fmean(map(duration, rounds)) for rounds in chosen],
        [fmean(map(power_w, rounds)) for rounds in chosen],
    )


def page() -> str:
    return " ".join((REPOSITORY / "docs" / "studies" / "2026-11-30-h200.md").read_text().split())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1][0])
def test_a_slow_session_draws_less_power(row: tuple[str, tuple[str, ...], int]) -> None:
    assert over_sessions(*row) < -0.8


def test_the_page_has_the_figures_of_the_recordings() -> None:
    told = ", ".join(f"{over_sessions(*row):.2f}" for row in ROWS)
    assert f"row by row {told}." in page()


def test_rounds_of_the_small_proxy_wait_too() -> None:
    ((_, rounds),) = valid_rounds("h200-k3-small-2026-11-29.json")
    power = [power_w(values) for values in rounds]
    told = (
        f"{correlation([duration(values) for values in rounds], power):.2f} over its {len(rounds)}"
        f" rounds, at {min(power):.0f} to {max(power):.0f} W"
    )
    assert told in page()


def test_rounds_beside_busy_neighbours_are_slower() -> None:
    """Rounds that the first limit of others' processor use refused, against the median
    of their sessions' valid rounds.
    """
    found: list[tuple[float, float, float]] = []
    for path in (REPOSITORY / "perf_tests" / "recordings").rglob("h200-*-2026-11-29.json"):
        for cell in json.loads(path.read_text())["cells"]:
            for session in cell["sessions"] if cell["workload"] == "serve_1k" else ():
                valid = [
                    entry["values"] for entry in session["rounds"] if not entry["invalid_reasons"]
                ]
                for entry in session["rounds"]:
                    for reason in entry["invalid_reasons"]:
                        if reason["rule"] == "foreign_cpu_ratio" and reason["limit"] == 0.1:
                            change = [
                                100
                                * (
                                    entry["values"][name]["value"]
                                    / median(values[name]["value"] for values in valid)
                                    - 1
                                )
                                for name in ("output_tokens_per_s", "tpot_mean_ms")
                            ]
                            found.append((reason["reading"], *change))
    rates, times = fmean(rate for _, rate, _ in found), fmean(time for _, _, time in found)
    assert f"the {len(found)} rounds of `serve_1k`" in page()
    assert (
        f"{100 * min(found)[0]:.0f} to {100 * max(found)[0]:.0f} %, {-rates:.1f} % less throughput"
        f" and {times:.1f} % more TPOT" in page()
    )
    assert f"{-max(found)[1]:.1f} % less and {max(found)[2]:.1f} % more" in page()


def told_rounds(pattern: str = "h200*.json") -> list[tuple[tuple[str, str], list[dict[str, Any]]]]:
    """Target and config, and the valid rounds of `serve_1k` with their readings, of
    every recorded session that has both.
    """
    return [
        ((cell["target"], cell["config"]), rounds)
        for path in sorted((REPOSITORY / "perf_tests" / "recordings").glob(pattern))
        for cell in json.loads(path.read_text())["cells"]
        for session in cell["sessions"]
        if cell["workload"] == "serve_1k"
        and len(
            rounds := [
                entry
                for entry in session["rounds"]
                if not entry["invalid_reasons"] and entry.get("readings")
            ]
        )
        >= 4
    ]


def reading(entry: dict[str, Any], name: str) -> float:
    return fmean(item["value"] for item in entry["readings"] if item["name"] == name)


def test_others_use_of_the_processors_does_not_matter_up_to_the_limit() -> None:
    sessions = told_rounds()
    longer: dict[str, list[float]] = {
        "less than 3 %": [],
        "3 to 6 %": [],
        "6 to 10 %": [],
        "more": [],
    }
    highest = 0.0
    for _, rounds in sessions:
        usual = median(entry["duration_s"] for entry in rounds)
        for entry in rounds:
            used = reading(entry, "foreign_cpu_ratio")
            highest = max(highest, used)
            name = (
                "less than 3 %"
                if used < 0.03
                else "3 to 6 %"
                if used < 0.06
                else "6 to 10 %"
                if used < 0.1
                else "more"
            )
            longer[name].append(100 * (entry["duration_s"] / usual - 1))
    shares = [f"{fmean(values):.1f} %" for values in longer.values()]
    assert f"up to {100 * highest:.1f} % of 32 CPUs" in page()
    assert f"({sum(map(len, longer.values()))} in {len(sessions)} sessions)" in page()
    assert (
        f"less than 3 % took {shares[0]} longer than their session's median. Those with 3 to 6 %"
        f" took {shares[1]}," in page()
    )
    assert f"with 6 to 10 % {shares[2]}, with more {shares[3]}." in page()


def test_what_the_gpu_bound_k2_proxy_waits_for() -> None:
    """Relative to the mean of the config, so that configs of different speed can be
    taken together.
    """
    by_config: dict[str, list[list[dict[str, Any]]]] = {}
    for (target, config), rounds in told_rounds("h200-k2-[4567]-2026-11-30.json"):
        if target == "h200-k2" and config != "seqs_down":
            by_config.setdefault(config, []).append(rounds)

    def relative(
        value: Callable[[dict[str, Any]], float], take: Callable[[Iterable[float]], float] = fmean
    ) -> list[float]:
        found = []
        for sessions in by_config.values():
            own = [take(map(value, rounds)) for rounds in sessions]
            found += [one / fmean(own) for one in own]
        return found

    lasted = relative(lambda entry: float(entry["duration_s"]), median)
    with_power, with_server, with_clock, with_others = (
        correlation(lasted, relative(partial(reading, name=name)))
        for name in ("power_mean_w", "server_cpu_s", "sm_clock_mean_mhz", "foreign_cpu_ratio")
    )
    assert (
        f"The {len(lasted)} sessions of `h200-k2` with 64 requests in flight vary by"
        f" {100 * pstdev(lasted):.1f} % in duration" in page()
    )
    assert (
        f"power by {with_power:.2f}, with the API server's CPU time by {with_server:+.2f}, with the"
        f" mean SM clock by {with_clock:.2f}" in page()
    )
    assert "and with others' CPU use not at all" in page()
    assert abs(with_others) < 0.05
