"""When the reading loop rests: only under load, never past the next due time, and not
for long.
"""

from __future__ import annotations

import pytest

from k3perf.load import gathering
from k3perf.load.gathering import BUSY_READS_PER_S, REST_NS, Gatherer
from k3perf.units import NS_PER_MS, NS_PER_S

FAR_OFF_NS = 1 << 62


class Scene:
    """A clock that moves only during rests, and a loop that runs its callbacks at the
    end of each turn.
    """

    def __init__(self, monkeypatch):
        self.now_ns = 5 * NS_PER_S
        self.due_ns = FAR_OFF_NS
        self.rests_ns = []
        self.soon = []
        monkeypatch.setattr(gathering.time, "sleep", self.sleep)
        self.gatherer = Gatherer(self, lambda: self.now_ns, lambda: self.due_ns)

    def call_soon(self, callback):
        self.soon.append(callback)

    def sleep(self, duration_s):
        self.rests_ns.append(round(duration_s * NS_PER_S))
        self.now_ns += self.rests_ns[-1]

    def turn(self, *, reads, gap_ns):
        """``gap_ns`` later, this many reads of ready sockets, then the callbacks."""
        self.now_ns += gap_ns
        for _ in range(reads):
            self.gatherer.read_count += 1
            if self.gatherer.looks:
                self.gatherer.look(self.now_ns)
        callbacks, self.soon = self.soon, []
        for callback in callbacks:
            callback()

    def load(self, reads_per_s, duration_ns=30 * NS_PER_MS):
        """Evenly spread arrivals. Those during a rest are read together after it."""
        end_ns = self.now_ns + duration_ns
        gap_ns = NS_PER_S // reads_per_s
        gathered = 0
        while self.now_ns < end_ns:
            before_ns = self.now_ns + gap_ns
            self.turn(reads=1 + gathered, gap_ns=gap_ns)
            gathered = (self.now_ns - before_ns) // gap_ns


@pytest.fixture
def scene(monkeypatch):
    return Scene(monkeypatch)


def test_a_low_rate_never_rests(scene):
    scene.load(BUSY_READS_PER_S - 100, duration_ns=NS_PER_S)
    assert scene.rests_ns == []


def test_a_high_rate_rests_once_after_each_turn(scene):
    scene.load(2 * BUSY_READS_PER_S)
    scene.rests_ns.clear()
    scene.turn(reads=40, gap_ns=0)
    scene.turn(reads=40, gap_ns=0)
    assert scene.rests_ns == [REST_NS, REST_NS]


def test_rests_end_with_the_load(scene):
    scene.load(2 * BUSY_READS_PER_S)
    assert scene.rests_ns
    scene.turn(reads=1, gap_ns=NS_PER_S)
    scene.turn(reads=1, gap_ns=NS_PER_MS)
    scene.rests_ns.clear()
    scene.load(BUSY_READS_PER_S // 2)
    assert scene.rests_ns == []


@pytest.mark.parametrize(
    ("due_in_ns", "rests"), [(220_000, [120_000]), (149_999, []), (0, []), (-1, [])]
)
def test_a_rest_ends_before_the_next_send(scene, due_in_ns, rests):
    scene.load(2 * BUSY_READS_PER_S)
    scene.rests_ns.clear()
    scene.due_ns = scene.now_ns + due_in_ns
    scene.turn(reads=3, gap_ns=0)
    assert scene.rests_ns == rests
    scene.due_ns = FAR_OFF_NS
    scene.turn(reads=1, gap_ns=0)
    assert scene.rests_ns == [*rests, REST_NS]


def test_waiting_sends_allow_no_rest(scene):
    scene.load(2 * BUSY_READS_PER_S)
    scene.rests_ns.clear()
    scene.due_ns = 0
    scene.turn(reads=3, gap_ns=0)
    assert scene.rests_ns == []


def test_a_read_at_the_end_of_a_long_turn_is_late_by_the_turn(scene):
    """A burst that is read in one turn: each read is late by its distance from the
    turn's beginning.
    """
    begin_ns = scene.now_ns + NS_PER_MS
    scene.turn(reads=1, gap_ns=NS_PER_MS)
    lags_ns = scene.gatherer.turns.lags_ns([begin_ns, begin_ns + 9 * NS_PER_MS])
    assert list(lags_ns) == [0, 9 * NS_PER_MS]


def test_bytes_that_found_the_loop_at_work_waited_for_it(scene):
    """A turn that follows another at once: its bytes came at any time since that one
    began.
    """
    scene.turn(reads=1, gap_ns=NS_PER_MS)
    scene.now_ns += 5 * NS_PER_MS
    scene.gatherer._turn_end_ns = scene.now_ns  # the loop worked until now
    scene.turn(reads=1, gap_ns=10_000)
    assert list(scene.gatherer.turns.lags_ns([scene.now_ns])) == [5 * NS_PER_MS + 10_000]
    scene.turn(reads=1, gap_ns=NS_PER_MS)  # the loop waited for this one
    assert list(scene.gatherer.turns.lags_ns([scene.now_ns])) == [0]


def test_a_round_without_reads_has_no_lag_of_reading(scene):
    assert list(scene.gatherer.turns.lags_ns([])) == []
