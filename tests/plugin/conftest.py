"""Fixtures of the whole runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.plugin.sites import Forks, Site


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, repository: Path, forks: Forks) -> Path:
    """A site where both configs were recorded and accepted. Not to be changed."""
    root = tmp_path_factory.mktemp("site")
    Site(root, repository, forks).record()
    return root


@pytest.fixture
def site(recorded: Path, tmp_path: Path, repository: Path, forks: Forks) -> Site:
    """A new site with the recorded baselines."""
    made = Site(tmp_path, repository, forks)
    shutil.copytree(recorded / "baselines", tmp_path / "baselines")
    return made
