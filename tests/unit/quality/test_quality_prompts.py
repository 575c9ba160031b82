"""What a target may declare of its quality pass, and what each mistake is told."""

import json

import pytest
import yaml

from k3perf.config.quality_prompts import drawn, needle_prompts, quality_prompts
from k3perf.config.quality_spec import NeedleSpec, QualitySpec
from k3perf.config.suite import load_suite
from k3perf.errors import ConfigFileError

TARGET = "targets/cpu-quality-gqa.yaml"


def broken(suite_copy, name=TARGET, **changes):
    path = suite_copy / name
    data = yaml.safe_load(path.read_text())
    for key, value in changes.items():
        data[key] = value
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigFileError) as caught:
        load_suite(suite_copy)
    return str(caught.value)


def test_the_shipped_prompts_fill_the_context_the_models_were_trained_on(repository):
    suite = load_suite(repository / "perf_tests")
    for name in ("cpu-quality-gqa", "cpu-quality-hybrid"):
        target = suite.target(name)
        prompts = quality_prompts(target.quality, suite.root, suite.vocabulary_size(target))
        assert len(prompts) == 16
        assert {len(prompt) for prompt in prompts} == {512}


def test_dummy_weights_cannot_be_compared(suite_copy):
    text = broken(suite_copy, "targets/cpu-gqa.yaml", quality={})
    assert "quality.spread_dummy_weights" in text
    assert "dummy weights give every token the same probability" in text


def test_real_weights_are_not_scaled(suite_copy):
    assert "would change the weights" in broken(suite_copy, quality={"spread_dummy_weights": True})


def test_a_cpu_engine_cannot_scale_its_weights(suite_copy):
    text = broken(suite_copy, "targets/cpu-gqa.yaml", quality={"spread_dummy_weights": True})
    assert "packs its weights at load" in text
    assert "cpu-quality-gqa" in text


def test_a_missing_prompts_file(suite_copy):
    text = broken(suite_copy, quality={"prompts": "models/nowhere.json"})
    assert "nowhere.json" in text


def test_a_token_outside_the_vocabulary(suite_copy):
    path = suite_copy / "models" / "quality-gqa" / "prompts.json"
    path.write_text(json.dumps({"schema_version": 1, "prompts": [[5] * 20, [300] * 20]}))
    text = broken(suite_copy)
    assert "prompts.1" in text
    assert "not in the vocabulary of 259 tokens" in text


def test_a_prompt_that_does_not_fit_the_context(suite_copy):
    text = broken(suite_copy, quality={"random_tokens": 1024})
    assert "needs 1025 tokens of context, max_model_len is 1024" in text


def test_a_variant_of_an_unknown_config_and_directory(suite_copy):
    model = {"directory": "models/quality-gqa", "weights": "checkpoint"}
    text = broken(suite_copy, model={**model, "variants": {"int9": "models/nowhere"}})
    assert "no config has this name" in text
    assert "has no config.json" in text


def test_unknown_keys_are_refused(suite_copy):
    assert "quality.topk" in broken(suite_copy, quality={"topk": 5})


def test_drawn_prompts_are_the_same_each_time_and_never_special():
    prompts = drawn(1, 4, 32, 100)
    assert prompts == drawn(1, 4, 32, 100) != drawn(2, 4, 32, 100)
    assert min(min(prompt) for prompt in prompts) >= 3


def test_needles_lie_at_their_depth_and_are_asked_for_at_the_end():
    spec = NeedleSpec(tokens=8, context_tokens=64, depths=(0.0, 1.0))
    (early, answer), (late, _) = needle_prompts(spec, (tuple(range(200, 220)),), 100)
    assert len(early) == len(late) == 64
    assert early[-4:] == early[:4]
    assert early[4:8] == answer
    assert late[-4:] == late[-12:-8]


def test_a_needle_must_fit():
    with pytest.raises(ValueError, match="at least 4 times"):
        QualitySpec(needle={"tokens": 32, "context_tokens": 100})
