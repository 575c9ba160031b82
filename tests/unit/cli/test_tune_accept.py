"""Names, lists and texts that ``k3perf tune accept`` writes."""

from pathlib import Path

import pytest
import yaml
from tests.unit.tune.simulated_engine import SimulatedEngine, plan

from k3perf.cli.tune_accept import config_name, config_texts, with_listed
from k3perf.cli.tuning_options import bounds_of, values_by_name
from k3perf.config.suite import load_suite
from k3perf.errors import UsageError
from k3perf.records.tuning import BoundSpec
from k3perf.tune.parameters import parameters_of
from k3perf.tune.strategy import RunNames, Tuning

PATH = Path("targets/tiny.yaml")


def test_a_combination_becomes_single_configs_and_one_that_combines_them(repository):
    suite = load_suite(repository / "perf_tests")
    gains = {4096: 0.15, 8192: 0.15, 16384: 0.15}
    names = RunNames("tune-20261130-1", "cpu-gqa", "default", "chat", {"commit": "c" * 40})
    result = Tuning(plan(), SimulatedEngine(1, token_gain=gains), names).run()
    assert len(result.proposal) == 2
    texts = config_texts(suite, result, result.proposal, "", "")
    *parts, whole = texts
    combined = yaml.safe_load(texts[whole])
    assert combined["combines"] == parts
    assert str(combined["provenance"]["date"]) == "2026-11-30"
    changes = [
        suite.config(name).change if not texts[name] else yaml.safe_load(texts[name])["change"]
        for name in parts
    ]
    assert {key: value for change in changes for key, value in change.items()} == result.proposal


def test_a_declared_single_change_is_used_again(repository):
    suite = load_suite(repository / "perf_tests")
    names = RunNames("r", "cpu-gqa", "default", "chat", {})
    result = Tuning(plan(), SimulatedEngine(1), names).run()
    texts = config_texts(suite, result, {"max_num_batched_tokens": 1024}, "", "a good reason")
    assert texts == {"batched_tokens_down": ""}


def test_names_come_from_the_change():
    assert config_name({"max_num_seqs": 64}) == "max_num_seqs_64"
    assert config_name({"gpu_memory_utilization": 0.95}) == "gpu_memory_utilization_0_95"
    assert config_name({"speculative_config": {"a": 1}}) == "speculative_config_set"


@pytest.mark.parametrize(
    "text",
    [
        "name: t\nconfigs: [default]  # all\nworkloads: [chat]\n",
        "name: t\nconfigs: [default,\n          fp8_kv]\nworkloads: [chat]\n",
        "name: t\nconfigs:\n- default\n- fp8_kv\nworkloads: [chat]\n",
        "name: t\nconfigs:\n  - default\nworkloads: [chat]\n",
    ],
)
def test_a_name_is_added_to_a_list_in_any_usual_form(text):
    changed = with_listed(PATH, text, "configs", ["new_one"])
    was, now = yaml.safe_load(text), yaml.safe_load(changed)
    assert now == {**was, "configs": [*was["configs"], "new_one"]}
    assert ("# all" in changed) == ("# all" in text)
    assert with_listed(PATH, changed, "configs", ["new_one"]) == changed


def test_a_list_in_an_unusual_form_is_left_to_the_user():
    text = "name: t\n'configs' : [default]\nworkloads: [chat]\n"
    with pytest.raises(UsageError, match="Add it by hand"):
        with_listed(PATH, text, "configs", ["new_one"])


def test_a_workload_gets_a_list_where_there_is_none():
    text = "name: t\nworkloads: [chat]\n"
    changed = yaml.safe_load(with_listed(PATH, text, "workloads_on_request", ["chat_32"]))
    assert changed["workloads_on_request"] == ["chat_32"]


def test_values_are_numbers_words_or_json():
    found = values_by_name(["max-num-seqs=8,16", 'speculative_config={"a": [1, 2]}'], "--values")
    assert found == {"max_num_seqs": (8, 16), "speculative_config": ({"a": [1, 2]},)}
    assert bounds_of(["ttft_p99_ms=500"]) == (BoundSpec("ttft_p99_ms", 500.0),)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tensor_parallel_size": (2,)}, "number of ranks"),
        ({"max_num_seq": (2,)}, "max_num_seqs"),
        ({"enable_chunked_prefill": (3,)}, "true or false"),
    ],
)
def test_arguments_that_a_config_cannot_change_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        parameters_of(("kv",), {}, kind="cpu", given=given)


def test_a_steps_values_follow_from_the_base():
    found = parameters_of(("scheduler",), {"max_num_seqs": 32}, kind="cpu", given={})
    by_name = {one.name: one.values for one in found}
    assert by_name["max_num_seqs"] == (8, 16, 32, 64, 128)
    assert "scheduling_policy" not in by_name
