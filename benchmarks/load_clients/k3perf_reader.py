"""The project's own client, whole round: sending, reading, decoding. Prints its lag behind the mock server's truth as JSON."""

import json
import sys
import urllib.request

import numpy as np

from k3perf.config.workload_spec import WorkloadSpec
from k3perf.load.generator import run_round
from k3perf.load.mock_server.truth import prompt_crc32
from k3perf.samples import RequestStatus
from k3perf.workload.plan import expand

base_url, concurrency, output_tokens, requests = sys.argv[1], *map(int, sys.argv[2:5])
spec = WorkloadSpec.model_validate(
    {
        "schema_version": 1,
        "name": "cost",
        "description": "Many streams against the mock server",
        "seed": 1,
        "requests": requests,
        "arrival": {"kind": "closed_loop", "concurrency": concurrency},
        "prompt_tokens": {"kind": "fixed", "tokens": 32},
        "output_tokens": {"kind": "fixed", "tokens": output_tokens},
    }
)
plan = expand(spec, vocabulary_size=4096)
seen = run_round(plan, base_url=base_url, model_name="mock")
assert all(sample.status is RequestStatus.OK for sample in seen.samples), {sample.detail for sample in seen.samples}
result = {"lag_probe_p99_ms": seen.client_lag_p99_ns / 1e6, "round_s": (seen.end_ns - seen.start_ns) / 1e9}
if len(sys.argv) > 5:
    with urllib.request.urlopen(base_url + "/truth") as answer:  # noqa: S310
        truth = {record["prompt_crc32"]: record for record in json.load(answer)["requests"]}
    lags = []
    for request, sample in zip(plan.requests, seen.samples, strict=True):
        written = truth[prompt_crc32(request.prompt_token_ids)]["write_ns"]
        lags.append(np.array([chunk.at_ns for chunk in sample.chunks]) - np.array(written))
    joined = np.concatenate(lags) / 1e6
    result |= {"lag_mean_ms": joined.mean(), "lag_p50_ms": np.median(joined), "lag_p99_ms": np.percentile(joined, 99)}
print(json.dumps({name: round(float(value), 4) for name, value in result.items()}))
