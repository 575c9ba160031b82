"""Results directories to a written report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from k3perf.report.page.material import RunMaterial
from k3perf.report.page.run_page import run_page
from k3perf.store.atomic import replace_file
from k3perf.store.run_folder import read_run

REPORT_FILE: Final = "report.html"
LARGEST_AT_ONCE_BYTES: Final = 64 << 20
"""Samples of a larger run are read by ``k3perf report`` only, not at the run's end."""


def read_runs(folders: Sequence[Path], baselines_root: Path | None) -> list[RunMaterial]:
    """Several runs' files are named after their directories."""
    prefixes = [""] if len(folders) == 1 else [f"{folder.name}/" for folder in folders]
    return [
        read_run(folder, baselines_root, prefix=prefix)
        for folder, prefix in zip(folders, prefixes, strict=True)
    ]


def write_run_report(folders: Sequence[Path], output: Path, baselines_root: Path | None) -> None:
    """The page of one run or of its shards, whole or not at all. Raises UsageError and
    OSError.
    """
    replace_file(output, run_page(read_runs(folders, baselines_root)))
