"""What cannot be seen of running servers, as notes of a cell's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from k3perf.baselines.visible import hidden_text, visible_keys
from k3perf.config.models import TargetSpec
from k3perf.config.suite import Cell, Suite
from k3perf.errors import UsageError
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement
from k3perf.telemetry.outside_server import LOCK, SeenServer


def outside_notes(
    servers: Sequence[SeenServer],
    baseline: Baseline | None,
    measurement: CellMeasurement,
    *,
    used_again: bool,
) -> tuple[str, ...]:
    """One note for each part that is not visible, and what a running server can never
    show.
    """
    if not servers:
        return ()
    blind: dict[str, str] = {}
    for server in servers:
        blind |= server.blind
    addresses = ", ".join(server.base_url for server in servers)
    why = blind.pop(LOCK, "")
    if baseline is not None:
        why = hidden_text(
            baseline.resolved_config,
            visible_keys(measurement.sessions),
            why or blind.get("workers", ""),
        )
    notes = [
        f"measured on {addresses}, which k3perf did not start",
        *([f"lock: {why}"] if why else []),
        *(f"{what}: not visible, {reason}" for what, reason in blind.items()),
        "not visible on a running server: its start, its log, compiles in a round, and the"
        " temperature and throttling of its devices",
    ]
    if used_again:
        notes.append(
            "several sessions used one server, so they do not include the variation between starts"
        )
    return tuple(notes)


def require_one_engine(cells: Sequence[Cell]) -> None:
    """Raise UsageError unless all cells are of one target and config: a server serves
    one.
    """
    engines = dict.fromkeys(f"{cell.target.name}-{cell.config.name}" for cell in cells)
    if len(engines) > 1:
        raise UsageError(
            f"--k3-server: a server runs one config, but this call selects {len(engines)}"
            f" ({', '.join(list(engines)[:3])}). Choose one with -k and --k3-target."
        )


def served_suite(suite: Suite, servers_count: int) -> Suite:
    """The suite as running servers can be measured: alone, and judged by at most one
    session for each server. A second one of the same process would not show what
    differs from start to start.
    """
    return replace(
        suite,
        targets={name: _served(target, servers_count) for name, target in suite.targets.items()},
    )


def _served(target: TargetSpec, servers_count: int) -> TargetSpec:
    plan = target.measurement
    limited = plan.model_copy(
        update={
            "mode": "baseline",
            "minimum_sessions": min(plan.minimum_sessions, servers_count),
            "maximum_sessions": min(plan.maximum_sessions, servers_count),
            "maximum_suspect_sessions": min(plan.suspect_sessions, servers_count),
        }
    )
    return target.model_copy(update={"measurement": limited})


def lock_problem(servers: Sequence[SeenServer]) -> str:
    """Why nothing of the lock could be compared. Empty: some of it was."""
    if not servers or any(server.resolved_config for server in servers):
        return ""
    return f"nothing of the lock is visible: {servers[0].blind.get(LOCK, 'no source shows it')}"
