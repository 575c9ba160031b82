"""Every measurement ends: rounds may stay invalid for ever and spread as they like,
with the gate's own verdicts and the runner's own loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.gate.conftest import RATE, SPREAD, Build

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.compare import compare
from k3perf.records.measurement import CellMeasurement
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm
from k3perf.records.verdict import CellVerdict
from k3perf.run.cell_measurement import CellRun
from k3perf.run.progress import Progress

build = Build()
X = None
STEADY, LOST = (0.0,), (0.2,)
WILD = (0.0, 0.3, -0.3) * 4
ENOUGH = 400


class Endless(Exception):
    """More rounds, or more questions to the gate, than any plan of these tests can
    need.
    """


class MadeUp:
    """Stands for a RoundRunner. Rounds come from rows of relative losses (None: the
    round is invalid), one row a session; the last value of a row goes on for ever.
    """

    def __init__(self, rows: Sequence[Sequence[float | None]]) -> None:
        self.rows = rows
        self.sessions_count = 0
        self.rounds_measured = 0

    def open(self, live: Any, pair_id: str | None) -> Any:
        self.sessions_count += 1
        number = self.sessions_count - 1
        row = self.rows[number % len(self.rows)]
        return SimpleNamespace(live=live, rounds=[], session_id=f"s{number}", row=row)

    def measure(self, log: Any, place: Any) -> Any:
        self.rounds_measured += 1
        if self.rounds_measured > ENOUGH:
            raise Endless
        index = len(log.rounds)
        loss = log.row[min(index, len(log.row) - 1)]
        made = SimpleNamespace(
            kind=place.kind,
            valid=loss is not None,
            pair_index=place.pair_index,
            loss=loss,
            index=index,
            invalid_reasons=(),
        )
        log.rounds.append(made)
        return made

    def record(self, log: Any) -> Any:
        return log

    def metrics(self, record: Any) -> Any:
        rounds = [
            build.round(
                r.index,
                {RATE: 1000.0 * (1 - (r.loss or 0.0)) * (1 + SPREAD[r.index % 12])},
                invalid=not r.valid,
            )
            for r in record.rounds
        ]
        session = build.session(record.session_id, rounds)
        return (
            session
            if any(r.valid for r in record.rounds)
            else replace(session, invalid_reasons=(build.reason,))
        )

    def reset_peaks(self, log: Any) -> None:
        pass

    def end(self, record: Any) -> None:
        pass

    def wait_for_quiet(self) -> None:
        pass


class Gate:
    """Stands for a GateKeeper: the real gate, with a limit of questions."""

    def __init__(self, plan: MeasurementPlan, tolerance: float) -> None:
        self.policy = build.policy(plan=plan, tolerances={RATE: Tolerance(loss_ratio=tolerance)})
        self.baseline = build.baseline(policy=self.policy)
        self.asked = 0

    def judge(self, cell: Any, measurement: CellMeasurement) -> CellVerdict:
        self.asked += 1
        if self.asked > ENOUGH:
            raise Endless
        return compare(self.baseline, build.cell(measurement.sessions), self.policy)


def run(
    plan: MeasurementPlan, rows: Sequence[Sequence[float | None]], tolerance: float = 0.05
) -> tuple[CellRun, CellVerdict]:
    named = SimpleNamespace(name="gpu", measurement=plan)
    cell: Any = SimpleNamespace(
        target=named, config=named, workload=named, cell_id="gpu-default-chat"
    )
    live = SimpleNamespace(arm=Arm.CANDIDATE, session_id="live", warmed_workloads=set())
    pool: Any = SimpleNamespace(acquire=lambda wanted: [live], stop_all=lambda: None)
    rounds: Any = MadeUp(rows)
    gate: Any = Gate(plan, tolerance)
    wanted: Any = ("the candidate",)
    made = CellRun(cell, build.cell([]), wanted, pool, rounds, gate, Progress())
    _, verdict = made.measure()
    return made, verdict


def plan(**changes: Any) -> MeasurementPlan:
    given: dict[str, Any] = {
        "mode": "baseline",
        "minimum_rounds": 4,
        "maximum_rounds": 6,
        "maximum_sessions": 3,
        "repeat_invalid_rounds": 1,
        "warm_up_rounds": 0,
    }
    return MeasurementPlan(**{**given, **changes})


def counts(made: CellRun) -> list[int]:
    return [
        sum(not measured.invalid_reasons for measured in session.rounds)
        for session in made.sessions
    ]


@pytest.mark.parametrize(
    ("rows", "valid_counts", "outcome"),
    [
        pytest.param(
            [(0.0, X)], [1, 1, 1], Outcome.INCONCLUSIVE, id="one-valid-round-and-never-another"
        ),
        pytest.param(
            [(0.0, X), STEADY],
            [1, 4],
            Outcome.PASS,
            id="the-next-session-stands-in-for-a-short-one",
        ),
        pytest.param([(0.2, X), LOST, LOST], [1, 4, 4], Outcome.REGRESSED, id="short-and-lost"),
        pytest.param(
            [(0.2, X), LOST, (0.2, X), (0.2, X), (0.2, X)],
            [1, 4, 1, 1, 1],
            Outcome.SUSPECT,
            id="one-session-is-no-regression",
        ),
        pytest.param(
            [(*WILD[:5], X), STEADY, STEADY],
            [5, 4, 4],
            Outcome.PASS,
            id="out-of-line-and-its-repeats-are-spent",
        ),
        pytest.param(
            [(*WILD[:5], X), STEADY, WILD],
            [5, 4, 6],
            Outcome.INVALID,
            id="two-of-three-out-of-line",
        ),
        pytest.param([WILD, WILD, STEADY], [6, 6], Outcome.INVALID, id="no-third-session-can-help"),
        pytest.param([STEADY, (0.0, X), STEADY], [4], Outcome.PASS, id="steady"),
    ],
)
def test_a_session_that_cannot_have_its_rounds_gives_way_to_the_next(
    rows: Sequence[Sequence[float | None]], valid_counts: list[int], outcome: Outcome
) -> None:
    made, verdict = run(plan(), rows)
    assert (counts(made), verdict.outcome) == (valid_counts, outcome)
    out_of_line = rows[0][:5] == WILD[:5]
    assert ("session s0 was " in verdict.metrics[0].reason) is out_of_line


@pytest.mark.parametrize(("most", "bought"), [(None, 5), (3, 3), (4, 4)])
def test_a_suspected_loss_buys_sessions_beyond_the_plan(most: int | None, bought: int) -> None:
    """Sessions that lose 6 and 3 % in turn: 5 % of tolerance is neither kept nor proven
    to be exceeded.
    """
    doubtful = [[0.08], [0.03], [0.06], [0.035], [0.07]]
    made, verdict = run(plan(maximum_suspect_sessions=most), doubtful)
    assert (verdict.outcome, len(made.sessions)) == (Outcome.SUSPECT, bought)
    reason = verdict.metrics[0].reason
    assert reason.startswith("worse 5."), reason
    assert "tolerance 5.0%, not proven" in reason
    assert "raise maximum_suspect_sessions in the target's plan" in reason


def test_an_undecided_cell_inside_its_tolerance_buys_nothing_beyond_the_plan() -> None:
    made, verdict = run(plan(), [[0.046], [0.048], [0.047], [0.2], [0.2]])
    assert (verdict.outcome, len(made.sessions)) == (Outcome.INCONCLUSIVE, 3)


def test_the_first_of_two_least_sessions_gets_its_rounds_while_its_engine_runs() -> None:
    made, verdict = run(plan(minimum_sessions=2, maximum_sessions=4), [WILD, STEADY, STEADY])
    assert counts(made)[0] == 6
    assert (verdict.outcome, len(made.sessions)) == (Outcome.PASS, 3)


rows_of_any_kind = st.lists(
    st.lists(st.sampled_from([0.0, 0.0, 0.04, 0.2, 0.35, X]), min_size=1, max_size=9),
    min_size=4,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(
    rows_of_any_kind,
    st.sampled_from([(1, 1), (1, 3), (4, 4), (4, 6)]),
    st.integers(1, 2),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_every_measurement_ends_within_its_plan(
    rows: Sequence[Sequence[float | None]],
    rounds: tuple[int, int],
    fewest: int,
    further: int,
    repeats: int,
) -> None:
    limits = plan(
        minimum_rounds=rounds[0],
        maximum_rounds=rounds[1],
        minimum_sessions=fewest,
        maximum_sessions=fewest + further,
        repeat_invalid_rounds=repeats,
    )
    made, verdict = run(limits, rows)
    assert len(made.sessions) <= fewest + further + 2
    assert all(len(session.rounds) <= rounds[1] + repeats + 1 for session in made.sessions)
    if verdict.outcome is Outcome.REGRESSED:
        assert verdict.metrics[0].session_count > 1 or fewest + further == 1
