"""Checks of ``tolerances.yaml``: its levels, before it becomes a model, and against the
suite's targets, configs and workloads its names and one kind of tolerance for a metric.

Metric names are checked by ``k3perf.config.gated``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from k3perf.config.declared import ConfigName, Declared, Name
from k3perf.config.load_yaml import parse, read_yaml
from k3perf.config.models import Tolerance
from k3perf.errors import ConfigFileError, raise_all
from k3perf.records.metric_definitions import METRICS, Comparison

_LEVELS: Final[dict[str, tuple[str, ...]]] = {
    "defaults": ("metric",),
    "targets": ("target", "metric"),
    "workloads": ("workload", "metric"),
    "configs": ("target", "config", "metric"),
}
_KINDS: Final = frozenset(Tolerance.model_fields)


class ToleranceFile(Declared):
    """Gated metrics with their tolerances, and the error rates.

    From general to special: ``defaults``, ``targets``, ``workloads``, ``configs``. The
    last that names a metric holds, and null means not gated (docs/gate.md).
    """

    schema_version: Literal[1]
    """Version of this file's format."""
    false_alarm_budget: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.01
    """Family-wise error rate: probability that a run without any change is red."""
    missed_loss_budget: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.05
    """Probability that a loss of the minimum detectable effect is missed."""
    cumulative_loss_cap_ratio: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.1
    """Largest loss since the anchor that may be accepted in small steps."""
    common_loss_limit_ratio: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.25
    """`reference` mode: how much worse than recorded the reference arm's own values may
    be.
    """
    defaults: dict[str, Tolerance] = Field(min_length=1)
    """Tolerance of each metric in every cell."""
    targets: dict[Name, dict[str, Tolerance | None]] = Field(default_factory=dict)
    """By target: metrics of all its cells."""
    workloads: dict[Name, dict[str, Tolerance | None]] = Field(default_factory=dict)
    """By workload: metrics that are meaningful for some workloads only, such as the
    hit ratio of shared prefixes.
    """
    configs: dict[Name, dict[ConfigName, dict[str, Tolerance | None]]] = Field(default_factory=dict)
    """By target and config: a config far noisier or quieter than its siblings.
    Noise of the metrics it names is pooled separately.
    """
    memory_and_lock: dict[Name, dict[ConfigName, Annotated[str, Field(min_length=8)]]] = Field(
        default_factory=dict
    )
    """By target and config, why its noise tests no tolerance of a timing. Only memory,
    capacity and the locked configuration are gated there.
    """

    def places(self) -> Iterator[tuple[str, Mapping[str, Tolerance | None]]]:
        """Every mapping of metrics to tolerances with its key in the file, from general
        to special.
        """
        yield "defaults", self.defaults
        for target, own in self.targets.items():
            yield f"targets.{target}", own
        for workload, own in self.workloads.items():
            yield f"workloads.{workload}", own
        for target, configs in self.configs.items():
            for config, own in configs.items():
                yield f"configs.{target}.{config}", own

    def for_target(self, target: str) -> dict[str, Tolerance]:
        """Metric name to tolerance for every workload of one target: the defaults
        overlaid with the target's own.
        """
        overlaid = {**self.defaults, **self.targets.get(target, {})}
        return {name: tolerance for name, tolerance in overlaid.items() if tolerance is not None}

    def own(self, target: str) -> dict[ConfigName, dict[str, Tolerance | None]]:
        """What single configs of the target say of metrics themselves; None: not gated
        there.
        """
        found = dict(self.configs.get(target, {}))
        for config in self.memory_and_lock.get(target, {}):
            found[config] = {**dict.fromkeys(self._timed(target)), **found.get(config, {})}
        return found

    def _timed(self, target: str) -> Iterator[str]:
        """Metrics with noise that are gated in some cell of the target."""
        overlays: tuple[Mapping[str, Tolerance | None], ...] = (
            self.for_target(target),
            *self.workloads.values(),
        )
        for name in dict.fromkeys(name for overlay in overlays for name in overlay):
            if name in METRICS and METRICS[name].comparison is Comparison.STATISTICAL:
                yield name

    def for_cell(self, target: str, config: str, workload: str) -> dict[str, Tolerance]:
        """Metric name to tolerance for one cell: what holds for the target, overlaid
        with the workload's own and then the config's own.
        """
        overlaid = {
            **self.for_target(target),
            **self.workloads.get(workload, {}),
            **self.own(target).get(config, {}),
        }
        return {name: tolerance for name, tolerance in overlaid.items() if tolerance is not None}


def load_tolerances(path: Path) -> ToleranceFile:
    """The file as a model, its names unchecked. Raises one ConfigFileError for all its
    problems.

    An omitted level is reported as such: a model would take ``loss_ratio`` for
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
        problem = f"must be a mapping of each {left[0]} to {_held(left)}{empty}"
        yield ConfigFileError(path, key, value, problem, next_step)
    elif left and not _KINDS.isdisjoint(value):
        problem = f"a level is missing: found a tolerance where {left[0]} names are expected"
        yield ConfigFileError(path, key, value, problem, next_step)
    elif left:
        for name, held in value.items():
            yield from _level_problems(path, f"{key}.{name}", levels, left[1:], held)
    elif isinstance(value, dict) and any(isinstance(held, dict) for held in value.values()):
        yield ConfigFileError(
            path, key, value, "one level too many: a tolerance is expected here", next_step
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
                step = f"Remove it, or use one of: {', '.join(measured)}."
                yield ConfigFileError(path, f"configs.{target}.{config}", None, problem, step)
    for target, own_reasons in declared.memory_and_lock.items():
        place = f"memory_and_lock.{target}"
        yield from _name_problems(path, "memory_and_lock", [target], "target", targets)
        yield from _name_problems(path, place, own_reasons, "config", configs)
        for config in own_reasons:
            held = declared.configs.get(target, {}).get(config, {})
            for name, tolerance in held.items():
                timed = name in METRICS and METRICS[name].comparison is Comparison.STATISTICAL
                if timed and tolerance is not None:
                    problem = f"the config is in {place}, which gates no metric with noise"
                    key = f"configs.{target}.{config}.{name}"
                    value = tolerance.model_dump(exclude_none=True)
                    yield ConfigFileError(path, key, value, problem, "Keep one of the two.")
    yield from _kind_problems(declared, path)


def _name_problems(
    path: Path, place: str, names: Iterable[str], kind: str, known: Collection[str]
) -> Iterator[ConfigFileError]:
    for name in names:
        if name not in known:
            problem = f"no {kind} has this name"
            step = f"Use one of: {', '.join(known)}."
            yield ConfigFileError(path, f"{place}.{name}", None, problem, step)


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
                step = f"Give a {kind} here, or change {where}.{name}."
                yield ConfigFileError(path, f"{place}.{name}", value, problem, step)


def _kind(tolerance: Tolerance) -> str:
    return "loss_ratio" if tolerance.loss_absolute is None else "loss_absolute"
