"""Round and session records to the reasons why they cannot be trusted. Pure. The rules
are data, with limits set per target.

A rule compares one reading with one limit. A reading that was asked for and could not
be taken (named, but None) breaks a rule that ``requires`` it. A reading that does not
exist on this hardware is not judged. Limits that are None are off until a target sets
them (``validity`` in ``perf_tests/targets/*.yaml``, keyed by rule name).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Final

from k3perf.config.models import TargetSpec
from k3perf.errors import UnknownNameError
from k3perf.metrics.round_readings import (
    ENGINE_DEATHS_READING,
    ENGINE_RESTARTS_READING,
    FAILED_REQUESTS,
    JIT_COMPILES_READING,
    PREEMPTED_COUNTER,
    UNCOUNTED_READING,
    WRONG_LENGTH,
    Reading,
    Requests,
    Telemetry,
    Unseen,
    client_lag_ms,
    client_lag_share,
    harmful_throttle,
    missing_samples,
    repeated_token_replies,
    server_counter,
    token_disagreement,
    ttft_disagreement,
)
from k3perf.records.samples import (
    InvalidReason,
    RoundKind,
    RoundRecord,
    SessionRecord,
)


class Bound(StrEnum):
    """The side of the limit that breaks the rule."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class Spoils(IntEnum):
    """What a broken round rule spoils. A later member includes the earlier ones."""

    TIMES = 1  # the machine was not quiet: what the engine holds in memory is valid
    # the work was not the planned one: what was settled at the engine's start is valid
    SERVING = 2
    ALL = 3  # the engine or its device is in doubt: nothing is valid


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``text`` completes the sentence "The round is invalid because ...".
    With ``requires`` an unreadable source breaks the rule.

    ``next_step`` is a format string with ``{reading}``, for rules that need more than a
    quieter machine.
    """

    name: str
    read: Reading
    unit: str
    limit: float | None
    text: str
    bound: Bound = Bound.AT_MOST
    requires: bool = False
    next_step: str = ""

    def judge(self, record: RoundRecord) -> InvalidReason | None:
        """The reason, or None: the rule holds, is off, or is not judged on this
        hardware.
        """
        if self.limit is None:
            return None
        try:
            reading = self.read(record)
        except Unseen as unseen:
            return (
                InvalidReason(self.name, str(unseen), None, self.limit) if self.requires else None
            )
        if reading is None:
            return None
        broken = reading > self.limit if self.bound is Bound.AT_MOST else reading < self.limit
        if not broken:
            return None
        where = (
            self.read.where(record, reading) if isinstance(self.read, Telemetry | Requests) else ""
        )
        text = f"{self.text}: {reading:g} {self.unit}, {self.bound} {self.limit:g} allowed{where}"
        if self.next_step:
            text += f". {self.next_step.format(reading=reading)}"
        return InvalidReason(self.name, text, reading, self.limit)


ROUND_RULES: Final[tuple[Rule, ...]] = (
    Rule("no_requests", missing_samples, "", 0, "the round has no request"),
    Rule("failed_requests", FAILED_REQUESTS, "requests", 0, "requests failed"),
    Rule("wrong_length", WRONG_LENGTH, "requests", 0, "replies did not have the requested length"),
    Rule(
        "repeated_token_ratio",
        repeated_token_replies,
        "of the replies",
        None,
        "replies repeat one token",
        requires=True,
        next_step="Send a prompt by hand: an engine that says one token only is broken",
    ),
    Rule(
        "engine_died",
        Telemetry(ENGINE_DEATHS_READING),
        "deaths",
        0,
        "the engine died in the round",
        requires=True,
    ),
    Rule(
        "engine_restarted",
        Telemetry(ENGINE_RESTARTS_READING),
        "restarts",
        0,
        "an engine process was restarted",
        requires=True,
    ),
    Rule(
        "compile_in_window",
        Telemetry(JIT_COMPILES_READING),
        "kernels",
        0,
        "kernels were compiled inside the window",
        requires=True,
    ),
    Rule(
        "server_counters",
        Telemetry(UNCOUNTED_READING),
        "of the needed counters",
        0,
        "the server lacks counters that the round is checked against",
        requires=True,
        next_step=(
            "This vLLM may name them differently (NEEDED_COUNTERS of k3perf). Set `validity:"
            " {{server_counters: {reading:g}}}` in the target to measure without them"
        ),
    ),
    Rule(
        "preemptions",
        server_counter(PREEMPTED_COUNTER),
        "preemptions",
        0,
        "requests were preempted",
    ),
    Rule("client_lag_p99_ms", client_lag_ms, "ms", 20.0, "the load generator was late"),
    Rule(
        "client_lag_share_ratio",
        client_lag_share,
        "of the median TTFT",
        0.1,
        "the load generator was late for latencies this short",
    ),
    Rule(
        "ttft_disagreement_ratio",
        ttft_disagreement,
        "of the server's",
        0.25,
        "client and server disagree on the time to first token",
    ),
    Rule(
        "token_disagreement_ratio",
        token_disagreement,
        "of those received",
        0.0,
        "client and server disagree on the token count",
    ),
    Rule(
        "harmful_throttle_bits",
        harmful_throttle,
        "(NVML bits)",
        0,
        "the device throttled",
        requires=True,
    ),
    Rule(
        "sm_clock_min_mhz",
        Telemetry("sm_clock_min_mhz", min),
        "MHz",
        None,
        "the device's clock fell",
        Bound.AT_LEAST,
        requires=True,
    ),
    Rule(
        "temperature_max_c",
        Telemetry("temperature_max_c"),
        "degrees C",
        87.0,
        "the device was too hot",
        requires=True,
    ),
    Rule(
        "power_mean_w",
        Telemetry("power_mean_w"),
        "W",
        None,
        "the device drew more power than the target allows",
        requires=True,
    ),
    Rule(
        "ecc_errors_count",
        Telemetry("ecc_errors_count"),
        "errors",
        0,
        "uncorrected ECC errors",
        requires=True,
    ),
    Rule(
        "foreign_device_processes_count",
        Telemetry("foreign_device_processes_count"),
        "processes",
        0,
        "other processes used the device",
        requires=True,
    ),
    Rule(
        "steal_ratio",
        Telemetry("steal_ratio"),
        "of the time",
        0.02,
        "the hypervisor took CPU time away",
    ),
    Rule(
        "psi_cpu_some_ratio",
        Telemetry("psi_cpu_some_ratio"),
        "of the time",
        None,
        "tasks waited for a CPU",
    ),
    Rule(
        "psi_memory_some_ratio",
        Telemetry("psi_memory_some_ratio"),
        "of the time",
        0.05,
        "tasks waited for memory",
    ),
    Rule(
        "foreign_cpu_ratio",
        Telemetry("foreign_cpu_ratio"),
        "of the CPUs",
        0.1,
        "other processes used the CPUs",
    ),
    Rule("swap_used_bytes", Telemetry("swap_used_bytes"), "bytes", 0, "memory was swapped out"),
    Rule("clock_jump_ms", Telemetry("clock_jump_ms"), "ms", 50.0, "the clock jumped"),
)

REPEATED_REPLIES_LIMIT: Final = 0.5
"""Default limit of ``repeated_token_ratio`` for targets with real weights."""

TIMES_RULES: Final = frozenset(
    {
        "client_lag_p99_ms",
        "client_lag_share_ratio",
        "ttft_disagreement_ratio",
        "harmful_throttle_bits",
        "sm_clock_min_mhz",
        "temperature_max_c",
        "power_mean_w",
        "steal_ratio",
        "psi_cpu_some_ratio",
        "foreign_cpu_ratio",
        "clock_jump_ms",
    }
)
"""Rules that only require a quiet machine. Memory, capacity and configuration do not
need one.
"""

ENGINE_RULES: Final = frozenset(
    {"engine_died", "engine_restarted", "ecc_errors_count", "foreign_device_processes_count"}
)
"""Rules that put the engine or its device in doubt, and with them every reading."""

_RULE_NAMES: Final = frozenset(rule.name for rule in ROUND_RULES)


def spoiled_by(reason: InvalidReason) -> Spoils:
    """What a round's reason spoils. An unknown rule, as in a file of another release,
    spoils everything.
    """
    if reason.rule in TIMES_RULES:
        return Spoils.TIMES
    return Spoils.SERVING if reason.rule in _RULE_NAMES - ENGINE_RULES else Spoils.ALL


VALID_ROUNDS_LIMIT: Final = "valid_rounds_count"
SPREAD_LIMIT: Final = "spread_over_noise_ratio"
SESSION_RULES: Final[dict[str, float]] = {
    VALID_ROUNDS_LIMIT: 1,
    SPREAD_LIMIT: 3.0,
}
"""Limits by rule. The gate judges the spread of a session's rounds, since it knows the
recorded noise of every metric (``gate.reference``). ``judge_session`` judges the rest.
"""
ANSWERS_RULE: Final = "wrong_answers"
READINGS_TOLD: Final = 3
"""Number of broken rules whose last reading is reported for a session with too few
valid rounds.
"""


@dataclass(frozen=True, slots=True)
class ValidityRules:
    """The rules with one target's limits in place."""

    rounds: tuple[Rule, ...] = ROUND_RULES
    session_limits: Mapping[str, float] = field(default_factory=lambda: dict(SESSION_RULES))

    @classmethod
    def for_target(
        cls, overrides: Mapping[str, float], *, real_weights: bool = False
    ) -> ValidityRules:
        """The default rules, overlaid with ``TargetSpec.validity``. Raises
        UnknownNameError for an undefined rule.

        ``real_weights``: the replies mean something, so most may not repeat one token.
        Dummy weights do that for hours.
        """
        known = {rule.name for rule in ROUND_RULES} | set(SESSION_RULES)
        for name in overrides:
            if name not in known:
                raise UnknownNameError("validity rule", name, tuple(sorted(known)))
        limits = {"repeated_token_ratio": REPEATED_REPLIES_LIMIT} if real_weights else {}
        limits |= overrides
        rounds = tuple(
            replace(rule, limit=limits.get(rule.name, rule.limit)) for rule in ROUND_RULES
        )
        return cls(
            rounds, {name: overrides.get(name, limit) for name, limit in SESSION_RULES.items()}
        )


def rules_of(target: TargetSpec) -> ValidityRules:
    """The rules of a target's rounds and sessions. Raises UnknownNameError."""
    real = target.model.weights == "checkpoint"
    return ValidityRules.for_target(target.validity, real_weights=real)


def without_timings(rules: ValidityRules) -> ValidityRules:
    """The rules for a cell of which no timing and no memory under load is judged. What
    an engine settles at its start needs answered requests, not a quiet machine.
    """
    kept = ENGINE_RULES | {"no_requests", "failed_requests", "wrong_length"}
    rounds = tuple(
        rule if rule.name in kept else replace(rule, limit=None) for rule in rules.rounds
    )
    return replace(rules, rounds=rounds)


def judge_round(record: RoundRecord, rules: ValidityRules) -> tuple[InvalidReason, ...]:
    """Every rule that the round breaks, in the table's order. Empty for a valid round.
    Reasons in the record are not repeated.
    """
    return tuple(reason for rule in rules.rounds if (reason := rule.judge(record)) is not None)


def judge_session(record: SessionRecord, rules: ValidityRules) -> tuple[InvalidReason, ...]:
    """Reasons against the whole session that can be found without a baseline."""
    measured = [entry for entry in record.rounds if entry.kind is RoundKind.MEASURED]
    valid = [entry for entry in measured if entry.valid]
    needed = rules.session_limits[VALID_ROUNDS_LIMIT]
    if len(valid) >= needed:
        return _wrong_answers(record)
    last = {reason.rule: reason.text for entry in measured for reason in entry.invalid_reasons}
    told = "; ".join(last[rule] for rule in sorted(last)[:READINGS_TOLD])
    why = f" (broken: {', '.join(sorted(last))}); last: {told}" if last else ""
    text = (
        f"too few valid rounds: {len(valid)} of {len(measured)} measured, at least {needed:g}"
        f" needed{why}"
    )
    return (InvalidReason(VALID_ROUNDS_LIMIT, text, float(len(valid)), needed),)


def _wrong_answers(record: SessionRecord) -> tuple[InvalidReason, ...]:
    """Answers that no engine gives that works, such as a log-probability above 0."""
    problems = () if record.quality is None else record.quality.problems
    return tuple(InvalidReason(ANSWERS_RULE, problem) for problem in problems)
