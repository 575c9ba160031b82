"""Checks of ``tolerances.yaml``: its levels, before it becomes a model, and against the
suite's targets, configs and workloads its names and one kind of tolerance for a metric.

Metric names are checked by ``k3perf.config.gated``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from k3perf.config.load import parse, read_yaml
from k3perf.config.models import Tolerance, ToleranceFile
from k3perf.errors import ConfigFileError, raise_all

_LEVELS: Final[dict[str, tuple[str, ...]]] = {
    "defaults": ("metric",),
    "targets": ("target", "metric"),
    "workloads": ("workload", "metric"),
    "configs": ("target", "config", "metric"),
}
_KINDS: Final = frozenset(Tolerance.model_fields)


def load_tolerances(path: Path) -> ToleranceFile:
    """The file as a model, its names unchecked. Raises one ConfigFileError for all its
    problems.

    A level that was left out is reported as such: a model would take ``loss_ratio`` for
    a metric's name and find fault with its number.
    """
    data = read_yaml(path)
    raise_all(
        problem
        for place, levels in _LEVELS.items()
        if place in data
        for problem in _level_problems(path, place, levels, levels, data[place])
    )
    return parse(ToleranceFile, data, path)


def _level_problems(
    path: Path, key: str, levels: tuple[str, ...], left: tuple[str, ...], value: Any
) -> Iterator[ConfigFileError]:
    """``left``: the levels of names that still stand between ``value`` and its
    tolerances.
    """
    place = key.partition(".")[0]
    names = "".join(f"{level.upper()}: {{" for level in levels)
    next_step = (
        f"Write {place}: {{{names}loss_ratio: 0.1}}{'}' * len(levels)}; docs/configs.md lists every"
        " key."
    )
    if left and not isinstance(value, dict):
        empty = ", and is empty" if value is None else ""
        yield ConfigFileError(
            path,
            key,
            value,
            f"must be a mapping of each {left[0]} to {_held(left)}{empty}",
            next_step,
        )
    elif left and not _KINDS.isdisjoint(value):
        yield ConfigFileError(
            path,
            key,
            value,
            f"a level is missing: a tolerance stands where {left[0]} names belong",
            next_step,
        )
    elif left:
        for name, held in value.items():
            yield from _level_problems(path, f"{key}.{name}", levels, left[1:], held)
    elif isinstance(value, dict) and any(isinstance(held, dict) for held in value.values()):
        yield ConfigFileError(
            path, key, value, "a level too many: a tolerance belongs here", next_step
        )
    elif value is not None and not isinstance(value, dict):
        yield ConfigFileError(path, key, value, "must be a tolerance, with its kind", next_step)


def _held(left: tuple[str, ...]) -> str:
    return "its tolerance" if len(left) == 1 else f"its {left[1]}s"


def tolerance_problems(
    declared: ToleranceFile,
    path: Path,
    *,
    targets: Collection[str],
    configs: Collection[str],
    workloads: Collection[str],
    not_collected: Callable[[str, str], str],
) -> Iterator[ConfigFileError]:
    """Names that are not declared, configs that their target does not measure, and
    tolerances of another kind than the same metric has elsewhere.

    ``not_collected`` says of a target and a config why there is no cell; empty when
    there is one.
    """
    yield from _name_problems(path, "targets", declared.targets, "target", targets)
    yield from _name_problems(path, "workloads", declared.workloads, "workload", workloads)
    yield from _name_problems(path, "configs", declared.configs, "target", targets)
    for target, own in declared.configs.items():
        yield from _name_problems(path, f"configs.{target}", own, "config", configs)
        for config in own:
            reason = (
                not_collected(target, config) if target in targets and config in configs else ""
            )
            if reason:  # a tolerance of a cell that does not exist would never be read
                measured = [name for name in configs if not not_collected(target, name)]
                problem = f"{target} does not measure this config: {reason}"
                yield ConfigFileError(
                    path,
                    f"configs.{target}.{config}",
                    None,
                    problem,
                    f"Remove it, or use one of: {', '.join(measured)}.",
                )
    yield from _kind_problems(declared, path)


def _name_problems(
    path: Path, place: str, names: Iterable[str], kind: str, known: Collection[str]
) -> Iterator[ConfigFileError]:
    for name in names:
        if name not in known:
            yield ConfigFileError(
                path,
                f"{place}.{name}",
                None,
                f"no {kind} has this name",
                f"Use one of: {', '.join(known)}.",
            )


def _kind_problems(declared: ToleranceFile, path: Path) -> Iterator[ConfigFileError]:
    """A metric that a workload or a config overlays is a ratio or an amount wherever it
    is gated: the kind decides the scale, on which a target's cells share their noise.
    """
    overlays = (
        *declared.workloads.values(),
        *(own for configs in declared.configs.values() for own in configs.values()),
    )
    overlaid = {name for own in overlays for name in own}
    first: dict[str, tuple[str, str]] = {}
    for place, tolerances in declared.places():
        for name, tolerance in tolerances.items():
            if tolerance is None or name not in overlaid:
                continue
            where, kind = first.setdefault(name, (place, _kind(tolerance)))
            if _kind(tolerance) != kind:
                problem = (
                    f"has a {_kind(tolerance)}, but a {kind} in {where}; use one kind of tolerance"
                    " for a metric"
                )
                value = tolerance.model_dump(exclude_none=True)
                yield ConfigFileError(
                    path,
                    f"{place}.{name}",
                    value,
                    problem,
                    f"Give a {kind} here, or change {where}.{name}.",
                )


def _kind(tolerance: Tolerance) -> str:
    return "loss_ratio" if tolerance.loss_absolute is None else "loss_absolute"
