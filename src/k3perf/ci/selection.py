"""Changed files to the cells that they can affect, each with its reasons. Pure: git and
the file system stay outside.

A file that no rule knows selects everything. An unneeded measurement costs minutes, a
missed one hides a loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Final

from k3perf.config.ci_rules import NO_RULES, CiRules, FileRule
from k3perf.config.suite import Cell, Suite
from k3perf.documents import yaml_of


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """One changed file, relative to the repository's root, with forward slashes."""

    path: str
    deleted: bool = False


class Priority(IntEnum):
    """How near a cell is to the change. Lower is nearer. A tight budget gives up far
    ones first.
    """

    DIRECT = 0
    DESCENDANT = 1
    WIDE = 2


@dataclass(frozen=True, slots=True)
class SelectedCell:
    """A cell to measure, why, and how near the change is."""

    cell: Cell
    priority: Priority
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """What a change touches, in the suite's order. ``notes`` name changes that need no
    measurement but a reader's eye.
    """

    cells: tuple[SelectedCell, ...]
    notes: tuple[str, ...] = ()


_HARMLESS: Final[dict[str, list[str]]] = yaml_of(
    files("k3perf.ci").joinpath("harmless_files.yaml").read_text(encoding="utf-8")
)
_WAIVERS: Final = "baselines/waivers.yaml"  # may name any cell, as a tolerance may


@dataclass
class _Found:
    """Reasons for each cell id while rules are applied, local to one ``select``."""

    suite: Suite
    cells: tuple[Cell, ...]
    rules: CiRules = NO_RULES
    priority: dict[str, Priority] = field(default_factory=dict)
    reasons: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, cell: Cell, priority: Priority, reason: str) -> None:
        known = self.priority.get(cell.cell_id, priority)
        self.priority[cell.cell_id] = min(known, priority)
        reasons = self.reasons.setdefault(cell.cell_id, [])
        if reason not in reasons:
            reasons.append(reason)

    def add_where(self, wanted: Callable[[Cell], bool], priority: Priority, reason: str) -> bool:
        hit = [cell for cell in self.cells if wanted(cell)]
        for cell in hit:
            self.add(cell, priority, reason)
        return bool(hit)

    def add_direct(self, wanted: Callable[[Cell], bool], reason: str, unused: str = "") -> None:
        """``unused``: the note where no cell is wanted."""
        if not self.add_where(wanted, Priority.DIRECT, reason) and unused:
            self.notes.append(unused)


def select(
    suite: Suite,
    changes: Iterable[ChangedPath],
    *,
    suite_folder: str = "perf_tests",
    rules: CiRules = NO_RULES,
) -> Selection:
    """The cells that ``changes`` can affect. ``rules``: what the suite's owners say of
    files outside it.

    * A config selects its own cells, those of dependent configs, and their reference's.
    * A target, workload, model or trace selects the cells that use it.
    * A refusal selects the cells that it may have freed, a baseline its own cell.
    * Tolerances, the harness, the engine's pin and unknown files select everything.
    """
    found = _Found(suite, suite.cells(), rules)
    for change in changes:
        _apply(found, change, suite_folder.rstrip("/") + "/")
    _add_references(found)
    chosen = tuple(
        SelectedCell(cell, found.priority[cell.cell_id], tuple(found.reasons[cell.cell_id]))
        for cell in found.cells
        if cell.cell_id in found.priority
    )
    return Selection(chosen, tuple(found.notes))


def select_all(suite: Suite, reason: str) -> Selection:
    """Every cell, for one stated reason."""
    return Selection(tuple(SelectedCell(cell, Priority.WIDE, (reason,)) for cell in suite.cells()))


def _apply(found: _Found, change: ChangedPath, suite_folder: str) -> None:
    path = change.path
    if path.startswith(suite_folder):
        _apply_declared(found, change, PurePosixPath(path[len(suite_folder) :]))
    elif path.startswith("baselines/") and path != _WAIVERS:
        _apply_baseline(found, change)
    elif (rule := _rule_of(found.rules, path)) is not None:
        _apply_rule(found, path, rule)
    elif not (
        path in _HARMLESS["files"]
        or path.startswith(tuple(_HARMLESS["folders"]))
        or path.endswith(tuple(_HARMLESS["suffixes"]))
    ):
        _everything(found, f"{path} can affect every measurement")


def _rule_of(rules: CiRules, path: str) -> FileRule | None:
    def covers(given: str) -> bool:
        return path.startswith(given) if given.endswith("/") else path == given

    return next((rule for rule in rules.files if any(map(covers, rule.paths))), None)


def _apply_rule(found: _Found, path: str, rule: FileRule) -> None:
    """A rule of the suite's owners. "Nothing" leaves a note with the owner."""
    why = f"{path}: by {rule.owner}'s rule ({rule.reason})"
    if rule.affects == "everything":
        _everything(found, why)
    elif rule.affects == "nothing":
        found.notes.append(f"{path} affects nothing by {rule.owner}'s rule ({rule.reason})")
    else:
        part = rule.affects
        found.add_direct(
            lambda cell: (
                (not part.targets or cell.target.name in part.targets)
                and (not part.configs or cell.config.name in part.configs)
            ),
            why,
            f"{path}: {rule.owner}'s rule names no cell of the suite",
        )


def _apply_declared(found: _Found, change: ChangedPath, inside: PurePosixPath) -> None:
    if inside.parts[0] in _HARMLESS["in_suite"] or inside.suffix in _HARMLESS["suffixes"]:
        return
    rules = {
        "configs": _apply_config,
        "targets": _apply_target,
        "workloads": _apply_workload,
        "models": _apply_model,
        "traces": _apply_trace,
    }
    rule = rules.get(inside.parts[0]) if len(inside.parts) > 1 else None
    if rule is None:
        _everything(found, f"{change.path} can affect every measurement")
    else:
        rule(found, change, inside)


def _everything(found: _Found, reason: str) -> None:
    found.add_where(lambda _: True, Priority.WIDE, reason)


def _declared_name(
    found: _Found, change: ChangedPath, inside: PurePosixPath, known: Iterable[str]
) -> str | None:
    """The document's name where its file has that name. Else None, and the file counts
    as unknown or gone.
    """
    if inside.stem in known:
        return inside.stem
    if change.deleted:
        found.notes.append(f"{change.path} was deleted; its cells are no longer measured")
    else:
        _everything(found, f"{change.path} is not named after the name it declares")
    return None


def _apply_config(found: _Found, change: ChangedPath, inside: PurePosixPath) -> None:
    name = _declared_name(found, change, inside, found.suite.configs)
    if name is None:
        return
    _add_config(found, name, Priority.DIRECT, f"config {name} changed")
    for descendant in descendants(found.suite, name):
        _add_config(
            found, descendant, Priority.DESCENDANT, f"depends on config {name}, which changed"
        )


def _add_config(found: _Found, name: str, priority: Priority, reason: str) -> None:
    hit = found.add_where(lambda cell: cell.config.name == name, priority, reason)
    for target in found.suite.targets.values():
        for group in target.equivalences:
            if name in group.configs[1:]:
                hit |= _add_stand_in(
                    found,
                    target.name,
                    group.configs[0],
                    priority,
                    f"{reason}; on {target.name} {group.configs[0]} stands for {name}",
                )
    if not hit:
        found.notes.append(f"config {name} has no cell on any target")


def _add_stand_in(found: _Found, target: str, config: str, priority: Priority, reason: str) -> bool:
    return found.add_where(
        lambda cell: cell.target.name == target and cell.config.name == config, priority, reason
    )


def descendants(suite: Suite, name: str) -> tuple[str, ...]:
    """Configs that depend on ``name`` through any chain of parents and combinations, in
    the suite's order.
    """
    reached = {name}
    frontier = [name]
    while frontier:
        for child in suite.children(frontier.pop()):
            if child not in reached:
                reached.add(child)
                frontier.append(child)
    return tuple(other for other in suite.configs if other in reached and other != name)


def _apply_refusal(found: _Found, change: ChangedPath, inside: PurePosixPath) -> None:
    """A refusal decides which cells exist. Select those on its targets that it may have
    freed.
    """
    refusal = next(
        (known for known in found.suite.known_refusals if known.name == inside.stem), None
    )
    if refusal is None:
        _everything(found, f"{change.path} decides which cells exist")
        return
    of_targets = {
        name
        for name in found.suite.targets
        if refusal in found.suite.refusals_of(found.suite.target(name))
    }
    found.add_direct(
        lambda cell: (
            cell.target.name in of_targets
            and bool(refusal.when.keys() & found.suite.changes(cell.config.name).keys())
        ),
        f"refusal {refusal.name} changed",
    )


def _apply_target(found: _Found, change: ChangedPath, inside: PurePosixPath) -> None:
    if inside.parts[1] == "refusals":
        _apply_refusal(found, change, inside)
        return
    name = _declared_name(found, change, inside, found.suite.targets)
    if name is not None:
        found.add_direct(lambda cell: cell.target.name == name, f"target {name} changed")


def _apply_workload(found: _Found, change: ChangedPath, inside: PurePosixPath) -> None:
    name = _declared_name(found, change, inside, found.suite.workloads)
    if name is not None:
        found.add_direct(lambda cell: cell.workload.name == name, f"workload {name} changed")


def _apply_model(found: _Found, change: ChangedPath, inside: PurePosixPath) -> None:
    folder = PurePosixPath("models", inside.parts[1])
    found.add_direct(
        lambda cell: (
            (directory := cell.target.model.directory_for(cell.config.name)) is not None
            and PurePosixPath(directory) == folder
        ),
        f"model {inside.parts[1]} changed",
        f"{change.path} does not belong to a target's model",
    )


def _apply_trace(found: _Found, change: ChangedPath, inside: PurePosixPath) -> None:
    def uses(cell: Cell) -> bool:
        arrival = cell.workload.arrival
        return arrival.kind == "trace" and PurePosixPath(arrival.file).name == inside.name

    found.add_direct(uses, f"trace {inside.name} changed", f"{change.path} is used by no workload")


def _apply_baseline(found: _Found, change: ChangedPath) -> None:
    parts = PurePosixPath(change.path).parts
    if len(parts) == 3 and parts[2] == "found_rates.yaml":
        _apply_found_rates(found, change, parts[1])
        return
    if len(parts) != 3 or not parts[2].endswith(".json"):
        found.notes.append(
            f"{change.path} is not a baseline of the form baselines/TARGET/CONFIG.json"
        )
        return
    target, config = parts[1], parts[2].removesuffix(".json")
    found.add_direct(
        lambda cell: cell.target.name == target and cell.config.name == config,
        f"baseline of {target}/{config} changed",
        f"{change.path} does not belong to a collected cell",
    )


def _apply_found_rates(found: _Found, change: ChangedPath, target: str) -> None:
    def uses(cell: Cell) -> bool:
        share = getattr(cell.workload.arrival, "found_rate_share_ratio", None)
        return cell.target.name == target and share is not None

    found.add_direct(
        uses,
        f"maximum sustainable rates of {target} changed",
        f"{change.path} is used by no collected cell",
    )


def _add_references(found: _Found) -> None:
    """What a selected cell is compared with is measured too, as urgently as the cell
    itself.
    """
    by_key = {
        (cell.target.name, cell.config.name, cell.workload.name): cell for cell in found.cells
    }
    for cell in found.cells:
        priority = found.priority.get(cell.cell_id)
        reference = by_key.get((cell.target.name, cell.target.reference, cell.workload.name))
        if priority is None or reference is None or reference is cell:
            continue
        if reference.cell_id not in found.priority or found.priority[reference.cell_id] > priority:
            found.add(reference, priority, f"reference of {cell.config.name}")
