"""Which engines answer, how often, and what becomes of their answers."""

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest

from k3perf.config.suite import load_suite
from k3perf.errors import EngineError
from k3perf.metrics.validity import ANSWERS_RULE, ValidityRules, judge_session
from k3perf.records.samples import Arm
from k3perf.run.quality_books import BookCache
from k3perf.run.quality_pass import QualityPass
from tests.plugin.made_results import session
from tests.unit.quality.served import server, vllm_like


class Probe:
    """Prefix hits rise with every look, as if the cache were used."""

    def __init__(self):
        self.hits, self.calls = 0.0, []

    def counters(self):
        self.hits += 1
        return {"vllm:prefix_cache_hits_total": self.hits}

    def reset_prefix_cache(self):
        self.calls.append("reset")

    def call(self, *arguments):
        self.calls.append(arguments)


def live(url, arm=Arm.CANDIDATE, config="fp8_kv", name="one", injected=""):
    return SimpleNamespace(
        session_id=f"{name}-{arm}",
        arm=arm,
        config=config,
        injected=injected,
        engine=SimpleNamespace(base_url=url, model_name="m"),
        probe=Probe(),
        or_its_death=contextlib.nullcontext,
        identity=session(0, arm, "any").identity,
    )


class Pool:
    def __init__(self, other=None):
        self.other, self.wanted, self.crashes = other, [], []

    def stop_all(self):
        pass

    def acquire(self, wanted):
        self.wanted += wanted
        return [self.other]

    def report_crash(self, one, error):
        self.crashes.append((one, error))


@pytest.fixture
def suite(repository):
    return load_suite(repository / "perf_tests")


def cell_of(suite, config="fp8_kv"):
    (cell,) = [one for one in suite.cells(("cpu-quality-gqa",)) if one.config.name == config]
    # two short prompts keep the test short
    quality = cell.target.quality.model_copy(
        update={"prompts": None, "random_prompts": 4, "random_tokens": 32, "decode_tokens": 4}
    )
    return replace(cell, target=cell.target.model_copy(update={"quality": quality}))


def made(suite, tmp_path, pool=None, mode="reference"):
    settings = SimpleNamespace(
        suite=suite,
        mode_for=lambda _: mode,
        injections=(),
        ab_base_python=None,
        engine_python="python",
    )
    progress = SimpleNamespace(note=lambda _: None)
    return QualityPass(settings, pool or Pool(), progress, BookCache(tmp_path))


def records(*lives):
    return [session(index, one.arm, "any") for index, one in enumerate(lives)]


def tilted(body):
    return vllm_like(body, tilt=0.05)


def test_a_target_without_quality_is_left_alone(suite, tmp_path):
    cell = cell_of(suite)
    cell = replace(cell, target=cell.target.model_copy(update={"quality": None}))
    engine = live("http://127.0.0.1:9")
    given = records(engine)
    assert made(suite, tmp_path).of_pair(cell, [engine], given) == given


def test_candidate_and_reference_of_one_run(suite, tmp_path):
    with server(tilted) as (url, asked), server(vllm_like) as (other, asked_reference):
        pair = [live(other, Arm.REFERENCE, "default"), live(url)]
        quality = made(suite, tmp_path)
        reference, candidate = quality.of_pair(cell_of(suite), pair, records(*pair))
        first = len(asked), len(asked_reference)
        again = quality.of_pair(cell_of(suite), pair, records(*pair))[1]
    assert reference.quality is None
    values = candidate.quality.values
    assert candidate.quality.reference == "default (same run)"
    assert values["quality_kl_mean_nats"].value > 0
    assert values["quality_floor_kl_nats"].value == 0
    assert values["quality_cached_kl_nats"].value == 0
    assert first[1] == 2 * first[0]  # the control arm
    assert (len(asked), len(asked_reference)) == first  # a second workload asks no more
    assert again.quality == candidate.quality


def test_kept_answers_of_an_earlier_run_save_an_engine(suite, tmp_path):
    with server(vllm_like) as (other, _):
        one = live(other, config="default")
        (record,) = made(suite, tmp_path, mode="baseline").of_pair(
            cell_of(suite, "default"), [one], records(one)
        )
    assert record.quality.reference == "default (same process)"
    assert record.quality.values["quality_kl_mean_nats"].value == 0
    with server(tilted) as (url, _):
        pool, two = Pool(), live(url)
        (record,) = made(suite, tmp_path, pool, "baseline").of_pair(
            cell_of(suite), [two], records(two)
        )
    assert not pool.wanted
    assert record.quality.reference == "default (kept answers)"
    assert record.quality.values["quality_kl_mean_nats"].value > 0


def test_without_kept_answers_the_reference_is_started_once(suite, tmp_path):
    with server(tilted) as (url, _), server(vllm_like) as (other, _):
        pool = Pool(live(other, Arm.REFERENCE, "default"))
        quality = made(suite, tmp_path, pool, "baseline")
        for name in ("one", "two"):
            engine = live(url, name=name)
            (record,) = quality.of_pair(cell_of(suite), [engine], records(engine))
            assert record.quality.values["quality_kl_mean_nats"].value > 0
    assert [item.config.name for item in pool.wanted] == ["default"]


def test_a_faulty_reference_config_is_not_compared_with_itself(suite, tmp_path):
    """Else an injected fault would be invisible in the reference's own cell."""
    with server(tilted) as (url, _), server(vllm_like) as (other, _):
        pool = Pool(live(other, Arm.REFERENCE, "default"))
        engine = live(url, config="default", injected="skip_layer_number=2.0")
        (record,) = made(suite, tmp_path, pool, "baseline").of_pair(
            cell_of(suite, "default"), [engine], records(engine)
        )
    assert pool.wanted
    assert record.quality.values["quality_kl_mean_nats"].value > 0


def test_senseless_answers_spoil_the_session_and_end_nothing(suite, tmp_path):
    def nan(body):
        status, answer = vllm_like(body)
        if "prompt_logprobs" in body:
            answer["choices"][0]["prompt_logprobs"][1] = {}
        return status, answer

    with server(nan) as (url, _), server(vllm_like) as (other, _):
        pair = [live(other, Arm.REFERENCE, "default"), live(url)]
        record = made(suite, tmp_path).of_pair(cell_of(suite), pair, records(*pair))[1]
    assert record.quality.values == {}
    rules = ValidityRules.for_target({"valid_rounds_count": 0.5})
    valid = replace(record, rounds=())
    reasons = judge_session(valid, rules)
    assert reasons
    (problem,) = record.quality.problems
    assert "no log-probability of token" in problem
    assert ANSWERS_RULE == "wrong_answers"


def test_an_engine_that_is_gone_is_reported_as_a_crash(suite, tmp_path):
    pool, engine = Pool(), live("http://127.0.0.1:9")
    with pytest.raises(EngineError):
        made(suite, tmp_path, pool, "baseline").of_pair(cell_of(suite), [engine], records(engine))
    assert pool.crashes[0][0] is engine


def test_a_damaged_kept_file_counts_as_none(suite, tmp_path):
    with server(vllm_like) as (url, _):
        engine = live(url, config="default")
        made(suite, tmp_path, mode="baseline").of_pair(
            cell_of(suite, "default"), [engine], records(engine)
        )
    (path,) = tmp_path.glob("*.json")
    key = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(key)
    assert BookCache(tmp_path).find("0" * 64) is None
    with server(vllm_like) as (url, _):
        pool = Pool(live(url, Arm.REFERENCE, "default"))
        engine = live(url)
        made(suite, tmp_path, pool, "baseline").of_pair(cell_of(suite), [engine], records(engine))
    assert pool.wanted
