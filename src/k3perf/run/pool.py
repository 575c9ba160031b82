"""Engines that live across tests: at most the arms of one comparison at a time, each started once for its (target, config).

Owns the device lock, the crash count and the order of starts. Every way out goes through ``close``.
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
from k3perf.engine.lock import device_lock
from k3perf.engine.model_directory import materialise
from k3perf.engine.multi_node import start_target
from k3perf.engine.render import measured_launch
from k3perf.errors import EngineError
from k3perf.run.live import LiveEngine, engine_identity, utc_now
from k3perf.run.progress import Progress
from k3perf.run.readiness import require_ready, used_device_bytes
from k3perf.run.settings import RunSettings
from k3perf.samples import Arm
from k3perf.telemetry.server import ServerProbe


class RepeatedCrashError(EngineError):
    """A config that crashed twice in this run is not tried again; carries the first crash's cause."""


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
    inject: bool

    @property
    def key(self) -> tuple[str, str, Arm]:
        """What makes two wanted engines the same."""
        return (self.target.name, self.config.name, self.arm)


class EnginePool:
    """Context manager over the live engines of a run. Not for concurrent use; starts of one ``acquire`` may run side by side."""

    def __init__(self, settings: RunSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._live: dict[tuple[str, str, Arm], LiveEngine] = {}
        self._crashes: dict[tuple[str, str, Arm], list[EngineError]] = defaultdict(list)
        self._exit = contextlib.ExitStack()
        self._locked: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def acquire(self, wanted: Sequence[Wanted]) -> list[LiveEngine]:
        """Live engines for ``wanted``, reusing those that run; any other engine is stopped first.

        Raises EngineError (the first cause again once a config has crashed twice) or PreflightError.
        """
        keys = {item.key for item in wanted}
        for key in [key for key, live in self._live.items() if key not in keys or not live.engine.alive()]:
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
                own_pids=self.pids(),
            )
            self._start_all(missing)
        return [self._live[item.key] for item in wanted]

    def stop(self, live: LiveEngine) -> None:
        """Stop one engine and prove it gone."""
        self._live.pop((live.target, live.config, live.arm), None)
        self._progress.stage(live.label, "stop")
        report = live.engine.stop()
        if not report.clean:
            self._progress.note(f"{live.label}: not ended cleanly: {report.text}")

    def report_crash(self, live: LiveEngine, error: EngineError) -> None:
        """An engine died while measured: remember the cause and clear what is left of it."""
        self._crashes[(live.target, live.config, live.arm)].append(error)
        self.stop(live)

    def stop_all(self) -> None:
        """Stop every engine; the locks stay."""
        for live in list(self._live.values()):
            self.stop(live)

    def close(self) -> None:
        """Stop everything and give the devices back."""
        try:
            self.stop_all()
        finally:
            self._exit.close()
            self._locked.clear()

    def pids(self) -> tuple[int, ...]:
        """Every process of every live engine, for the sampler."""
        return tuple(pid for live in list(self._live.values()) for pid in live.engine.pids())

    def _refuse_known_crash(self, item: Wanted) -> None:
        crashes = self._crashes[item.key]
        if len(crashes) >= MAXIMUM_CRASHES:
            first = crashes[0]
            raise RepeatedCrashError(
                f"{item.target.name}-{item.config.name} crashed {len(crashes)} times in this run and is not tried again",
                stage=first.stage,
                root_cause=first.root_cause,
            )

    def _lock(self, target: TargetSpec) -> None:
        key = target.hardware.kind
        if key not in self._locked:
            self._exit.enter_context(device_lock(key))
            self._locked.add(key)

    def _start_all(self, missing: Sequence[Wanted]) -> None:
        """Start side by side. An interrupt ends the starts under way at once; of several failures the first wanted one's is raised."""
        cancelled = threading.Event()
        with ThreadPoolExecutor(max_workers=len(missing)) as executor:
            try:
                outcomes = [executor.submit(self._start, item, cancelled) for item in missing]
                errors = [future.exception() for future in outcomes]
            except BaseException:
                cancelled.set()  # else the executor would wait until the engines are ready
                raise
        for error in errors:
            if error is not None:
                raise error

    def _start(self, item: Wanted, cancelled: threading.Event) -> None:
        session_id = uuid.uuid4().hex[:12]
        label = f"{item.target.name}-{item.config.name} ({item.arm})"
        launch = measured_launch(
            item.target,
            item.engine_arguments,
            model=self._model(item),
            engine_python=item.engine_python,
            python_path=self._settings.engine_python_path,
            cache_directory=self._settings.cache_directory,
        )
        try:
            engine = start_target(
                item.target,
                launch,
                work_directory=self._settings.results_directory / "engines" / session_id,
                on_stage=lambda stage: self._progress.stage(label, stage),
                device_used_bytes=used_device_bytes if item.target.hardware.kind == "nvidia" else None,
                companion_failed=lambda: EngineError("the start was interrupted") if cancelled.is_set() else None,
            )
        except EngineError as error:
            self._crashes[item.key].append(error)
            raise
        try:
            self._live[item.key] = self._probe(item, session_id, engine)
        except BaseException as error:
            if isinstance(error, EngineError):
                self._crashes[item.key].append(error)
            engine.stop()
            raise

    def _probe(self, item: Wanted, session_id: str, engine: Any) -> LiveEngine:
        probe = ServerProbe(engine.base_url)
        live = LiveEngine(
            session_id=session_id,
            arm=item.arm,
            target=item.target.name,
            config=item.config.name,
            engine=engine,
            probe=probe,
            identity=engine_identity(probe.identity(), item.target.hardware.hardware_class),
            resolved_config=probe.resolved_config(),
            kv_capacity_tokens=probe.kv_capacity_tokens,
            kv_max_concurrency_ratio=probe.max_concurrency,
            started_at_utc=utc_now(),
        )
        if item.inject:
            live.inject(self._settings.injections)
        return live

    def _model(self, item: Wanted) -> str:
        model = item.target.model
        if model.directory is None:
            return str(model.checkpoint)
        return str(materialise(item.suite_root / model.directory, self._settings.cache_directory / "models"))
