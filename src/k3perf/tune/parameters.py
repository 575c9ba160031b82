"""The parameters of each step with the values to try, from the shipped table and what
the user gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Final

from k3perf.config.arguments import shipped_table, unknown_argument
from k3perf.config.owned_arguments import owned
from k3perf.documents import validated, yaml_of
from k3perf.errors import UsageError, shortened
from k3perf.tune.plan import Parameter

STEPS: Final = ("kv", "scheduler", "quantisation")
"""Steps that sweep, in the order of the field's practice. ``validate`` follows them."""

VALIDATE: Final = "validate"


@dataclass(frozen=True, slots=True)
class _Row:
    step: str
    name: str
    ordered: bool
    values: tuple[Any, ...] = ()
    times: tuple[float, ...] = ()
    needs: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    lossy: bool = False
    on_request: bool = False


@cache
def _table() -> tuple[_Row, ...]:
    text = files("k3perf.tune").joinpath("parameters.yaml").read_text(encoding="utf-8")
    return validated(tuple[_Row, ...], yaml_of(text))


def parameters_of(
    steps: Sequence[str],
    base_arguments: Mapping[str, Any],
    *,
    kind: str,
    given: Mapping[str, Sequence[Any]],
    only: Sequence[str] = (),
) -> tuple[Parameter, ...]:
    """The sweeps of a run in order. ``given``: values by argument, which replace the
    table's. ``only``: sweep these arguments and no others.

    Raises UsageError for an argument that vLLM does not have or that is not a config's
    to set, for fewer than one value, and for a name in ``only`` without a sweep.
    """
    for name, values in given.items():
        _check(name, values)
    rows = [row for step in STEPS if step in steps for row in _table() if row.step == step]
    known = {row.name for row in _table()}
    found = []
    for row in rows:
        mine = given.get(row.name)
        asked = mine is not None or row.name in only
        if only and row.name not in only:
            continue
        if not asked and (row.on_request or not _applies(row, base_arguments, kind)):
            continue
        chosen = list(mine) if mine is not None else _values(row, base_arguments)
        if chosen:
            found.append(_parameter(row.step, row.name, chosen, row.lossy))
    for name, values in given.items():
        outside = name not in known or all(row.name != name for row in rows)
        if outside and (not only or name in only):
            found.append(_parameter("given", name, list(values), _is_lossy(name)))
    missing = [name for name in only if name not in {one.name for one in found}]
    if missing:
        names = ", ".join(row.name for row in rows)
        raise UsageError(
            f"--only {shortened(missing[0])}: no step that runs sweeps it. Give its values with"
            f" --values, or use one of: {names}."
        )
    return tuple(found)


def _parameter(step: str, name: str, values: list[Any], lossy: bool) -> Parameter:
    numbers = [value for value in values if _is_number(value)]
    ordered = len(numbers) == len(values)
    unique = list(dict.fromkeys(values)) if all(map(_hashable, values)) else values
    return Parameter(
        step, name, tuple(sorted(unique) if ordered else unique), ordered=ordered, lossy=lossy
    )


def _values(row: _Row, base_arguments: Mapping[str, Any]) -> list[Any]:
    base = base_arguments.get(row.name)
    if row.times and isinstance(base, int) and not isinstance(base, bool):
        return sorted({base, *(max(1, round(base * factor)) for factor in row.times)})
    return list(row.values)


def _applies(row: _Row, base_arguments: Mapping[str, Any], kind: str) -> bool:
    fits = not row.kinds or kind in row.kinds
    return fits and all(base_arguments.get(name) == value for name, value in row.needs.items())


def _check(name: str, values: Sequence[Any]) -> None:
    if not values:
        raise UsageError(f"--values {name}: give at least one value, for example {name}=8,16")
    problem = unknown_argument(name)
    if problem:
        raise UsageError(f"--values {name}: {problem}")
    for value in values:
        other = owned(name, value, in_config=True)
        if other is not None:
            raise UsageError(f"--values {name}: {other.problem}. {other.next_step}")
        objection = shipped_table().objection(name, value)
        if objection is not None:
            raise UsageError(f"--values {name}={value}: {objection[0]}. {objection[1]}")


def _is_lossy(name: str) -> bool:
    return any(row.name == name and row.lossy for row in _table())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _hashable(value: Any) -> bool:
    return not isinstance(value, dict | list)
