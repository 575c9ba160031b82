"""Every number of every committed baseline is recomputed from the raw recordings, with
arithmetic of its own.

The digest of a baseline file says that nobody edited it; these tests say that its
numbers were measured. They read JSON, and share neither reader nor formula with
``k3perf.baselines.propose``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
BASELINES = sorted((REPOSITORY / "baselines").glob("*/*.json"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in BASELINES]
NEEDED_SESSIONS = {
    "default": 6
}  # of the targets whose numbers a pull request on a GPU runner is held against
NEEDED_SESSIONS_OF_OTHERS = 4
JUDGED_TARGETS = ("h200-k3", "h200-k2")
STORED_DIGITS = 9
WORST_OF_EXACT: Final = {
    "weights_bytes": max,
    "kv_cache_bytes": max,
    "kv_capacity_tokens": min,
    "peak_activation_bytes": max,
    "non_torch_bytes": max,
    "peak_allocated_bytes": max,
    "engine_peak_rss_bytes": max,
}


def worst_of_exact(metric: str) -> Any:
    """Of several sessions' values of an exact metric the one that a baseline keeps."""
    if metric.startswith("quality_"):
        good = ("quality_top1", "quality_decode_top1", "quality_greedy", "quality_needle")
        return min if metric.startswith(good) else max
    return WORST_OF_EXACT[metric]


@dataclass(frozen=True)
class Recorded:
    """One recorded session of a cell, with what its file and its cell say of it."""

    session: dict[str, Any]
    cell: dict[str, Any]
    document: dict[str, Any]


@cache
def recorded() -> dict[tuple[str, str], tuple[Recorded, ...]]:
    """By target and config. The gate's own runs (``checks/``) stop when they are
    decided and are no source of a baseline.
    """
    found: dict[tuple[str, str], tuple[Recorded, ...]] = {}
    for path in sorted((REPOSITORY / "perf_tests" / "recordings").glob("*.json")):
        document = json.loads(path.read_text())
        for cell in document["cells"]:
            sessions = tuple(Recorded(session, cell, document) for session in cell["sessions"])
            key = (cell["target"], cell["config"])
            found[key] = found.get(key, ()) + sessions
    return found


def lock(resolved: dict[str, Any]) -> dict[str, Any]:
    """Without what recordings and baselines from before 2026-12 have in it of the
    machine: it decides nothing.
    """
    return {
        key: value
        for key, value in resolved.items()
        if key not in ("version.python", "version.driver")
    }


def environment(session: dict[str, Any]) -> dict[str, str]:
    """What the recording says of the session's machine; older ones say two things of
    it, among the configuration.
    """
    old = {name: session["resolved_config"].get(f"version.{name}") for name in ("python", "driver")}
    return session.get("environment") or {
        name: value for name, value in old.items() if value is not None
    }


def digits(value: float) -> float:
    return float(f"{value:.{STORED_DIGITS}g}")


def one(of: Iterable[Recorded], session_id: str, workload: str | None = None) -> Recorded:
    """Session ids are those of a cell: an engine that served two workloads has two of
    them.
    """
    (found,) = [
        r
        for r in of
        if r.session["session_id"] == session_id and workload in (None, r.cell["workload"])
    ]
    return found


def rounds(session: dict[str, Any], metric: str) -> dict[int, float]:
    """Values of the valid rounds by the index of their pair."""
    kept = [entry for entry in session["rounds"] if not entry["invalid_reasons"]]
    return {entry["pair_index"]: entry["values"][metric]["value"] for entry in kept}


def measured_rounds(source: Recorded, metric: str, basis: str) -> list[float]:
    """Rounds of a candidate session; as ratios, over the round of the same pair in the
    reference session of the same pair.
    """
    own = rounds(source.session, metric)
    if basis == "absolute":
        return list(own.values())
    assert basis == "ratio"
    pair = source.session["pair_id"]
    (other,) = [
        s for s in source.cell["sessions"] if s["arm"] == "reference" and s["pair_id"] == pair
    ]
    reference = rounds(other, metric)
    return [value / reference[index] for index, value in own.items() if index in reference]


def geometric_median(values: Iterable[float]) -> float:
    return math.exp(median(math.log(value) for value in values))


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))


def entries(baseline: dict[str, Any]) -> list[tuple[str | None, dict[str, Any]]]:
    """Workload (None: settled when the engine starts) and metric."""
    return [(None, entry) for entry in baseline["exact"]] + [
        (workload["workload"], entry)
        for workload in baseline["workloads"]
        for entry in workload["metrics"]
    ]


@pytest.fixture
def baseline(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(json.loads(request.param.read_text()))


@pytest.fixture
def sources(baseline: dict[str, Any]) -> tuple[Recorded, ...]:
    return recorded()[baseline["target"], baseline["config"]]


every_baseline = pytest.mark.parametrize("baseline", BASELINES, ids=NAMES, indirect=True)


def test_there_are_baselines_and_recordings() -> None:
    assert {path.parent.name for path in BASELINES} >= set(JUDGED_TARGETS)
    assert len(recorded()) > len(JUDGED_TARGETS)


@every_baseline
def test_every_value_is_a_recorded_one(
    baseline: dict[str, Any], sources: tuple[Recorded, ...]
) -> None:
    for workload, entry in entries(baseline):
        metric = entry["metric"]
        for stored in entry["sessions"]:
            source = one(sources, stored["session_id"], workload)
            assert source.session["arm"] == "candidate"
            assert not source.session["invalid_reasons"]
            if metric in source.session["values"]:
                assert stored == {
                    **stored,
                    "value": source.session["values"][metric]["value"],
                    "round_values": [],
                }, metric
                continue
            values = measured_rounds(source, metric, entry["basis"])
            assert stored["round_values"] == [digits(value) for value in values], metric
            assert stored["value"] == digits(geometric_median(values)), metric


@every_baseline
def test_every_anchor_is_that_of_recorded_sessions(
    baseline: dict[str, Any], sources: tuple[Recorded, ...]
) -> None:
    """An anchor is the value of an earlier acceptance, or of a better one since: of all
    sessions of some of the runs that are named.
    """
    runs = baseline["acceptance"]["run_ids"]
    for workload, entry in entries(baseline):
        by_run: dict[str, list[float]] = {run: [] for run in runs}
        for stored in entry["sessions"]:
            by_run[one(sources, stored["session_id"], workload).document["run_id"]].append(
                stored["value"]
            )
        typical = (
            geometric_mean
            if entry["sessions"][0]["round_values"]
            else worst_of_exact(entry["metric"])
        )
        some = [chosen for size in range(1, len(runs) + 1) for chosen in combinations(runs, size)]
        possible = [typical([value for run in chosen for value in by_run[run]]) for chosen in some]
        assert any(
            math.isclose(entry["anchor_value"], value, rel_tol=1e-12) for value in possible
        ), (workload, entry["metric"])


@every_baseline
def test_provenance_is_that_of_the_recordings(
    baseline: dict[str, Any], sources: tuple[Recorded, ...]
) -> None:
    used = [
        (workload, one(sources, s["session_id"], workload))
        for workload, entry in entries(baseline)
        for s in entry["sessions"]
    ]
    assert {source.document["run_id"] for _, source in used} == set(
        baseline["acceptance"]["run_ids"]
    )
    assert {source.document["commit"] for _, source in used} == set(
        baseline["acceptance"]["commit"].split(", ")
    )
    assert not any(source.document.get("injected") for _, source in used)
    digest = {workload["workload"]: workload["plan_digest"] for workload in baseline["workloads"]}
    for workload, source in used:
        assert lock(source.session["resolved_config"]) == lock(baseline["resolved_config"])
        assert source.cell["hardware_class"] == baseline["hardware_class"]
        assert {**source.document["identity"], **baseline["versions"]} == source.document[
            "identity"
        ]
        assert workload is None or source.cell["plan_digest"] == digest[workload]


@every_baseline
def test_environments_are_those_of_the_recordings(
    baseline: dict[str, Any], sources: tuple[Recorded, ...]
) -> None:
    """Of each session that the baseline holds. Files from before environments were kept
    tell one of all sessions.
    """
    written = {
        name: part["values"]
        for part in baseline.get("environments", ())
        for name in part["session_ids"]
    }
    one_of_all = None if "environments" in baseline else environment(baseline)
    for workload, entry in entries(baseline):
        for stored in entry["sessions"]:
            source = one(sources, stored["session_id"], workload)
            recorded_values = environment(source.session)
            known = written[stored["session_id"]] if one_of_all is None else one_of_all
            assert known == (
                recorded_values
                if one_of_all is None
                else {name: recorded_values[name] for name in one_of_all}
            )


@every_baseline
def test_no_recorded_session_was_left_out(
    baseline: dict[str, Any], sources: tuple[Recorded, ...]
) -> None:
    """A baseline of the sessions that somebody liked would be a recorded one too: of
    the runs that it names, all valid sessions count.
    """
    runs = baseline["acceptance"]["run_ids"]
    mine = [
        r
        for r in sources
        if r.document["run_id"] in runs
        and r.session["arm"] == "candidate"
        and not r.session["invalid_reasons"]
    ]
    for workload, entry in entries(baseline):
        expected = {r.session["session_id"] for r in mine if workload in (None, r.cell["workload"])}
        assert {stored["session_id"] for stored in entry["sessions"]} == expected, (
            workload,
            entry["metric"],
        )


@pytest.mark.parametrize(
    "baseline",
    [path for path in BASELINES if path.parent.name in JUDGED_TARGETS],
    ids=lambda path: path.stem,
    indirect=True,
)
def test_one_gpu_baselines_rest_on_enough_sessions(baseline: dict[str, Any]) -> None:
    needed = NEEDED_SESSIONS.get(baseline["config"], NEEDED_SESSIONS_OF_OTHERS)
    assert all(len(entry["sessions"]) >= needed for _, entry in entries(baseline))
