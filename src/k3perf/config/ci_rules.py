"""``ci.yaml`` of the suite: what its owners say about changed files, and which targets
a tight budget measures first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from k3perf.config.declared import Declared
from k3perf.config.load_yaml import load_document


class SelectedPart(Declared):
    """The cells that files select. Empty lists select by the other key alone."""

    targets: tuple[str, ...] = ()
    """Names of targets."""
    configs: tuple[str, ...] = ()
    """Names of configs."""

    @model_validator(mode="after")
    def _some(self) -> Self:
        if not self.targets and not self.configs:
            raise ValueError("name a target or a config")
        return self


class FileRule(Declared):
    """Files outside the suite, and what they can affect. The first rule that fits a
    file decides.
    """

    paths: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    """Paths from the repository's root. One that ends in `/` is a directory."""
    affects: Literal["nothing", "everything"] | SelectedPart
    """Which cells a change of them is measured on."""
    owner: str = Field(min_length=1)
    """Who says so."""
    reason: str = Field(min_length=8)
    """Why this is so."""


class CiRules(Declared):
    """How changed files select cells."""

    schema_version: Literal[1]
    """Version of this file's format."""
    targets_first: tuple[str, ...] = ()
    """Targets that a tight budget measures first, the most important first."""
    files: tuple[FileRule, ...] = ()
    """Files outside the suite."""

    @model_validator(mode="after")
    def _outside(self) -> Self:
        for path in (path for rule in self.files for path in rule.paths):
            if path.startswith(("/", "..", "baselines/")):
                raise ValueError(f"{path!r} is not a path that a rule may cover")
        return self


NO_RULES = CiRules(schema_version=1)


def load_ci_rules(suite_root: Path) -> CiRules:
    """The suite's rules; none where it has no ``ci.yaml``. Raises ConfigFileError."""
    path = suite_root / "ci.yaml"
    return load_document(CiRules, path) if path.exists() else NO_RULES
