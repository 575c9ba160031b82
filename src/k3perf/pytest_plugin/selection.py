"""Which cells a pytest run collects: targets that were asked for or whose hardware is here, with a reason for every one left out."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k3perf.config.suite import Cell, LeftOut, Suite
from k3perf.documents import read_json
from k3perf.errors import ConfigFileError, UsageError
from k3perf.telemetry.hardware import DetectedHardware

_WRITE_CELLS: Final = "Write it with `k3perf plan --json`."


@dataclass(frozen=True, slots=True)
class Selection:
    """The cells to collect and why other targets and configs are not among them.

    ``on_request_cells`` have a workload that nobody asked for by name; only a test module that is named itself takes them.
    """

    cells: tuple[Cell, ...]
    on_request_cells: tuple[Cell, ...]
    left_out: tuple[LeftOut, ...]
    skipped_targets: dict[str, str]


def select(
    suite: Suite,
    hardware: DetectedHardware,
    asked: tuple[str, ...],
    *,
    collect_only: bool,
    cells_file: Path | None,
    named: Container[str] = (),
) -> Selection:
    """Raises UsageError for a target that was asked for and cannot run here (listing it is still allowed).

    ``named``: workloads that the call names (``named_workloads``), for targets that do not measure them by default.
    """
    skipped: dict[str, str] = {}
    if asked:
        for name in asked:
            lack = hardware.lacks(suite.target(name).hardware)
            if lack and not collect_only:
                raise UsageError(f"--k3-target {name}: {lack}. Run it on such a machine, or leave the option out.")
        chosen = tuple(dict.fromkeys(asked))
    else:
        chosen, skipped = _default_targets(suite, hardware)
    every = suite.cells(chosen, on_request=frozenset(suite.workloads))
    if cells_file is not None:
        return Selection(_only(every, cells_file, suite.left_out(chosen)), (), suite.left_out(chosen), skipped)
    cells = suite.cells(chosen, on_request=named)
    taken = {cell.cell_id for cell in cells}
    return Selection(cells, tuple(cell for cell in every if cell.cell_id not in taken), suite.left_out(chosen), skipped)


def named_workloads(suite: Suite, texts: Iterable[str]) -> frozenset[str]:
    """Workloads that stand as a word of their own, or as the end of a cell's id, in one of ``texts``: a ``-k`` expression, a test's id."""
    words = {word for text in texts for word in re.findall(r"[\w-]+", text)}
    return frozenset(name for name in suite.workloads if any(word == name or word.endswith(f"-{name}") for word in words))


def _default_targets(suite: Suite, hardware: DetectedHardware) -> tuple[tuple[str, ...], dict[str, str]]:
    """Targets of the strongest hardware found: an NVIDIA machine does not also measure the CPU stand-ins."""
    skipped: dict[str, str] = {}
    fitting: list[str] = []
    for name, target in suite.targets.items():
        lack = hardware.lacks(target.hardware)
        if lack:
            skipped[name] = lack
        elif not target.measured_by_default:
            skipped[name] = "only measured when asked for with --k3-target"
        else:
            fitting.append(name)
    kinds = {suite.targets[name].hardware.kind for name in fitting}
    if kinds > {"cpu"}:
        for name in [name for name in fitting if suite.targets[name].hardware.kind == "cpu"]:
            fitting.remove(name)
            skipped[name] = "a GPU is here; ask with --k3-target"
    return tuple(fitting), skipped


def _only(cells: tuple[Cell, ...], path: Path, left_out: tuple[LeftOut, ...]) -> tuple[Cell, ...]:
    wanted = read_json(path, _WRITE_CELLS)
    if not isinstance(wanted, list) or not all(isinstance(name, str) for name in wanted):
        raise ConfigFileError(path, "", None, "must be a JSON list of cell ids", _WRITE_CELLS)
    known = {cell.cell_id for cell in cells}
    for name in wanted:
        for left in left_out:
            if name.startswith(f"{left.target}-{left.config}-"):
                raise ConfigFileError(path, "", name, f"this config is not taken there: {left.reason}", "Leave the cell out.")
        if name not in known:
            raise ConfigFileError(path, "", name, "no collected cell has this id", "List them with `pytest perf_tests --collect-only`.")
    return tuple(cell for cell in cells if cell.cell_id in set(wanted))
