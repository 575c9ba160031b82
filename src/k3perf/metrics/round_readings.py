"""What the validity rules read of a round: telemetry, request statuses, the server's
counters, the client's lag. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from k3perf.records.samples import RequestStatus, RoundRecord, TelemetryReading
from k3perf.units import MS_PER_S, NS_PER_MS, ns_to_ms

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

_LAG_FLOOR_NS: Final = NS_PER_MS
_TTFT_FLOOR_MS: Final = (
    # below this a difference between client and server is scheduling
    10.0
)


_LEAST_REPLY_TOKENS: Final = 8
"""A shorter reply may well repeat one token."""


class Unseen(Exception):
    """The reading was asked for and could not be taken."""


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


def harmful_throttle(record: RoundRecord) -> float | None:
    """Bits of the clocks-event reasons that cost performance, of all devices."""
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


def server_counter(name: str) -> Reading:
    """The increase of one of the server's counters in the round."""
    return lambda record: record.counters.get(name)


WRONG_LENGTH: Final = Requests((RequestStatus.SHORT, RequestStatus.LONG))
FAILED_REQUESTS: Final = Requests(
    tuple(
        status
        for status in RequestStatus
        if status not in (RequestStatus.OK, *WRONG_LENGTH.statuses)
    )
)


def missing_samples(record: RoundRecord) -> float:
    """1 for a round without any request, else 0."""
    return 0.0 if record.samples else 1.0


def repeated_token_replies(record: RoundRecord) -> float | None:
    """Share of the replies of eight tokens or more that repeat one token. None without
    such a reply. Raises Unseen where the server returned no token ids.
    """
    asked = [one for one in record.samples if one.output_token_count >= _LEAST_REPLY_TOKENS]
    counts = [one.distinct_token_count for one in asked]
    if None in counts:
        raise Unseen("the server returned no token ids, so the replies could not be checked")
    return sum(count == 1 for count in counts) / len(counts) if counts else None


def client_lag_ms(record: RoundRecord) -> float | None:
    """How late the client sent or read, 99th percentile."""
    return None if record.client_lag_p99_ns is None else ns_to_ms(record.client_lag_p99_ns)


def client_lag_share(record: RoundRecord) -> float | None:
    """The client's lag as a share of the median TTFT, which it lengthens. Lags below 1
    ms do not count: they are scheduling.
    """
    lag_ns = record.client_lag_p99_ns
    ttfts_ns = [
        sample.first_token_ns - sample.sent_ns
        for sample in record.samples
        if sample.first_token_ns is not None and sample.sent_ns is not None
    ]
    if lag_ns is None or not ttfts_ns:
        return None
    if lag_ns < _LAG_FLOOR_NS:
        return 0.0
    return lag_ns / max(median(ttfts_ns), 1)


def _server_ttft_mean_ms(record: RoundRecord) -> float | None:
    total_s = record.counters.get("vllm:time_to_first_token_seconds_sum")
    count = record.counters.get("vllm:time_to_first_token_seconds_count")
    return None if total_s is None or not count else MS_PER_S * total_s / count


def ttft_disagreement(record: RoundRecord) -> float | None:
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


def token_disagreement(record: RoundRecord) -> float | None:
    """Output tokens that the server counted against those received, as a share of the
    received ones. Another client's traffic shows here.
    """
    server = record.counters.get(GENERATED_COUNTER)
    received = sum(sample.output_token_count for sample in record.samples)
    return None if server is None or received == 0 else abs(server - received) / received
