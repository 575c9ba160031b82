"""A quality metric through the gate's exact rule, and sessions with senseless answers."""

from dataclasses import replace

from k3perf.config.models import Tolerance
from k3perf.gate.metric_verdict import judge_exact
from k3perf.metrics.loss_scale import scale_for
from k3perf.metrics.session_values import session_values
from k3perf.metrics.validity import ANSWERS_RULE, ValidityRules, judge_round, judge_session
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import Outcome
from k3perf.records.quality import QualityValue, SessionQuality
from k3perf.records.samples import Arm
from k3perf.store.results import ResultWriter, read_results
from tests.plugin.made_results import made_round, session

RULES = ValidityRules.for_target({}, real_weights=True)


def judged(name, was, now, allowed):
    scale = scale_for(METRICS[name], Tolerance(loss_absolute=allowed), "baseline")
    return judge_exact(scale, [was], [now])


def test_a_perplexity_that_falls_is_as_bad_as_one_that_rises():
    assert judged("quality_perplexity_ratio", 1.0, 1.002, 0.005).outcome is Outcome.PASS
    for now in (0.9, 1.1):
        verdict = judged("quality_perplexity_ratio", 1.0, now, 0.005)
        assert verdict.outcome is Outcome.REGRESSED
        assert verdict.now_value == now


def test_divergence_is_judged_one_way():
    assert judged("quality_kl_mean_nats", 0.002, 0.0, 0.0005).outcome is Outcome.IMPROVED
    assert judged("quality_kl_mean_nats", 0.002, 0.003, 0.0005).outcome is Outcome.REGRESSED


def test_agreement_is_better_when_higher():
    assert judged("quality_top1_ratio", 0.98, 0.9, 0.02).outcome is Outcome.REGRESSED


def sound_session():
    record = session(0, Arm.CANDIDATE, "any")
    return replace(record, rounds=(made_round(0, 1.0),))


def test_senseless_answers_make_the_session_invalid_with_their_own_reason():
    problem = "the answers cannot be compared: a log-probability is nan"
    record = replace(sound_session(), quality=SessionQuality({}, "default", 1.0, (problem,)))
    (reason,) = judge_session(record, RULES)
    assert (reason.rule, reason.text) == (ANSWERS_RULE, problem)


def test_values_reach_the_session_metrics_and_a_missing_one_keeps_its_reason():
    found = {
        "quality_kl_mean_nats": QualityValue(0.002, 100),
        "quality_needle_ratio": QualityValue(None, 0, "not measured"),
    }
    record = replace(sound_session(), quality=SessionQuality(found, "default", 1.0))
    values = session_values(record)
    assert (values["quality_kl_mean_nats"].value, values["quality_kl_mean_nats"].n) == (0.002, 100)
    assert values["quality_needle_ratio"].excluded == {"not measured": 1}
    assert "quality_kl_mean_nats" not in session_values(sound_session())


def with_replies(*counts):
    record = made_round(0, 1.0)
    sample = record.samples[0]
    samples = tuple(
        replace(sample, output_token_count=24, distinct_token_count=count) for count in counts
    )
    return replace(record, samples=samples)


def broken(record, rules=RULES):
    return [reason.rule for reason in judge_round(record, rules)]


def test_replies_that_repeat_one_token_spoil_the_round_of_real_weights():
    assert "repeated_token_ratio" in broken(with_replies(1, 1, 1, 9))
    assert "repeated_token_ratio" not in broken(with_replies(1, 9, 9, 9))
    assert "repeated_token_ratio" not in broken(
        with_replies(1, 1, 1, 1), ValidityRules.for_target({})
    )


def test_replies_without_ids_are_not_taken_for_sound():
    assert "repeated_token_ratio" in broken(with_replies(None, 9))


def test_a_stored_session_keeps_its_quality(tmp_path):
    path = tmp_path / "results.jsonl"
    found = {
        "quality_kl_mean_nats": QualityValue(0.002, 100),
        "quality_needle_ratio": QualityValue(None, 0, "not measured"),
    }
    quality = SessionQuality(found, "default (same run)", 1.5)
    record = replace(session(0, Arm.CANDIDATE, "any"), quality=quality)
    with ResultWriter(path, run_id="any") as writer:
        writer.session(record)
        writer.round(record.session_id, made_round(0, 1.0))
        writer.session_end(record.session_id, ())
    (read,) = read_results(path).sessions.values()
    assert read.quality == quality
