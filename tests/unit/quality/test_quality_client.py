"""The quality questions over HTTP: what is asked, what is read, what is refused."""

import pytest

from k3perf.errors import EngineError
from k3perf.load.quality_client import NotOffered, QualityClient, SenselessAnswer, Stretch
from tests.unit.quality.served import server, vllm_like

PROMPT = tuple(range(100, 120))


def client(url, k=3):
    return QualityClient(url, "stand-in", k)


def test_prompts_are_scored_from_their_second_token_on():
    with server(vllm_like) as (url, seen):
        (scored,) = client(url).score_prompts([PROMPT])
    assert scored.token_ids == PROMPT[1:]
    assert scored.first_position == 1
    assert scored.logprobs == (-0.7,) * 19
    assert scored.top_ids[0] == (101, 102, 103)
    assert seen[0]["prompt_logprobs"] == 3
    assert seen[0]["max_tokens"] == 1


def test_decode_follows_the_given_tokens():
    with server(vllm_like) as (url, seen):
        (scored,) = client(url).score_decode([Stretch(4, PROMPT, 10, 15)])
    assert (scored.prompt_index, scored.first_position) == (4, 10)
    assert scored.token_ids == PROMPT[10:15]
    assert seen[0]["prompt"] == list(PROMPT[:10])
    assert seen[0]["vllm_xargs"] == {"k3perf_forced": list(PROMPT[10:15])}


def test_a_server_that_decodes_its_own_tokens_is_not_taken_for_forced():
    def own(body):
        return vllm_like({**body, "vllm_xargs": None})

    with server(own) as (url, _), pytest.raises(NotOffered, match="does not decode along"):
        client(url).score_decode([Stretch(0, PROMPT, 10, 15)])


def test_a_refused_question_carries_the_servers_words():
    def refuse(_):
        return 400, {"error": {"message": "Requested prompt logprobs of 30 is too large"}}

    with server(refuse) as (url, _), pytest.raises(NotOffered, match="30 is too large"):
        client(url).score_prompts([PROMPT])


def test_a_server_error_is_an_engine_error():
    with (
        server(lambda _: (500, b"boom")) as (url, _),
        pytest.raises(EngineError, match="HTTP status 500: boom"),
    ):
        client(url).greedy([PROMPT], 4)


def with_logprob(value):
    def reply(body):
        status, answer = vllm_like(body)
        answer["choices"][0]["prompt_logprobs"][5]["105"]["logprob"] = value
        return status, answer

    return reply


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.5, -9999.0])
def test_a_senseless_log_probability_is_found(value):
    with server(with_logprob(value)) as (url, _), pytest.raises(SenselessAnswer):
        client(url).score_prompts([PROMPT])


def test_missing_tokens_are_found():
    def reply(body):
        status, answer = vllm_like(body)
        answer["choices"][0]["prompt_logprobs"].pop()
        return status, answer

    with server(reply) as (url, _), pytest.raises(SenselessAnswer, match="lacks tokens"):
        client(url).score_prompts([PROMPT])
    with (
        server(lambda body: vllm_like({**body, "max_tokens": 3})) as (url, _),
        pytest.raises(SenselessAnswer, match="3 tokens, 4 were asked"),
    ):
        client(url).greedy([PROMPT], 4)


def test_too_few_listed_tokens_are_found():
    def reply(body):
        return vllm_like({**body, "prompt_logprobs": 2})

    with server(reply) as (url, _), pytest.raises(SenselessAnswer, match="2 tokens listed"):
        client(url).score_prompts([PROMPT])
