"""Fixtures that several test folders share."""

import shutil
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def suite_copy(tmp_path: Path) -> Path:
    """A private copy of the declared suite, to be broken."""
    return Path(shutil.copytree(REPOSITORY / "perf_tests", tmp_path / "perf_tests"))
