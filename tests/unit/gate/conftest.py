"""Builders of cells, baselines and policies; tests say only what matters to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from k3perf.baselines.propose import propose
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.gate.policy import Policy
from k3perf.records.baseline import Acceptance, Baseline
from k3perf.records.measurement import CellMeasurement, MetricValue, RoundMetrics, SessionMetrics
from k3perf.records.samples import Arm, InvalidReason

SPREAD = (-0.012, 0.004, 0.011, -0.006, 0.002, 0.007, -0.009, 0.013, -0.003, 0.005, -0.008, 0.001)
LEVELS = (0.004, -0.003, 0.001, -0.005, 0.003, 0.0)
RATE = "output_tokens_per_s"


class Build:
    """What the tests build with."""

    rate = RATE
    reason = InvalidReason("throttled", "the clock fell")

    def rounds(self, level: float, count: int = 12, metric: str = RATE) -> tuple[RoundMetrics, ...]:
        return tuple(
            self.round(index, {metric: level * (1 + SPREAD[index % 12])}) for index in range(count)
        )

    def round(
        self,
        index: int,
        values: Mapping[str, float | None],
        *,
        pair: int | None = None,
        invalid: bool = False,
    ) -> RoundMetrics:
        found = {name: MetricValue(value, 8) for name, value in values.items()}
        return RoundMetrics(index, pair, found, (self.reason,) if invalid else ())

    def session(
        self, name: str, rounds: Sequence[RoundMetrics] = (), **values: Any
    ) -> SessionMetrics:
        own = {key: MetricValue(value, 1) for key, value in values.items()}
        return SessionMetrics(
            name,
            Arm.CANDIDATE,
            None,
            tuple(rounds),
            own,
            {"block_size": 16, "cache": {"dtype": "auto"}},
        )

    def cell(
        self, sessions: Sequence[SessionMetrics], mode: str = "baseline", **changes: Any
    ) -> CellMeasurement:
        made = CellMeasurement("gpu", "default", "chat", mode, "h200", "plan-1", tuple(sessions))
        return replace(made, **changes)

    def sessions(self, level: float, count: int = 2, rounds: int = 12) -> list[SessionMetrics]:
        return [
            self.session(f"c{index}", self.rounds(level * (1 + LEVELS[index % 6]), rounds))
            for index in range(count)
        ]

    def pairs(
        self,
        candidate: float,
        reference: float,
        count: int = 2,
        rounds: int = 12,
        *,
        alternating: bool = True,
    ) -> list[SessionMetrics]:
        made = []
        for index in range(count):
            machine = 1 - 0.04 * index
            for arm, level in (
                (Arm.CANDIDATE, candidate * (1 + LEVELS[index % 6])),
                (Arm.REFERENCE, reference),
            ):
                own = tuple(
                    replace(measured, pair_index=number if alternating else None)
                    for number, measured in enumerate(self.rounds(level * machine, rounds))
                )
                if arm is Arm.REFERENCE:
                    own = tuple(
                        self.round(m.round_index, {RATE: level * machine}, pair=m.pair_index)
                        for m in own
                    )
                made.append(
                    replace(self.session(f"{arm}{index}", own), arm=arm, pair_id=f"p{index}")
                )
        return made

    def policy(self, **changes: Any) -> Policy:
        given: dict[str, Any] = {
            "tolerances": {RATE: Tolerance(loss_ratio=0.05)},
            "plan": MeasurementPlan(mode="baseline"),
            "gated_metric_count": 10,
        }
        return Policy(**{**given, **changes})

    def acceptance(self, **changes: Any) -> Acceptance:
        given = {
            "accepted_by": "ann",
            "reason": "first numbers",
            "accepted_at_utc": "2026-01-01T00:00:00Z",
            "commit": "c0ffee",
            "run_ids": ("r1",),
        }
        return Acceptance.model_validate({**given, **changes})

    def baseline(
        self, cell: CellMeasurement | None = None, policy: Policy | None = None, **changes: Any
    ) -> Baseline:
        given: dict[str, Any] = {
            "versions": {"vllm": "0.32.0"},
            "previous": None,
            "acceptance": self.acceptance(),
        }
        measured = cell or self.cell(self.sessions(1000.0, 6))
        return propose([measured], policy=policy or self.policy(), **{**given, **changes})


@pytest.fixture(scope="session")
def build() -> Build:
    return Build()


Judge = Callable[..., Any]
