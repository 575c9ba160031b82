"""What a change does to its own judge: every difference of tolerances, plans, validity
rules, targets, workloads and cells. Pure; ``judge_baselines`` has the recorded part.

A looser rule needs a person. So does one of which nothing here can say whether it is
looser or stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from k3perf.config.candidates import candidate_reason
from k3perf.config.judged import declares
from k3perf.config.models import Tolerance
from k3perf.config.suite import Suite
from k3perf.metrics.validity import SPREAD_LIMIT, Bound, ValidityRules
from k3perf.records.metric_definitions import METRICS


class Effect(StrEnum):
    """What a change does to the judge. NEW judges what the base did not."""

    LOOSER = "looser"
    CHANGED = "changed"
    STRICTER = "stricter"
    NEW = "new"


@dataclass(frozen=True, slots=True)
class JudgeChange:
    """One row of the table."""

    kind: str
    key: str
    was: str
    now: str
    effect: Effect

    @property
    def finding(self) -> bool:
        """A person must acknowledge it."""
        return self.effect in (Effect.LOOSER, Effect.CHANGED)


def ordered(was: float | None, now: float | None, *, more_is_looser: bool) -> Effect:
    """The effect of a limit. None: there is none, which is the loosest."""
    if was is None or now is None:
        return Effect.LOOSER if now is None else Effect.STRICTER
    return Effect.LOOSER if (now > was) is more_is_looser else Effect.STRICTER


_RATES: Final = {
    "false_alarm_budget": False,
    "missed_loss_budget": True,
    "cumulative_loss_cap_ratio": True,
}
"""Key of tolerances.yaml, and whether more of it is looser."""
_FEWER_IS_LOOSER: Final = frozenset(
    {
        "minimum_rounds",
        "maximum_rounds",
        "minimum_sessions",
        "maximum_sessions",
        "baseline_sessions",
    }
)
_TEXTS: Final = frozenset({"schema_version", "name", "description", "provenance"})
_APART: Final = frozenset(
    {
        "measurement",
        "validity",
        "configs",
        "workloads",
        "workloads_on_request",
        "candidates",
        "refusals",
        "equivalences",
    }
)
"""Keys of a target that are compared by what they come to: plans, rules and cells."""

NOTHING: Final = "-"


def suite_changes(
    base: Suite, head: Suite, approved: frozenset[tuple[str, str]]
) -> Iterator[JudgeChange]:
    """Every difference of what the two suites declare about judging. ``approved``: the
    (target, config) pairs with a baseline in the base.
    """
    yield from _cells(base, head, approved)
    yield from _candidates(base, head)
    yield from _tolerances(base, head)
    yield from _pools(base, head)
    for key, more_is_looser in _RATES.items():
        was, now = getattr(base.tolerances, key), getattr(head.tolerances, key)
        if was != now:
            effect = ordered(was, now, more_is_looser=more_is_looser)
            yield JudgeChange("error rate", key, f"{was:g}", f"{now:g}", effect)
    for name in base.targets.keys() & head.targets.keys():
        yield from _target(base, head, name)
    for name in base.workloads.keys() & head.workloads.keys():
        old, new = (suite.workloads[name].model_dump(mode="json") for suite in (base, head))
        yield from _keys("workload", name, old, new, _workload_effect)


def _cells(base: Suite, head: Suite, approved: frozenset[tuple[str, str]]) -> Iterator[JudgeChange]:
    before, after = _measured(base), _measured(head)
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key, {}), after.get(key, {})
        lost = [name for name in was if name not in now]
        demoted = [name for name in was if was[name] and now.get(name) is False]
        added = [name for name in now if now[name] and not was.get(name)]
        place = "/".join(key)
        if was and not now and key in approved:
            yield JudgeChange("approved config", place, "measured", _why(head, key), Effect.LOOSER)
        elif lost:
            now_text = ", ".join(now) or _why(head, key)
            yield JudgeChange("cells", place, ", ".join(was), now_text, Effect.LOOSER)
        if demoted:
            text = ", ".join(demoted)
            yield JudgeChange("cells", place, text, f"{text} on request only", Effect.LOOSER)
        if added:
            yield JudgeChange("cells", place, NOTHING, ", ".join(added), Effect.NEW)


def _candidates(base: Suite, head: Suite) -> Iterator[JudgeChange]:
    """Cells that leave a run of the target until they have a baseline, or come back."""
    for name in base.targets.keys() & head.targets.keys():
        found: dict[tuple[str, str, Effect], list[str]] = {}
        for cell in base.cells((name,), on_request=base.workloads):
            config, workload = cell.config.name, cell.workload.name
            was, now = (
                candidate_reason(suite.target(name), config, workload) for suite in (base, head)
            )
            if bool(was) != bool(now):
                effect = Effect.LOOSER if now else Effect.STRICTER
                found.setdefault((_listing(was), _listing(now), effect), []).append(cell.cell_id)
        for (was, now, effect), cells in found.items():
            yield JudgeChange("cells", listed(cells), was, now, effect)


def _listing(reason: str) -> str:
    return f"candidate: {reason}" if reason else "approved"


def _measured(suite: Suite) -> dict[tuple[str, str], dict[str, bool]]:
    """By target and config, the workloads, and whether every run measures them."""
    found: dict[tuple[str, str], dict[str, bool]] = {}
    for cell in suite.cells(on_request=suite.workloads):
        by_default = cell.workload.name in cell.target.workloads
        found.setdefault((cell.target.name, cell.config.name), {})[cell.workload.name] = by_default
    return found


def _why(head: Suite, key: tuple[str, str]) -> str:
    target, config = key
    if target not in head.targets:
        return "leaves the gate: the target is gone"
    if config not in head.configs:
        return "leaves the gate: the config is gone"
    reason = head.not_collected(head.target(target), head.config(config))
    return f"leaves the gate: {reason or 'no workload is left'}"


def _tolerances(base: Suite, head: Suite) -> Iterator[JudgeChange]:
    """Compared cell by cell: an overlay may go, and the general rule hold again."""
    after = _measured(head)
    found: dict[tuple[str, str, str, Effect], list[str]] = {}
    for (target, config), workloads in _measured(base).items():
        for workload in workloads.keys() & after.get((target, config), {}).keys():
            names = (target, config, workload)
            was, now = base.tolerances.for_cell(*names), head.tolerances.for_cell(*names)
            for metric in was.keys() | now.keys():
                old, new = was.get(metric), now.get(metric)
                if old != new:
                    row = (metric, _shown(metric, old), _shown(metric, new), _effect(old, new))
                    found.setdefault(row, []).append("-".join(names))
    for (metric, old_text, new_text, effect), cells in sorted(found.items()):
        key = f"{metric} of {listed(sorted(cells))}"
        yield JudgeChange("tolerance", key, old_text, new_text, effect)


def listed(names: list[str], most: int = 3) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _shown(metric: str, tolerance: Tolerance | None) -> str:
    if tolerance is None:
        return "not judged"
    if tolerance.loss_ratio is not None:
        return f"{100 * tolerance.loss_ratio:g} %"
    unit = METRICS[metric].unit if metric in METRICS else ""
    return f"{tolerance.loss_absolute:,.6g} {unit}".strip()


def _effect(was: Tolerance | None, now: Tolerance | None) -> Effect:
    if was is None or now is None:
        return Effect.LOOSER if now is None else Effect.STRICTER
    if (was.loss_ratio is None) != (now.loss_ratio is None):
        return Effect.CHANGED
    if was.loss_ratio is not None:
        return ordered(was.loss_ratio, now.loss_ratio, more_is_looser=True)
    return ordered(was.loss_absolute, now.loss_absolute, more_is_looser=True)


def _pools(base: Suite, head: Suite) -> Iterator[JudgeChange]:
    """Metrics of a config whose noise leaves the common pool, or comes back to it."""
    for target in base.targets.keys() & head.targets.keys():
        was, now = base.tolerances.own(target), head.tolerances.own(target)
        for config in was.keys() | now.keys():
            if not declares(base, target, config) or not declares(head, target, config):
                continue
            before, after = was.get(config, {}).keys(), now.get(config, {}).keys()
            for metric in before ^ after:
                texts = ("separate", "common") if metric in before else ("common", "separate")
                key = f"{metric} of {target}-{config}"
                yield JudgeChange("noise pool", key, *texts, Effect.CHANGED)


def _target(base: Suite, head: Suite, name: str) -> Iterator[JudgeChange]:
    was, now = base.targets[name], head.targets[name]
    old, new = was.model_dump(mode="json"), now.model_dump(mode="json")
    yield from _keys("plan", name, old["measurement"], new["measurement"], _plan_effect)
    yield from _validity(name, was.validity, now.validity)
    for key in _APART:
        del old[key], new[key]
    yield from _keys("target", name, old, new, lambda *_: Effect.CHANGED)


def _validity(
    target: str, was: Mapping[str, float], now: Mapping[str, float]
) -> Iterator[JudgeChange]:
    old, new = ValidityRules.for_target(was), ValidityRules.for_target(now)
    limits = [
        (rule.name, rule.limit, other.limit, rule.bound is Bound.AT_MOST)
        for rule, other in zip(old.rounds, new.rounds, strict=True)
    ]
    limits += [
        (rule, limit, new.session_limits[rule], rule == SPREAD_LIMIT)
        for rule, limit in old.session_limits.items()
    ]
    for rule, before, after, more_is_looser in limits:
        if before != after:
            effect = ordered(before, after, more_is_looser=more_is_looser)
            yield JudgeChange(
                "validity rule", f"{target}: {rule}", _limit(before), _limit(after), effect
            )


def _limit(limit: float | None) -> str:
    return "off" if limit is None else f"{limit:g}"


def _plan_effect(key: str, was: Any, now: Any) -> Effect:
    if key in _FEWER_IS_LOOSER:
        return ordered(was, now, more_is_looser=False)
    return Effect.CHANGED


def _workload_effect(key: str, was: Any, now: Any) -> Effect:
    if key.startswith("service_level."):
        return ordered(was, now, more_is_looser=True)
    return Effect.CHANGED


def _keys(
    kind: str,
    name: str,
    was: Mapping[str, Any],
    now: Mapping[str, Any],
    effect: Callable[[str, Any, Any], Effect],
) -> Iterator[JudgeChange]:
    """One row for each key that differs, by its path in the document."""
    old, new = dict(_flat(was)), dict(_flat(now))
    for key in dict.fromkeys([*old, *new]):
        before, after = old.get(key), new.get(key)
        if before != after and key.partition(".")[0] not in _TEXTS:
            was_text, now_text = _value(before), _value(after)
            yield JudgeChange(
                kind, f"{name}: {key}", was_text, now_text, effect(key, before, after)
            )


def _value(held: Any) -> str:
    return NOTHING if held is None else str(held)


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, held in document.items():
        if isinstance(held, dict):
            yield from _flat(held, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", held
