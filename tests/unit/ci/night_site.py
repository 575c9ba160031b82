"""A made suite of 120 cells on disk, and a simulated engine: sessions with the noise that
``h200-k3`` recorded, judged by the real gate, timed by a clock that only counts.

The simulation knows what the price does not: a session with fewer rounds is shorter, and
each session takes a share of time that nobody recorded.
"""

from __future__ import annotations

import json
import math
import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from k3perf.baselines.accept import strictest_policy
from k3perf.baselines.propose import propose
from k3perf.ci.costs import RecordedCosts
from k3perf.config.suite import Cell, Suite, load_suite
from k3perf.gate.compare import compare
from k3perf.gate.policy import Policy
from k3perf.gate.reference import References
from k3perf.records.baseline import Acceptance, Baseline
from k3perf.records.measurement import (
    CellMeasurement,
    MeasurementFile,
    MetricValue,
    RoundMetrics,
    SessionMetrics,
)
from k3perf.records.outcome import Outcome
from k3perf.records.plan_file import PlanDocument
from k3perf.records.samples import Arm, InvalidReason
from k3perf.records.verdict import Buy, CellVerdict, VerdictDocument
from k3perf.store.baselines import read_baseline_file, read_target_baselines, write_baseline
from k3perf.store.measurements import write_measurement_file

from .conftest import config, target, workload

RECORDED = Path(__file__).resolve().parents[3] / "baselines" / "h200-k3"
MODEL = Path(__file__).resolve().parents[3] / "perf_tests" / "models" / "h200-k3"
SESSION_OVERHEAD = 0.12
WARM_UP_ROUNDS, RECORDED_ROUNDS = 2, 6
METRICS = {"output_tokens_per_s": 3400.0, "tpot_mean_ms": 18.0}
TOLERANCES = {
    "schema_version": 1,
    "defaults": {
        "tpot_mean_ms": {"loss_ratio": 0.05},
        "output_tokens_per_s": {"loss_ratio": 0.1},
        "weights_bytes": {"loss_absolute": 0},
    },
}
PLAN = {
    "mode": "baseline",
    "warm_up_rounds": WARM_UP_ROUNDS,
    "minimum_rounds": 4,
    "maximum_rounds": RECORDED_ROUNDS,
    "minimum_sessions": 1,
    "maximum_sessions": 5,
    "baseline_sessions": 4,
}
UNTAUGHT = "tuned_19"
"""The config that has no baseline."""


def recorded_noise() -> list[dict[str, list[float]]]:
    """Sessions of the committed baselines: by metric, the rounds over the config's level.
    The two metrics of a session belong together.
    """
    found: list[dict[str, list[float]]] = []
    for name in ("default", "batched_tokens_16k", "prefix_caching_on"):
        baseline = read_baseline_file(RECORDED / f"{name}.json")
        assert baseline is not None
        entries = {e.metric: e for e in baseline.workloads[0].metrics if e.metric in METRICS}
        for index in range(len(entries["tpot_mean_ms"].sessions)):
            session = {}
            for metric, entry in entries.items():
                level = math.exp(
                    sum(math.log(one.value) for one in entry.sessions) / len(entry.sessions)
                )
                session[metric] = [v / level for v in entry.sessions[index].round_values]
            found.append(session)
    return found


@dataclass
class NightSite:
    """The suite's files, baselines of all configs but one, costs, and the simulation."""

    root: Path
    dice: random.Random = field(default_factory=lambda: random.Random(20261201))
    losses: dict[str, float] = field(default_factory=dict)
    dead_shards: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.noise = recorded_noise()
        self.suite_folder, self.baselines = self.root / "perf_tests", self.root / "baselines"
        self.nights = self.root / "nights"
        self.nights.mkdir(parents=True)
        self._write_suite()
        self.suite: Suite = load_suite(self.suite_folder)
        self.levels = {cell.cell_id: self.dice.uniform(0.5, 2) for cell in self.suite.cells()}
        self.costs = RecordedCosts(
            session_s={c.cell_id: self.dice.lognormvariate(3.5, 0.4) for c in self.suite.cells()},
            engine_start_s={
                f"{c.target.name}/{c.config.name}": self.dice.uniform(25, 60)
                for c in self.suite.cells()
            },
        )
        (self.suite_folder / "costs.json").write_text(self.costs.model_dump_json())
        self._record_baselines()

    def _write_suite(self) -> None:
        documents: dict[str, Any] = {"tolerances.yaml": TOLERANCES}
        configs = [config("default", extends=None)]
        configs += [config(f"tuned_{index}") for index in range(1, 20)]
        for spec in configs:
            documents[f"configs/{spec.name}.yaml"] = spec.model_dump(mode="json")
        for name in ("alpha", "beta", "gamma"):
            made = target(name, measurement=PLAN).model_dump(mode="json", exclude_defaults=True)
            documents[f"targets/{name}.yaml"] = {"schema_version": 1, **made}
            model = self.suite_folder / "models" / name
            model.mkdir(parents=True)
            shutil.copy(MODEL / "config.json", model)
        for name in ("chat", "burst"):
            made = workload(name).model_dump(mode="json", exclude_defaults=True)
            documents[f"workloads/{name}.yaml"] = {"schema_version": 1, **made}
        for index, spec in enumerate(configs):  # each must be another configuration
            data = documents[f"configs/{spec.name}.yaml"]
            data["change"] = {"max_num_seqs": 8 + index} if index else {}
            documents[f"configs/{spec.name}.yaml"] = {
                key: data[key]
                for key in ("schema_version", "name", "extends", "change", "why", "provenance")
                if data.get(key) is not None
            }
        for name, data in documents.items():
            path = self.suite_folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(data))

    def _record_baselines(self) -> None:
        """Nine sessions on three hosts, as ``h200-k3`` has."""
        stamp = Acceptance(accepted_by="ann", reason="first numbers",
                           accepted_at_utc="2026-11-01T00:00:00Z", commit="c0", run_ids=("r0",))  # fmt: skip
        for name in self.suite.targets:
            policy = strictest_policy(self.suite, name, ())
            for spec in self.suite.configs:
                if spec == UNTAUGHT:
                    continue
                cells = [c for c in self.suite.cells((name,)) if c.config.name == spec]
                measured = [
                    self.cell(cell, [self.session(cell, f"r0-{index}", RECORDED_ROUNDS,
                                                  f"2026-11-0{1 + index % 3}", f"host{index % 3}")
                                     for index in range(9)])
                    for cell in cells
                ]  # fmt: skip
                write_baseline(
                    self.baselines,
                    propose(measured, versions={"vllm": "0.33.0"}, policy=policy, previous=None,
                            acceptance=stamp),
                )  # fmt: skip

    def cell(self, cell: Cell, sessions: list[SessionMetrics]) -> CellMeasurement:
        return CellMeasurement(
            cell.target.name, cell.config.name, cell.workload.name, "baseline", "h200",
            f"sha256:{cell.workload.name}", tuple(sessions),
        )  # fmt: skip

    def session(
        self, cell: Cell, name: str, round_count: int, day: str, host: str
    ) -> SessionMetrics:
        drawn = self.dice.choice(self.noise)
        loss = self.losses.get(cell.cell_id, 0.0)
        level = self.levels[cell.cell_id]
        rounds = []
        for index in range(round_count):
            values = {
                "output_tokens_per_s": METRICS["output_tokens_per_s"] * level / (1 + loss),
                "tpot_mean_ms": METRICS["tpot_mean_ms"] / level * (1 + loss),
            }
            rounds.append(
                RoundMetrics(
                    index,
                    None,
                    {m: MetricValue(v * drawn[m][index], 8) for m, v in values.items()},
                )
            )
        return SessionMetrics(
            f"{name}-{cell.cell_id}", Arm.CANDIDATE, None, tuple(rounds),
            {"weights_bytes": MetricValue(1e9, 1)}, {"config": cell.config.name},
            started_at_utc=f"{day}T01:00:00Z", environment={"driver": "580"}, host=host,
        )  # fmt: skip

    def measure(self, plan: PlanDocument, day: str, folder: Path) -> float:
        """Every shard of a night into ``folder``, as a run leaves it. Returns the seconds
        of all shards together.
        """
        by_id = {cell.cell_id: cell for cell in self.suite.cells()}
        policies = {
            name: replace(
                strictest_policy(self.suite, name, read_target_baselines(self.baselines, name)),
                gated_metric_count=max(plan.gated_metric_count, 1),
            )
            for name in self.suite.targets
        }
        total_s = 0.0
        self.references = References()
        for shard in plan.shards:
            if shard.shard in self.dead_shards:
                continue
            resident, seconds = "", 0.0
            measured, verdicts = [], []
            for name in shard.cells:
                cell = by_id[name]
                engine = f"{cell.target.name}/{cell.config.name}"
                start_s = self.costs.engine_start_s[engine]
                sessions, verdict, spent_s = self._judged(
                    cell, policies[cell.target.name], day, shard.shard, shard.record_sessions
                )
                starts = len(sessions) - (0 if shard.record_sessions else engine == resident)
                resident = engine
                seconds += spent_s + starts * start_s
                measured.append(self.cell(cell, sessions))
                verdicts.append(verdict)
            where = folder / f"results-{shard.shard}"
            self._write(where, measured, verdicts, day, plan)
            (where / "wall_seconds.json").write_text(
                json.dumps({"shard": shard.shard, "seconds": seconds})
            )
            total_s += seconds
        return total_s

    def _judged(
        self, cell: Cell, policy: Policy, day: str, host: str, record_sessions: int
    ) -> tuple[list[SessionMetrics], CellVerdict, float]:
        """As ``run.cell_measurement`` buys rounds and sessions."""
        path = self.baselines / cell.target.name / f"{cell.config.name}.json"
        baseline: Baseline | None = read_baseline_file(path)
        plan, session_s = cell.target.measurement, self.costs.session_s[cell.cell_id]
        references, sessions, seconds = self.references, [], 0.0
        verdict = CellVerdict(cell.target.name, cell.config.name, cell.workload.name, "baseline")
        for index in range(record_sessions or plan.suspect_sessions):
            goal = RECORDED_ROUNDS if record_sessions else plan.minimum_rounds
            whole = self.session(cell, f"{day}-{index}", RECORDED_ROUNDS, day, host)
            while True:
                now = replace(whole, rounds=whole.rounds[:goal])
                if record_sessions:
                    break
                verdict = compare(baseline, self.cell(cell, [*sessions, now]), policy, references)
                wanted = min(verdict.buy_until_rounds, plan.maximum_rounds)
                if verdict.buy is not Buy.ROUNDS or wanted <= goal:
                    break
                goal = wanted
            sessions.append(now)
            share = (WARM_UP_ROUNDS + goal) / (WARM_UP_ROUNDS + RECORDED_ROUNDS)
            seconds += session_s * (share + SESSION_OVERHEAD)
            suspect = any(m.outcome is Outcome.SUSPECT for m in verdict.metrics)
            most = plan.suspect_sessions if suspect else plan.maximum_sessions
            if not record_sessions and (verdict.buy is Buy.NOTHING or index + 1 >= most):
                break
        return sessions, verdict, seconds

    def _write(
        self,
        folder: Path,
        cells: list[CellMeasurement],
        verdicts: list[CellVerdict],
        day: str,
        plan: PlanDocument,
    ) -> None:
        folder.mkdir(parents=True)
        stamp = f"{day}T03:00:00Z"
        write_measurement_file(
            folder / "measurements.json",
            MeasurementFile(run_id=f"run-{day}-{folder.name}", commit=commit_of(day),
                            created_at_utc=stamp, identity={"vllm": "0.33.0"},
                            cells=tuple(cells)),
        )  # fmt: skip
        document = VerdictDocument(
            schema_version=1, run_id=f"run-{day}", commit=commit_of(day), created_at_utc=stamp,
            false_alarm_budget=plan.false_alarm_budget,
            gated_metric_count=plan.gated_metric_count, cells=tuple(verdicts),
        )  # fmt: skip
        (folder / "verdict.json").write_text(document.to_json())


def commit_of(day: str) -> str:
    return (day.replace("-", "") * 5)[:40]


def spoiled(measured: CellMeasurement) -> CellMeasurement:
    """The cell as a run leaves it whose engine died."""
    return replace(measured, sessions=(), invalid_reasons=(InvalidReason("engine_died", "x"),))
