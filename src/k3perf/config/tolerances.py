"""Checks of ``tolerances.yaml``: its levels, before it becomes a model, and against the suite's targets, configs and workloads its names
and one kind of tolerance for a metric.

Metric names are checked by ``k3perf.gate.gated``: this layer does not know the metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, Final

from k3perf.config.load import parse, read_yaml
from k3perf.config.models import Tolerance, ToleranceFile
from k3perf.errors import ConfigFileError

_LEVELS: Final[dict[str, tuple[str, ...]]] = {
    "defaults": ("metric",),
    "targets": ("target", "metric"),
    "workloads": ("workload", "metric"),
    "configs": ("target", "config", "metric"),
}
_KINDS: Final = frozenset(Tolerance.model_fields)


def load_tolerances(path: Path) -> ToleranceFile:
    """The file as a model, its names unchecked. Raises ConfigFileError; a level that was left out is told as such, since a model would take
    ``loss_ratio`` for a metric's name and find fault with its number."""
    data = read_yaml(path)
    for place, levels in _LEVELS.items():
        if place in data:
            _check_levels(path, place, levels, levels, data[place])
    return parse(ToleranceFile, data, path)


def _check_levels(path: Path, key: str, levels: tuple[str, ...], left: tuple[str, ...], value: Any) -> None:
    """``left``: the levels of names that still stand between ``value`` and its tolerances."""
    place = key.partition(".")[0]
    names = "".join(f"{level.upper()}: {{" for level in levels)
    next_step = f"Write {place}: {{{names}loss_ratio: 0.1}}{'}' * len(levels)}; docs/configs.md lists every key."
    if left and not isinstance(value, dict):
        empty = ", and is empty" if value is None else ""
        raise ConfigFileError(path, key, value, f"must be a mapping of each {left[0]} to {_held(left)}{empty}", next_step)
    if left and not _KINDS.isdisjoint(value):
        raise ConfigFileError(path, key, value, f"a level is missing: a tolerance stands where {left[0]} names belong", next_step)
    if left:
        for name, held in value.items():
            _check_levels(path, f"{key}.{name}", levels, left[1:], held)
    elif isinstance(value, dict) and any(isinstance(held, dict) for held in value.values()):
        raise ConfigFileError(path, key, value, "a level too many: a tolerance belongs here", next_step)
    elif value is not None and not isinstance(value, dict):
        raise ConfigFileError(path, key, value, "must be a tolerance, with its kind", next_step)


def _held(left: tuple[str, ...]) -> str:
    return "its tolerance" if len(left) == 1 else f"its {left[1]}s"


def check_tolerances(
    declared: ToleranceFile,
    path: Path,
    *,
    targets: Collection[str],
    configs: Collection[str],
    workloads: Collection[str],
    not_collected: Callable[[str, str], str],
) -> None:
    """Raises ConfigFileError for a name that nobody declared, a config that its target does not measure, and a tolerance of another kind
    than the same metric has elsewhere.

    ``not_collected`` says of a target and a config why there is no cell; empty when there is one.
    """
    _check_names(path, "targets", declared.targets, "target", targets)
    _check_names(path, "workloads", declared.workloads, "workload", workloads)
    _check_names(path, "configs", declared.configs, "target", targets)
    for target, own in declared.configs.items():
        _check_names(path, f"configs.{target}", own, "config", configs)
        for config in own:
            reason = not_collected(target, config)
            if reason:  # a tolerance of a cell that does not exist would be read by nobody
                measured = [name for name in configs if not not_collected(target, name)]
                problem = f"{target} does not measure this config: {reason}"
                raise ConfigFileError(
                    path, f"configs.{target}.{config}", None, problem, f"Remove it, or use one of: {', '.join(measured)}."
                )
    _check_kinds(declared, path)


def _check_names(path: Path, place: str, names: Iterable[str], kind: str, known: Collection[str]) -> None:
    for name in names:
        if name not in known:
            raise ConfigFileError(path, f"{place}.{name}", None, f"no {kind} has this name", f"Use one of: {', '.join(known)}.")


def _check_kinds(declared: ToleranceFile, path: Path) -> None:
    """A metric that a workload or a config overlays is a ratio or an amount wherever it is gated: the kind decides the scale, on which a
    target's cells share their noise."""
    overlays = (*declared.workloads.values(), *(own for configs in declared.configs.values() for own in configs.values()))
    overlaid = {name for own in overlays for name in own}
    first: dict[str, tuple[str, str]] = {}
    for place, tolerances in declared.places():
        for name, tolerance in tolerances.items():
            if tolerance is None or name not in overlaid:
                continue
            where, kind = first.setdefault(name, (place, _kind(tolerance)))
            if _kind(tolerance) != kind:
                problem = f"has a {_kind(tolerance)}, but a {kind} in {where}; use one kind of tolerance for a metric"
                value = tolerance.model_dump(exclude_none=True)
                raise ConfigFileError(path, f"{place}.{name}", value, problem, f"Give a {kind} here, or change {where}.{name}.")


def _kind(tolerance: Tolerance) -> str:
    return "loss_ratio" if tolerance.loss_absolute is None else "loss_absolute"
