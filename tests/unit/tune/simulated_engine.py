"""An engine that is not there: known optimum, known noise, the same trial always the same
reading. And the rules of other tuners on it.

Throughput rises with ``max_num_seqs`` up to a knee and is flat from there. The token
budget and the block size do nothing unless a scenario says so. Noise: one factor per
start, one per round, and a drift from session to session.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from k3perf.records.tuning import Change, Fate, TuningReading, TuningTrial
from k3perf.tune.plan import Parameter, TuningPlan

SEQS = (4, 8, 16, 32, 64, 128, 256)
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
BLOCKS = (16, 32, 64, 128)
BASE = {"max_num_seqs": 16, "max_num_batched_tokens": 2048, "block_size": 16}
PARAMETERS = (
    Parameter("scheduler", "max_num_seqs", SEQS),
    Parameter("scheduler", "max_num_batched_tokens", TOKENS),
    Parameter("kv", "block_size", BLOCKS),
)
ROUNDS = 4
FULL_SESSIONS = 4
"""Sessions that the full grid gives each of its points, as many as the last analysis of a
race has."""


def plan(**changes: Any) -> TuningPlan:
    given = {"parameters": PARAMETERS, "base_arguments": BASE, "expected_session_s": 40.0}
    return TuningPlan(**{**given, **changes})


def full_grid_rounds() -> int:
    return math.prod(len(item.values) for item in PARAMETERS) * FULL_SESSIONS * ROUNDS


def two_parameter_grid_rounds() -> int:
    """The grid of auto_tune: sequences and token budget alone."""
    return len(SEQS) * len(TOKENS) * FULL_SESSIONS * ROUNDS


@dataclass
class SimulatedEngine:
    """``knee`` None: nothing has an effect. ``boot_cv`` and ``round_cv``: noise of a start
    and of a round. ``drift``: how much slower each session is than the one before.
    ``on_workload``: factor of every change on another workload.
    ``interaction``: log factor of throughput once two values are no longer the base's.
    """

    seed: int
    knee: int | None = 64
    per_doubling: float = 0.10
    boot_cv: float = 0.015
    round_cv: float = 0.01
    drift: float = 0.0005
    heavy: bool = False
    token_gain: Mapping[int, float] = field(default_factory=dict)
    interaction: float = 0.0
    crashes: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    on_workload: Mapping[str, float] = field(default_factory=dict)
    session_s: float = 40.0
    measured: list[TuningTrial] = field(default_factory=list)

    def true_throughput(self, change: Change) -> float:
        given = {**BASE, **change}
        value = 1000.0 * math.exp(self.token_gain.get(given["max_num_batched_tokens"], 0.0))
        if self.knee is not None:
            short = min(given["max_num_seqs"] / self.knee, 1.0)
            value *= (1 + self.per_doubling) ** math.log2(short)
        if all(given[name] != BASE[name] for name in ("max_num_seqs", "max_num_batched_tokens")):
            value *= math.exp(self.interaction)
        return value

    def true_ttft_ms(self, change: Change) -> float:
        return 50.0 * (({**BASE, **change}["max_num_seqs"]) / 16) ** 0.5

    def __call__(self, trial: TuningTrial) -> TuningReading:
        """The session's reading; the same for the same trial, whenever it is measured."""
        digest = hashlib.sha256(f"{self.seed}|{trial.key}".encode()).digest()
        random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
        self.measured.append(trial)
        for name, value in trial.change.items():
            text = f"{name}={value}"
            if text in self.crashes:
                return TuningReading(trial, Fate.CRASHED, 5.0, text="ValueError: refused")
            if text in self.same:
                return TuningReading(trial, Fate.SAME_ENGINE, 20.0, same_as=self.same[text])
        boot = self._draw(random, self.boot_cv)
        rounds = [self._draw(random, self.round_cv) for _ in range(ROUNDS)]
        # sessions of a block follow each other, in turning order
        slow = 1 - self.drift * (trial.block * 5 + random.uniform(0, 5))
        factor = float(np.mean(rounds)) * boot * slow
        if trial.change:
            factor *= self.on_workload.get(trial.workload, 1.0)
        values = {
            "output_tokens_per_s": self.true_throughput(trial.change) * factor,
            "ttft_p99_ms": self.true_ttft_ms(trial.change) / factor * self._draw(random, 0.03),
        }
        return TuningReading(trial, Fate.MEASURED, self.session_s, ROUNDS, 64, values)

    def _draw(self, random: np.random.Generator, cv: float) -> float:
        unit = random.standard_t(4) / math.sqrt(2) if self.heavy else random.standard_normal()
        return math.exp(cv * float(unit))


def single_run(engine: SimulatedEngine, change: Change, number: int = 0) -> float:
    """One measurement of one point, as the other rules take it."""
    trial = TuningTrial("other rule", number, change)
    return engine(trial).values["output_tokens_per_s"]


def auto_tune_rule(engine: SimulatedEngine) -> Change:
    """vLLM's auto_tune.sh: two by four points, one run each, the strictly greatest wins."""
    best, winner = -math.inf, {}
    for seqs, tokens in itertools.product((16, 32), (512, 2048, 4096, 8192)):
        change = {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}
        value = single_run(engine, change)
        if value > best:
            best, winner = value, change
    return _without_base(winner)


def optuna_rule(engine: SimulatedEngine, trials: int = 100) -> Change:
    """``study.best_trial``: the best single value of 100 trials, drawn at random here."""
    random = np.random.default_rng(engine.seed)
    best, winner = -math.inf, {}
    for number in range(trials):
        change = {item.name: item.values[random.integers(len(item.values))] for item in PARAMETERS}
        value = single_run(engine, change, number)
        if value > best:
            best, winner = value, change
    return _without_base(winner)


def _without_base(change: Change) -> Change:
    return {name: value for name, value in change.items() if BASE[name] != value}


OTHER_RULES: dict[str, Callable[[SimulatedEngine], Change]] = {
    "auto_tune": auto_tune_rule,
    "optuna best_trial": optuna_rule,
}


def false_winner(engine: SimulatedEngine, change: Change) -> bool:
    """A proposal without a true gain over the base, or with a part that has none."""
    if not change:
        return False
    truth = replace(engine, boot_cv=0.0, round_cv=0.0)
    return truth.true_throughput(change) <= truth.true_throughput({}) * (1 + 1e-9)
