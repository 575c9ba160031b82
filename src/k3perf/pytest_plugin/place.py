"""Where a call's repository is, and which suite it concerns."""

from __future__ import annotations

from pathlib import Path

import pytest

SUITE: str = "perf_tests"


def root_of(config: pytest.Config) -> Path:
    """The repository's directory: pytest's root, but the directory that pytest was
    called in where another path of the command line moved the root away from it.

    Pytest looks for its root among all paths on the command line, and before plugins
    are loaded the value of ``--k3-engine-python PATH`` is one of them.
    """
    root, called = config.rootpath, config.invocation_params.dir
    here = (root / SUITE).is_dir() and root in _and_above(called)
    if here or config.getoption("rootdir", None):
        return root
    moved = root not in _and_above(called) or config.inipath is None
    return called if moved and (called / SUITE).is_dir() else root


def _and_above(path: Path) -> tuple[Path, ...]:
    return (path, *path.parents)
