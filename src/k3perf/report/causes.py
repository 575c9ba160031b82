"""Why cells have no numbers, each cause shown once with the cells it concerns. Pure:
verdicts in, lines out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from k3perf.config.flags import flag_of
from k3perf.metrics.resolved import ABSENT
from k3perf.records.samples import InvalidReason
from k3perf.records.verdict import CellVerdict, ConfigDifference


def cell_name(cell: CellVerdict) -> str:
    """``target-config-workload``, the cell's id."""
    return f"{cell.target}-{cell.config}-{cell.workload}"


def reason_lines(reason: InvalidReason) -> list[str]:
    """A reason in full: of a failed engine what happened, its cause, the last lines of
    its log and the log's path.
    """
    failure = reason.failure
    if failure is None:
        return [f"{reason.text} [{reason.rule}]"]
    lines = [f"{failure.message} [{reason.rule}]", *cause_lines(reason)]
    if failure.log_lines:
        lines += ["last lines of its log:", *(f"  | {line}" for line in failure.log_lines)]
    return [*lines, f"log: {failure.log_path}"] if failure.log_path else lines


def cause_lines(reason: InvalidReason) -> list[str]:
    """The root cause of a failed engine, an exception's further lines indented. Empty
    for another reason.
    """
    if reason.failure is None:
        return []
    first, *further = reason.failure.cause.splitlines() or ["unknown, its log contains no error"]
    return [f"cause: {first}", *(f"  {line}" for line in further)]


def difference_text(difference: ConfigDifference) -> str:
    """``cache_config.block_size (--block-size): was 640, is 1280 (forced by ...)``."""
    forced = f" (forced by {difference.forced_by})" if difference.forced_by else ""
    key = with_flag(difference.key)
    return f"{key}: was {difference.was!r}, is {difference.now!r}{forced}"


def with_flag(key: str) -> str:
    """The key, with the flag of ``vllm serve`` that sets it if there is one."""
    flag = flag_of(key)
    return f"{key} ({flag})" if flag else key


def difference_lines(cell: CellVerdict) -> list[str]:
    """The cell's configuration beside the approved one, or in ``ab`` mode beside the
    base's.
    """
    if cell.mode != "ab":
        return [f"config drift: {difference_text(one)}" for one in cell.differences]
    return [f"differs from the base: {line}" for line in arm_differences(cell)]


def arm_differences(
    cell: CellVerdict, key: Callable[[str], str] = str, value: Callable[[object], str] = repr
) -> list[str]:
    """``ab``: changed values first, then how many keys only one arm has. ``key`` and
    ``value`` write a key and a value. Empty in other modes.
    """
    if cell.mode != "ab":
        return []
    lines = [
        f"{key(one.key)}: base {value(one.was)}, candidate {value(one.now)}"
        for one in cell.differences
        if ABSENT not in (one.was, one.now)
    ]
    new_count = sum(one.was == ABSENT for one in cell.differences)
    gone_count = sum(one.now == ABSENT for one in cell.differences)
    sides = ((new_count, "candidate"), (gone_count, "base"))
    parts = [f"{count} only in the {arm}" for count, arm in sides if count]
    return [*lines, *([f"keys: {' and '.join(parts)}; verdict.json names them"] if parts else [])]


def causes_of(cell: CellVerdict) -> tuple[str, ...]:
    """What makes two cells' reasons the same. Messages name processes and paths, so a
    known cause counts instead.
    """
    reasons = [
        f"{reason.rule}"
        f" {reason.failure.cause if reason.failure is not None and reason.failure.cause else reason.text}"  # noqa: E501
        for reason in cell.invalid_reasons
    ]
    return (str(cell.outcome), cell.missing, *reasons, *difference_lines(cell))


def unjudged_blocks(cells: Iterable[CellVerdict]) -> list[str]:
    """One block for all cells that have no metrics for the same reasons: outcome,
    cells, then each reason.
    """
    groups: dict[tuple[str, ...], list[CellVerdict]] = {}
    for cell in cells:
        groups.setdefault(causes_of(cell), []).append(cell)
    return [_block(members) for members in groups.values()]


def _block(cells: Sequence[CellVerdict]) -> str:
    first = cells[0]
    lines = [f"{first.outcome}: {', '.join(cell_name(cell) for cell in cells)}"]
    if len(cells) > 1:
        lines[0] += f" ({len(cells)} cells, one cause)"
    for reason in first.invalid_reasons:
        lines += [f"  {line}" for line in reason_lines(reason)]
    lines += [f"  {line}" for line in difference_lines(first)]
    lines += [f"  {first.missing}"] if first.missing else []
    notes = dict.fromkeys(note for cell in cells for note in cell.notes)
    return "\n".join([*lines, *(f"  note: {note}" for note in notes)])


def shared_differences(cells: Sequence[CellVerdict]) -> dict[str, list[str]]:
    """Lines on differences of at least two cells, with the names of the cells."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        for line in difference_lines(cell):
            found.setdefault(line, []).append(cell_name(cell))
    return {text: names for text, names in found.items() if len(names) > 1}
