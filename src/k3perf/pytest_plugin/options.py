"""The command-line options of ``pytest perf_tests``, each with its environment variable
where a runner sets it once.
"""

from __future__ import annotations

from typing import Final

import pytest

FLAGS: Final = {
    "--k3-record": "record sessions for a baseline instead of judging",
    "--k3-strict": "INCONCLUSIVE fails (exit status 13)",
    "--k3-resume": (
        "go on with an interrupted run of --k3-results: valid cells are not measured again"
    ),
    "--k3-plain": "progress as lines, also on a terminal",
}
VALUES: Final = {
    "--k3-suite": (
        "DIR",
        "folder of the declared suite (default: perf_tests under the root directory)",
    ),
    "--k3-baselines": (
        "DIR",
        "folder of committed baselines (default: baselines beside the suite)",
    ),
    "--k3-results": (
        "DIR",
        "where results go (default: .k3perf/results/RUN under the root directory)",
    ),
    "--k3-engine-python": (
        "PATH",
        "Python of the engine's environment (default: K3PERF_ENGINE_PYTHON, then .venv-engine)",
    ),
    "--k3-mode": ("MODE", "baseline, reference or ab instead of the target's own mode"),
    "--k3-ab-base": (
        "ENV|REF",
        (
            "judge against this base: a virtual environment of another engine, or a git ref whose"
            " configs are measured"
        ),
    ),
    "--k3-sessions": (
        "N",
        (
            "with --k3-record: exactly so many sessions per cell (default: at least the target's,"
            " then until the tolerances can be tested)"
        ),
    ),
    "--k3-record-minutes": (
        "N",
        (
            "with --k3-record: after the target's sessions, start no further one that would end"
            " later than this (default: 120; 0: none)"
        ),
    ),
    "--k3-quiet-wait": (
        "SECONDS",
        (
            "with --k3-record: how long to wait each time until other processes leave the CPUs"
            " alone (default: 300; 0: not at all)"
        ),
    ),
    "--k3-cells": ("FILE", "JSON list of cell ids to keep, as `k3perf plan --json` writes it"),
    "--k3-gated-metric-count": (
        "N",
        (
            "when this run is one shard of a plan: gated metrics of the whole plan, which share the"
            " error budgets"
        ),
    ),
    "--k3-trace": ("FILE", "replay this trace instead of the shipped one"),
}
REPEATED: Final = {
    "--k3-target": (
        "NAME",
        (
            "measure this target (default: every target marked measured_by_default whose hardware"
            " is here)"
        ),
    ),
    "--k3-inject": (
        "KIND=AMOUNT",
        "put a supported fault into the candidate engine, e.g. slow_step_percent=15",
    ),
}


def add_options(parser: pytest.Parser) -> None:
    """Register every option in a separate group."""
    group = parser.getgroup("k3perf", "performance-regression tests of vLLM serving configurations")
    for flag, text in FLAGS.items():
        group.addoption(flag, action="store_true", default=False, help=text)
    for option, (metavar, text) in VALUES.items():
        group.addoption(option, metavar=metavar, default=None, help=text)
    for option, (metavar, text) in REPEATED.items():
        group.addoption(option, metavar=metavar, action="append", default=[], help=text)
