"""Which cells a pytest run collects: targets that were asked for or whose hardware is
here, with a reason for every other one.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from k3perf.config.suite import Cell, LeftOut, Suite
from k3perf.documents import read_json
from k3perf.errors import ConfigFileError, UsageError
from k3perf.telemetry.default_targets import DefaultTargets, default_targets
from k3perf.telemetry.hardware import DetectedHardware

_WRITE_CELLS: Final = "Write it with `k3perf plan --json`."


@dataclass(frozen=True, slots=True)
class Selection:
    """The cells to collect and why other targets and configs are not among them.

    ``on_request_cells`` have a workload that the call does not name; only a test
    module that is named itself takes them. ``choice`` is the reason why another target
    than usual is measured by default; empty where none is. ``refused_here`` are configs
    that this machine's CPU cannot serve. ``lacking``: what the targets lack that
    would be measured by default.
    """

    cells: tuple[Cell, ...]
    on_request_cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...]
    skipped_targets: dict[str, str]
    choice: str = ""
    refused_here: tuple[LeftOut, ...] = ()
    lacking: dict[str, str] = field(default_factory=dict)


def select(
    suite: Suite,
    hardware: DetectedHardware,
    asked: tuple[str, ...],
    *,
    collect_only: bool,
    cells_file: Path | None,
    named: Container[str] = (),
    elsewhere: bool = False,
) -> Selection:
    """Raises UsageError for a target that was asked for and cannot run here (listing it
    is still allowed).

    ``elsewhere``: the engine runs already, so this machine's hardware does not matter.
    ``named``: workloads that the call names (``named_workloads``), for targets that do
    not measure them by default.
    """
    default = DefaultTargets((), {}, "", {})
    if asked:
        for name in asked:
            lack = hardware.lacks(suite.target(name).hardware)
            if lack and not collect_only and not elsewhere:
                raise UsageError(
                    f"--k3-target {name}: {lack}. Run it on such a machine, or leave the option"
                    " out."
                )
        chosen = tuple(dict.fromkeys(asked))
    else:
        default = default_targets(suite, hardware)
        chosen = default.names
    refused = () if elsewhere else _refused_here(suite, hardware, chosen)
    left_out = (*suite.left_out(chosen), *refused)
    unserved = {(left.target, left.config) for left in refused}
    every = _without(suite.cells(chosen, on_request=frozenset(suite.workloads)), unserved)
    if cells_file is not None:
        return Selection(
            _only(every, cells_file, left_out),
            (),
            left_out,
            default.skipped,
            default.reason,
            refused,
            default.lacking,
        )
    cells = _without(suite.cells(chosen, on_request=named), unserved)
    taken = {cell.cell_id for cell in cells}
    on_request = tuple(cell for cell in every if cell.cell_id not in taken)
    return Selection(
        cells, on_request, left_out, default.skipped, default.reason, refused, default.lacking
    )


def _without(cells: tuple[Cell, ...], unserved: Container[tuple[str, str]]) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells if (cell.target.name, cell.config.name) not in unserved)


def _refused_here(
    suite: Suite, hardware: DetectedHardware, chosen: Iterable[str]
) -> tuple[LeftOut, ...]:
    """Configs that this machine's CPU cannot serve, of the chosen targets that
    can run here at all.
    """
    targets = [
        target
        for target in map(suite.target, chosen)
        if target.hardware.kind == "cpu" and not hardware.lacks(target.hardware)
    ]
    found = []
    for target in targets:
        for config in map(suite.config, target.configs or suite.configs):
            refusal = suite.refusal_here(target, config, hardware.cpu_flags)
            if refusal is not None:
                missing = [
                    name for name in refusal.without_cpu_features if name not in hardware.cpu_flags
                ]
                found.append(
                    LeftOut(
                        target.name,
                        config.name,
                        f"{refusal.reason}; this CPU lacks {', '.join(missing)}",
                    )
                )
    return tuple(found)


def named_workloads(suite: Suite, texts: Iterable[str]) -> frozenset[str]:
    """Workloads that are a separate word, or the end of a cell's id, in one
    of ``texts``: a ``-k`` expression, a test's id.
    """
    words = {word for text in texts for word in re.findall(r"[\w-]+", text)}
    return frozenset(
        name
        for name in suite.workloads
        if any(word == name or word.endswith(f"-{name}") for word in words)
    )


def nothing_selected(selection: Selection, keyword: str) -> str:
    """What this machine lacks, where that is why no cell was selected; empty where the
    selection itself is (pytest's status 5).
    """
    if not selection.cells and selection.lacking:
        lacks = "".join(f"\n  {name}: {why}" for name, why in selection.lacking.items())
        return (
            f"no target can be measured here by default:{lacks}\nName another one with --k3-target;"
            " `k3perf doctor` shows what each needs."
        )
    if not selection.refused_here:
        return ""
    refused = "".join(
        f"\n  {left.target}-{left.config}: {left.reason}" for left in selection.refused_here
    )
    measured = ", ".join(dict.fromkeys(cell.config.name for cell in selection.cells))
    asked = f"-k {keyword!r}" if keyword else "this call"
    return (
        f"{asked} selects no cell on this machine. Its CPU cannot serve:{refused}\nMeasured"
        f" here: {measured}."
    )


def _only(cells: tuple[Cell, ...], path: Path, left_out: tuple[LeftOut, ...]) -> tuple[Cell, ...]:
    wanted = read_json(path, _WRITE_CELLS)
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise ConfigFileError(path, "", None, "must be a JSON list of cell ids", _WRITE_CELLS)
    known = {cell.cell_id for cell in cells}
    for name in wanted:
        for left in left_out:
            if name.startswith(f"{left.target}-{left.config}-"):
                raise ConfigFileError(
                    path,
                    "",
                    name,
                    f"this target does not take the config: {left.reason}",
                    "Remove the cell.",
                )
        if name not in known:
            raise ConfigFileError(
                path,
                "",
                name,
                "no collected cell has this id",
                "List them with `pytest perf_tests --collect-only`.",
            )
    return tuple(cell for cell in cells if cell.cell_id in set(wanted))
