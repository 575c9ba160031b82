"""A tuning run as text: what each sweep showed, what is proposed and why. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from k3perf.records.metric_definitions import METRICS, Direction
from k3perf.records.tuning import (
    Effect,
    ParameterFinding,
    TuningResult,
    ValueFinding,
    label_of,
    value_text,
)
from k3perf.report.numbers import value_text as number_text


def finding_text(finding: ParameterFinding, objective: str, metrics: Sequence[str]) -> str:
    """One sweep as a table with its decision below."""
    shown = [objective, *(name for name in metrics if name != objective)]
    header = ["value", "sessions", *(f"{name} ({METRICS[name].unit})" for name in shown), ""]
    rows = [
        [_shown_value(one), str(one.session_count), *_cells(one, shown)] for one in (finding.values)
    ]
    title = f"{finding.parameter} (from {label_of(finding.parent)})"
    lines = [title, *_aligned([header, *rows])]
    lines += [f"  {value_text(one.value)}: {one.note}" for one in finding.values if one.note]
    if finding.knee is not None:
        lines.append(f"  {finding.knee.text}")
    if finding.nothing_beyond_ratio is not None:
        lines.append(
            f"  no value has an effect on {objective} larger than"
            f" {finding.nothing_beyond_ratio:.1%}"
        )
    confirmation = finding.confirmation
    if confirmation is not None and confirmation.gain.ratio is not None:
        lines.append(
            f"  {confirmation.block_count} fresh blocks of {confirmation.label}:"
            f" {effect_text(confirmation.gain)} at level {confirmation.level:.2g}"
        )
    return "\n".join([*lines, f"  {finding.decision}"]) + "\n"


def result_text(result: TuningResult) -> str:
    """The end of a run: combination, front, validation, proposal."""
    lines: list[str] = []
    if result.interaction is not None:
        lines += _interaction_lines(result)
    if result.front:
        lines.append("Pareto front (change of each metric against the base):")
        lines += [f"  {label_of(one.change)}: {one.trade}" for one in result.front]
        if not result.base_on_front:
            lines.append(
                "  the base is not on the front: another point is better in all that counts"
            )
    if result.validation is not None:
        lines.append(f"validation on {result.validation.workload}: {result.validation.text}")
    if result.undecided:
        lines.append(f"undecided: {', '.join(result.undecided)}; they keep the base's value")
    lines.append(_proposal_line(result))
    lines.append(
        f"{result.session_count} sessions, {result.round_count} rounds,"
        f" {result.spent_s / 60:.1f} min. At most {result.error_rate:.1%} of such runs propose"
        f" a point without a gain ({result.test_count} tests share that rate)."
        if result.parameters and result.parameters[0].step != "grid"
        else f"{result.session_count} sessions, {result.spent_s / 60:.1f} min. Intervals are"
        " simultaneous at 95 % for each metric."
    )
    return "\n".join(lines) + "\n"


def effect_text(effect: Effect | None) -> str:
    """``+5.1 % (+3.0 % to +7.2 %)``. Positive is better."""
    if effect is None or effect.ratio is None:
        return "not known"
    if effect.low_ratio is None or effect.high_ratio is None:
        return f"{effect.ratio:+.1%}"
    return f"{effect.ratio:+.1%} ({effect.low_ratio:+.1%} to {effect.high_ratio:+.1%})"


def _proposal_line(result: TuningResult) -> str:
    if result.parameters and result.parameters[0].step == "grid":
        return "a sweep proposes nothing"
    if not result.proposal:
        return f"proposal: keep {result.config}"
    return (
        f"proposal: {label_of(result.proposal)}, {result.objective}"
        f" {effect_text(result.gain)} on fresh sessions of {result.workload}"
    )


def _interaction_lines(result: TuningResult) -> list[str]:
    found = result.interaction
    if found is None:
        return []
    lines = ["combination, on fresh sessions (positive is better):"]
    pairs = zip(found.parts, found.single_gains, strict=True)
    lines += [f"  {label_of(part)} alone: {effect_text(gain)}" for part, gain in pairs]
    lines.append(f"  together: {effect_text(found.combined)}")
    lines.append(f"  beyond the sum of the single gains: {effect_text(found.excess)}")
    if found.known_pair:
        lines.append(f"  {found.known_pair}")
    return [*lines, f"  {found.text}"]


def _cells(one: ValueFinding, metrics: Sequence[str]) -> list[str]:
    texts = []
    for name in metrics:
        mean, effect = one.means.get(name), one.effects.get(name)
        value = "-" if mean is None else number_text(mean, METRICS[name].unit)
        change = _change(name, effect) if one.outcome != "parent" else ""
        texts.append(f"{value} {change}".rstrip())
    return [*texts, one.outcome]


def _change(name: str, effect: Effect | None) -> str:
    """The change of the value, with a mark where it is proven."""
    if effect is None or effect.ratio is None:
        return ""
    lower = METRICS[name].direction is Direction.LOWER_IS_BETTER
    change = 1 / (1 + effect.ratio) - 1 if lower else effect.ratio
    sure = (effect.low_ratio or 0) > 0 or (effect.high_ratio or 0) < 0
    return f"{change:+.1%}{'*' if sure else ''}"


def _shown_value(one: ValueFinding) -> str:
    return "not set" if one.value is None else value_text(one.value)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
