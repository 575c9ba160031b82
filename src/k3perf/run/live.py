"""A running engine with its probe: what a session is measured through, and what is
written down about it.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from k3perf.config.suite import Cell
from k3perf.engine.jit_monitor import JitMonitor
from k3perf.errors import EngineError
from k3perf.load.client_count import client_process_count
from k3perf.load.generator import run_round
from k3perf.load.round_samples import RoundSamples
from k3perf.metrics.round_readings import (
    ENGINE_DEATHS_READING,
    ENGINE_RESTARTS_READING,
    GENERATED_COUNTER,
    JIT_COMPILES_READING,
    NEEDED_COUNTERS,
    NOT_OFFERED,
    UNCOUNTED_READING,
)
from k3perf.metrics.validity import ValidityRules, judge_round
from k3perf.records.samples import (
    Arm,
    EngineIdentity,
    RankMemory,
    RoundKind,
    RoundRecord,
    SessionRecord,
    TelemetryReading,
)
from k3perf.run.compile_watch import CompileWatch, compile_reading
from k3perf.run.served_engine import ServedEngine
from k3perf.run.settings import Injection
from k3perf.telemetry.counters import CounterDifference, counter_difference
from k3perf.telemetry.host import peak_resident_bytes
from k3perf.telemetry.sampler import Sampler
from k3perf.telemetry.server import ServerProbe
from k3perf.telemetry.visible import target_device_indices
from k3perf.workload.request_plan import Plan

_UNREAD_MONITOR: Final = JitMonitor(offered=True, verbose=False)
_DEATH_NOTICED_S: Final = (
    # the death watch needs its turn on a CPU, which a loaded machine gives late
    2.0
)


@dataclass
class LiveEngine:
    """One engine process tree that serves, with everything read from it once at
    ready.
    """

    session_id: str
    arm: Arm
    target: str
    config: str
    engine: ServedEngine
    probe: ServerProbe
    identity: EngineIdentity
    resolved_config: dict[str, Any]
    kv_capacity_tokens: int | None
    kv_max_concurrency_ratio: float | None
    started_at_utc: str
    environment: dict[str, str] = field(default_factory=dict)
    injected: str = ""
    monitor: JitMonitor = _UNREAD_MONITOR
    warmed_workloads: set[str] = field(default_factory=set)
    outside: bool = False  # a running server that the suite only talks to

    def inject(self, injections: tuple[Injection, ...]) -> None:
        """Put the supported faults into the engine's workers and remember that they are
        there.
        """
        for injection in injections:
            if injection.kind == "slow_step_percent":
                self.probe.call("k3perf_slow_down", injection.amount)
            elif injection.kind in Injection.WRONG_ANSWERS:
                self.probe.call("k3perf_wrong_answers", injection.kind, injection.amount)
            else:
                kind = injection.kind.removeprefix("hold_").removesuffix("_bytes")
                self.probe.call("k3perf_hold_bytes", kind, int(injection.amount))
        self.injected = ",".join(str(injection) for injection in injections)

    @contextlib.contextmanager
    def or_its_death(self) -> Iterator[None]:
        """Turn the error of a reading into the engine's death, where that is why there
        is no answer: a death often shows first as a refused connection, which is not
        the cause.
        """
        try:
            yield
        except EngineError as error:
            if self.engine.death_event.wait(_DEATH_NOTICED_S) or not self.engine.alive():
                raise self.engine.death_error() from error
            raise

    def require_alive(self) -> None:
        """Raise EngineError with the root cause when the engine died."""
        if not self.engine.alive():
            raise self.engine.death_error()


@dataclass(frozen=True, slots=True)
class RoundPlace:
    """Which round this is: its index in the session, its kind, its pair in an
    alternating measurement.
    """

    round_index: int
    kind: RoundKind
    pair_index: int | None


@dataclass
class SessionLog:
    """The rounds of one workload on one live engine, as they come."""

    cell: Cell
    plan: Plan
    live: LiveEngine
    pair_id: str | None
    session_id: str = ""
    rounds: list[RoundRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        # One engine may serve several cells (a resident reference does), each with its
        # own session in the results.
        self.session_id = f"{self.live.session_id}-{uuid.uuid4().hex[:4]}"

    def record(self) -> SessionRecord:
        """The session so far as a frozen record; memory is read now, so call it before
        the engine stops.
        """
        live = self.live
        return SessionRecord(
            session_id=self.session_id,
            target=self.cell.target.name,
            config=self.cell.config.name,
            workload=self.cell.workload.name,
            plan_digest=self.plan.digest,
            arm=live.arm,
            started_at_utc=live.started_at_utc,
            identity=live.identity,
            resolved_config=live.resolved_config,
            stages=live.engine.stages,
            memory=self._memory(),
            rounds=tuple(self.rounds),
            kv_capacity_tokens=live.kv_capacity_tokens,
            kv_max_concurrency_ratio=live.kv_max_concurrency_ratio,
            engine_peak_resident_bytes=peak_resident_bytes(live.engine.pids()),
            compile_cache_warm=live.engine.compile_cache_warm,
            imported_ahead=live.engine.imported_ahead,
            injected=live.injected,
            pair_id=self.pair_id,
            environment=live.environment,
        )

    def _memory(self) -> tuple[RankMemory, ...]:
        if not self.live.engine.alive():
            return ()
        return self.live.probe.rank_memory()


def measure_round(
    log: SessionLog, place: RoundPlace, sampler: Sampler, rules: ValidityRules
) -> RoundRecord:
    """Send the plan once, read the counters around it and judge whether the round can
    be trusted. Appends to ``log`` and returns it.

    Raises EngineError when the engine died in the round; the round is then not recorded
    as measured.
    """
    live = log.live
    live.require_alive()
    watch = CompileWatch(live.engine)
    counters_before = live.probe.counters()
    plan = log.plan.for_round(place.round_index)
    with client_on(log.cell.target.pinning.client_cpus):
        seen = run_round(
            plan,
            base_url=live.engine.base_url,
            model_name=live.engine.model_name,
            stop=live.engine.death_event,
            process_count=client_process_count(plan, log.cell.target.measurement.client_processes),
        )
    live.require_alive()
    received_count = sum(sample.output_token_count for sample in seen.samples)
    counters_after = live.probe.counters_after(counters_before, GENERATED_COUNTER, received_count)
    counted = counter_difference(counters_before, counters_after)
    devices = () if live.outside else target_device_indices(log.cell.target.hardware)
    readings = sampler.window(seen.start_ns, seen.end_ns, devices=devices)
    ranks = log.cell.target.parallelism
    readings += _engine_readings(counted, "/health" if live.outside else "process tree")
    if live.outside:
        source = f"log and compiler caches of a running server: {NOT_OFFERED}"
        readings += (TelemetryReading(JIT_COMPILES_READING, None, source),)
    else:
        compiles = watch.seen(
            seen.start_ns,
            seen.end_ns,
            probe=live.probe,
            ranks_count=ranks.tensor * ranks.pipeline * ranks.data,
        )
        readings += (compile_reading(compiles, live.monitor),)
    record = _record(place, seen, counted.values, readings)
    if place.kind is RoundKind.MEASURED:
        record = replace(record, invalid_reasons=judge_round(record, rules))
    log.rounds.append(record)
    return record


@contextlib.contextmanager
def client_on(cpus: tuple[int, ...]) -> Iterator[None]:
    """Keep the client's thread on ``cpus`` for the round, so that it does not take the
    workers' CPUs; nothing where none are named.
    """
    before = os.sched_getaffinity(0)
    wanted = before & set(cpus)
    if wanted:
        os.sched_setaffinity(0, wanted)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _record(
    place: RoundPlace,
    seen: RoundSamples,
    counters: dict[str, float],
    readings: tuple[TelemetryReading, ...],
) -> RoundRecord:
    return RoundRecord(
        round_index=place.round_index,
        kind=place.kind,
        start_ns=seen.start_ns,
        end_ns=seen.end_ns,
        samples=seen.samples,
        pair_index=place.pair_index,
        client_lag_p99_ns=seen.client_lag_p99_ns,
        client_cpu_ns=seen.client_cpu_ns,
        counters=counters,
        telemetry=readings,
    )


def _engine_readings(counted: CounterDifference, watched_by: str) -> tuple[TelemetryReading, ...]:
    """What the engine's counters say of the window; its death is an exception before
    this is asked.
    """
    uncounted = [
        name for name in NEEDED_COUNTERS if name not in counted.values and name not in counted.reset
    ]
    return (
        TelemetryReading(ENGINE_DEATHS_READING, 0.0, watched_by),
        TelemetryReading(
            ENGINE_RESTARTS_READING,
            float(bool(counted.reset)),
            f"counters that fell: {', '.join(counted.reset[:3])}",
        ),
        TelemetryReading(
            UNCOUNTED_READING,
            float(len(uncounted)),
            f"/metrics lacks {', '.join(uncounted)}" if uncounted else "/metrics",
        ),
    )


def utc_now() -> str:
    """Wall-clock time for provenance only."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def engine_identity(found: dict[str, Any], hardware_class: str) -> EngineIdentity:
    """The probe's answer as a record; a version that the engine does not have is
    written as ``absent``.
    """
    return EngineIdentity(
        vllm_version=str(found.get("vllm_version") or "absent"),
        python_version=str(found.get("python_version") or "absent"),
        torch_version=str(found.get("torch_version") or "absent"),
        hardware_class=hardware_class,
        device_names=tuple(found.get("device_names") or ()),
        driver_version=found.get("driver_version"),
        host=str(found.get("host") or "absent"),
    )
