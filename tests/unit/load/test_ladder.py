"""Levels of load, one after the other, without a server."""

from __future__ import annotations

import pytest

from k3perf.load.client_count import client_process_count, expected_tokens_per_s, streams_at_once
from k3perf.load.ladder import best_level, climb, doubling
from k3perf.workload.request_plan import expand
from tests.unit.workload.specs import small_spec


def test_levels_are_run_once_each_from_the_lowest_up():
    climbed = climb([4, 1, 2, 4], lambda level, position: (level, position))
    assert climbed.results == ((1, 0), (2, 1), (4, 2))
    assert not climbed.stopped


def test_a_climb_stops_after_the_first_result_that_is_enough():
    climbed = climb([1, 2, 4, 8], lambda level, _: level, enough=lambda level: level >= 2)
    assert (climbed.results, climbed.stopped) == ((1, 2), True)
    assert not climb([1], lambda level, _: level, enough=lambda _: True).stopped


def test_an_exception_of_a_level_ends_the_climb():
    with pytest.raises(ZeroDivisionError):
        climb([0, 1], lambda level, _: 1 / level)


def test_the_best_level_is_the_one_of_highest_worth_that_passes():
    results = [(1, 10), (2, 30), (4, 20), (8, 90)]
    best = best_level(results, passes=lambda seen: seen[0] < 8, worth=lambda seen: seen[1])
    assert best == (2, 30)
    assert best_level(results, passes=lambda _: False, worth=lambda seen: seen[1]) is None


@pytest.mark.parametrize(
    ("bounds", "levels"), [((1, 8), (1, 2, 4, 8)), ((3, 10), (3, 6, 10)), ((5, 5), (5,))]
)
def test_levels_double_and_end_at_the_highest(bounds, levels):
    assert doubling(*bounds) == levels


def plan(**spec):
    return expand(small_spec(**spec), vocabulary_size=4096)


def test_auto_follows_streams_and_rate_and_leaves_a_cpu(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(32)))
    closed = plan(requests=2048, arrival={"kind": "closed_loop", "concurrency": 1024})
    assert client_process_count(closed, "auto") == 2
    burst = plan(requests=2000, arrival={"kind": "all_at_once"})
    assert (streams_at_once(burst), client_process_count(burst, "auto")) == (2000, 4)
    fast = plan(
        requests=400,
        arrival={"kind": "constant", "rate_per_s": 400},
        output_tokens={"kind": "fixed", "tokens": 100},
    )
    assert 39_000 < expected_tokens_per_s(fast) < 41_000
    assert client_process_count(fast, "auto") == 3
    assert client_process_count(plan(), "auto") == 1
    assert client_process_count(plan(), 5) == 5
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    assert client_process_count(burst, "auto") == 1
