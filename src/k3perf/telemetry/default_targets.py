"""Which targets a run measures on this machine when none is named, with the reason for
every other one.
"""

from __future__ import annotations

from typing import NamedTuple

from k3perf.config.suite import Suite
from k3perf.telemetry.hardware import DetectedHardware


class DefaultTargets(NamedTuple):
    """``skipped`` has a reason for each other target. ``reason``: why a target takes
    the place of the usual one; empty where none does. ``lacking``: what those lack that
    would be measured by default.
    """

    names: tuple[str, ...]
    skipped: dict[str, str]
    reason: str
    lacking: dict[str, str]


def default_targets(suite: Suite, hardware: DetectedHardware) -> DefaultTargets:
    """Targets of the strongest hardware found: an NVIDIA machine does not also measure
    the CPU stand-ins.

    Where the hardware of a default target is missing, the target that is declared
    ``default_instead_of`` it takes its place.
    """
    lacks = {name: hardware.lacks(target.hardware) for name, target in suite.targets.items()}
    skipped: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for name, target in suite.targets.items():
        other = target.default_instead_of
        if lacks[name]:
            skipped[name] = lacks[name]
        elif other is not None and lacks[other]:
            reasons[name] = f"{name} instead of {other}: {lacks[other]}"
        elif target.measured_by_default:
            reasons[name] = ""
        else:
            skipped[name] = "only measured when named with --k3-target"
    kinds = {suite.targets[name].hardware.kind for name in reasons}
    if kinds > {"cpu"}:
        for name in [name for name in reasons if suite.targets[name].hardware.kind == "cpu"]:
            del reasons[name]
            skipped[name] = "a GPU is present; name it with --k3-target"
    by_default = (
        name
        for name, target in suite.targets.items()
        if target.measured_by_default or target.default_instead_of
    )
    lacking = {name: lacks[name] for name in by_default if lacks[name]}
    return DefaultTargets(
        tuple(reasons), skipped, "; ".join(filter(None, reasons.values())), lacking
    )
