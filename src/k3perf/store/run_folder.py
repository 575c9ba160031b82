"""A run's results directory, read for its report."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from k3perf.documents import read_record
from k3perf.errors import UsageError
from k3perf.records.baseline import Baseline
from k3perf.records.samples import SessionRecord
from k3perf.records.verdict import VerdictDocument
from k3perf.report.page.material import RunMaterial
from k3perf.store.baselines import read_baseline
from k3perf.store.measurements import read_measurement_file
from k3perf.store.results import read_results

VERDICT_FILE: Final = "verdict.json"
_GIVE: Final = "Give the results directory of a finished run, which --k3-results names."


def run_folders(paths: Iterable[Path]) -> list[Path]:
    """The directories with a verdict in and below the given ones. UsageError for a path
    without one.
    """
    found: list[Path] = []
    for given in paths:
        path = given.parent if given.name == VERDICT_FILE else given
        if (path / VERDICT_FILE).is_file():
            found.append(path)
            continue
        below = sorted(file.parent for file in path.rglob(VERDICT_FILE)) if path.is_dir() else []
        if not below:
            raise UsageError(_without_verdict(path))
        found += below
    return list(dict.fromkeys(found))


def _without_verdict(path: Path) -> str:
    if not path.exists():
        return f"{path}: not found. {_GIVE}"
    if (path / "results.jsonl").is_file():
        return (
            f"{path} has no {VERDICT_FILE}: the run was interrupted. Continue it with --k3-resume,"
            f" or keep its sessions with `k3perf recover {path} --commit COMMIT`."
        )
    return f"{path} has no {VERDICT_FILE}. {_GIVE}"


def read_run(folder: Path, baselines_root: Path | None, *, prefix: str = "") -> RunMaterial:
    """The files of one run. Missing measurements or samples are missing in the result.
    Raises UsageError for a damaged one.
    """
    verdict = read_record(VerdictDocument, folder / VERDICT_FILE, _GIVE, "a verdict file")
    material = RunMaterial(verdict, prefix)
    if (folder / "measurements.json").is_file():
        measured = read_measurement_file(folder / "measurements.json")
        material = replace(material, measurements=measured)
    if (folder / "results.jsonl").is_file():
        results = read_results(folder / "results.jsonl")
        material = replace(
            material, sessions=_finite(results.sessions), experiment=results.experiment
        )
    return replace(material, baselines=_baselines(verdict, baselines_root))


def _finite(sessions: Mapping[str, SessionRecord]) -> dict[str, SessionRecord]:
    """A reading that is not finite has no JSON form, and no place in a chart."""
    return {
        name: replace(
            session,
            rounds=tuple(
                replace(
                    one,
                    telemetry=tuple(
                        reading
                        for reading in one.telemetry
                        if reading.value is None or math.isfinite(reading.value)
                    ),
                )
                for one in session.rounds
            ),
        )
        for name, session in sessions.items()
    }


def _baselines(verdict: VerdictDocument, root: Path | None) -> dict[tuple[str, str], Baseline]:
    """Those that the cells were judged by. Names come from a file: one with a separator
    names no baseline.
    """
    found = {}
    names = {(cell.target, cell.config) for cell in verdict.cells if cell.mode != "ab"}
    for target, config in sorted(names) if root is not None and root.is_dir() else []:
        if any("/" in name or "\\" in name or name in ("", "..") for name in (target, config)):
            continue
        baseline = read_baseline(root, target, config) if root is not None else None
        if baseline is not None:
            found[target, config] = baseline
    return found
