"""A recording says what its tolerances need, and goes on until they can be tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.cli.test_baseline_command import SUITE
from tests.unit.cli.test_baseline_command import cell as measured

from k3perf.baselines.accept import strictest_policy
from k3perf.baselines.need import ENOUGH_TO_GIVE_UP, need_of
from k3perf.baselines.propose import propose
from k3perf.baselines.testable import testable
from k3perf.config.suite import Cell, load_suite
from k3perf.pytest_plugin.options import VALUES
from k3perf.records.baseline import Acceptance, Baseline
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.run.recording_need import RecordingNeed
from k3perf.run.settings import RECORD_MINUTES

Sessions = dict[str, Sequence[SessionMetrics]]


class Recorded:
    """A recording of one config. ``notes``: what it said. Each session takes 60 s."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        spread: float,
        sessions: int | None = None,
        minutes: float = RECORD_MINUTES,
    ) -> None:
        self.suite = load_suite(SUITE)
        self.cell: Cell = next(
            one
            for one in self.suite.cells(("cpu-gqa",))
            if (one.config.name, one.workload.name) == ("fp8_kv", "chat")
        )
        self.spread = spread
        self.notes: list[str] = []
        self.now_s = 0.0
        parts: Any = SimpleNamespace(
            settings=SimpleNamespace(
                suite=self.suite,
                record=True,
                record_sessions=sessions,
                record_minutes=minutes,
                record_within_minutes=None,
                baselines_directory=tmp_path,
            ),
            cells=(self.cell,),
            progress=SimpleNamespace(note=self.notes.append),
            nothing=lambda cell: replace(measured("fp8_kv", 100.0, 1), sessions=()),
        )
        self.need = RecordingNeed(parts, clock=lambda: self.now_s)

    def of(self, count: int) -> CellMeasurement:
        return measured("fp8_kv", 100.0, count, self.spread)

    def record(self) -> int:
        """How many sessions it takes."""
        self.need.say_before()
        done = 0
        while done == 0 or self.need.goes_on(
            done, {self.cell.cell_id: self.of(done).sessions}, set()
        ):
            done += 1
            self.now_s += 60
            assert done < 40
        return done

    @property
    def text(self) -> str:
        return "\n".join(self.notes)

    def baseline(self, count: int) -> Baseline:
        policy = strictest_policy(self.suite, "cpu-gqa", ())
        stub = Acceptance(
            accepted_by="ann",
            reason="first numbers",
            accepted_at_utc="",
            commit="c0ffee",
            run_ids=("r",),
        )
        return propose([self.of(count)], versions={}, policy=policy, previous=None, acceptance=stub)


def test_it_says_what_is_not_known_before_the_first_session(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, spread=1.0)
    recorded.need.say_before()
    assert "cpu-gqa: no noise of these configs is recorded" in recorded.text
    assert "or 120 min are over (--k3-record-minutes)" in recorded.text


def test_it_goes_on_until_accept_would_take_the_tolerances(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, spread=2.0)
    count = recorded.record()
    assert count > recorded.cell.target.measurement.baseline_sessions
    assert "every tolerance can be tested" in recorded.text
    assert "after 2 sessions: cpu-gqa: at this noise the tolerances need" in recorded.text
    assert "; that takes about" in recorded.text
    enough, short = recorded.baseline(count), recorded.baseline(count - 1)
    for baseline, refused in ((enough, False), (short, True)):
        policy = strictest_policy(recorded.suite, "cpu-gqa", (baseline,))
        assert bool(testable(baseline, policy)) is refused


def test_it_stops_at_the_time_limit_and_says_how_to_go_on(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, spread=2.0, minutes=2.5)
    assert recorded.record() == 2
    assert "--k3-record-minutes 2.5; record again with more" in recorded.text


def test_a_given_number_of_sessions_is_exact(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, spread=2.0, sessions=2)
    assert recorded.record() == 2
    assert "without it, it would go on" in recorded.text


def test_noise_that_no_number_helps_against_ends_the_recording(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, spread=60.0)
    assert recorded.record() == ENOUGH_TO_GIVE_UP
    assert "no number of sessions up to 30 tests the tolerance of" in recorded.text
    assert "`k3perf baseline propose --only-testable` gates what this noise" in recorded.text


def test_before_a_recording_the_committed_noise_says_what_is_needed(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path, spread=2.0)
    count = recorded.record()
    need = need_of(recorded.suite, "cpu-gqa", (recorded.baseline(count),), {"fp8_kv"})
    assert need is not None
    assert need.recorded_count == count
    assert need.missing_count == 0
    assert 2 <= need.sessions_count <= count
    assert need_of(recorded.suite, "cpu-gqa", (recorded.baseline(count),), {"other"}) is None


def test_the_default_is_stated() -> None:
    assert f"(default: {RECORD_MINUTES:g};" in VALUES["--k3-record-minutes"][1]


@pytest.mark.parametrize("count", [1, 2])
def test_one_session_says_nothing_about_noise(tmp_path: Path, count: int) -> None:
    recorded = Recorded(tmp_path, spread=2.0)
    recorded.need.goes_on(count, {recorded.cell.cell_id: recorded.of(count).sessions}, set())
    assert bool(recorded.notes) is (count == 2)
