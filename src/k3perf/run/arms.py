"""Which engines a cell's comparison needs, per mode: one code path, the modes differ in
who the other arm is.
"""

from __future__ import annotations

from dataclasses import replace

from k3perf.config.suite import Cell, Suite
from k3perf.records.samples import Arm
from k3perf.run.pool import Wanted
from k3perf.run.settings import RunSettings


def wanted_engines(cell: Cell, settings: RunSettings) -> tuple[Wanted, ...]:
    """The candidate, alone (``baseline``), beside the reference config (``reference``)
    or beside the base's same config (``ab``).
    """
    suite, target, config = settings.suite, cell.target.name, cell.config.name
    candidate = replace(
        candidate_engine(settings, target, config), inject=bool(settings.injections)
    )
    mode = settings.mode_for(target)
    if mode == "baseline":
        return (candidate,)
    if mode == "reference":
        return (_reference(settings, suite, target, cell.target.reference), candidate)
    return (_reference(settings, settings.ab_suite or suite, target, config), candidate)


def candidate_engine(settings: RunSettings, target_name: str, config_name: str) -> Wanted:
    """The run's own engine with a config, without an injected fault."""
    suite = settings.suite
    target, config = suite.target(target_name), suite.config(config_name)
    return Wanted(
        target=target,
        config=config,
        arm=Arm.CANDIDATE,
        engine_arguments=suite.engine_arguments(target, config),
        suite_root=suite.root,
        engine_python=settings.engine_python,
        inject=False,
    )


def _reference(settings: RunSettings, suite: Suite, target: str, config: str) -> Wanted:
    return replace(
        candidate_engine(replace(settings, suite=suite), target, config),
        arm=Arm.REFERENCE,
        engine_python=settings.ab_base_python or settings.engine_python,
    )
