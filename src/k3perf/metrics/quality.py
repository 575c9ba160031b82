"""Two quality books to metrics: how far the candidate's answers are from the
reference's. Pure.

The reference's distribution is P, the candidate's Q, as in llama.cpp's perplexity tool:
KL(P || Q), mean, median and 99.9 %, same most probable token, ratio of perplexities.
All pairs are of the same tokens at the same positions, so small changes show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from k3perf.records.quality import QualityBook, QualityValue, ScoredTokens
from k3perf.stats.divergence import Floats, Ids, clustered_error, common_prefix, top_k_divergence

BUCKETS: Final = ("start", "quarter", "half", "full")
"""The quarters of the context, by where they end up: a token counts for ``start`` in
the first quarter and for ``full`` in the last.
"""

NOT_DECLARED: Final = "not declared"
"""Reason of a part that the target does not ask for."""

Values = dict[str, QualityValue]


class DifferentTokensError(ValueError):
    """Two books do not score the same tokens, so they cannot be compared."""


@dataclass(frozen=True, slots=True)
class Paired:
    """Positions that both books score, one row each."""

    divergence: Floats
    same_top: Floats
    logprob_change: Floats
    bucket: Ids
    prompt: Ids

    def of_bucket(self, index: int) -> Paired:
        """The rows of one quarter of the context."""
        rows = self.bucket == index
        return Paired(*(getattr(self, name)[rows] for name in Paired.__slots__))


def quality_values(reference: QualityBook, candidate: QualityBook) -> Values:
    """Every metric of the candidate against the reference, and those of the candidate
    alone (decode against its own prefill, cached against uncached, batch of one).

    Raises DifferentTokensError for books of different prompts.
    """
    context = reference.context_tokens
    values = _against("", reference.prefill, candidate.prefill, context)
    reason = _absent("decode", reference, candidate)
    decode = _against("decode_", reference.decode, candidate.decode, context, reason)
    values |= decode
    own = _absent("decode", candidate)
    values["quality_decode_prefill_kl_nats"] = _mean_divergence(
        candidate.prefill, candidate.decode, context, own
    )
    for part in ("cached", "alone"):
        other = getattr(candidate, part)
        values[f"quality_{part}_kl_nats"] = _mean_divergence(
            candidate.decode, other, context, _absent(part, candidate)
        )
    values["quality_nll_nats"] = _likelihood(candidate.prefill, "")
    values["quality_decode_nll_nats"] = _likelihood(candidate.decode, own)
    values |= _greedy(reference, candidate)
    values["quality_needle_ratio"] = _needles(candidate)
    return values


def control_values(first: QualityBook, second: QualityBook) -> Values:
    """The floor: the reference config's answers against its own answers to the same
    prompts.
    """
    context = first.context_tokens
    return {
        "quality_floor_kl_nats": _mean_divergence(first.prefill, second.prefill, context, ""),
        "quality_floor_decode_kl_nats": _mean_divergence(
            first.decode, second.decode, context, _absent("decode", first, second)
        ),
    }


def paired(
    reference: Iterable[ScoredTokens], candidate: Iterable[ScoredTokens], context_tokens: int
) -> Paired:
    """The positions that both score. Raises DifferentTokensError for another token at
    one of them, and where there is none.
    """
    known = {
        (one.prompt_index, one.first_position + row): (one, row)
        for one in reference
        for row in range(len(one.token_ids))
    }
    rows = [
        (key, *known[key], one, row)
        for one in candidate
        for row in range(len(one.token_ids))
        if (key := (one.prompt_index, one.first_position + row)) in known
    ]
    if not rows:
        raise DifferentTokensError("the two engines have no scored position in common")
    for (prompt, position), was, was_row, now, now_row in rows:
        if was.token_ids[was_row] != now.token_ids[now_row]:
            raise DifferentTokensError(
                f"prompt {prompt}, position {position}: token {was.token_ids[was_row]} against"
                f" {now.token_ids[now_row]}"
            )
    p_ids = np.array([was.top_ids[at] for _, was, at, _, _ in rows], dtype=np.int64)
    p_logs = np.array([was.top_logprobs[at] for _, was, at, _, _ in rows], dtype=np.float64)
    q_ids = np.array([now.top_ids[at] for *_, now, at in rows], dtype=np.int64)
    q_logs = np.array([now.top_logprobs[at] for *_, now, at in rows], dtype=np.float64)
    change = [now.logprobs[at] - was.logprobs[was_at] for _, was, was_at, now, at in rows]
    places = [min(3, position * 4 // context_tokens) for (_, position), *_ in rows]
    return Paired(
        divergence=top_k_divergence(p_ids, p_logs, q_ids, q_logs),
        same_top=(p_ids[:, 0] == q_ids[:, 0]).astype(np.float64),
        logprob_change=np.array(change, dtype=np.float64),
        bucket=np.array(places, dtype=np.int64),
        prompt=np.array([prompt for (prompt, _), *_ in rows], dtype=np.int64),
    )


def perplexity_change(rows: Paired) -> tuple[float, float]:
    """Natural logarithm of the ratio of perplexities, candidate over reference, and its
    standard error clustered by prompt (NaN for one prompt).
    """
    return float(-rows.logprob_change.mean()), clustered_error(rows.logprob_change, rows.prompt)


_STATISTICS: Final[dict[str, Callable[[Paired], float]]] = {
    "kl_mean_nats": lambda rows: float(rows.divergence.mean()),
    "kl_median_nats": lambda rows: float(np.median(rows.divergence)),
    "kl_p999_nats": lambda rows: float(np.quantile(rows.divergence, 0.999)),
    "top1_ratio": lambda rows: float(rows.same_top.mean()),
    "perplexity_ratio": lambda rows: math.exp(perplexity_change(rows)[0]),
}
_BY_BUCKET: Final = ("kl_mean", "top1", "perplexity")


def _against(
    prefix: str,
    reference: Sequence[ScoredTokens],
    candidate: Sequence[ScoredTokens],
    context_tokens: int,
    reason: str = "",
) -> Values:
    """``quality_[prefix]...``: all statistics over all positions, three by bucket."""
    rows = None if reason else paired(reference, candidate, context_tokens)
    values = {
        f"quality_{prefix}{name}": _value(rows, compute, reason)
        for name, compute in _STATISTICS.items()
    }
    for index, bucket in enumerate(BUCKETS):
        part = None if rows is None else rows.of_bucket(index)
        for name, compute in _STATISTICS.items():
            stem, _, unit = name.rpartition("_")
            if stem in _BY_BUCKET:
                values[f"quality_{prefix}{stem}_{bucket}_{unit}"] = _value(part, compute, reason)
    return values


def _value(rows: Paired | None, compute: Callable[[Paired], float], reason: str) -> QualityValue:
    if rows is None or not len(rows.divergence):
        return QualityValue(None, 0, reason or "no scored position in this part of the context")
    try:
        return QualityValue(compute(rows), len(rows.divergence))
    except OverflowError:
        return QualityValue(None, 0, "the ratio of perplexities is too large for a number")


def _mean_divergence(
    reference: Sequence[ScoredTokens],
    candidate: Sequence[ScoredTokens],
    context_tokens: int,
    reason: str,
) -> QualityValue:
    rows = None if reason else paired(reference, candidate, context_tokens)
    return _value(rows, _STATISTICS["kl_mean_nats"], reason)


def _likelihood(scored: Sequence[ScoredTokens], reason: str) -> QualityValue:
    """Mean negative log-likelihood of the tokens. It needs no reference, so it shows
    what the reference config has lost too.
    """
    logprobs = [one for stretch in scored for one in stretch.logprobs]
    if reason or not logprobs:
        return QualityValue(None, 0, reason or "not measured")
    return QualityValue(-math.fsum(logprobs) / len(logprobs), len(logprobs))


def _absent(part: str, *books: QualityBook) -> str:
    """Why a part of a book is missing; empty if every book has it."""
    lacking = [book for book in books if not getattr(book, part)]
    return lacking[0].absent.get(part, "not measured") if lacking else ""


def _greedy(reference: QualityBook, candidate: QualityBook) -> Values:
    pairs = list(zip(reference.greedy, candidate.greedy, strict=False))
    reason = _absent("greedy", reference, candidate)
    if reason or not pairs:
        none = QualityValue(None, 0, reason or "not measured")
        return {"quality_greedy_agreement_tokens": none, "quality_greedy_equal_ratio": none}
    lengths = [common_prefix(one, other) for one, other in pairs]
    equal = [one == other for one, other in pairs]
    return {
        "quality_greedy_agreement_tokens": QualityValue(sum(lengths) / len(pairs), len(pairs)),
        "quality_greedy_equal_ratio": QualityValue(sum(equal) / len(pairs), len(pairs)),
    }


def _needles(book: QualityBook) -> QualityValue:
    if book.needles is None or not book.needles.hidden:
        return QualityValue(None, 0, book.absent.get("needles", NOT_DECLARED))
    return QualityValue(book.needles.found / book.needles.hidden, book.needles.hidden)
