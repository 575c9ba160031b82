"""Baselines and policies of a run: which numbers a cell is judged against, and the one
call into the gate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from k3perf.baselines.arm_values import with_arm_values
from k3perf.baselines.reference_arm import with_reference_arm
from k3perf.baselines.target_policy import target_policy, with_noise_of
from k3perf.baselines.visible import unproven_on_one_server, visible_baseline
from k3perf.baselines.waivers import apply_waivers, check_waivers
from k3perf.config.gated import statistical_metric_count
from k3perf.config.suite import Cell
from k3perf.errors import shortened
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.gate.reference import References
from k3perf.records.baseline import Baseline, Waiver, how_to_record
from k3perf.records.measurement import CellMeasurement
from k3perf.records.verdict import CellVerdict
from k3perf.report.attribution import attributed
from k3perf.run.settings import RunSettings
from k3perf.store.baselines import read_baseline, read_target_baselines, read_waivers

_OWN_JUDGE: Final = (
    "the base has no baseline of this cell: it was judged by the one of the change itself"
)


class GateKeeper:
    """Judges the cells of one run under one family-wise error rate. Reads baseline
    files; writes none.
    """

    def __init__(self, settings: RunSettings, cells: Sequence[Cell]) -> None:
        self._settings = settings
        self._cells = tuple(cells)
        self._policies: dict[tuple[str, str, str], Policy] = {}
        self._references = References()
        self._today = datetime.now(UTC).date()
        self._known_waivers: tuple[Waiver, ...] | None = None
        self._baselines: dict[tuple[Path, str, str], Baseline | None] = {}

    @property
    def gated_metric_count(self) -> int:
        """Gated statistical metrics of all selected cells, or of the whole plan that
        they are a shard of: the parts that the family-wise error rate is divided into
        (at least 1).
        """
        count = statistical_metric_count(self._settings.suite, self._cells)
        return max(count, self._settings.planned_gated_metric_count or 1)

    def check_inputs(self, cell: Cell) -> None:
        """Read what the cell will be judged with. Raises UsageError for a file or name
        that cannot be used.
        """
        self.policy(cell)
        self._baseline(cell)

    def early_verdict(self, cell: Cell, plan_digest: str) -> CellVerdict | None:
        """NO_BASELINE before anything is started, where the mode needs committed
        numbers and there are none; else None.
        """
        mode = self._settings.mode_for(cell.target.name)
        if mode == "ab" or self._settings.record:
            return None
        missing = self._missing(cell, plan_digest)
        if not missing:
            return None
        return CellVerdict(
            cell.target.name, cell.config.name, cell.workload.name, mode, (), missing=missing
        )

    def attribute(
        self, cell: Cell, measurement: CellMeasurement, verdict: CellVerdict
    ) -> CellVerdict:
        """The verdict with the part that moved, where the cell lost. An explanation
        that fails must not cost the verdict.
        """
        baseline = None if measurement.mode == "ab" else self._baseline(cell)
        try:
            return replace(verdict, attribution=attributed(verdict, measurement, baseline))
        except Exception as error:
            text = shortened(f"{type(error).__name__}: {error}")
            note = f"which part moved is not known: internal error, {text}"
            return replace(verdict, notes=(*verdict.notes, note))

    def judge(self, cell: Cell, measurement: CellMeasurement) -> CellVerdict:
        """The gate's verdict on what was measured so far."""
        baseline = None if measurement.mode == "ab" else self._baseline(cell)
        if self._settings.servers and baseline is not None:
            baseline = visible_baseline(baseline, measurement)
        policy = self.policy(cell)
        verdict = compare(baseline, measurement, policy, self._references)
        verdict = with_reference_arm(verdict, baseline, measurement, policy)
        verdict = with_arm_values(verdict, baseline, measurement, policy)
        if self._settings.servers:
            verdict = unproven_on_one_server(verdict, len(set(self._settings.servers)))
        if self._own(cell) and baseline is not None:
            verdict = replace(verdict, notes=(*verdict.notes, _OWN_JUDGE))
        return apply_waivers(
            verdict,
            self._waivers(),
            today=self._today,
            build=measurement.vllm_release or self._settings.build,
        )

    def baseline(self, cell: Cell) -> Baseline | None:
        """The committed baseline that judges the cell, None where there is none."""
        return self._baseline(cell)

    def policy(self, cell: Cell) -> Policy:
        """The target's policy in this run. Raises ConfigFileError for a tolerance of an
        unknown metric, and for a waiver that never holds.
        """
        name, own = cell.target.name, self._own(cell)
        key = (name, cell.config.name if own else "", cell.workload.name if own else "")
        if key not in self._policies:
            self._waivers()
            policy = target_policy(
                self._settings.suite, cell.target, gated_metric_count=self.gated_metric_count
            )
            baselines = read_target_baselines(self._directory, name)
            if own:
                found = self._baseline(cell)
                baselines = (
                    *(other for other in baselines if other.config != cell.config.name),
                    *((found,) if found is not None else ()),
                )
            self._policies[key] = with_noise_of(policy, baselines)
        return self._policies[key]

    @property
    def _directory(self) -> Path:
        """Where baselines and waivers come from."""
        judge = self._settings.judge
        return self._settings.baselines_directory if judge is None else judge.baselines_directory

    def _own(self, cell: Cell) -> bool:
        """The base has no baseline of the cell, so that only the change's own can judge
        it. Such a baseline judges no other cell.
        """
        if self._settings.judge is None:
            return False
        baseline = self._read(self._directory, cell)
        return baseline is None or baseline.workload(cell.workload.name) is None

    def _waivers(self) -> tuple[Waiver, ...]:
        if self._known_waivers is None:
            path = self._directory / "waivers.yaml"
            self._known_waivers = read_waivers(path)
            check_waivers(self._known_waivers, self._settings.suite, path, today=self._today)
        return self._known_waivers

    def _baseline(self, cell: Cell) -> Baseline | None:
        own = self._own(cell)
        return self._read(self._settings.baselines_directory if own else self._directory, cell)

    def _read(self, directory: Path, cell: Cell) -> Baseline | None:
        key = (directory, cell.target.name, cell.config.name)
        if key not in self._baselines:
            self._baselines[key] = read_baseline(*key)
        return self._baselines[key]

    def _missing(self, cell: Cell, plan_digest: str) -> str:
        baseline = self._baseline(cell)
        how = how_to_record(cell.target.name, cell.config.name, self._settings.servers)
        if baseline is None:
            return f"baselines/{cell.target.name}/{cell.config.name}.json does not exist; {how}"
        known = baseline.workload(cell.workload.name)
        if known is None:
            return (
                f"the baseline of {cell.target.name}-{cell.config.name} has no workload"
                f" {cell.workload.name}; {how}"
            )
        if known.plan_digest != plan_digest:
            return (
                f"workload {cell.workload.name} expands to another plan than the baseline's (digest"
                f" {plan_digest[:12]}, was {known.plan_digest[:12]}); {how}"
            )
        return ""
