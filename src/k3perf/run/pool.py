"""Engines that live across tests: at most the arms of one comparison at a time, each
started once for its (target, config).

Owns the device lock, the crash count and the order of starts. Every way out goes
through ``close``.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from k3perf.config.models import ConfigSpec, TargetSpec
from k3perf.engine.held_start import can_be_held
from k3perf.engine.jit_monitor import can_be_verbose, monitor_of
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.lock import device_lock
from k3perf.engine.model_directory import materialise
from k3perf.engine.multi_node import start_target
from k3perf.engine.render import measured_launch
from k3perf.engine.running import Engine
from k3perf.engine.spaceless import without_spaces
from k3perf.engine.supervisor import hold_engine, release_engine
from k3perf.errors import EngineError, PreflightError
from k3perf.records.samples import Arm
from k3perf.run.live import LiveEngine, engine_identity, utc_now
from k3perf.run.progress import Progress
from k3perf.run.readiness import device_used_bytes_reader, require_ready
from k3perf.run.served_engine import ServedEngine
from k3perf.run.settings import Injection, RunSettings, arm_name
from k3perf.telemetry.server import ServerProbe
from k3perf.telemetry.visible import device_keys


class RepeatedCrashError(EngineError):
    """A config that crashed twice in this run is not tried again; carries the first
    crash's cause.
    """


MAXIMUM_CRASHES = 2  # a config that crashed twice in one run is not tried again


@dataclass(frozen=True, slots=True)
class Wanted:
    """One engine that a comparison needs."""

    target: TargetSpec
    config: ConfigSpec
    arm: Arm
    engine_arguments: dict[str, Any]
    suite_root: Path
    engine_python: Path
    injections: tuple[Injection, ...] = ()

    @property
    def key(self) -> tuple[str, str, Arm]:
        """What makes two wanted engines the same."""
        return (self.target.name, self.config.name, self.arm)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """A process that has imported vLLM, or does, and waits for its turn."""

    item: Wanted
    session_id: str
    engine: Engine


class EnginePool:
    """Context manager over the live engines of a run. Not for concurrent use; starts of
    one ``acquire`` may run side by side.
    """

    def __init__(self, settings: RunSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._live: dict[tuple[str, str, Arm], LiveEngine] = {}
        self._crashes: dict[tuple[str, str, Arm], list[EngineError]] = defaultdict(list)
        self._exit = contextlib.ExitStack()
        self._locked: set[str] = set()
        self._expected: Wanted | None = None
        self._ahead: _Ahead | None = None
        self._imports_ahead = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def acquire(self, wanted: Sequence[Wanted]) -> list[LiveEngine]:
        """Live engines for ``wanted``, reusing those that run; any other engine is
        stopped first.

        Raises EngineError (the first cause again once a config has crashed twice) or
        PreflightError.
        """
        keys = {item.key for item in wanted}
        for key in [
            key for key, live in self._live.items() if key not in keys or not live.engine.alive()
        ]:
            self.stop(self._live[key])
        missing = [item for item in wanted if item.key not in self._live]
        for item in missing:
            self._refuse_known_crash(item)
        if missing:
            self._lock(missing[0].target)
            require_ready(
                missing[0].target,
                engines_count=len(missing),
                engine_python=missing[0].engine_python,
                results_directory=self._settings.results_directory,
                own_pids=self._live_pids(),
                own_ranks_count=self.engines_count(),
            )
            taken = self._take_ahead(missing)
            try:
                self._import_ahead()
                self._start_all(missing, taken)
            finally:
                if taken is not None and not any(
                    live.engine is taken.engine for live in self._live.values()
                ):
                    taken.engine.stop()
            self._settle_ahead()
        return [self._live[item.key] for item in wanted]

    def expect(self, item: Wanted | None) -> None:
        """Which engine will be wanted after the next ``acquire``; its process may then
        import vLLM ahead of its turn.
        """
        self._expected = item

    def stop(self, live: LiveEngine) -> None:
        """Stop one engine and prove it gone."""
        self._live.pop((live.target, live.config, live.arm), None)
        label = self._label(live.target, live.config, live.arm)
        self._progress.stage(label, "stop")
        report = live.engine.stop()
        if not report.clean:
            self._progress.note(f"{label}: did not end cleanly: {report.text}")

    def report_crash(self, live: LiveEngine, error: EngineError) -> None:
        """An engine died while measured: remember the cause and clear what is left of
        it.
        """
        error.log_path = error.log_path or str(live.engine.log_path)
        self._crashes[(live.target, live.config, live.arm)].append(error)
        self.stop(live)

    def forget_crashes(self) -> None:
        """Start every config again, whatever happened. For callers that count crashes
        themselves.
        """
        self._crashes.clear()

    def stop_all(self) -> None:
        """Stop every engine; the locks stay."""
        for live in list(self._live.values()):
            self.stop(live)

    def close(self) -> None:
        """Stop everything and give the devices back."""
        try:
            self._drop_ahead()
            self.stop_all()
        finally:
            self._exit.close()
            self._locked.clear()

    def pids(self) -> tuple[int, ...]:
        """Every process of every engine of the run, one that waits for its turn
        included, for the sampler.
        """
        ahead = self._ahead
        return (*self._live_pids(), *(ahead.engine.pids() if ahead is not None else ()))

    def engines_count(self) -> int:
        """Engines that serve, an idle one included. Each has one rank on every device
        that it uses.
        """
        return len(self._live)

    def _live_pids(self) -> tuple[int, ...]:
        return tuple(pid for live in list(self._live.values()) for pid in live.engine.pids())

    def _refuse_known_crash(self, item: Wanted) -> None:
        crashes = self._crashes[item.key]
        if len(crashes) >= MAXIMUM_CRASHES:
            first = crashes[0]
            raise RepeatedCrashError(
                f"{item.target.name}-{item.config.name} crashed {len(crashes)} times in this run"
                " and is not tried again",
                stage=first.stage,
                root_cause=first.root_cause,
                log_tail=first.log_tail,
                log_path=first.log_path,
            )

    def _lock(self, target: TargetSpec) -> None:
        for key in device_keys(target.hardware):
            if key not in self._locked:
                self._exit.enter_context(device_lock(key))
                self._locked.add(key)

    def _take_ahead(self, wanted: Sequence[Wanted]) -> _Ahead | None:
        """The waiting process if it is one of ``wanted``; it is no longer the pool's
        then.
        """
        if self._ahead is None or self._ahead.item not in wanted:
            return None
        taken, self._ahead = self._ahead, None
        return taken

    def _import_ahead(self) -> None:
        """Start the expected engine's process, unless it waits already or its target
        does not want that.

        A failure here is no failure: the engine is then started from nothing when its
        turn comes.
        """
        item = self._expected
        if (
            item is None
            or not self._imports_ahead
            or not item.target.measurement.import_ahead
            or item.target.launch.kind != "single"
        ):
            return
        if self._ahead is not None and self._ahead.item == item:
            return
        self._drop_ahead()
        launch = self._launch(item)
        if can_be_held(launch):
            session_id = uuid.uuid4().hex[:12]
            read = device_used_bytes_reader(item.target)
            try:
                engine = hold_engine(
                    launch, work_directory=self._work(session_id), device_used_bytes=read
                )
            except (EngineError, PreflightError) as error:
                self._progress.note(
                    f"{item.target.name}-{item.config.name}: not imported ahead: {error}"
                )
                return
            self._ahead = _Ahead(item, session_id, engine)

    def _settle_ahead(self) -> None:
        """Return when no import runs any more: none may run beside measured rounds."""
        if self._ahead is None:
            return
        try:
            self._ahead.engine.wait_at_gate()
        except EngineError as error:
            self._progress.note(
                f"{self._ahead.item.target.name}-{self._ahead.item.config.name}: {error}; it will"
                " start without prepared imports"
            )
            self._drop_ahead()
            self._imports_ahead = False  # the next would wait as long

    def _drop_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.engine.stop()
            self._ahead = None

    def _launch(self, item: Wanted) -> EngineLaunch:
        return measured_launch(
            item.target,
            item.engine_arguments,
            model=self._model(item),
            engine_python=without_spaces(item.engine_python),
            python_path=self._settings.engine_python_path,
            cache_directory=self._settings.cache_directory,
            verbose_monitor=can_be_verbose(item.engine_python),
        )

    def _work(self, session_id: str) -> Path:
        return self._settings.results_directory / "engines" / session_id

    def _start_all(self, missing: Sequence[Wanted], taken: _Ahead | None) -> None:
        """Start side by side. An interrupt ends the starts under way at once; of
        several failures the first wanted one's is raised.
        """
        cancelled = threading.Event()
        with ThreadPoolExecutor(max_workers=len(missing)) as executor:
            try:
                outcomes = [
                    executor.submit(
                        self._start,
                        item,
                        cancelled,
                        taken if taken is not None and taken.item == item else None,
                    )
                    for item in missing
                ]
                errors = [future.exception() for future in outcomes]
            except BaseException:
                # else the executor would wait until the engines are ready
                cancelled.set()
                raise
        for error in errors:
            if error is not None:
                raise error

    def _start(self, item: Wanted, cancelled: threading.Event, ahead: _Ahead | None) -> None:
        session_id = ahead.session_id if ahead is not None else uuid.uuid4().hex[:12]
        label = self._label(item.target.name, item.config.name, item.arm)

        def on_stage(stage: str) -> None:
            self._progress.stage(label, stage)

        def interrupted() -> EngineError | None:
            return EngineError("the start was interrupted") if cancelled.is_set() else None

        on_stage("import")
        engine: ServedEngine
        try:
            if ahead is not None:
                engine = release_engine(
                    ahead.engine, on_stage=on_stage, companion_failed=interrupted
                )
            else:
                engine = start_target(
                    item.target,
                    self._launch(item),
                    work_directory=self._work(session_id),
                    on_stage=on_stage,
                    device_used_bytes=device_used_bytes_reader(item.target),
                    companion_failed=interrupted,
                )
        except EngineError as error:
            error.log_path = error.log_path or _newest_log(self._work(session_id))
            self._crashes[item.key].append(error)
            raise
        try:
            self._live[item.key] = self._probe(item, session_id, engine)
        except BaseException as error:
            if isinstance(error, EngineError):
                error.log_path = error.log_path or str(engine.log_path)
                self._crashes[item.key].append(error)
            engine.stop()
            raise

    def _probe(self, item: Wanted, session_id: str, engine: ServedEngine) -> LiveEngine:
        probe = ServerProbe(engine.base_url, scratch=engine.scratch)
        live = LiveEngine(
            session_id=session_id,
            arm=item.arm,
            target=item.target.name,
            config=item.config.name,
            engine=engine,
            probe=probe,
            identity=engine_identity(probe.identity(), self._settings.hardware_class(item.target)),
            resolved_config=probe.resolved_config(),
            kv_capacity_tokens=probe.kv_capacity_tokens,
            kv_max_concurrency_ratio=probe.max_concurrency,
            started_at_utc=utc_now(),
            environment=probe.environment(),
            monitor=monitor_of(probe.server_info()["vllm_config"]),
        )
        if item.injections:
            live.inject(item.injections)
        return live

    def _label(self, target: str, config: str, arm: Arm) -> str:
        """``target-config`` with the arm, as the user reads it."""
        return f"{target}-{config} ({arm_name(arm, self._settings.mode_for(target))})"

    def _model(self, item: Wanted) -> str:
        directory = item.target.model.directory_for(item.config.name)
        if directory is None:
            return str(item.target.model.checkpoint)
        models = self._settings.cache_directory / "models"
        return str(materialise(item.suite_root / directory, models))


def _newest_log(work_directory: Path) -> str:
    """The log of the last attempt to start there, of several hosts the one that was
    written to last. Empty where there is none.
    """
    logs = sorted(work_directory.rglob("engine*.log"), key=lambda path: path.stat().st_mtime_ns)
    return str(logs[-1]) if logs else ""
