"""The ``k3`` fixture's object: what a test of the suite calls to have its cell measured
and its family of metrics judged.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

import pytest

from k3perf.config.suite import Cell
from k3perf.errors import ExitStatus, UsageError
from k3perf.pytest_plugin.replay import ReplayClock, carry
from k3perf.pytest_plugin.state import PluginState
from k3perf.records.metric_definitions import METRICS, Family
from k3perf.records.outcome import Outcome
from k3perf.records.verdict import CellVerdict
from k3perf.run.run_parts import CellResult

FAILING = frozenset(Outcome) - {Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE}


class SuiteJudge:
    """Measures cells on demand (once each) and fails the calling test when what it
    asked about is not as approved.
    """

    def __init__(self, state: PluginState) -> None:
        self._state = state
        self._shown_at: dict[
            tuple[str, ...], str
        ] = {}  # why a cell has no numbers, to the first test that says so

    def check(
        self,
        cell: Cell,
        families: tuple[Family, ...],
        benchmark: Any = None,
        clock: ReplayClock | None = None,
    ) -> None:
        """Measure ``cell`` unless that was done; fail with the table of the families'
        metrics when one of them fails.
        """
        result = self._measure(cell)
        part = only_families(result.verdict, families)
        if benchmark is not None and clock is not None:
            carry(benchmark, clock, result.measurement, part.metrics)
        if (
            not part.metrics
            and part.outcome is Outcome.PASS
            and not self._state.config.getoption("--k3-record")
        ):
            pytest.skip(
                f"no {' or '.join(families)} metric has a tolerance for {cell.cell_id}: reported,"
                " not judged"
            )
        self._conclude(part, result.verdict)

    def _measure(self, cell: Cell) -> CellResult:
        run = self._state.open_run()
        drawing = (
            self._state.progress.drawing()
            if self._state.progress is not None
            else contextlib.nullcontext()
        )
        try:
            with drawing:
                return run.measure(cell)
        except (
            UsageError
        ) as error:  # found only while measuring, e.g. a launch kind that the suite does not start
            pytest.exit(str(error), returncode=ExitStatus.USAGE)

    def check_configuration(self, cell: Cell) -> None:
        """Fail when the engine resolved another configuration than the approved one."""
        verdict = self._measure(cell).verdict
        problem = self._state.open_run().lock_problem()
        if problem:
            pytest.skip(f"{problem}: not compared, not judged")
        self._conclude(
            _without_noise(replace(verdict, metrics=(), reference_arm=(), notes=())), verdict
        )

    def _conclude(self, verdict: CellVerdict, whole: CellVerdict) -> None:
        """``whole``: the cell's verdict that ``verdict`` is the part of which the test
        asks about.
        """
        outcome = verdict.outcome
        endings = self._state.endings
        endings.checked.append(outcome)
        if outcome in FAILING or (endings.strict and outcome is Outcome.INCONCLUSIVE):
            from k3perf.report.causes import causes_of
            from k3perf.report.table import failure_text

            shown_at = (
                ""
                if whole.metrics
                else self._shown_at.setdefault(causes_of(whole), _running_test())
            )
            endings.fail_with(
                failure_text(verdict, "" if shown_at == _running_test() else shown_at)
            )


def _running_test() -> str:
    """The name of the test that runs now, with its cell."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("::")[2]


def only_families(verdict: CellVerdict, families: tuple[Family, ...]) -> CellVerdict:
    """The part of a verdict that concerns ``families``. A changed configuration is its
    own test's matter.
    """
    metrics, arm = (
        tuple(metric for metric in found if METRICS[metric.metric].family in families)
        for found in (verdict.metrics, verdict.reference_arm)
    )
    return _without_noise(replace(verdict, metrics=metrics, reference_arm=arm, differences=()))


def _without_noise(part: CellVerdict) -> CellVerdict:
    """Where noise spoiled times alone, its reasons belong to the families that have a
    metric without a valid round.
    """
    spoiled = any(metric.outcome is Outcome.INVALID for metric in part.metrics)
    return replace(part, invalid_reasons=()) if part.times_only and not spoiled else part
