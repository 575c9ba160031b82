"""Which engines a cell's comparison needs, per mode: one code path, the modes differ in
who the other arm is.
"""

from __future__ import annotations

from dataclasses import replace

from k3perf.config.suite import Cell, Suite
from k3perf.records.measurement import CellMeasurement
from k3perf.records.samples import Arm
from k3perf.run.pool import Wanted
from k3perf.run.settings import RunSettings


def wanted_engines(cell: Cell, settings: RunSettings) -> tuple[Wanted, ...]:
    """The candidate, alone (``baseline``), beside the reference config (``reference``)
    or beside the base's same config (``ab``).
    """
    suite, target, config = settings.suite, cell.target.name, cell.config.name
    engine = candidate_engine(settings, target, config)
    candidate = replace(engine, injections=settings.injections)
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
    )


def arm_notes(settings: RunSettings, measurement: CellMeasurement) -> list[str]:
    """``ab``: which arm is the base and which the candidate, with ref, vLLM version and
    engine Python. Empty in other modes.
    """
    if measurement.mode != "ab":
        return []
    base = settings.ab_base_python or settings.engine_python
    return [
        f"base, compared with: {settings.ab_base_name}, {_release(measurement, Arm.REFERENCE)},"
        f" engine Python {base}",
        f"candidate, judged: this checkout ({settings.commit[:12]}),"
        f" {_release(measurement, Arm.CANDIDATE)}, engine Python {settings.engine_python}",
    ]


def _release(measurement: CellMeasurement, arm: Arm) -> str:
    """``vLLM 0.32.0`` of the arm's first session that says so."""
    found = (one.resolved_config.get("version.vllm") for one in measurement.arm(arm))
    return f"vLLM {next((str(name) for name in found if name is not None), 'unknown')}"


def _reference(settings: RunSettings, suite: Suite, target: str, config: str) -> Wanted:
    return replace(
        candidate_engine(replace(settings, suite=suite), target, config),
        arm=Arm.REFERENCE,
        injections=tuple(one for one in settings.injections if one.both_arms),
        engine_python=settings.ab_base_python or settings.engine_python,
    )
