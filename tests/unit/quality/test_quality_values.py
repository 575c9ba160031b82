"""Two books to metrics: buckets, both directions, what a missing part says."""

from dataclasses import replace

import numpy as np
import pytest

from k3perf.metrics.quality import (
    BUCKETS,
    DifferentTokensError,
    control_values,
    quality_values,
)
from k3perf.records.metric_definitions import METRICS, Family, Scope
from k3perf.records.quality import NeedleCount
from tests.unit.quality.books import book, distributions, scored

TOKENS = np.random.default_rng(9).integers(0, 40, 63)


def changed(logs, rows, amount):
    """More weight on the token that was least probable, in these rows."""
    found = logs.copy()
    if not amount:
        return found
    found[rows, np.argmin(logs[rows], axis=1)] += amount
    return found - np.log(np.exp(found).sum(axis=1, keepdims=True))


def books(rows=slice(0, 0), amount=0.0):
    logs = distributions(1, 63, 40)
    return (
        book([scored(logs, TOKENS)]),
        book([scored(changed(logs, rows, amount), TOKENS)]),
    )


def test_every_value_is_a_metric_of_the_family_and_every_metric_has_a_value():
    one, other = books()
    family = {
        name
        for name, metric in METRICS.items()
        if metric.family is Family.QUALITY and metric.scope is Scope.SESSION
    }
    assert set(quality_values(one, other)) | set(control_values(one, other)) == family


def test_equal_books_show_no_difference():
    values = quality_values(*books())
    assert values["quality_kl_mean_nats"].value == 0
    assert values["quality_top1_ratio"].value == 1
    assert values["quality_perplexity_ratio"].value == 1
    assert values["quality_kl_mean_nats"].n == 63


def test_a_ratio_of_perplexities_beyond_any_number_is_absent_with_a_reason():
    one, other = books()
    (answers,) = other.prefill
    lost = replace(answers, logprobs=tuple(value - 800 for value in answers.logprobs))
    value = quality_values(one, replace(other, prefill=(lost,)))["quality_perplexity_ratio"]
    assert value.value is None
    assert "too large" in value.reason


def test_a_change_at_the_end_of_the_context_shows_in_its_bucket_alone():
    values = quality_values(*books(slice(50, 63), 12.0))
    by_bucket = {name: values[f"quality_kl_mean_{name}_nats"].value for name in BUCKETS}
    assert by_bucket["full"] > 0.1
    assert [by_bucket[name] for name in BUCKETS[:3]] == pytest.approx([0, 0, 0], abs=1e-15)
    assert values["quality_top1_full_ratio"].value < 1 == values["quality_top1_half_ratio"].value


def test_more_confident_and_less_confident_both_move_the_perplexity():
    logs = distributions(1, 63, 40)
    sure = logs.copy()
    sure[np.arange(63), TOKENS] += 1.0
    sure -= np.log(np.exp(sure).sum(axis=1, keepdims=True))
    one, other = book([scored(logs, TOKENS)]), book([scored(sure, TOKENS)])
    assert quality_values(one, other)["quality_perplexity_ratio"].value < 0.95
    assert quality_values(other, one)["quality_perplexity_ratio"].value > 1.05
    assert METRICS["quality_perplexity_ratio"].both_ways


def test_decode_is_compared_with_decode_and_with_its_own_prefill():
    logs = distributions(1, 63, 40)
    broken = changed(logs, slice(0, 63), 9.0)
    decoded = {"decode": (scored(logs[30:40], TOKENS[30:40], first=31),)}
    wrong = {"decode": (scored(broken[30:40], TOKENS[30:40], first=31),)}
    one = book([scored(logs, TOKENS)], **decoded)
    other = book([scored(logs, TOKENS)], **wrong)
    values = quality_values(one, other)
    assert values["quality_kl_mean_nats"].value == 0  # prefill is innocent
    assert values["quality_decode_kl_mean_nats"].value > 0.1
    assert values["quality_decode_prefill_kl_nats"].value > 0.1
    assert values["quality_decode_kl_mean_nats"].n == 10
    assert values["quality_decode_kl_mean_start_nats"].value is None


def test_a_part_that_was_not_offered_is_none_with_the_reason_and_never_zero():
    one, other = books()
    other = replace(other, absent={"decode": "custom processors are refused"})
    values = quality_values(one, other)
    assert values["quality_decode_kl_mean_nats"].value is None
    values = quality_values(replace(one, decode=one.prefill), other)
    assert values["quality_decode_kl_mean_nats"].reason == "custom processors are refused"
    assert values["quality_needle_ratio"].value is None


def test_other_tokens_are_no_comparison():
    one, other = books()
    moved = replace(other.prefill[0], token_ids=(1, *other.prefill[0].token_ids[1:]))
    if moved.token_ids == one.prefill[0].token_ids:
        moved = replace(moved, token_ids=(2, *moved.token_ids[1:]))
    with pytest.raises(DifferentTokensError, match="position 1"):
        quality_values(one, replace(other, prefill=(moved,)))


def test_greedy_answers_and_needles():
    one, other = books()
    one = replace(one, greedy=((1, 2, 3), (4, 5, 6)))
    other = replace(other, greedy=((1, 2, 9), (4, 5, 6)), needles=NeedleCount(3, 4))
    values = quality_values(one, other)
    assert values["quality_greedy_agreement_tokens"].value == 2.5
    assert values["quality_greedy_equal_ratio"].value == 0.5
    assert values["quality_needle_ratio"].value == 0.75
