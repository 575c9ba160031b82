"""The text and the picture of a tuning run say what its result holds."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from tests.unit.tune.simulated_engine import SimulatedEngine, plan

from k3perf.records.tuning import TuningResult
from k3perf.report.numbers import value_text as number_text
from k3perf.report.tuning_picture import tuning_picture
from k3perf.report.tuning_text import effect_text, finding_text, result_text
from k3perf.tune.strategy import RunNames, Tuning

NAMES = RunNames("tune-1", "tiny", "default", "quick", {})
METRICS = ("output_tokens_per_s", "ttft_p99_ms")


@pytest.fixture(scope="module")
def result() -> TuningResult:
    gains = {4096: 0.15, 8192: 0.15, 16384: 0.15}
    return Tuning(plan(), SimulatedEngine(1, token_gain=gains), NAMES).run()


def test_the_text_has_decision_knee_and_numbers(result):
    seqs = result.parameters[0]
    text = finding_text(seqs, result.objective, METRICS)
    assert seqs.decision in text
    assert seqs.knee.text in text
    for value in seqs.values:
        assert number_text(value.means["output_tokens_per_s"], "tokens/s") in text
    assert "fresh blocks" in text


def test_the_end_has_combination_front_and_proposal(result):
    text = result_text(result)
    assert effect_text(result.interaction.combined) in text
    assert "proposal: max_num_batched_tokens=" in text
    assert "At most 1.0% of such runs propose" in text
    assert f"{result.session_count} sessions" in text


def test_a_shorter_time_is_shown_as_less(result):
    """A gain in TTFT is a smaller value, and the table shows the value's change."""
    slow = result.parameters[0].values[-1]
    text = finding_text(result.parameters[0], result.objective, METRICS)
    line = next(line for line in text.splitlines() if line.strip().startswith("256 "))
    assert slow.effects["ttft_p99_ms"].ratio < 0
    assert re.search(r"ms \+\d", line) or re.search(r"\d \+\d", line)


def test_the_picture_is_a_document_with_every_drawn_effect(result):
    picture = tuning_picture(result)
    root = ElementTree.fromstring(picture)  # noqa: S314
    texts = [one.text for one in root.iter() if one.tag.endswith("text")]
    for finding in result.parameters:
        for value in finding.values:
            effect = value.effects.get(result.objective)
            if effect is not None and effect.ratio is not None:
                assert f"{effect.ratio:+.1%}" in texts


def test_hostile_values_stay_text(result):
    seqs = result.parameters[0]
    bad = replace(seqs.values[0], value="<script>alert(1)</script>")
    hostile = replace(
        result, target='"><b>', parameters=(replace(seqs, values=(bad, *seqs.values[1:])),)
    )
    picture = tuning_picture(hostile)
    root = ElementTree.fromstring(picture)  # noqa: S314
    assert not [one for one in root.iter() if one.tag.endswith(("script", "}b"))]


def test_a_result_without_measurements_has_an_empty_picture():
    nothing = Tuning(plan(budget_s=1.0), SimulatedEngine(1), NAMES).run()
    ElementTree.fromstring(tuning_picture(nothing))  # noqa: S314
    assert "proposal: keep default" in result_text(nothing)
