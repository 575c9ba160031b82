"""The command-line options of ``pytest perf_tests``, each with its environment variable
where a runner sets it once.
"""

from __future__ import annotations

from typing import Final

import pytest

FLAGS: Final = {
    "--k3-record": "record sessions for a baseline instead of judging",
    "--k3-candidates": (
        "collect candidate cells too, which have no baseline (--k3-record, --k3-ab-base and"
        " --k3-cells do so without it)"
    ),
    "--k3-strict": "INCONCLUSIVE fails (exit status 13)",
    "--k3-resume": (
        "continue the interrupted run in --k3-results; valid cells are not measured again"
    ),
    "--k3-plain": "progress as lines, also on a terminal",
}
VALUES: Final = {
    "--k3-suite": (
        "DIR",
        "directory of the declared suite (default: perf_tests under the root directory)",
    ),
    "--k3-baselines": (
        "DIR",
        "directory of committed baselines (default: baselines next to the suite)",
    ),
    "--k3-results": (
        "DIR",
        "where results go (default: .k3perf/results/RUN under the root directory)",
    ),
    "--k3-engine-python": (
        "PATH",
        (
            "Python of the engine's environment, in ab mode the candidate's (default:"
            " K3PERF_ENGINE_PYTHON, .venv-engine, the one `k3perf init` used, `vllm` on PATH)"
        ),
    ),
    "--k3-mode": ("MODE", "baseline, reference or ab instead of the target's own mode"),
    "--k3-ab-base": (
        "ENV|REF",
        (
            "ab mode: the base, a virtual environment or a git ref; the candidate is this checkout"
            " on --k3-engine-python"
        ),
    ),
    "--k3-judge-from": (
        "DIR|REF",
        (
            "judge by the tolerances, plans, baselines and waivers of this base: a directory with"
            " perf_tests and baselines, or a git ref"
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
    "--k3-record-within": (
        "N",
        (
            "with --k3-record: record in turn for so many minutes, also fewer sessions than the"
            " target's; start none that would end later, and leave --k3-record-minutes aside"
        ),
    ),
    "--k3-quiet-wait": (
        "SECONDS",
        (
            "with --k3-record: longest wait, each time, for other processes to leave the CPUs"
            " idle (default: 300; 0: do not wait)"
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
    "--k3-server": (
        "URL",
        (
            "measure this running server (http://HOST:PORT) and start no engine; with several, each"
            " session uses the next one"
        ),
    ),
    "--k3-target": (
        "NAME",
        (
            "measure this target (default: every target marked measured_by_default, if its hardware"
            " is present)"
        ),
    ),
    "--k3-inject": (
        "KIND=AMOUNT",
        (
            "inject a supported fault into the candidate engine, e.g. slow_step_percent=15; with"
            " both: in front, into the engines of both arms"
        ),
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
