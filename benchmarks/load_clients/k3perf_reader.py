"""The project's own client, whole rounds: sending, reading, decoding. With ``truth``
one round, and its lag behind the server's truth.
"""

import json
import urllib.request

import numpy as np
from measured import base_url, concurrency, extra, many_tokens, measure

from k3perf.config.workload_spec import WorkloadSpec
from k3perf.load.generator import run_round
from k3perf.load.mock_server.truth import prompt_crc32
from k3perf.records.samples import RequestStatus
from k3perf.workload.request_plan import expand


def play(tokens):
    spec = WorkloadSpec.model_validate(
        {
            "schema_version": 1,
            "name": "cost",
            "description": "Many streams against the mock server",
            "seed": 1,
            "requests": concurrency,
            "arrival": {"kind": "closed_loop", "concurrency": concurrency},
            "prompt_tokens": {"kind": "fixed", "tokens": 32},
            "output_tokens": {"kind": "fixed", "tokens": tokens},
        }
    )
    plan = expand(spec, vocabulary_size=4096)
    seen = run_round(plan, base_url=base_url, model_name="mock")
    assert all(sample.status is RequestStatus.OK for sample in seen.samples), {
        sample.detail for sample in seen.samples
    }
    return plan, seen


def lags_ms(plan, seen):
    """How long after the mock server's write each token was read."""
    with urllib.request.urlopen(base_url + "/truth") as answer:  # noqa: S310
        truth = {record["prompt_crc32"]: record for record in json.load(answer)["requests"]}
    lags = []
    for request, sample in zip(plan.requests, seen.samples, strict=True):
        written = truth[prompt_crc32(request.prompt_token_ids)]["write_ns"]
        lags.append(np.array([chunk.at_ns for chunk in sample.chunks]) - np.array(written))
    return np.concatenate(lags) / 1e6


def show_lag():
    plan, seen = play(many_tokens)
    lags = lags_ms(plan, seen)
    tokens_per_s = len(lags) / ((seen.end_ns - seen.start_ns) / 1e9)
    result = {"tokens_per_s": tokens_per_s, "probe_p99_ms": seen.client_lag_p99_ns / 1e6}
    result |= {f"lag_p{rank}_ms": np.percentile(lags, rank) for rank in (50, 90, 99)}
    print(json.dumps({name: round(float(value), 3) for name, value in result.items()}))


if extra == ["truth"]:
    show_lag()
else:
    measure(play)
