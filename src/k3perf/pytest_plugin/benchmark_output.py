"""pytest-benchmark's own output: only when a ``--benchmark-*`` option asks for it.

The suite's tables are the report. pytest-benchmark's table of replayed rounds beside
them, its line in the header and the folder it makes are for runs that ask for them.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterable

import pytest

_PLUGIN = "pytest-benchmark"  # the name that its session object is registered under
_HEADER = "benchmark: "


def asked_for(config: pytest.Config) -> bool:
    """Whether the command line, ``PYTEST_ADDOPTS`` or ``addopts`` holds an option of
    pytest-benchmark.
    """
    words = [
        *config.invocation_params.args,
        *config.getini("addopts"),
        *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
    ]
    return any(str(word).startswith("--benchmark-") for word in words)


def make_no_folder(config: pytest.Config) -> None:
    """Keep pytest-benchmark from making ``.benchmarks/`` where nothing is going to be
    stored. Before it is configured.

    It makes its storage's folder whether it stores or not; one that exists already is
    left alone.
    """
    if not asked_for(config) and hasattr(config.option, "benchmark_storage"):
        config.option.benchmark_storage = f"file://{tempfile.gettempdir()}"


def keep_quiet(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """No table where no option asks for one and every benchmark is the suite's."""
    benchmarks = config.pluginmanager.get_plugin(_PLUGIN)
    names = [getattr(item, "fixturenames", ()) for item in items]
    ours = all("cell" in fixtures for fixtures in names if "benchmark" in fixtures)
    if benchmarks is not None and ours and not asked_for(config):
        benchmarks.quiet = True


def without_header(config: pytest.Config, lines: list[str | list[str]]) -> list[str | list[str]]:
    """pytest's header lines without pytest-benchmark's settings, which no measured
    round follows.
    """
    if asked_for(config):
        return lines
    return [line for line in lines if not (isinstance(line, str) and line.startswith(_HEADER))]
