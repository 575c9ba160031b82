"""Divergence of two distributions of which only the most probable classes are known.

Kullback-Leibler divergence is taken over the tokens that both sides list, plus one
class for all others. Joining classes can only lower it (data-processing inequality), so
the figure is a lower bound that grows with the number of listed tokens. Compare figures
of one ``k`` only.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

LEAST_REST: Final = 1e-9
"""Mass that the class of all others has at least. Log-probabilities arrive as 32-bit
floats, so a smaller remainder is rounding.
"""


def top_k_divergence(p_ids: Ids, p_logs: Floats, q_ids: Ids, q_logs: Floats) -> Floats:
    """KL(P || Q) in nats at each of ``n`` positions, 0 or more.

    All arguments have shape (n, k): token ids and their log-probabilities. Equal inputs
    give exactly 0.
    """
    same = p_ids[:, :, None] == q_ids[:, None, :]
    listed = same.any(axis=2)
    q_of_p = np.take_along_axis(q_logs, same.argmax(axis=2), axis=1)
    p = np.where(listed, np.exp(p_logs), 0.0)
    q = np.where(listed, np.exp(q_of_p), 0.0)
    terms = np.where(listed, p * (p_logs - q_of_p), 0.0).sum(axis=1)
    p_rest = np.maximum(1.0 - p.sum(axis=1), LEAST_REST)
    q_rest = np.maximum(1.0 - q.sum(axis=1), LEAST_REST)
    # rounding can leave a sum slightly below 0
    return np.asarray(np.maximum(terms + p_rest * np.log(p_rest / q_rest), 0.0))


def clustered_error(values: Floats, clusters: Ids) -> float:
    """Standard error of the mean of ``values`` where those of one cluster (prompt) are
    not independent. NaN for fewer than two clusters.

    The cluster-robust variance of a mean: squared sums of each cluster's residuals over
    n squared, times m / (m - 1) (Liang and Zeger 1986).
    """
    names = np.unique(clusters)
    if len(names) < 2:
        return float("nan")
    residuals = values - values.mean()
    sums = np.array([residuals[clusters == name].sum() for name in names])
    correction = len(names) / (len(names) - 1)
    return float(np.sqrt(correction * (sums**2).sum()) / len(values))


def common_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two answers agree in before they differ."""
    count = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        count += 1
    return count
