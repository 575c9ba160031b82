"""How long a run still takes: from records, corrected by what the run took, and never a
number that nothing supports.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from k3perf.ci.costs import RecordedCosts
from k3perf.config.suite import load_suite
from k3perf.run.progress import RoundDone, Step
from k3perf.run.time_left import TimeLeft, duration_text, planned_steps, recorded_costs


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


ROUND = RoundDone("a", "candidate", 1, 0, 0, 4, 2)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def left_of(clock: Clock, *expected_s: float | None) -> TimeLeft:
    return TimeLeft(
        [Step(name, seconds) for name, seconds in zip("abc", expected_s, strict=False)], clock
    )


def test_recorded_seconds_count_down(clock):
    left = left_of(clock, 60.0, 30.0)
    assert left.seconds() == 90.0
    left.start("a")
    clock.now_s = 20.0
    assert left.seconds() == 70.0
    assert (left.number, left.count) == (1, 2)


def test_what_is_not_recorded_is_unknown_until_one_like_it_was_measured(clock):
    left = left_of(clock, None, None)
    assert left.seconds() is None
    left.start("a")
    clock.now_s = 40.0
    assert left.seconds() is None
    left.finish(measured=True)
    assert left.seconds() == 40.0


def test_a_machine_that_is_slower_than_recorded_slows_what_is_left(clock):
    left = left_of(clock, 10.0, 30.0)
    left.start("a")
    clock.now_s = 20.0
    left.finish(measured=True)
    assert left.seconds() == 60.0


def test_a_step_that_was_not_measured_says_nothing_about_the_pace(clock):
    left = left_of(clock, 10.0, 30.0)
    left.start("a")
    clock.now_s = 0.1
    left.finish(measured=False)
    assert left.seconds() == 30.0


def test_a_step_that_takes_longer_than_recorded_has_no_time_left_rather_than_none(clock):
    left = left_of(clock, 10.0)
    left.start("a")
    clock.now_s = 11.0
    assert left.seconds() is None


def test_rounds_that_are_still_wanted_take_as_long_as_those_before(clock):
    left = left_of(clock, None)
    left.start("a")
    clock.now_s = 5.0
    left.round(ROUND)  # warm-up
    for number in (1, 2):
        clock.now_s += 3.0
        left.round(replace(ROUND, number=number, valid_count=1))
    assert left.seconds() == 3 * 2 * 3.0  # three more pairs of two rounds
    left.want(0, 5)
    left.round(replace(ROUND, number=3, valid_count=4, wanted_count=6))
    # three rounds in six seconds now
    assert left.seconds() == pytest.approx(2 * 2 * 2.0)


def test_sessions_that_were_bought_are_counted(clock):
    left = left_of(clock, 30.0)
    left.start("a")
    clock.now_s = 25.0
    left.want(3, 0)
    assert left.seconds() == 65.0


def test_steps_of_the_shipped_suite(repository):
    suite = load_suite(repository / "perf_tests")
    cells = [
        cell for cell in suite.cells(("cpu-hybrid",)) if cell.config.name in ("default", "fp8_kv")
    ]
    settings = SimpleNamespace(suite=suite, record=False, record_sessions=None)
    steps = planned_steps(cells, settings)
    assert [step.cell for step in steps] == [cell.cell_id for cell in cells]
    assert all(step.expected_s is not None and step.expected_s > 10 for step in steps)
    recording = planned_steps(cells, SimpleNamespace(suite=suite, record=True, record_sessions=2))
    assert len(recording) == 2 * len(cells)
    assert all(step.expected_s is not None for step in recording)


@pytest.mark.parametrize("content", [None, "{", '{"session_s": {"a": -1}}'])
def test_a_record_that_cannot_be_read_is_no_estimate_and_no_error(tmp_path, content):
    if content is not None:
        (tmp_path / "costs.json").write_text(content)
    assert recorded_costs(tmp_path) == RecordedCosts()


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (0.4, "5 s"),
        (41, "40 s"),
        (89, "90 s"),
        (170, "3 min"),
        (5399, "1 h 30 min"),
        (4800, "80 min"),
        (7260, "2 h 1 min"),
    ],
)
def test_durations_are_rough(duration_s, text):
    assert duration_text(duration_s) == text
