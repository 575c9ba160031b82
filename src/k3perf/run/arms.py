"""Which engines a cell's comparison needs, per mode: one code path, the modes differ in
who the other arm is.
"""

from __future__ import annotations

from k3perf.config.suite import Cell, Suite
from k3perf.records.samples import Arm
from k3perf.run.pool import Wanted
from k3perf.run.settings import RunSettings


def wanted_engines(cell: Cell, settings: RunSettings) -> tuple[Wanted, ...]:
    """The candidate, alone (``baseline``), beside the reference config (``reference``)
    or beside the base's same config (``ab``).
    """
    candidate = Wanted(
        target=cell.target,
        config=cell.config,
        arm=Arm.CANDIDATE,
        engine_arguments=cell.engine_arguments,
        suite_root=settings.suite.root,
        engine_python=settings.engine_python,
        inject=bool(settings.injections),
    )
    mode = settings.mode_for(cell.target.name)
    if mode == "baseline":
        return (candidate,)
    if mode == "reference":
        return (_other(settings.suite, cell, cell.target.reference, settings), candidate)
    return (
        _other(settings.ab_suite or settings.suite, cell, cell.config.name, settings),
        candidate,
    )


def _other(suite: Suite, cell: Cell, config_name: str, settings: RunSettings) -> Wanted:
    target = suite.target(cell.target.name)
    config = suite.config(config_name)
    return Wanted(
        target=target,
        config=config,
        arm=Arm.REFERENCE,
        engine_arguments=suite.engine_arguments(target, config),
        suite_root=suite.root,
        engine_python=settings.ab_base_python or settings.engine_python,
        inject=False,
    )
