"""A target's reference engine alone, alive for as long as something is asked of it
outside a measured cell.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from k3perf.run.arms import candidate_engine
from k3perf.run.live import LiveEngine, client_on
from k3perf.run.pool import EnginePool
from k3perf.run.progress import Progress
from k3perf.run.readiness import require_engine, require_port
from k3perf.run.settings import RunSettings


@contextmanager
def reference_engine(
    settings: RunSettings, target_name: str, progress: Progress, *, config: str = ""
) -> Iterator[LiveEngine]:
    """Start it as a run would, keep this thread where the target pins its client, stop
    it on every way out. ``config``: another config than the reference.

    Raises UnknownNameError, UsageError, PreflightError or EngineError.
    """
    target = settings.suite.target(target_name)
    wanted = candidate_engine(settings, target_name, config or target.reference)
    require_port()
    require_engine(settings.engine_python)
    with EnginePool(settings, progress) as pool:
        (live,) = pool.acquire((wanted,))
        with client_on(target.pinning.client_cpus):
            yield live
