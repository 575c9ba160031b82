"""How long a recording goes on: it waits for a quiet machine, within a limit, and stops
when no round can become valid.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from k3perf.errors import MeasurementInvalid
from k3perf.metrics.validity import ValidityRules
from k3perf.records.samples import InvalidReason, RoundKind, RoundRecord
from k3perf.run.progress import Progress
from k3perf.telemetry.sampler import Sampler

WATCHED_RULES: Final = frozenset(
    {"steal_ratio", "psi_cpu_some_ratio", "psi_memory_some_ratio", "foreign_cpu_ratio"}
)
"""Rules about what else the machine does. They can be judged without a round."""

WINDOW_S: Final = 2.0
NOTE_EVERY_S: Final = 30.0
FIRST_ROUNDS: Final = 6
"""After this many rounds of a cell, from its first on, that all broke the same rule, no
round is expected to keep it.
"""


class RecordingStopped(MeasurementInvalid):
    """A recording ends early. ``whole``: no other cell of it is worth a try."""

    def __init__(self, reason: InvalidReason, *, whole: bool) -> None:
        super().__init__(reason.text)
        self.reason = reason
        self.whole = whole


def wait_for_quiet(
    sampler: Sampler,
    rules: ValidityRules,
    progress: Progress,
    *,
    limit_s: float,
    clock_s: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once a window of two seconds keeps every rule about other load. 0 as
    ``limit_s``: return at once.

    Raises RecordingStopped with the broken rule when that takes longer than
    ``limit_s``.
    """
    begin_s = noted_s = clock_s()
    waiting = False
    while limit_s > 0:
        reason = _load(sampler, rules, sleep)
        now_s = clock_s()
        if reason is None:
            if waiting:
                progress.note(f"the machine is quiet after {now_s - begin_s:.0f} s")
            return
        if now_s - begin_s >= limit_s:
            text = (
                f"the machine did not become quiet within {limit_s:g} s (--k3-quiet-wait):"
                f" {reason.text} [{reason.rule}]"
            )
            raise RecordingStopped(
                InvalidReason("machine_not_quiet", text, reason.reading, reason.limit), whole=True
            )
        if not waiting or now_s - noted_s >= NOTE_EVERY_S:
            progress.note(
                f"waiting for a quiet machine, {limit_s - (now_s - begin_s):.0f} s at most:"
                f" {reason.text} [{reason.rule}]"
            )
            waiting, noted_s = True, now_s


def _load(
    sampler: Sampler, rules: ValidityRules, sleep: Callable[[float], None]
) -> InvalidReason | None:
    start_ns = time.monotonic_ns()
    sleep(WINDOW_S)
    end_ns = time.monotonic_ns()
    seen = RoundRecord(
        0,
        RoundKind.WARM_UP,
        start_ns,
        end_ns,
        samples=(),
        telemetry=sampler.window(start_ns, end_ns),
    )
    watched = (rule for rule in rules.rounds if rule.name in WATCHED_RULES)
    return next((reason for rule in watched if (reason := rule.judge(seen)) is not None), None)


@dataclass
class FirstRounds:
    """Sees every measured round of a recording and raises RecordingStopped once a
    cell's first ones show that none can become valid.
    """

    any_valid: bool = False
    _common: dict[str, tuple[int, dict[str, InvalidReason]]] = field(default_factory=dict)
    _hopeful: set[str] = field(default_factory=set)

    def see(self, cell_id: str, record: RoundRecord) -> None:
        """One round of either arm; warm-up rounds say nothing."""
        if record.kind is not RoundKind.MEASURED or cell_id in self._hopeful:
            return
        broken = {reason.rule: reason for reason in record.invalid_reasons}
        count, common = self._common.get(cell_id, (0, broken))
        common = {rule: reason for rule, reason in broken.items() if rule in common}
        self._common[cell_id] = (count + 1, common)
        self.any_valid |= record.valid
        if not common:
            self._hopeful.add(cell_id)
        elif count + 1 == FIRST_ROUNDS:
            rule, reason = next(iter(common.items()))
            text = (
                f"stopped after {FIRST_ROUNDS} rounds that all broke {rule}; no round can become"
                f" valid. The last: {reason.text}"
            )
            raise RecordingStopped(
                InvalidReason("recording_stopped", text, reason.reading, reason.limit),
                whole=not self.any_valid,
            )
