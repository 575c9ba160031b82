"""What the client reports against a live engine's own histograms and counters, and a
trace's sharing against its prefix cache.

Needs an engine's Python: ``--k3-engine-python`` or the environment variable
K3PERF_ENGINE_PYTHON.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from k3perf.load.generator import run_round
from k3perf.load.mock_server.prefix_cache import PrefixCache
from k3perf.metrics.compute import round_metrics, window_s
from k3perf.records.samples import RequestStatus, RoundKind, RoundRecord
from k3perf.telemetry.counters import counter_difference
from k3perf.telemetry.server import ServerProbe
from k3perf.workload.request_plan import expand
from k3perf.workload.trace import read_trace, trace_text, unbounded_hit_ratio
from k3perf.workload.trace_synthesis import synthesise_trace
from tests.unit.workload.specs import small_spec, trace_spec

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

BLOCK_TOKENS = 32
START_TIMEOUT_S = 240


@dataclass(frozen=True)
class LiveEngine:
    base_url: str
    model_name: str


@pytest.fixture(scope="module")
def model(repository) -> Path:
    return repository / "perf_tests" / "models" / "cpu-gqa"


@pytest.fixture
def engine(engine_python, model, tmp_path) -> Iterator[LiveEngine]:
    with serving(engine_python, model, tmp_path) as live:
        yield live


@pytest.fixture
def shallow_engine(engine_python, model, tmp_path) -> Iterator[LiveEngine]:
    """The same model with one layer: block hashing knows nothing of depth, and the
    replay's prefill is eight times shorter.
    """
    shallow = Path(shutil.copytree(model, tmp_path / "shallow"))
    config = json.loads((shallow / "config.json").read_text())
    (shallow / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with serving(engine_python, shallow, tmp_path) as live:
        yield live


@contextmanager
def serving(python: Path, model: Path, directory: Path) -> Iterator[LiveEngine]:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    command = [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(model),
        "--load-format",
        "dummy",
        "--dtype",
        "bfloat16",
    ]
    command += [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--enforce-eager",
        "--max-model-len",
        "8192",
        "--max-num-seqs",
        "32",
    ]
    command += [
        "--block-size",
        str(BLOCK_TOKENS),
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
    ]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    log = directory / "engine.log"
    with tempfile.TemporaryDirectory(
        prefix="k3f-"
    ) as sockets:  # short, and gone with what a process that was ended left in it
        settings["TMPDIR"] = sockets
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | settings,
            )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process, log)
            yield LiveEngine(f"http://127.0.0.1:{port}", str(model))
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)


def wait_until_ready(base_url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(base_url + "/health", timeout=2) as answer:  # noqa: S310
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"the engine was not ready within {START_TIMEOUT_S} s:\n{log.read_text()[-3000:]}")


def measured(engine, plan):
    """(round, its metrics, the server's counters over it)."""
    probe = ServerProbe(engine.base_url)
    before = probe.counters()
    seen = run_round(plan, base_url=engine.base_url, model_name=engine.model_name)
    assert {sample.status for sample in seen.samples} == {RequestStatus.OK}, {
        sample.detail for sample in seen.samples
    }
    counters = counter_difference(before, settled_counters(probe)).values
    record = RoundRecord(
        plan.round_index,
        RoundKind.MEASURED,
        seen.start_ns,
        seen.end_ns,
        seen.samples,
        counters=counters,
    )
    return seen, round_metrics(record).values, counters


def settled_counters(probe):
    """The counters once the engine has booked its last step, which is a moment after
    the last token was sent.
    """
    counters = probe.counters()
    for _ in range(20):
        time.sleep(0.1)
        again = probe.counters()
        if again == counters:
            break
        counters = again
    return counters


def test_latency_and_throughput_agree_with_the_servers_own(engine):
    spec = small_spec(
        requests=24,
        arrival={"kind": "closed_loop", "concurrency": 4},
        prompt_tokens={"kind": "fixed", "tokens": 64},
        output_tokens={"kind": "fixed", "tokens": 32},
    )
    plan = expand(spec, vocabulary_size=4096)
    measured(engine, plan)
    differences = []
    for attempt in range(
        1, 4
    ):  # a machine that starves the server's own HTTP process parts the two honestly; once must do
        seen, values, counters = measured(engine, plan.for_round(attempt))
        assert counters["vllm:generation_tokens_total"] == 24 * 32
        assert counters["vllm:prompt_tokens_total"] == 24 * 64
        assert counters["vllm:time_to_first_token_seconds_count"] == 24
        throughput = counters["vllm:generation_tokens_total"] / window_s(seen.samples)
        assert values["output_tokens_per_s"].value == pytest.approx(throughput, rel=1e-9)
        ttft_ms, tpot_ms = values["ttft_mean_ms"].value, values["tpot_mean_ms"].value
        server_ttft_ms = server_mean_ms(counters, "vllm:time_to_first_token_seconds")
        server_tpot_ms = server_mean_ms(counters, "vllm:request_time_per_output_token_seconds")
        assert (
            ttft_ms >= server_ttft_ms - 1
        )  # the client cannot see a token before the server has it
        differences.append((ttft_ms - server_ttft_ms, server_ttft_ms, tpot_ms / server_tpot_ms - 1))
        if differences[-1][0] <= max(20, 0.1 * server_ttft_ms) and abs(differences[-1][2]) <= 0.05:
            print(
                f"client - server: TTFT {differences[-1][0]:.2f} ms of {server_ttft_ms:.1f} ms,"
                f" TPOT {differences[-1][2]:+.2%}"
            )
            return
    pytest.fail(
        f"(TTFT difference in ms, server's TTFT in ms, TPOT difference as a share): {differences}"
    )


def server_mean_ms(counters, histogram):
    return 1e3 * counters[f"{histogram}_sum"] / counters[f"{histogram}_count"]


def test_a_replay_hits_the_prefix_cache_as_the_trace_does(shallow_engine, tmp_path):
    """The first 200 requests, at 1/16 of their length: one trace block is one cache
    block. One at a time, so that every hit can be had.
    """
    name = os.environ.get("K3PERF_TEST_TRACE")
    rows = (
        read_trace(Path(name)).rows[:200]
        if name
        else synthesise_trace(requests=200, duration_s=60, seed=11)
    )
    (tmp_path / "trace.jsonl").write_text(trace_text(rows))
    spec = trace_spec(
        "trace.jsonl",
        length_scale=BLOCK_TOKENS / 512,
        time_scale=1e6,
        concurrency_limit=1,
        longest_request_tokens=8192,
    ).model_copy(
        update={"seed": int(time.time())}
    )  # prompts that this engine's cache has never seen
    plan = expand(spec, vocabulary_size=4096, trace_directory=tmp_path)
    # replies do not matter to what prompts hit; one token each keeps this within
    # minutes on one core
    plan = replace(
        plan, requests=tuple(replace(request, output_token_count=1) for request in plan.requests)
    )
    cache = PrefixCache(BLOCK_TOKENS)
    expected_hits = sum(
        cache.look_up_and_add(request.prompt_token_ids) for request in plan.requests
    )
    asked = sum(request.prompt_token_count for request in plan.requests)

    seen, values, counters = measured(shallow_engine, plan)

    print(
        f"prefix hits: {counters['vllm:prefix_cache_hits_total']:.0f} of {asked} tokens, expected"
        f" {expected_hits}; {len(rows)} rows"
    )
    assert counters["vllm:prefix_cache_queries_total"] == asked
    assert abs(counters["vllm:prefix_cache_hits_total"] - expected_hits) <= BLOCK_TOKENS
    assert (
        sum(sample.cached_prompt_token_count or 0 for sample in seen.samples)
        == counters["vllm:prefix_cache_hits_total"]
    )
    if len(plan.requests) == len(rows):
        assert values["prefix_hit_ratio"].value == pytest.approx(
            unbounded_hit_ratio(rows), abs=0.01
        )
