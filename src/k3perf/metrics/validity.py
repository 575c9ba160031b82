"""Round and session records to the reasons why they cannot be trusted. Pure. The rules
are data, with limits set per target.

A rule compares one reading with one limit. A reading that was asked for and could not
be taken (named, but None) breaks a rule that ``requires`` it. A reading that does not
exist on this hardware is not judged. Limits that are None are off until a target sets
them (``validity`` in ``perf_tests/targets/*.yaml``, keyed by rule name).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from statistics import fmean
from typing import Final

from k3perf.errors import UnknownNameError
from k3perf.records.samples import (
    InvalidReason,
    RequestStatus,
    RoundKind,
    RoundRecord,
    SessionRecord,
    TelemetryReading,
)
from k3perf.units import MS_PER_S, ns_to_ms

# names of readings from the engine's log and supervisor (the others are telemetry's)
JIT_COMPILES_READING: Final = "jit_compiles_count"
UNCOUNTED_READING: Final = "server_counters_missing_count"
ENGINE_RESTARTS_READING: Final = "engine_restarts_count"
ENGINE_DEATHS_READING: Final = "engine_deaths_count"

GENERATED_COUNTER: Final = "vllm:generation_tokens_total"
PREEMPTED_COUNTER: Final = "vllm:num_preemptions_total"
NEEDED_COUNTERS: Final = (GENERATED_COUNTER, PREEMPTED_COUNTER)
"""They reveal another client's traffic in the round, and preempted requests."""

# NVML clocks-event reasons that mean lost performance: hardware slowdown 0x8, software
# thermal 0x20, hardware thermal 0x40, power brake 0x80. A healthy device may report
# idle 0x1, application clocks 0x2, the software power cap 0x4 and sync boost 0x10.
HARMFUL_THROTTLE_BITS: Final = 0x8 | 0x20 | 0x40 | 0x80

# how telemetry ends the source of a reading that this device or kernel does not have; a
# lost reading has another ending
NOT_OFFERED: Final = "not offered here"

_TTFT_FLOOR_MS: Final = (
    # below this a difference between client and server is scheduling
    10.0
)


class Bound(StrEnum):
    """The side of the limit that breaks the rule."""

    AT_MOST = "at most"
    AT_LEAST = "at least"


class Unseen(Exception):
    """The reading was asked for and could not be taken."""


class Spoils(IntEnum):
    """What a broken round rule spoils. A later member includes the earlier ones."""

    TIMES = 1  # the machine was not quiet: what the engine holds in memory is valid
    # the work was not the planned one: what was settled at the engine's start is valid
    SERVING = 2
    ALL = 3  # the engine or its device is in doubt: nothing is valid


Reading = Callable[[RoundRecord], float | None]


@dataclass(frozen=True, slots=True)
class Telemetry:
    """The telemetry reading of a name. Of several readings (several devices) ``pick``
    chooses the worst.
    """

    name: str
    pick: Callable[[list[float]], float] = max

    def __call__(self, record: RoundRecord) -> float | None:
        """The reading, or None if this hardware has none. Raises Unseen if its source
        could not be read.
        """
        found = self._found(record)
        if not found:
            return None
        if any(entry.value is None for entry in found):
            raise Unseen(f"{self.name} could not be read from {found[0].source}")
        return self.pick([entry.value for entry in found if entry.value is not None])

    def where(self, record: RoundRecord, value: float) -> str:
        """Where this value was read (device, process, line of the log), in brackets.
        Empty for the whole machine.
        """
        sources = dict.fromkeys(
            entry.source
            for entry in self._found(record)
            if entry.value == value and entry.source != "/proc"
        )
        return f" ({'; '.join(sources)})" if sources else ""

    def _found(self, record: RoundRecord) -> list[TelemetryReading]:
        return [
            entry
            for entry in record.telemetry
            if entry.name == self.name and not entry.source.endswith(NOT_OFFERED)
        ]


def _all_bits(values: list[float]) -> float:
    joined = 0
    for value in values:
        joined |= int(value)
    return float(joined)


def _harmful_throttle(record: RoundRecord) -> float | None:
    value = Telemetry("throttle_reasons_bits", _all_bits)(record)
    return None if value is None else float(int(value) & HARMFUL_THROTTLE_BITS)


@dataclass(frozen=True, slots=True)
class Requests:
    """How many requests ended with one of ``statuses``."""

    statuses: tuple[RequestStatus, ...]

    def __call__(self, record: RoundRecord) -> float | None:
        """Their count."""
        return float(sum(sample.status in self.statuses for sample in record.samples))

    def where(self, record: RoundRecord, value: float) -> str:  # noqa: ARG002 - the same question as Telemetry's
        """How they ended, with the first one's message, in brackets."""
        found = [sample for sample in record.samples if sample.status in self.statuses]
        kinds = ", ".join(
            f"{count} {status}"
            for status, count in Counter(sample.status for sample in found).most_common()
        )
        first = next((f"; first: {sample.detail}" for sample in found if sample.detail), "")
        return f" ({kinds}{first})" if found else ""


def _counter(name: str) -> Reading:
    return lambda record: record.counters.get(name)


_WRONG_LENGTH: Final = Requests((RequestStatus.SHORT, RequestStatus.LONG))
_FAILED: Final = Requests(
    tuple(
        status
        for status in RequestStatus
        if status not in (RequestStatus.OK, *_WRONG_LENGTH.statuses)
    )
)


def _missing_samples(record: RoundRecord) -> float:
    return 0.0 if record.samples else 1.0


def _client_lag_ms(record: RoundRecord) -> float | None:
    return None if record.client_lag_p99_ns is None else ns_to_ms(record.client_lag_p99_ns)


def _server_ttft_mean_ms(record: RoundRecord) -> float | None:
    total_s = record.counters.get("vllm:time_to_first_token_seconds_sum")
    count = record.counters.get("vllm:time_to_first_token_seconds_count")
    return None if total_s is None or not count else MS_PER_S * total_s / count


def _ttft_disagreement(record: RoundRecord) -> float | None:
    """How much longer the client's mean TTFT is than the server's histogram says, as a
    share of the server's.

    The client always measures a little more (network, event loop). Differences under 10
    ms do not count.
    """
    server_ms = _server_ttft_mean_ms(record)
    seen_ms = [
        ns_to_ms(sample.first_token_ns - sample.sent_ns)
        for sample in record.samples
        if sample.first_token_ns is not None and sample.sent_ns is not None
    ]
    if server_ms is None or server_ms <= 0 or not seen_ms:
        return None
    excess_ms = abs(fmean(seen_ms) - server_ms)
    return 0.0 if excess_ms < _TTFT_FLOOR_MS else excess_ms / server_ms


def _token_disagreement(record: RoundRecord) -> float | None:
    """Output tokens that the server counted against those received, as a share of the
    received ones. Another client's traffic shows here.
    """
    server = record.counters.get(GENERATED_COUNTER)
    received = sum(sample.output_token_count for sample in record.samples)
    return None if server is None or received == 0 else abs(server - received) / received


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
    Rule("no_requests", _missing_samples, "", 0, "the round has no request"),
    Rule("failed_requests", _FAILED, "requests", 0, "requests failed"),
    Rule("wrong_length", _WRONG_LENGTH, "requests", 0, "replies did not have the requested length"),
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
            "This vLLM may name them differently: put its names in place of the old ones in"
            " src/k3perf/metrics/validity.py (NEEDED_COUNTERS), or set `validity:"
            " {{server_counters: {reading:g}}}` in the target to measure without them"
        ),
    ),
    Rule("preemptions", _counter(PREEMPTED_COUNTER), "preemptions", 0, "requests were preempted"),
    Rule("client_lag_p99_ms", _client_lag_ms, "ms", 20.0, "the load generator sent late"),
    Rule(
        "ttft_disagreement_ratio",
        _ttft_disagreement,
        "of the server's",
        0.25,
        "client and server disagree on the time to first token",
    ),
    Rule(
        "token_disagreement_ratio",
        _token_disagreement,
        "of those received",
        0.0,
        "client and server disagree on the token count",
    ),
    Rule(
        "harmful_throttle_bits",
        _harmful_throttle,
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

TIMES_RULES: Final = frozenset(
    {
        "client_lag_p99_ms",
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
    def for_target(cls, overrides: Mapping[str, float]) -> ValidityRules:
        """The default rules, overlaid with ``TargetSpec.validity``. Raises
        UnknownNameError for an undefined rule.
        """
        known = {rule.name for rule in ROUND_RULES} | set(SESSION_RULES)
        for name in overrides:
            if name not in known:
                raise UnknownNameError("validity rule", name, tuple(sorted(known)))
        rounds = tuple(
            replace(rule, limit=overrides.get(rule.name, rule.limit)) for rule in ROUND_RULES
        )
        return cls(
            rounds, {name: overrides.get(name, limit) for name, limit in SESSION_RULES.items()}
        )


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
        return ()
    last = {reason.rule: reason.text for entry in measured for reason in entry.invalid_reasons}
    told = "; ".join(last[rule] for rule in sorted(last)[:READINGS_TOLD])
    why = f" (broken: {', '.join(sorted(last))}); last: {told}" if last else ""
    text = (
        f"too few valid rounds: {len(valid)} of {len(measured)} measured, at least {needed:g}"
        f" needed{why}"
    )
    return (InvalidReason(VALID_ROUNDS_LIMIT, text, float(len(valid)), needed),)
