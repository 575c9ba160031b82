"""Acceptance of drafts from the server's counters."""

from dataclasses import replace

import pytest

from k3perf.metrics.speculation import ACCEPTED, DRAFTS, acceptance_values
from tests.plugin.made_results import made_round

PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


def of(**counters):
    return acceptance_values(replace(made_round(0, 1.0), counters=counters))


def test_length_and_positions():
    values = of(
        **{
            DRAFTS: 100.0,
            ACCEPTED: 150.0,
            f"{PER_POSITION}{{position=0}}": 90.0,
            f"{PER_POSITION}{{position=1}}": 60.0,
        }
    )
    assert values["acceptance_length_tokens"].value == pytest.approx(2.5)
    assert values["acceptance_first_ratio"].value == pytest.approx(0.9)
    assert values["acceptance_second_ratio"].value == pytest.approx(0.6)
    assert values["acceptance_third_ratio"].value is None
    assert values["acceptance_length_tokens"].n == 100


def test_without_drafts_nothing_is_accepted_and_nothing_is_zero():
    assert {value.value for value in of().values()} == {None}
    assert of(**{DRAFTS: 0.0, ACCEPTED: 0.0})["acceptance_length_tokens"].value is None
