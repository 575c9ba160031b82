"""How an error budget is spent over the looks of a group-sequential test.

Spending function of Kim and DeMets (Biometrika 74, 1987): budget * t ** power at
information fraction t; the idea of a spending function is Lan and DeMets's (Biometrika
70, 1983). Each look's critical value is the marginal quantile at its own share, so the
probability of crossing at any look is at most the sum of the shares (Boole's
inequality): it holds under any dependence between looks and for Student's t, and costs
little because the shares are small.
"""

from __future__ import annotations

from collections.abc import Sequence


def shares(fractions: Sequence[float], power: float) -> tuple[float, ...]:
    """Each look's share of the budget; ``fractions`` rise to 1 and the shares sum
    to 1.
    """
    spent = [fraction**power for fraction in fractions]
    return tuple(now - before for now, before in zip(spent, [0.0, *spent[:-1]], strict=True))
