"""Scores of tasks as proportions: how many questions a loss needs, and what a threshold
must be, from stated error rates.

Two ways to compare two engines on the same questions. Unpaired takes the two scores as
independent (TensorRT-LLM's accuracy tests do). Paired counts only the questions that
one engine answers and the other does not (McNemar 1947), which needs fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.stats import binom, norm


@dataclass(frozen=True, slots=True)
class SampleNeed:
    """Questions that a loss needs, and the drop that is then called a loss."""

    questions: int
    threshold_ratio: float


def unpaired_need(score: float, loss: float, alpha: float, power: float) -> SampleNeed:
    """Two independent scores. A one-sided test of level ``alpha`` sees a drop of
    ``loss`` from ``score`` with probability ``power``.

    Raises ValueError for values outside (0, 1) and a loss larger than the score.
    """
    _require(score=score, loss=loss, alpha=alpha, power=power)
    if loss >= score:
        raise ValueError(f"a loss of {loss:g} from a score of {score:g} leaves nothing")
    variance = score * (1 - score) + (score - loss) * (1 - score + loss)
    z_alpha, z_power = norm.isf(alpha), norm.isf(1 - power)
    questions = math.ceil(variance * ((z_alpha + z_power) / loss) ** 2)
    return SampleNeed(questions, float(z_alpha * math.sqrt(variance / questions)))


def paired_need(discordant: float, loss: float, alpha: float, power: float) -> SampleNeed:
    """The same questions to both. ``discordant``: share of questions that exactly one
    engine answers, at least ``loss``. Connor's formula (1987).
    """
    _require(discordant=discordant, loss=loss, alpha=alpha, power=power)
    if loss > discordant:
        raise ValueError(
            f"a loss of {loss:g} needs at least as large a share of changed answers, not"
            f" {discordant:g}"
        )
    z_alpha, z_power = norm.isf(alpha), norm.isf(1 - power)
    spread = z_alpha * math.sqrt(discordant) + z_power * math.sqrt(discordant - loss**2)
    questions = math.ceil((spread / loss) ** 2)
    return SampleNeed(questions, float(z_alpha * math.sqrt(discordant / questions)))


def detectable_loss(score: float, questions: int, alpha: float, power: float) -> float:
    """The smallest drop that ``questions`` unpaired questions show with ``power``. At
    most ``score``.
    """
    _require(score=score, alpha=alpha, power=power)
    low, high = 0.0, score
    for _ in range(60):
        middle = (low + high) / 2
        enough = 0 < middle < score and (
            unpaired_need(score, middle, alpha, power).questions <= questions
        )
        low, high = (low, middle) if enough else (middle, high)
    return high


def mcnemar_p(lost: int, won: int) -> float:
    """One-sided exact p that so many of the changed answers were lost by chance.
    1 without a change.
    """
    changed = lost + won
    return float(binom.sf(lost - 1, changed, 0.5)) if changed else 1.0


def _require(**shares: float) -> None:
    for name, value in shares.items():
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value:g}; give a number between 0 and 1")
