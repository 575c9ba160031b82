"""A number as the page shows it, with the number itself and where it is from, so that a
reader and a test can compare it with the result file. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from k3perf.records.verdict import MetricVerdict
from k3perf.report.escaping import visible
from k3perf.report.numbers import value_text

_LONGEST_TEXT = 2_000


@dataclass(frozen=True, slots=True)
class Shown:
    """``value`` None is a dash, never 0. ``source``: a file with a JSON pointer, or the
    name of a derivation with its arguments (docs/reports.md).
    """

    value: float | None
    text: str
    source: str

    @property
    def raw(self) -> str:
        """The value with every digit."""
        return "" if self.value is None else repr(float(self.value))


Sentence = Sequence[str | Shown]


def of_unit(value: float | None, unit: str, source: str) -> Shown:
    """A value with its unit."""
    return Shown(value, value_text(value, visible(unit, 20)), source)


def of_share(ratio: float | None, source: str, *, signed: bool = True) -> Shown:
    """A share in percent, a loss with its sign (positive is worse)."""
    if ratio is None:
        return Shown(None, "-", source)
    return Shown(ratio, f"{ratio + 0.0:+.1%}" if signed else f"{ratio:.1%}", source)


def tolerance_of(metric: MetricVerdict, source: str) -> Shown:
    """The accepted loss, as a share or in the metric's unit."""
    if metric.tolerance_ratio is not None:
        return of_share(metric.tolerance_ratio, f"{source}/tolerance_ratio", signed=False)
    return of_unit(metric.tolerance_absolute, metric.unit, f"{source}/tolerance_absolute")


def times_tolerance(metric: MetricVerdict, source: str) -> Shown:
    """The loss over its tolerance. A dash without a share to divide by."""
    where = f"loss over tolerance of {source}"
    if metric.loss_ratio is None or not metric.tolerance_ratio:
        return Shown(None, "-", where)
    ratio = metric.loss_ratio / metric.tolerance_ratio
    return Shown(ratio, f"{ratio:.2f} x", where)


def plain(text: object) -> str:
    """Text from outside on one line, without control, direction and other invisible
    characters.
    """
    return visible(str(text), _LONGEST_TEXT)
