"""Proposed baselines on disk, between ``propose`` and ``accept``: a proposal is
reviewed, never judged against.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict

from k3perf.documents import read_record
from k3perf.errors import ConfigFileError
from k3perf.records.baseline import Baseline, digest_of
from k3perf.store.atomic import replace_file

NEXT_STEP: Final = "Run k3perf baseline propose again."


class Proposal(BaseModel):
    """A baseline that waits for its acceptance, and what stands against accepting it.
    ``new_anchor``: acceptance starts a new anchor.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1]
    new_anchor: bool
    objections: tuple[str, ...]
    baseline: Baseline


def proposal_path(folder: Path, target: str, config: str) -> Path:
    """``FOLDER/<target>/<config>.json``."""
    return folder / target / f"{config}.json"


def write_proposal(folder: Path, proposal: Proposal) -> Path:
    """Replace the proposal of the (target, config)."""
    path = proposal_path(folder, proposal.baseline.target, proposal.baseline.config)
    replace_file(path, proposal.model_dump_json(indent=1) + "\n")
    return path


def _require_untouched(path: Path, folder: Path, baseline: Baseline) -> None:
    """As ``propose`` wrote it: an acceptance would give edited numbers a good
    digest.
    """
    if path != proposal_path(folder, baseline.target, baseline.config):
        raise ConfigFileError(
            path,
            "",
            None,
            f"holds a proposal for {baseline.target}/{baseline.config}",
            "Remove it, or rename it so.",
        )
    if baseline.digest != digest_of(baseline):
        raise ConfigFileError(
            path,
            "baseline.digest",
            baseline.digest,
            "was edited by hand: its digest is not that of its content",
            NEXT_STEP,
        )


def read_proposals(folder: Path) -> tuple[tuple[Path, Proposal], ...]:
    """All waiting proposals, in order of path."""
    found = []
    for path in sorted(folder.glob("*/*.json")):
        proposal = read_record(Proposal, path, NEXT_STEP, "a proposal")
        _require_untouched(path, folder, proposal.baseline)
        found.append((path, proposal))
    return tuple(found)
