"""A pull request's changes of committed baselines to the findings that must stop it.
Pure.

Stopped: a file that is not a baseline, that ``accept`` did not write (its digest does
not fit), that declares another name, a loss or a vanished metric without a new reason,
and a deleted baseline of a config that is still measured. The reviewers in CODEOWNERS
decide who may write a good digest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from statistics import median

from k3perf.documents import DocumentProblem, json_of, unquoted, validated
from k3perf.records.baseline import Baseline, MetricBaseline, digest_of
from k3perf.records.metric_definitions import METRICS

MAXIMUM_BASELINE_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BaselineChange:
    """One file under ``baselines/`` before and after; None: not there."""

    path: str
    old: bytes | None
    new: bytes | None


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a changed baseline is refused, and what to do."""

    path: str
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Moved:
    """One metric's median session value before and after, None where it is not
    recorded. ``loss_ratio``: as ``MetricDef.loss_ratio``.
    """

    workload: str
    metric: str
    unit: str
    old_value: float | None
    new_value: float | None
    loss_ratio: float | None

    @property
    def worse(self) -> bool:
        """The metric vanished or became worse."""
        if self.old_value is None or self.new_value is None:
            return self.new_value is None
        return METRICS[self.metric].loss(self.old_value, self.new_value) > 0


def check(
    changes: Iterable[BaselineChange],
    *,
    collected: frozenset[tuple[str, str]],
) -> tuple[Finding, ...]:
    """All findings. ``collected`` holds the (target, config) pairs that the suite
    measures.
    """
    found: list[Finding] = []
    for change in changes:
        found += _check_one(change, collected)
    return tuple(found)


def _check_one(
    change: BaselineChange,
    collected: frozenset[tuple[str, str]],
) -> list[Finding]:
    parts = PurePosixPath(change.path).parts
    if len(parts) != 3 or not parts[2].endswith(".json"):
        return [
            Finding(
                change.path,
                "is not of the form baselines/TARGET/CONFIG.json",
                "The baselines directory holds nothing else. Move the file away.",
            )
        ]
    key = (parts[1], parts[2].removesuffix(".json"))
    if change.new is None:
        gone = f"was deleted, yet {key[0]} still measures {key[1]}"
        return (
            [Finding(change.path, gone, "Delete the config too, or restore the baseline.")]
            if key in collected
            else []
        )
    new = _parse(change.new)
    if isinstance(new, str):
        return [Finding(change.path, new, "Write it with k3perf baseline accept.")]
    found = []
    if (new.target, new.config) != key:
        found.append(
            Finding(
                change.path,
                f"holds the baseline of {new.target}/{new.config}",
                "Write it with k3perf baseline accept.",
            )
        )
    if digest_of(new) != new.digest:
        by_hand = "its digest does not match its content: it was edited by hand"
        found.append(Finding(change.path, by_hand, "Write it with k3perf baseline accept."))
    old = _parse(change.old) if change.old is not None else None
    if isinstance(old, Baseline):
        found += _check_reason(change.path, old, new)
    return found


def _parse(content: bytes) -> Baseline | str:
    if len(content) > MAXIMUM_BASELINE_BYTES:
        return (
            f"has {len(content)} bytes, more than the {MAXIMUM_BASELINE_BYTES} a baseline may have"
        )
    try:
        return validated(Baseline, json_of(content))
    except DocumentProblem as problem:
        return f"is not a baseline: {unquoted(problem)}"


def _check_reason(path: str, old: Baseline, new: Baseline) -> list[Finding]:
    worse = [entry for entry in moved(old, new) if entry.worse]
    if not worse or new.acceptance.reason.strip() != old.acceptance.reason.strip():
        return []
    told = ", ".join(_told(entry) for entry in worse[:5]) + (
        f" and {len(worse) - 5} more" if len(worse) > 5 else ""
    )
    step = "Accept it with a new reason: k3perf baseline accept --reason."
    return [Finding(path, f"accepts losses but keeps the old reason ({told})", step)]


def _told(entry: Moved) -> str:
    where = f"{entry.workload} {entry.metric}".strip()
    if entry.new_value is None:
        return f"{where} gone"
    if entry.loss_ratio is None:
        return f"{where} {entry.old_value} -> {entry.new_value} {entry.unit}"
    return f"{where} {entry.loss_ratio:+.2%}"


def moved(old: Baseline, new: Baseline) -> tuple[Moved, ...]:
    """Every metric whose median session value differs, appeared or vanished, in the old
    file's order.
    """
    before, after = values_by_metric(old), values_by_metric(new)
    found = []
    for workload, metric in dict.fromkeys([*before, *after]):
        was, now = before.get((workload, metric)), after.get((workload, metric))
        old_value, new_value = _median(was), _median(now)
        if old_value == new_value:
            continue
        unit = next(side.unit for side in (now, was) if side is not None)
        found.append(
            Moved(
                workload,
                metric,
                unit,
                old_value,
                new_value,
                METRICS[metric].loss_ratio(old_value, new_value)
                if old_value is not None and new_value is not None
                else None,
            )
        )
    return tuple(found)


def values_by_metric(baseline: Baseline) -> dict[tuple[str, str], MetricBaseline]:
    """By workload (empty: of every workload) and metric."""
    values = {("", entry.metric): entry for entry in baseline.exact}
    return values | {
        (part.workload, entry.metric): entry
        for part in baseline.workloads
        for entry in part.metrics
    }


def _median(entry: MetricBaseline | None) -> float | None:
    return median(session.value for session in entry.sessions) if entry is not None else None
