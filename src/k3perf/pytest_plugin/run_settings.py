"""Command-line options to RunSettings; every missing piece is a usage error with the
next step.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from k3perf.config.cpu_features import usable
from k3perf.config.suite import Suite
from k3perf.errors import UsageError
from k3perf.pytest_plugin.place import root_of
from k3perf.run.engine_environment import cache_directory, engine_python_path, find_engine_python
from k3perf.run.settings import QUIET_WAIT_S, RECORD_MINUTES, Injection, RunSettings
from k3perf.telemetry.hardware import detect_hardware

if TYPE_CHECKING:
    from k3perf.store.base_checkout import Judge

MODES = ("baseline", "reference", "ab")


def option_values(config: pytest.Config) -> dict[str, Any]:
    """Fields of RunSettings that an option alone decides. Raises UsageError for a value
    that cannot be used, also where nothing is going to be measured.
    """
    option = config.getoption
    if option("--k3-resume") and not option("--k3-results"):
        raise UsageError("--k3-resume continues a run: name its directory with --k3-results")
    if option("--k3-record"):
        for other in ("--k3-inject", "--k3-ab-base", "--k3-judge-from", "--k3-resume"):
            if option(other):
                hint = (
                    " (`k3perf recover` saves what an interrupted recording left)"
                    if other == "--k3-resume"
                    else ""
                )
                raise UsageError(
                    f"--k3-record records the unmodified engine: leave {other} out{hint}"
                )
    elif option("--k3-record-within"):
        raise UsageError("--k3-record-within limits a recording: add --k3-record")
    if option("--k3-engine-python"):
        engine_python(config)
    base = option("--k3-ab-base")
    if base is not None and not _python_of(base).is_file():
        from k3perf.store.base_checkout import base_commit

        base_commit(root_of(config), base)
    return {
        "mode": _mode(option("--k3-mode")),
        "record": option("--k3-record"),
        "record_sessions": _positive(option("--k3-sessions"), "--k3-sessions"),
        "record_minutes": _amount(
            option("--k3-record-minutes"), "--k3-record-minutes", RECORD_MINUTES, "minutes"
        ),
        "record_within_minutes": _within(option("--k3-record-within")),
        "strict": option("--k3-strict"),
        "planned_gated_metric_count": _positive(
            option("--k3-gated-metric-count"), "--k3-gated-metric-count"
        ),
        "injections": tuple(Injection.parse(text) for text in option("--k3-inject")),
        "trace_file": _existing(option("--k3-trace"), "--k3-trace"),
        "resume": option("--k3-resume"),
        "servers": servers_of(config),
        "quiet_wait_s": _amount(
            option("--k3-quiet-wait"), "--k3-quiet-wait", QUIET_WAIT_S, "seconds"
        ),
    }


def run_settings(
    config: pytest.Config, suite: Suite, judge: Judge | None = None, *, run_id: str
) -> RunSettings:
    """``suite`` is the judge's already. Raises UsageError for an option whose value
    cannot be used.
    """
    option = config.getoption
    state_directory = root_of(config) / ".k3perf"
    cache = cache_directory(state_directory)
    values = option_values(config)
    base = _ab_base(config, option("--k3-ab-base"), cache)
    return RunSettings(
        suite=suite,
        judge=judge,
        run_id=run_id,
        commit=commit_of(root_of(config)),
        baselines_directory=Path(
            option("--k3-baselines") or suite.root.parent / "baselines"
        ).resolve(),
        results_directory=Path(
            option("--k3-results") or state_directory / "results" / run_id
        ).resolve(),
        cache_directory=cache,
        engine_python=Path() if values["servers"] else engine_python(config),
        engine_python_path="" if values["servers"] else engine_python_path(cache),
        build=os.environ.get("GITHUB_SHA", ""),
        cpu_features=usable(detect_hardware().cpu_flags, os.environ),
        **values,
        **base,
    )


def servers_of(config: pytest.Config) -> tuple[str, ...]:
    """The addresses of ``--k3-server``. Raises UsageError for one that cannot be used,
    and for an option that needs an engine of the suite.
    """
    from k3perf.telemetry.outside_server import plain_address

    servers = tuple(plain_address(text) for text in config.getoption("--k3-server"))
    for other in ("--k3-inject", "--k3-ab-base", "--k3-engine-python") if servers else ():
        if config.getoption(other):
            raise UsageError(f"--k3-server measures a server that runs already. Leave {other} out.")
    return servers


def judge_of(config: pytest.Config) -> Judge | None:
    """The base that ``--k3-judge-from`` names. Raises UsageError."""
    given = config.getoption("--k3-judge-from")
    if given is None:
        return None
    from k3perf.run.argument_table import table_of_engine
    from k3perf.store.base_checkout import judge_from

    table = table_of_engine(config.getoption("--k3-engine-python"), root_of(config))
    return judge_from(root_of(config), given, cache_directory(root_of(config) / ".k3perf"), table)


def engine_python(config: pytest.Config) -> Path:
    """The engine environment's Python: the option, then K3PERF_ENGINE_PYTHON, then
    .venv-engine under the root directory.
    """
    return find_engine_python(config.getoption("--k3-engine-python"), root_of(config))


def commit_of(directory: Path) -> str:
    """The checked-out commit; ``-dirty`` when tracked files differ from it.

    Outside a repository (a copied tree on a runner without git) K3PERF_COMMIT says it;
    without it, or where it is empty, the commit is ``unknown``.
    """
    from k3perf.ci.commits import UNKNOWN
    from k3perf.store.repository import Repository

    try:
        return Repository(directory).checked_out()
    except UsageError:
        return os.environ.get("K3PERF_COMMIT", "").strip() or UNKNOWN


def _ab_base(config: pytest.Config, given: str | None, cache: Path) -> dict[str, Any]:
    if given is None:
        return {}
    from k3perf.run.argument_table import table_of_engine
    from k3perf.store.base_checkout import base_suite

    python = _python_of(given)
    if python.is_file():
        return {"ab_base_python": python.absolute(), "ab_base_name": f"environment {given}"}
    table = table_of_engine(config.getoption("--k3-engine-python"), root_of(config))
    suite = base_suite(root_of(config), given, cache, table)
    return {"ab_suite": suite, "ab_base_name": f"git ref {given} ({suite.root.parent.name[:12]})"}


def _python_of(environment: str) -> Path:
    return Path(environment) / "bin" / "python"


def _mode(given: str | None) -> Any:
    if given is not None and given not in MODES:
        raise UsageError(f"--k3-mode {given!r}: use one of {', '.join(MODES)}")
    if given == "ab":
        raise UsageError(
            "--k3-mode ab needs its base: use --k3-ab-base with a virtual environment or a git ref"
            " instead"
        )
    return given


def _positive(given: str | None, name: str) -> int | None:
    if given is None:
        return None
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(f"{name} {given!r}: give a whole number of at least 1")
    return int(given)


def _amount(given: str | None, name: str, default: float, unit: str) -> float:
    if given is None:
        return default
    try:
        value = float(given)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"{name} {given!r}: give {unit}, 0 or more")
    return value


def _within(given: str | None) -> float | None:
    if given is None:
        return None
    minutes = _amount(given, "--k3-record-within", 0.0, "minutes")
    if not minutes:
        raise UsageError(f"--k3-record-within {given!r}: give minutes above 0")
    return minutes


def _existing(given: str | None, name: str) -> Path | None:
    if given is None:
        return None
    path = Path(given)
    if not path.is_file():
        raise UsageError(f"{name} {given}: no such file")
    return path.resolve()
