"""A recording's patience: how it waits for a quiet machine, and when it gives up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from k3perf.metrics.validity import ROUND_RULES, ValidityRules
from k3perf.pytest_plugin.options import VALUES
from k3perf.records.samples import InvalidReason, RoundKind, RoundRecord, TelemetryReading
from k3perf.run.patience import (
    FIRST_ROUNDS,
    WATCHED_RULES,
    WINDOW_S,
    FirstRounds,
    RecordingStopped,
    wait_for_quiet,
)
from k3perf.run.settings import QUIET_WAIT_S


class Host:
    """A machine of which others use, window by window, the given share; also the clock
    and the listener of the wait.
    """

    def __init__(self, shares: Sequence[float | None], name: str = "foreign_cpu_ratio") -> None:
        self.shares = list(shares)
        self.name = name
        self.now_s = 100.0
        self.notes: list[str] = []

    def window(self, start_ns: int, end_ns: int) -> tuple[TelemetryReading, ...]:
        assert end_ns >= start_ns
        share = self.shares.pop(0) if len(self.shares) > 1 else self.shares[0]
        return (TelemetryReading(self.name, share, "/proc"),)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def note(self, text: str) -> None:
        self.notes.append(text)

    def wait(self, limit_s: float = 60.0, **limits: float) -> float:
        host: Any = self
        rules = ValidityRules.for_target(limits)
        wait_for_quiet(
            host, rules, host, limit_s=limit_s, clock_s=lambda: self.now_s, sleep=self.sleep
        )
        return self.now_s - 100.0


def test_a_quiet_machine_is_not_waited_for() -> None:
    host = Host([0.05])
    assert host.wait() == WINDOW_S
    assert host.notes == []


def test_a_busy_machine_is_waited_for_and_that_is_told() -> None:
    host = Host([0.5, 0.4, 0.3, 0.02])
    assert host.wait() == 4 * WINDOW_S
    waiting, quiet = host.notes
    assert re.match(
        r"waiting for a quiet machine, \d+ s at most: other processes used the CPUs: 0\.5"
        r" .*\[foreign_cpu_ratio\]",
        waiting,
    )
    assert quiet == "the machine is quiet after 8 s"


def test_a_machine_that_stays_busy_ends_the_recording_with_the_rule() -> None:
    host = Host([0.5])
    with pytest.raises(
        RecordingStopped,
        match=r"within 60 s \(--k3-quiet-wait\): .*at most 0\.1 allowed.*\[foreign_cpu_ratio\]",
    ) as caught:
        host.wait()
    assert caught.value.whole
    assert (caught.value.reason.rule, caught.value.reason.reading, caught.value.reason.limit) == (
        "machine_not_quiet",
        0.5,
        0.1,
    )
    assert host.now_s - 100.0 <= 60 + WINDOW_S
    assert 1 < len(host.notes) < 4  # a line now and then, not one for each window


def test_the_targets_own_limits_count() -> None:
    assert Host([0.5]).wait(foreign_cpu_ratio=0.6) == WINDOW_S
    with pytest.raises(RecordingStopped, match="psi_cpu_some_ratio"):
        Host([0.5], "psi_cpu_some_ratio").wait(psi_cpu_some_ratio=0.1)
    # a rule without a limit is off
    assert Host([0.5], "psi_cpu_some_ratio").wait() == WINDOW_S


def test_without_a_limit_nothing_is_waited_for() -> None:
    assert Host([0.9]).wait(0) == 0


def test_a_reading_that_this_kernel_lacks_is_not_waited_for() -> None:
    assert Host([None]).wait() == WINDOW_S


def test_names_and_numbers_are_those_of_the_rules_and_the_option() -> None:
    assert {rule.name for rule in ROUND_RULES} >= WATCHED_RULES
    assert f"(default: {QUIET_WAIT_S:g};" in VALUES["--k3-quiet-wait"][1]


def measured(*rules: str, kind: RoundKind = RoundKind.MEASURED) -> RoundRecord:
    return RoundRecord(
        0,
        kind,
        0,
        1,
        (),
        invalid_reasons=tuple(
            InvalidReason(rule, f"{rule} was broken", 2.0, 0.0) for rule in rules
        ),
    )


def test_first_rounds_that_all_break_one_rule_end_the_recording() -> None:
    first = FirstRounds()
    first.see("a", measured("server_counters", kind=RoundKind.WARM_UP))
    for _ in range(FIRST_ROUNDS - 2):
        first.see("a", measured("server_counters"))
    first.see("a", measured("server_counters", "steal_ratio"))
    with pytest.raises(
        RecordingStopped,
        match=r"all broke server_counters; .* The last: server_counters was broken",
    ) as caught:
        first.see("a", measured("steal_ratio", "server_counters"))
    assert caught.value.whole
    assert (caught.value.reason.rule, caught.value.reason.reading, caught.value.reason.limit) == (
        "recording_stopped",
        2.0,
        0.0,
    )


@pytest.mark.parametrize("other", [(), ("steal_ratio",)], ids=["valid", "another rule"])
def test_one_round_that_kept_the_rule_is_hope(other: tuple[str, ...]) -> None:
    first = FirstRounds()
    first.see("a", measured("server_counters"))
    first.see("a", measured(*other))
    for _ in range(3 * FIRST_ROUNDS):
        first.see("a", measured("server_counters"))


def test_a_single_cell_without_hope_leaves_the_others() -> None:
    first = FirstRounds()
    first.see("a", measured())
    for _ in range(FIRST_ROUNDS - 1):
        first.see("b", measured("preemptions"))
    with pytest.raises(RecordingStopped) as caught:
        first.see("b", measured("preemptions"))
    assert not caught.value.whole
