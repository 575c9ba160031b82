"""The watch for compiles over a real CPU engine, started from a shell that would hide
its log.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from k3perf.engine.jit_monitor import JitMonitor, can_be_verbose, monitor_of
from k3perf.metrics.round_readings import NOT_OFFERED
from k3perf.run.compile_watch import CompileWatch, Seen, compile_reading
from tests.engine.live_engine import Live, StartLive

pytestmark = pytest.mark.engine


def watched(live: Live, *, leaving: Path | None = None) -> Seen:
    watch = CompileWatch(live.engine)
    start_ns = time.monotonic_ns()
    live.complete(list(range(10, 200)), 8, sequences=2)
    if leaving is not None:
        leaving.parent.mkdir(parents=True, exist_ok=True)
        leaving.write_bytes(b"cubin")
    return watch.seen(start_ns, time.monotonic_ns(), probe=live.probe, ranks_count=1)


def test_a_cpu_engine_offers_no_monitor_and_its_caches_are_watched(
    engine_python: Path, start_live: StartLive, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("VLLM_LOGGING_LEVEL", "ERROR"),
        ("FORCE_COLOR", "1"),
        ("VLLM_LOGGING_PREFIX", "x "),
        ("NO_COLOR", "1"),
    ):
        monkeypatch.setenv(name, value)
    assert can_be_verbose(engine_python)
    live = start_live("cpu-hybrid", again=True)
    log = "\n".join(live.engine.log.lines())
    assert "\x1b[" not in log
    assert " INFO " in log
    config = live.probe.server_info()["vllm_config"]
    assert monitor_of(config) == JitMonitor(offered=False, verbose=True)
    assert "jit_monitor_verbose" not in " ".join(live.probe.resolved_config())
    live.complete([5, 6, 7], 4)
    seen = watched(live)
    assert (seen.lines, seen.files, seen.programs, seen.unreadable, seen.answered_count) == (
        (),
        (),
        (),
        "",
        1,
    )
    reading = compile_reading(seen, monitor_of(config))
    assert reading.value is None
    assert reading.source.endswith(NOT_OFFERED)
    root = live.engine.launch.environment["VLLM_CACHE_ROOT"]
    assert root is not None
    compiled = compile_reading(
        watched(live, leaving=Path(root) / "deep_gemm" / "cache" / "k" / "kernel.cubin"),
        monitor_of(config),
    )
    assert compiled.value == 1.0
    assert compiled.source == f"new in: {root}/deep_gemm/cache/k"
