"""Baselines, proposals and waivers, read and checked, or written whole. A missing
baseline is None; a damaged or hand-edited file is an error with its next step.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pydantic import BaseModel, ConfigDict

from k3perf.documents import (
    DocumentProblem,
    json_of,
    read_record,
    read_text,
    validated,
    yaml_of,
)
from k3perf.errors import ConfigFileError
from k3perf.records.baseline import Baseline, Waiver, digest_of
from k3perf.store.atomic import replace_file

if TYPE_CHECKING:
    from k3perf.config.candidates import HasBaseline
    from k3perf.config.suite import Cell

RESTORE: Final = (
    "Restore it with git, or record the cell again with k3perf baseline propose and accept."
)
PROPOSE_AGAIN: Final = "Run k3perf baseline propose again."
WAIVER_KEYS: Final = (
    "Each entry of the list has target, config, workload, metric, owner, build, reason and"
    " expires_on (YYYY-MM-DD, quoted or not)."
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


def baseline_known(roots: Iterable[Path]) -> HasBaseline:
    """Whether one of the directories has numbers of a cell. The function raises
    ConfigFileError for a file that cannot be used.
    """
    directories = tuple(roots)

    def has_baseline(cell: Cell) -> bool:
        found = (read_baseline(root, cell.target.name, cell.config.name) for root in directories)
        return any(one is not None and one.workload(cell.workload.name) for one in found)

    return has_baseline


def read_baseline_file(path: Path) -> Baseline | None:
    """One file, checked against its schema and its digest."""
    text = read_text(path, RESTORE)
    if text is None:
        return None
    baseline = parse_baseline(path, text)
    expected = digest_of(baseline)
    if baseline.digest != expected:
        problem = f"was edited by hand: its digest does not match its content ({expected})"
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
        raise ConfigFileError(path, "schema_version", version, "unknown to this release", step)


def write_baseline(root: Path, baseline: Baseline) -> Path:
    """Replace the (target, config)'s file atomically; the digest is computed here."""
    stamped = baseline.model_copy(update={"digest": digest_of(baseline)})
    path = baseline_path(root, baseline.target, baseline.config)
    replace_file(path, stamped.model_dump_json(indent=1) + "\n")
    return path


class Proposal(BaseModel):
    """A baseline between ``propose`` and ``accept``, and the objections to it.
    ``new_anchor``: acceptance starts a new anchor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1]
    new_anchor: bool
    objections: tuple[str, ...]
    baseline: Baseline


def write_proposal(folder: Path, proposal: Proposal) -> Path:
    """Replace ``FOLDER/<target>/<config>.json``."""
    path = baseline_path(folder, proposal.baseline.target, proposal.baseline.config)
    replace_file(path, proposal.model_dump_json(indent=1) + "\n")
    return path


def read_proposals(folder: Path) -> tuple[tuple[Path, Proposal], ...]:
    """All waiting proposals, in order of path."""
    found = []
    for path in sorted(folder.glob("*/*.json")):
        proposal = read_record(Proposal, path, PROPOSE_AGAIN, "a proposal")
        _require_untouched(path, folder, proposal.baseline)
        found.append((path, proposal))
    return tuple(found)


def _require_untouched(path: Path, folder: Path, baseline: Baseline) -> None:
    """As ``propose`` wrote it: an acceptance would give edited numbers a good
    digest.
    """
    if path != baseline_path(folder, baseline.target, baseline.config):
        holds = f"holds a proposal for {baseline.target}/{baseline.config}"
        raise ConfigFileError(path, "", None, holds, "Remove or rename it.")
    if baseline.digest != digest_of(baseline):
        edited = "was edited by hand: its digest does not match its content"
        raise ConfigFileError(path, "baseline.digest", baseline.digest, edited, PROPOSE_AGAIN)


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """All waivers of the file, expired ones too: the gate says that they expired."""
    text = read_text(path, WAIVER_KEYS)
    if text is None:
        return ()
    try:
        entries = yaml_of(text, words=True)
        if entries is None:
            return ()
        if not isinstance(entries, list):
            raise DocumentProblem("not a list of waivers")
        return validated(tuple[Waiver, ...], entries)
    except DocumentProblem as problem:
        raise problem.at(path, WAIVER_KEYS) from None
