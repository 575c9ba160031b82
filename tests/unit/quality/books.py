"""Quality books made from whole distributions, so that tests know the truth."""

from __future__ import annotations

import numpy as np

from k3perf.records.quality import QualityBook, ScoredTokens


def distributions(seed: int, positions: int, vocabulary: int, sharpness: float = 2.0):
    """Log-probabilities of shape (positions, vocabulary)."""
    logits = np.random.default_rng(seed).normal(0, sharpness, (positions, vocabulary))
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def scored(logs, tokens, *, k=8, prompt=0, first=1) -> ScoredTokens:
    """The top ``k`` of each row, as a server lists them."""
    order = np.argsort(-logs, axis=1, kind="stable")[:, :k]
    return ScoredTokens(
        prompt,
        first,
        tuple(int(token) for token in tokens),
        tuple(float(row[token]) for row, token in zip(logs, tokens, strict=True)),
        tuple(tuple(int(one) for one in row) for row in order),
        tuple(tuple(float(x) for x in row[ids]) for row, ids in zip(logs, order, strict=True)),
    )


def book(prefill, **parts) -> QualityBook:
    return QualityBook("", parts.pop("context", 64), 8, tuple(prefill), **parts)
