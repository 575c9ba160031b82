"""Metrics of one cell drawn as correlated as they were recorded: throughput, TPOT and
TTFT of one session are nearly one number. Normal noise, seeded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from k3perf.config.models import Tolerance
from k3perf.metrics.loss_scale import recorded_losses, scale_for
from k3perf.records.baseline import Baseline, WorkloadBaseline
from k3perf.records.metric_definitions import METRICS
from tests.calibration.lab.replay import CellSource, Session
from tests.calibration.lab.simulation import Matrix, Noise


class Correlation(NamedTuple):
    """Of losses, metrics x metrics: between the values of sessions, and between the
    rounds inside of sessions.
    """

    of_sessions: Matrix
    of_rounds: Matrix

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest of two different metrics' sessions. (0, 0) for one
        metric.
        """
        pairs = self.of_sessions[np.triu_indices(len(self.of_sessions), 1)]
        return (float(pairs.min()), float(pairs.max())) if len(pairs) else (0.0, 0.0)


def equally_correlated(metric_count: int, share: float) -> Correlation:
    """Every two metrics alike, sessions and rounds."""
    matrix = np.full((metric_count, metric_count), share)
    np.fill_diagonal(matrix, 1.0)
    return Correlation(matrix, matrix)


def recorded_correlation(
    baselines: Sequence[Baseline], tolerances: Mapping[str, Tolerance], mode: str
) -> Correlation:
    """Pooled over the cells that recorded all of these metrics in the same rounds. A
    handful of sessions a cell, so it is a rough figure.
    """
    sessions, rounds = [], []
    for workload in (one for baseline in baselines for one in baseline.workloads):
        losses = _aligned(workload, tolerances, mode)
        if losses is None or losses.shape[1] < 2:
            continue
        values = np.median(losses, axis=2)
        sessions.append((values - values.mean(axis=1, keepdims=True)).T)
        inside = losses - losses.mean(axis=2, keepdims=True)
        rounds.append(inside.reshape(len(tolerances), -1).T)
    count = len(tolerances)
    found = [
        np.corrcoef(np.concatenate(parts), rowvar=False).reshape(count, count)
        if parts
        else np.eye(count)
        for parts in (sessions, rounds)
    ]
    return Correlation(*(np.nan_to_num(matrix) for matrix in found))


def _aligned(
    workload: WorkloadBaseline, tolerances: Mapping[str, Tolerance], mode: str
) -> Matrix | None:
    """Metrics x sessions x rounds. None: some metric lacks a round of another."""
    found = []
    for metric, tolerance in tolerances.items():
        scale = scale_for(METRICS[metric], tolerance, mode)
        key = (metric, scale.basis)
        entry = next((one for one in workload.metrics if (one.metric, one.basis) == key), None)
        if entry is None:
            return None
        found.append(recorded_losses(entry, scale))
    counts = {tuple(map(len, sessions)) for sessions in found}
    if len(counts) != 1 or len(set(counts.pop())) != 1:
        return None
    return np.array(found)


def correlated_source(
    noises: Mapping[str, Noise], round_count: int, correlation: Correlation
) -> CellSource:
    """Sessions of normal noise, in ``reference`` mode of what pairs differ by."""
    roots = [_root(matrix) for matrix in correlation]
    between = np.array([noise.session_sigma for noise in noises.values()])
    within = np.array([noise.round_sigma for noise in noises.values()])

    def draw(rng: np.random.Generator, count: int) -> list[Session]:
        levels = rng.standard_normal((count, 1, len(noises))) @ roots[0].T * between
        scatter = rng.standard_normal((count, round_count, len(noises))) @ roots[1].T * within
        losses = levels + scatter
        return [
            ({name: tuple(one[:, at].tolist()) for at, name in enumerate(noises)}, None)
            for one in losses
        ]

    return draw


def _root(matrix: Matrix) -> Matrix:
    """A square root, also of a matrix with eigenvalues of 0."""
    values, vectors = np.linalg.eigh(matrix)
    root: Matrix = vectors * np.sqrt(np.maximum(values, 0.0))
    return root
