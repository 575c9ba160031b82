"""pytest-benchmark's own output: only when a ``--benchmark-*`` option asks for it.

The suite's tables are the report. pytest-benchmark's table of replayed rounds beside
them, its line in the header and the folder it makes are for runs that ask for them.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

import pytest

from k3perf.errors import UsageError

_PLUGIN = "pytest-benchmark"  # the name that its session object is registered under
_HEADER = "benchmark: "
_ELASTICSEARCH = ("elasticsearch+http", "elasticsearch+https")


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


def check_storage(config: pytest.Config) -> None:
    """Raises UsageError for a ``--benchmark-storage`` that pytest-benchmark cannot use.
    Before it is configured: it would end pytest with a traceback.
    """
    given = str(getattr(config.option, "benchmark_storage", ""))
    scheme = given.partition("://")[0] if "://" in given else "file"
    if scheme not in ("file", *_ELASTICSEARCH):
        raise pytest.UsageError(
            f"--benchmark-storage {given}: use a path, file://PATH or"
            " elasticsearch+http[s]://HOST/INDEX/DOCTYPE."
        )
    if scheme in _ELASTICSEARCH and find_spec("elasticsearch") is None:
        raise pytest.UsageError(
            f"--benchmark-storage {given}: the package elasticsearch is not installed. Install it,"
            " or use file://PATH."
        )


def check_options(config: pytest.Config) -> None:
    """Raises UsageError for what pytest-benchmark would refuse only when the measuring
    is over.
    """
    if config.getoption("benchmark_compare_fail", None) and not config.getoption(
        "benchmark_compare", None
    ):
        raise UsageError(
            "--benchmark-compare-fail needs a run to compare with. Give --benchmark-compare too."
        )
    storage = str(config.getoption("benchmark_storage", "")).removeprefix("file://")
    saves = any(config.getoption(f"benchmark_{name}", None) for name in ("save", "autosave"))
    if saves and "://" not in storage and not _takes_files(Path(storage)):
        raise UsageError(
            f"--benchmark-storage {storage} cannot be written. Name a writable directory."
        )
    path = config.getoption("benchmark_json", None)
    if path is None:
        return
    folder = path.absolute().parent
    if (
        path.is_dir()
        or not folder.is_dir()
        or not os.access(path if path.exists() else folder, os.W_OK)
    ):
        raise UsageError(
            f"--benchmark-json {path} cannot be written. Name a file in a directory that exists and"
            " can be written."
        )


def _takes_files(folder: Path) -> bool:
    """Whether it is a folder that can be written, or can become one."""
    existing = next(
        place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
    )
    return existing.is_dir() and os.access(existing, os.W_OK)


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
