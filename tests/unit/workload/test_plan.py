"""Plans: the same on every machine, fresh in every round, with exactly the declared
sharing.
"""

from __future__ import annotations

from collections import Counter

import pytest
from pydantic import ValidationError

from k3perf.errors import UsageError
from k3perf.workload.request_plan import expand
from tests.unit.workload.specs import small_spec

VOCABULARY = 4096


def test_the_plan_of_a_spec_never_changes():
    """Golden: a change here changes every baseline's key. Raise CONTENT_VERSION if
    tokens change on purpose.
    """
    plan = expand(
        small_spec(arrival={"kind": "poisson", "rate_per_s": 4}), vocabulary_size=VOCABULARY
    )
    assert plan.requests[0].prompt_token_ids[:6] == GOLDEN_TOKENS
    assert [request.prompt_token_count for request in plan.requests] == GOLDEN_LENGTHS
    assert [request.offset_ns for request in plan.requests[:3]] == GOLDEN_OFFSETS_NS
    assert plan.digest == GOLDEN_DIGEST


def test_prompts_have_their_length_and_avoid_reserved_ids():
    plan = expand(small_spec(), vocabulary_size=16, reserved_token_ids=3)
    for request in plan.requests:
        assert len(request.prompt_token_ids) == request.prompt_token_count
        assert 3 <= min(request.prompt_token_ids) <= max(request.prompt_token_ids) < 16
    assert {token for request in plan.requests for token in request.prompt_token_ids} == set(
        range(3, 16)
    )


def test_another_round_has_the_same_shape_and_other_content():
    plan = expand(small_spec(), vocabulary_size=VOCABULARY)
    later = plan.for_round(5)
    assert later.digest == plan.digest
    for before, after in zip(plan.requests, later.requests, strict=True):
        assert (before.prompt_token_count, before.output_token_count) == (
            after.prompt_token_count,
            after.output_token_count,
        )
        assert before.prompt_token_ids != after.prompt_token_ids
    assert later.requests[0].prompt_token_ids == plan.for_round(5).requests[0].prompt_token_ids


def test_repeat_prompts_keeps_the_content():
    plan = expand(small_spec(repeat_prompts=True), vocabulary_size=VOCABULARY)
    assert plan.for_round(5).requests[0].prompt_token_ids == plan.requests[0].prompt_token_ids


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 8},
        {"requests": 11},
        {"arrival": {"kind": "closed_loop", "concurrency": 5}},
        {"prompt_tokens": {"kind": "fixed", "tokens": 10}},
        {"output_tokens": {"kind": "fixed", "tokens": 9}},
        {"sampling": {"temperature": 0.5}},
        {"service_level": {"ttft_ms": 100, "tpot_ms": 10}},
        {"prefix": {"groups": 2, "shared_tokens": 4}},
        {"conversation": {"turns": 2}},
        {"repeat_prompts": True},
    ],
)
def test_whatever_decides_the_work_is_in_the_digest(change):
    assert (
        expand(small_spec(**change), vocabulary_size=VOCABULARY).digest
        != expand(small_spec(), vocabulary_size=VOCABULARY).digest
    )


def test_the_vocabulary_is_in_the_digest():
    assert (
        expand(small_spec(), vocabulary_size=4096).digest
        != expand(small_spec(), vocabulary_size=4097).digest
    )


@pytest.mark.parametrize(
    "change", [{"name": "other"}, {"description": "Another description"}, {"request_timeout_s": 5}]
)
def test_names_and_time_outs_are_not_in_the_digest(change):
    assert (
        expand(small_spec(**change), vocabulary_size=VOCABULARY).digest
        == expand(small_spec(), vocabulary_size=VOCABULARY).digest
    )


def test_prefix_sharing_is_exact():
    spec = small_spec(requests=40, prefix={"groups": 3, "shared_tokens": 9, "share_ratio": 0.6})
    plan = expand(spec, vocabulary_size=VOCABULARY)
    beginnings = Counter(request.prompt_token_ids[:9] for request in plan.requests)
    assert sorted(beginnings.values(), reverse=True)[:4] == [8, 8, 8, 1]
    assert all(10 <= request.prompt_token_count <= 40 for request in plan.requests)
    rests = {request.prompt_token_ids[9:] for request in plan.requests}
    assert len(rests) == 40
    assert plan.for_round(1).requests[0].prompt_token_ids[:9] not in beginnings


def test_conversations_hold_the_earlier_turns():
    spec = small_spec(
        requests=7,
        conversation={"turns": 3, "think_time_s": 0.5},
        arrival={"kind": "constant", "rate_per_s": 2},
    )
    plan = expand(spec, vocabulary_size=VOCABULARY)
    assert [request.previous_index for request in plan.requests] == [None, 0, 1, None, 3, 4, None]
    assert [request.offset_ns for request in plan.requests] == [
        0,
        None,
        None,
        500_000_000,
        None,
        None,
        1_000_000_000,
    ]
    first, second, third = plan.requests[:3]
    assert second.think_time_ns == 500_000_000
    assert second.prompt_token_ids[: first.prompt_token_count] == first.prompt_token_ids
    assert third.prompt_token_ids[: second.prompt_token_count] == second.prompt_token_ids
    assert second.prompt_token_count > first.prompt_token_count + first.output_token_count


def test_real_replies_take_the_stand_ins_places_when_their_length_is_right():
    plan = expand(small_spec(requests=2, conversation={"turns": 2}), vocabulary_size=VOCABULARY)
    first, second = plan.requests
    begin, reply = first.prompt_token_count, tuple(range(8))
    assert second.prompt_with_replies({0: reply})[begin : begin + 8] == reply
    assert second.prompt_with_replies({0: reply[:7]}) == second.prompt_token_ids
    assert len(second.prompt_with_replies({0: reply})) == second.prompt_token_count


def test_a_vocabulary_without_room_is_refused():
    with pytest.raises(UsageError, match="vocab_size"):
        expand(small_spec(), vocabulary_size=4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt_tokens": None}, "prompt_tokens is missing"),
        ({"requests": None}, "requests is missing"),
        ({"arrival": {"kind": "trace", "file": "t.jsonl"}}, "with a trace"),
        ({"prefix": {"groups": 1, "shared_tokens": 10}}, "as short as 10 tokens"),
        (
            {"prefix": {"groups": 1, "shared_tokens": 5}, "conversation": {"turns": 2}},
            "cannot be combined",
        ),
        ({"arrival": {"kind": "poisson"}}, "exactly one of rate_per_s"),
    ],
)
def test_specs_that_cannot_be_meant_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        small_spec(**change)


GOLDEN_TOKENS = (3007, 2793, 794, 3685, 2373, 1649)
GOLDEN_LENGTHS = [10, 36, 13, 14, 39, 33, 33, 10, 38, 34, 31, 40]
GOLDEN_OFFSETS_NS = [296714000, 463930000, 580147000]
GOLDEN_DIGEST = "3a1a91f5bd484c90268f172c0e18e98b18eb92d7d5c15ce4e0d70117bfc26bab"
