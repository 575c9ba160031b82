"""Points that cost nothing, on the shipped targets."""

import json

import pytest

from k3perf.config.suite import load_suite
from k3perf.tune.exclusions import Exclusions


@pytest.fixture(scope="module")
def exclusions(repository):
    suite = load_suite(repository / "perf_tests")

    def of(name, **arguments):
        target = suite.target(name)
        base = suite.engine_arguments(target, suite.config(target.reference))
        path = suite.root / target.model.directory / "config.json"
        model = json.loads(path.read_text())
        return Exclusions(suite, target, {**base, **arguments}, model)

    return of


def test_a_forced_block_size_is_the_parents_engine(exclusions):
    """On K3 every size below a state page becomes 768 tokens."""
    assert "blocks of 768 tokens are forced" in exclusions("h200-k3").reason({"block_size": 32})


def test_a_block_size_that_the_engine_takes_is_measured(exclusions):
    assert exclusions("cpu-gqa").reason({"block_size": 32}) == ""


def test_a_point_that_does_not_fit_is_not_started(exclusions):
    reason = exclusions("h200-k3").reason({"gpu_memory_utilization": 0.3})
    assert "does not fit: the memory plan is" in reason
    assert exclusions("h200-k3").reason({"gpu_memory_utilization": 0.8}) == ""


def test_a_known_refusal_costs_nothing(exclusions):
    reason = exclusions("h200-k3").reason({"max_num_batched_tokens": 4096})
    assert reason.startswith("refused: ")


def test_a_token_budget_below_the_sequences_is_refused(exclusions):
    reason = exclusions("cpu-gqa").reason({"max_num_batched_tokens": 16})
    assert reason == "refused: max_num_batched_tokens 16 is below max_num_seqs 32"


def test_without_a_model_config_nothing_is_planned(exclusions, repository):
    known = exclusions("h200-k3")
    blind = Exclusions(known.suite, known.target, known.base_arguments, None)
    assert blind.reason({"gpu_memory_utilization": 0.3}) == ""
