"""Fixtures that several test folders share."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.plugin.sites import Forks

pytest_plugins = ["pytester"]

# A run started by nohup or in a script's background inherits ignored signals; the tests
# are about a harness that gets them.
for _number, _handler in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture
def suite_copy(tmp_path: Path) -> Path:
    """A private copy of the declared suite, to be broken."""
    return Path(shutil.copytree(REPOSITORY / "perf_tests", tmp_path / "perf_tests"))


@pytest.fixture(scope="session")
def engine_python(request: pytest.FixtureRequest) -> Path:
    """The CPU engine's Python: the option, K3PERF_ENGINE_PYTHON, or .venv-engine;
    skipped by name where there is none.
    """
    given = request.config.getoption("--k3-engine-python") or os.environ.get("K3PERF_ENGINE_PYTHON")
    path = Path(given) if given else REPOSITORY / ".venv-engine" / "bin" / "python"
    if not path.is_file():
        pytest.skip(f"no engine Python at {path}; scripts/perf sets one up")
    return path.absolute()


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Forks"]:
    """Runs of Python, each in a fraction of a start."""
    from k3perf.records.samples import Arm
    from k3perf.store.results import ResultWriter
    from tests.plugin.made_results import made_round, session
    from tests.plugin.sites import Forks

    results = tmp_path_factory.mktemp("forks") / "results.jsonl"
    with ResultWriter(results, run_id="any") as writer:
        record = session(0, Arm.CANDIDATE, "any")
        writer.session(record)
        writer.round(record.session_id, made_round(0, 1.0))
        writer.session_end(record.session_id, ())
    running = Forks(results)
    yield running
    running.close()
