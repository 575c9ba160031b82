"""Baseline files, read and checked, or written whole. A missing file is None; a damaged
or hand-edited one is an error with its next step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from k3perf.documents import DocumentProblem, json_of, read_text, validated
from k3perf.errors import ConfigFileError
from k3perf.records.baseline import Baseline, digest_of
from k3perf.store.atomic import replace_file

__all__ = [
    "baseline_path",
    "digest_of",
    "parse_baseline",
    "read_baseline",
    "read_baseline_file",
    "read_target_baselines",
    "write_baseline",
]

RESTORE: Final = (
    "Restore it with git, or record the cell again with k3perf baseline propose and accept."
)


def baseline_path(root: Path, target: str, config: str) -> Path:
    """``ROOT/<target>/<config>.json``."""
    return root / target / f"{config}.json"


def read_baseline(root: Path, target: str, config: str) -> Baseline | None:
    """The committed baseline of a (target, config), None if there is none. Raises
    ConfigFileError.
    """
    path = baseline_path(root, target, config)
    baseline = read_baseline_file(path)
    if baseline is not None and (baseline.target, baseline.config) != (target, config):
        problem = (
            f"holds the baseline of {baseline.target}/{baseline.config}, not of {target}/{config}"
        )
        raise ConfigFileError(
            path,
            "",
            None,
            problem,
            "Files are named after what they hold; rename it or record the cell again.",
        )
    return baseline


def read_target_baselines(root: Path, target: str) -> tuple[Baseline, ...]:
    """All baselines of one target, by config name; the gate pools their noise."""
    folder = root / target
    if not folder.is_dir():
        return ()
    found = (read_baseline(root, target, path.stem) for path in sorted(folder.glob("*.json")))
    return tuple(baseline for baseline in found if baseline is not None)


def read_baseline_file(path: Path) -> Baseline | None:
    """One file, checked against its schema and its digest."""
    text = read_text(path, RESTORE)
    if text is None:
        return None
    baseline = parse_baseline(path, text)
    expected = digest_of(baseline)
    if baseline.digest != expected:
        problem = f"was edited by hand: its digest is not that of its content ({expected})"
        raise ConfigFileError(
            path,
            "digest",
            baseline.digest,
            problem,
            f"Only k3perf baseline accept writes baselines. {RESTORE}",
        )
    return baseline


def parse_baseline(path: Path, text: str) -> Baseline:
    """Text to a baseline, its digest unchecked."""
    try:
        data = json_of(text)
        _require_known_version(path, data)
        return validated(Baseline, data, "a baseline")
    except DocumentProblem as problem:
        raise problem.at(path, RESTORE) from None


def _require_known_version(path: Path, data: object) -> None:
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != 1:
        step = "This release reads schema version 1; use the k3perf release that wrote the file."
        raise ConfigFileError(
            path, "schema_version", version, "a form that this release does not know", step
        )


def write_baseline(root: Path, baseline: Baseline) -> Path:
    """Replace the (target, config)'s file atomically; the digest is computed here."""
    stamped = baseline.model_copy(update={"digest": digest_of(baseline)})
    path = baseline_path(root, baseline.target, baseline.config)
    replace_file(path, stamped.model_dump_json(indent=1) + "\n")
    return path
