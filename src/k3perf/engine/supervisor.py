"""EngineLaunch to running Engine: start, watch the stages of the start, prove that the
server is ours; or end everything and say why not.

Must not: talk to a server that is not of our own process tree; leave a process behind
on any way out, exceptions from nowhere included.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from k3perf.engine import health, log_lines, signals
from k3perf.engine.death_watch import describe_exit
from k3perf.engine.guardian import Guardian
from k3perf.engine.held_start import Gate, held
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.log_reader import LogReader
from k3perf.engine.pinning import pin_servers
from k3perf.engine.port import Listener, PortReservation, port_is_taken, who_listens
from k3perf.engine.process_tree import (
    ENGINE_ID_VARIABLE,
    ProcessTree,
    become_subreaper,
    new_engine_id,
    start_root,
)
from k3perf.engine.running import DeviceUsedBytes, Engine
from k3perf.engine.shared_memory import SharedMemoryRecord
from k3perf.engine.silent_work import SilentWork, cache_folders
from k3perf.errors import EngineError
from k3perf.units import ns_to_s, s_to_ns

_POLL_S: Final = 0.25
# listing mappings takes tens of milliseconds: not at every poll; a new file in shared
# memory is looked at at once
_LOOK_S: Final = 5.0
_WHOLE_START_FACTOR: Final = 4.0
_SILENT_SHARE: Final = (
    4.0  # of a stage's deadline, after which a silent log is not all that is looked at
)


class _PortTaken(Exception):
    """Another program has the port: try the next one."""


def start_engine(
    launch: EngineLaunch,
    *,
    work_directory: Path,
    on_stage: Callable[[str], None] | None = None,
    device_used_bytes: DeviceUsedBytes | None = None,
    companion_failed: Callable[[], EngineError | None] = lambda: None,
) -> Engine:
    """Start one engine and return when it is healthy and proved to be ours.

    ``work_directory`` keeps the native config file and the log. ``on_stage`` hears each
    stage of the start as the log shows it. ``device_used_bytes`` reads the device's
    used memory: ``stop`` waits until it is back at what it was before.
    ``companion_failed`` is asked while it starts: an error it gives (another rank of
    the engine is gone) ends the start. Raises EngineError (stage, root cause, last ten
    lines) after ending everything, PreflightError when the machine refuses the start.
    """
    become_subreaper()
    work_directory.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, launch.port_attempts + 1):
        try:
            with signals.deferred():
                engine = _spawn(launch, work_directory, attempt, on_stage, device_used_bytes)
            return _brought_up(engine, companion_failed)
        except _PortTaken as taken:
            last = str(taken)
    raise EngineError(f"no free port after {launch.port_attempts} attempts: {last}", stage="ready")


def hold_engine(
    launch: EngineLaunch, *, work_directory: Path, device_used_bytes: DeviceUsedBytes | None = None
) -> Engine:
    """Start an engine's process ahead of its turn: it imports vLLM, then waits at a
    gate without touching the device.

    The result is ended by ``stop`` or brought up by ``release_engine``. ValueError for
    a launch that cannot be held.
    """
    become_subreaper()
    work_directory.mkdir(parents=True, exist_ok=True)
    with signals.deferred():
        return _spawn(launch, work_directory, 1, None, device_used_bytes, hold=True)


def release_engine(
    engine: Engine,
    *,
    on_stage: Callable[[str], None] | None = None,
    companion_failed: Callable[[], EngineError | None] = lambda: None,
) -> Engine:
    """Open the gate of a held engine and return when it is healthy and ours; raises as
    ``start_engine`` does.

    A port that was taken meanwhile is an EngineError: the caller starts it again.
    """
    engine.release_from_gate(on_stage)
    try:
        return _brought_up(engine, companion_failed)
    except _PortTaken as taken:
        raise EngineError(str(taken), stage="ready") from taken


def _brought_up(engine: Engine, companion_failed: Callable[[], EngineError | None]) -> Engine:
    try:
        _wait_until_ready(engine, companion_failed)
        pin_servers(engine.pid, engine.pids(), engine.launch.server_cpus)
        engine.mark_ready(time.monotonic_ns())
    except BaseException:
        engine.stop()
        raise
    return engine


def _environment(launch: EngineLaunch, engine_id: str, scratch: Path) -> dict[str, str]:
    """The harness's environment, the launch's over it, the mark, and a temporary
    directory that is removed at the end.

    SPT_NOENV keeps setproctitle from overwriting the environment block, where the mark
    is read. Inductor's cache stays where it would be without our temporary directory
    (or next to vLLM's), else every start would compile again.
    """
    cache_root = (
        launch.environment.get("VLLM_CACHE_ROOT")
        or f"{tempfile.gettempdir()}/k3perf-cache-{os.getuid()}"
    )
    environment: dict[str, str | None] = {
        **os.environ,
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get(
            "TORCHINDUCTOR_CACHE_DIR", f"{cache_root}/torchinductor"
        ),
        **launch.environment,
        ENGINE_ID_VARIABLE: engine_id,
        "SPT_NOENV": "1",
        "TMPDIR": str(scratch),
    }
    return {key: value for key, value in environment.items() if value is not None}


def _spawn(
    launch: EngineLaunch,
    work_directory: Path,
    attempt: int,
    on_stage: Callable[[str], None] | None,
    device_used_bytes: DeviceUsedBytes | None,
    *,
    hold: bool = False,
) -> Engine:
    engine_id = new_engine_id()
    suffix = "" if attempt == 1 else f".{attempt}"
    config_file = work_directory / "engine.yaml"
    log_path = work_directory / f"engine{suffix}.log"
    used_before_bytes = device_used_bytes() if device_used_bytes is not None and not hold else None
    shared_memory = SharedMemoryRecord()
    reservation = PortReservation(launch.host)
    scratch = Path(
        tempfile.mkdtemp(prefix="k3perf-")
    )  # short: sockets live in it, and their paths end at 108 characters
    environment = _environment(launch, engine_id, scratch)
    guardian, gate = None, None
    try:
        gate = Gate(scratch) if hold else None
        started_launch = held(launch, gate.path) if gate is not None else launch
        config_file.write_text(launch.config_file_text)
        guardian = Guardian(engine_id, paths=(scratch,))
        shared_memory.on_seen = guardian.add_files
        started_ns = time.monotonic_ns()
        argv = started_launch.rendered_argv(config_file=str(config_file), port=reservation.port)
        process = start_root(argv, environment, log_path)
        guardian.add_session(process.pid)
    except BaseException as error:
        if guardian is not None:
            guardian.release()
        if gate is not None:
            gate.close()
        reservation.release()
        shared_memory.close()
        shutil.rmtree(scratch, ignore_errors=True)
        if isinstance(error, OSError):
            raise EngineError(f"the engine could not be started: {error}", stage="spawn") from error
        raise
    return Engine(
        launch=launch,
        process=process,
        tree=ProcessTree(engine_id, process.pid),
        guardian=guardian,
        reservation=reservation,
        log=LogReader(log_path, start_ns=started_ns, on_stage=on_stage),
        log_path=log_path,
        scratch=scratch,
        started_ns=started_ns,
        device_used_bytes=device_used_bytes,
        device_used_before_bytes=used_before_bytes,
        shared_memory=shared_memory,
        gate=gate,
        environment=environment,
    )


def _wait_until_ready(engine: Engine, companion_failed: Callable[[], EngineError | None]) -> None:
    """Follow the log until the server answers as ours; raise EngineError when the
    engine dies or a stage makes no progress in time.
    """
    deadlines = engine.launch.deadlines
    limits_s = {stage: getattr(deadlines, f"{stage}_s") for stage in log_lines.STAGES}
    whole_s = _WHOLE_START_FACTOR * sum(limits_s.values())
    work = SilentWork(engine.pids, (engine.scratch, *cache_folders(engine.environment)))
    next_look_ns, next_work_ns, looked_at_stage = 0, 0, ""
    while True:
        engine.log.drain()
        if time.monotonic_ns() >= next_look_ns or engine.log.stage != looked_at_stage:
            engine.look()
            next_look_ns, looked_at_stage = time.monotonic_ns() + s_to_ns(_LOOK_S), engine.log.stage
        if _answers_as_ours(engine):
            engine.log.drain()
            return
        _raise_if_ended(engine)
        if (failure := companion_failed()) is not None:
            raise failure
        now_ns, stage = time.monotonic_ns(), engine.log.stage
        # an engine that logs errors alone names no stage: any of them may be the one
        # that it is in
        limit_s = limits_s[stage] if engine.log.names_stages else sum(limits_s.values())
        quiet_s = ns_to_s(now_ns - engine.log.last_progress_ns)
        if quiet_s > limit_s / _SILENT_SHARE and (now_ns >= next_work_ns or quiet_s > limit_s):
            next_work_ns = now_ns + s_to_ns(min(limit_s / _SILENT_SHARE / 2, _LOOK_S))
            if work.seen():
                engine.log.note_progress()
                continue
        if quiet_s > limit_s:
            raise _hung(engine, _quiet_text(engine, quiet_s, limits_s))
        if ns_to_s(now_ns - engine.started_ns) > whole_s:
            raise _hung(
                engine,
                f"not ready after {whole_s:.0f} s, {_WHOLE_START_FACTOR:g} times all its stage"
                " deadlines together",
            )
        engine.wait(_POLL_S)


def _quiet_text(engine: Engine, quiet_s: float, limits_s: dict[str, float]) -> str:
    if engine.log.names_stages:
        stage = engine.log.stage
        return (
            f"no progress in its log for {quiet_s:.0f} s (stage_deadlines.{stage}_s is"
            f" {limits_s[stage]:g}), no compiler at work, no cache growing"
        )
    return (
        f"no line in its log for {quiet_s:.0f} s, and no stage was reported before (all"
        f" stage_deadlines together are {sum(limits_s.values()):g})"
    )


def _hung(engine: Engine, reading: str) -> EngineError:
    return EngineError(
        f"engine hung in stage {engine.log.stage}: {reading}",
        stage=engine.log.stage,
        root_cause=engine.log.root_cause(),
        log_tail=engine.log.tail(),
    )


def _raise_if_ended(engine: Engine) -> None:
    return_code = engine.return_code()
    if return_code is None:
        return
    engine.log.drain()
    cause = engine.failure()
    if any(log_lines.shows_port_clash(line) for line in engine.log.tail(60)):
        raise _PortTaken(f"port {engine.port}: {cause.text}")
    who = f". {cause.died}" if cause.died else ""
    raise EngineError(
        f"engine ended in stage {engine.log.stage} with {describe_exit(return_code)}{who}",
        stage=engine.log.stage,
        root_cause=cause.text,
        log_tail=engine.log.tail(),
    )


def _answers_as_ours(engine: Engine) -> bool:
    """Healthy, the port's only listener ours, and serving the right model."""
    launch = engine.launch
    if not port_is_taken(launch.host, engine.port):
        return False
    listener = who_listens(launch.host, engine.port, engine.pids())
    if listener is Listener.STRANGER:
        raise _PortTaken(f"port {engine.port} is served by another process")
    if listener is Listener.NONE or not health.is_healthy(launch.host, engine.port):
        return False
    models = health.served_models(launch.host, engine.port)
    if models is None:
        return False
    if launch.model_name not in models:
        raise EngineError(
            f"the engine serves {', '.join(models) or 'no model'}, not {launch.model_name!r}",
            stage="ready",
            log_tail=engine.log.tail(),
        )
    return True
