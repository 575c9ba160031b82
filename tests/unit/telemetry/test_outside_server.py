"""What is read of a server that k3perf did not start, with each source missing in turn."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from k3perf.config.flags import arguments_of, flag_of
from k3perf.errors import EngineError, UsageError
from k3perf.telemetry.outside_server import LOCK, OutsideServer, plain_address
from tests.unit.telemetry.test_server import FakeServer, serving

MODELS = json.dumps({"data": [{"id": "chat", "root": "org/m", "max_model_len": 4096}]})
# as vLLM 0.32.0 writes it, without most labels
CACHE = (
    "# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig\n"
    'vllm:cache_config_info{block_size="32",cache_dtype="fp8",enable_prefix_caching="True",'
    'engine="0",gpu_memory_utilization="0.9",kv_cache_memory_bytes="None",num_gpu_blocks="512"}'
    " 1.0\n"
)


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with serving(FakeServer()) as server:
        server.answers["/v1/models"] = (200, MODELS)
        server.answers["/version"] = (200, '{"version": "0.32.0"}')
        yield server


def plain(fake: FakeServer) -> None:
    """A server without the routes of dev mode."""
    del fake.answers["/server_info?config_format=json"]
    fake.answers["/collective_rpc"] = (404, "{}")
    fake.answers["/metrics"] = (200, CACHE)


def test_dev_mode_shows_the_lock_and_names_the_workers(fake: FakeServer) -> None:
    fake.answers["/collective_rpc"] = (500, "no such method")
    seen = OutsideServer(fake.url).seen()
    assert (seen.served_name, seen.model) == ("chat", "org/m")
    assert seen.resolved_config["scheduler_config.max_num_seqs"] is not None
    assert LOCK not in seen.blind
    assert "worker extension" in seen.blind["workers"]
    assert not any(key.startswith("backend.") for key in seen.resolved_config)
    assert None not in [seen.resolved_config[k] for k in seen.resolved_config if "version." in k]


def test_without_dev_mode_only_what_metrics_show_is_there(fake: FakeServer) -> None:
    plain(fake)
    seen = OutsideServer(fake.url).seen()
    assert seen.resolved_config["cache_config.cache_dtype"] == "fp8"
    assert seen.resolved_config["cache_config.enable_prefix_caching"] is True
    assert seen.resolved_config["cache_config.gpu_memory_utilization"] == 0.9
    assert seen.resolved_config["cache_config.kv_cache_memory_bytes"] is None
    assert seen.resolved_config["model_config.max_model_len"] == 4096
    assert seen.resolved_config["version.vllm"] == "0.32.0"
    # the size is measured, no lock
    assert "cache_config.num_gpu_blocks" not in seen.resolved_config
    assert not any(key.startswith("scheduler_config.") for key in seen.resolved_config)
    assert seen.kv_capacity_tokens is None
    assert {"lock", "workers", "kv_capacity_tokens"} == set(seen.blind)
    assert "VLLM_SERVER_DEV_MODE=1" in seen.blind[LOCK]


def test_a_server_that_shows_nothing_has_no_value(fake: FakeServer) -> None:
    plain(fake)
    fake.answers["/metrics"] = (200, "vllm:num_preemptions_total 3.0\n")
    fake.answers["/version"] = (404, "")
    fake.answers["/v1/models"] = (200, json.dumps({"data": [{"id": "chat"}]}))
    seen = OutsideServer(fake.url).seen()
    assert seen.resolved_config == {}
    assert seen.identity["vllm_version"] is None
    assert "no vllm:cache_config_info" in seen.blind[LOCK]


def test_memory_is_empty_without_the_extension(fake: FakeServer) -> None:
    plain(fake)
    server = OutsideServer(fake.url)
    server.seen()
    assert server.rank_memory() == ()
    server.reset_peaks()
    assert fake.calls == []


def test_a_server_without_a_model_or_an_answer_is_an_error(fake: FakeServer) -> None:
    fake.answers["/v1/models"] = (200, '{"data": []}')
    with pytest.raises(EngineError, match="lists no model"):
        OutsideServer(fake.url).seen()
    with pytest.raises(EngineError, match="/v1/models"):
        OutsideServer("http://127.0.0.1:9").seen()


@pytest.mark.parametrize(
    "address", ["127.0.0.1:80", "https://host:1", "http://host:1/v1", "http://", "http://h:x"]
)
def test_other_addresses_are_refused(address: str) -> None:
    with pytest.raises(UsageError, match="http"):
        plain_address(address)


def test_plain_addresses() -> None:
    assert plain_address("http://host") == "http://host:80"
    assert plain_address("http://host:8000/") == "http://host:8000"


@pytest.mark.parametrize(
    ("key", "flag"),
    [
        ("scheduler_config.max_num_seqs", "--max-num-seqs"),
        ("cache_config.cache_dtype", "--kv-cache-dtype"),
        ("parallel_config.tensor_parallel_size", "--tensor-parallel-size"),
        ("compilation_config.pass_config.fuse_norm_quant", "--compilation-config"),
        ("version.vllm", ""),
        ("env.VLLM_USE_X", ""),
        ("cache_config.no_flag_has_this_name", ""),
    ],
)
def test_a_key_names_its_flag(key: str, flag: str) -> None:
    assert flag_of(key) == flag


def test_resolved_values_give_arguments_that_vllm_takes() -> None:
    found = arguments_of(
        {
            "cache_config.cache_dtype": "fp8",
            "model_config.dtype": "torch.bfloat16",
            "model_config.quantization": None,
            "scheduler_config.max_num_seqs": 8,
        }
    )
    assert found == {"kv_cache_dtype": "fp8", "dtype": "bfloat16", "max_num_seqs": 8}
