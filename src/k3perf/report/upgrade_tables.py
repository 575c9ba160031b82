"""Two engines side by side, from one ``ab`` run: configuration, memory, performance,
and one verdict. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from k3perf.metrics.drift import config_differences
from k3perf.metrics.resolved import ABSENT
from k3perf.records.measurement import CellMeasurement, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Comparison, Family
from k3perf.records.samples import Arm
from k3perf.records.verdict import ConfigDifference, MetricVerdict, SuiteVerdict
from k3perf.report.causes import cell_name, reason_lines, with_flag
from k3perf.report.numbers import change_text, tolerance_text, value_text
from k3perf.stats.estimators import median

_MEMORY: Final = frozenset({Family.MEMORY, Family.CAPACITY})
_TIMINGS: Final = ("output_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms")
_NONE: Final = "  none\n"


def upgrade_text(cells: Sequence[CellMeasurement], verdict: SuiteVerdict) -> str:
    """The three tables and the verdict."""
    base, candidate = (release_of(cells, arm) for arm in (Arm.REFERENCE, Arm.CANDIDATE))
    return "".join(
        (
            f"vLLM {base} -> {candidate}\n\n1. Resolved configuration\n",
            configuration_table(cells),
            "\n2. Memory and capacity\n",
            memory_table(cells, verdict),
            "\n3. Performance and quality\n",
            performance_table(cells, verdict),
            f"\nverdict: {verdict.outcome_text}\n",
        )
    )


def release_of(cells: Iterable[CellMeasurement], arm: Arm) -> str:
    """The vLLM release of an arm, ``unknown`` if no session has it."""
    found = (
        session.resolved_config.get("version.vllm") for cell in cells for session in cell.arm(arm)
    )
    return next((str(release) for release in found if release is not None), "unknown")


def configuration_table(cells: Iterable[CellMeasurement]) -> str:
    """Changed, new and gone keys, each once with the configs that it concerns."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for cell in cells:
        arms = [cell.arm(arm) for arm in (Arm.REFERENCE, Arm.CANDIDATE)]
        if not all(arms):
            continue
        name = f"{cell.target}/{cell.config}"
        was, now = (sessions[-1].resolved_config for sessions in arms)
        for difference in config_differences(was, now):
            key = (kind_of(difference), with_flag(difference.key), _values(difference))
            if name not in found.setdefault(key, []):
                found[key].append(name)
    text = ""
    for kind in ("changed", "new", "gone"):
        rows = sorted(key for key in found if key[0] == kind)
        text += f"  {kind}: {len(rows)}\n"
        for row in rows:
            text += f"    {row[1]}: {row[2]}  [{', '.join(found[row])}]\n"
    return text


def kind_of(difference: ConfigDifference) -> str:
    """``new`` if only the candidate has the key, ``gone`` if only the base has it."""
    if difference.was == ABSENT:
        return "new"
    return "gone" if difference.now == ABSENT else "changed"


def memory_table(cells: Iterable[CellMeasurement], verdict: SuiteVerdict) -> str:
    """Every memory and capacity metric that both arms have, gated or not."""
    judged = {
        (cell.cell_id, metric.metric): metric for cell in verdict.cells for metric in cell.metrics
    }
    text = ""
    for cell in cells:
        rows = []
        for name, metric in METRICS.items():
            if metric.family not in _MEMORY:
                continue
            worst = max if metric.direction.value == "lower_is_better" else min
            was, now = (_numbers(cell.arm(arm), name) for arm in (Arm.REFERENCE, Arm.CANDIDATE))
            if not was or not now:
                continue
            base, new = worst(was), worst(now)
            cell_id = f"{cell.target}-{cell.config}-{cell.workload}"
            found = judged.get((cell_id, name))
            rows.append(
                f"    {name:<24} {value_text(base, metric.unit):>14}"
                f" {value_text(new, metric.unit):>14}  {_share(base, new):>8}"
                f"  {_outcome(found)}\n"
            )
        if rows:
            text += f"  {cell.target}-{cell.config}-{cell.workload}\n" + "".join(rows)
    return text or _NONE


def performance_table(cells: Iterable[CellMeasurement], verdict: SuiteVerdict) -> str:
    """Every judged metric outside memory: the candidate's change against the base. The
    main timings that are not gated follow, so that silence is not taken for equality.
    """
    measured = {f"{one.target}-{one.config}-{one.workload}": one for one in cells}
    text = ""
    for cell in verdict.cells:
        rows = [
            f"    {metric.metric:<24} {change_text(metric):<32} {_outcome(metric)}\n"
            for metric in cell.metrics
            if METRICS[metric.metric].comparison is Comparison.STATISTICAL
            or METRICS[metric.metric].family not in _MEMORY
        ]
        judged = {metric.metric for metric in cell.metrics}
        rows += [
            _timing_row(measured[cell.cell_id], name)
            for name in _TIMINGS
            if name not in judged and cell.cell_id in measured
        ]
        rows += [
            f"    {line}\n" for reason in cell.invalid_reasons for line in reason_lines(reason)
        ]
        rows += [f"    {cell.missing}\n"] if cell.missing else []
        text += f"  {cell_name(cell)}: {cell.outcome_text}\n" + "".join(rows)
    return text or _NONE


def _timing_row(cell: CellMeasurement, name: str) -> str:
    """Medians of both arms' valid rounds. Too few rounds for a verdict."""
    unit = METRICS[name].unit
    arms = [_round_values(cell.arm(arm), name) for arm in (Arm.REFERENCE, Arm.CANDIDATE)]
    if not all(arms):
        return f"    {name:<24} not measured\n"
    was, now = (median(values) for values in arms)
    return (
        f"    {name:<24} {value_text(was, unit):>14} {value_text(now, unit):>14}"
        f"  {_share(was, now):>8}  not gated, too few rounds for a verdict\n"
    )


def _round_values(sessions: Iterable[SessionMetrics], name: str) -> list[float]:
    found = [
        measured.values[name].value
        for session in sessions
        for measured in session.rounds
        if name in measured.values and not measured.invalid_reasons
    ]
    return [value for value in found if value is not None]


def _values(difference: ConfigDifference) -> str:
    kind = kind_of(difference)
    if kind == "new":
        return repr(difference.now)
    return repr(difference.was) if kind == "gone" else f"{difference.was!r} -> {difference.now!r}"


def _numbers(sessions: Iterable[SessionMetrics], name: str) -> list[float]:
    found = [session.values[name].value for session in sessions if name in session.values]
    return [value for value in found if value is not None]


def _share(base: float, new: float) -> str:
    if base == new:
        return "="
    return f"{(new - base) / base:+.1%}" if base else "-"


def _outcome(metric: MetricVerdict | None) -> str:
    if metric is None:
        return "not gated"
    return f"{metric.outcome} (tolerance {tolerance_text(metric)})"
