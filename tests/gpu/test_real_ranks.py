"""Real vLLM engines of two ranks on two cores: tensor parallel, data parallel, and two
'hosts' in network namespaces.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k3perf.config.models import StageDeadlines, TargetSpec
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.model_directory import materialise
from k3perf.engine.multi_node import start_target
from k3perf.engine.process_tree import command_of
from k3perf.engine.render import measured_launch
from k3perf.engine.running import Engine
from k3perf.engine.supervisor import start_engine
from k3perf.metrics.ranks import memory_note, rank_report
from k3perf.metrics.session_values import session_values
from k3perf.records.samples import Arm, EngineIdentity, RankMemory, SessionRecord
from k3perf.telemetry.server import ServerProbe

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]
MODEL: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "torch_dtype": "bfloat16",
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 64,
    "num_experts_per_tok": 2,
    "num_experts": 4,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


# vLLM 0.32's CPU backend cannot exchange a MoE's tokens between data-parallel ranks
# (NotImplementedError in its runner)
# On a CPU with AMX, vLLM 0.32 dies of an illegal instruction in a model whose matrices are all
# small: its own kernel uses the tiles and leaves the request for them to oneDNN, which takes
# matrices above 1 MiB. So one matrix is wide.
DENSE: dict[str, Any] = {
    **MODEL,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "intermediate_size": 4096,
}


def made(config: dict[str, Any], folder: Path) -> str:
    source = folder / "tiny"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    return str(materialise(source, folder / "cache"))


def launch(python: Path, model: str, *words: str) -> EngineLaunch:
    argv = (
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        "--served-model-name",
        "m",
        "--load-format",
        "dummy",
    )
    argv += (
        "--enforce-eager",
        "--max-model-len",
        "1024",
        "--max-num-seqs",
        "4",
        "--dtype",
        "bfloat16",
        "--port",
        "{port}",
    )
    environment: dict[str, str | None] = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "HF_HUB_OFFLINE": "1",
    }
    deadlines = StageDeadlines(import_s=180, load_s=180, stop_s=10)
    return EngineLaunch(
        argv=(*argv, "--host", "127.0.0.1", *words),
        model_name="m",
        environment={**environment, "VLLM_NO_USAGE_STATS": "1"},
        deadlines=deadlines,
    )


def launch_of_cell(
    spec: TargetSpec, model: str, python: Path, folder: Path, **parallel: int
) -> EngineLaunch:
    """The launch that a cell of the target is measured with: rendered, and with the
    probe. ``parallel``: the sizes of parallelism.
    """
    return measured_launch(
        spec,
        {
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": 4,
            "dtype": "bfloat16",
            **parallel,
        },
        model=model,
        engine_python=python,
        python_path=str(Path(__file__).parents[2] / "src"),
        cache_directory=folder / "compiled",
    )


def tokens_of(engine: Engine) -> int:
    body = json.dumps(
        {"model": engine.model_name, "prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True}
    ).encode()
    request = urllib.request.Request(  # noqa: S310
        f"{engine.base_url}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return int(json.load(answer)["usage"]["completion_tokens"])


@pytest.mark.parametrize(
    ("config", "words", "titles"),
    [
        (MODEL, ("--tensor-parallel-size", "2"), ("Worker_TP0", "Worker_TP1")),
        (DENSE, ("--data-parallel-size", "2"), ("EngineCore_DP0", "EngineCore_DP1")),
    ],
    ids=["tensor", "data"],
)
def test_two_ranks_in_one_host(
    config: dict[str, Any],
    words: tuple[str, ...],
    titles: tuple[str, ...],
    engine_python: Path,
    tmp_path: Path,
) -> None:
    model = made(config, tmp_path)
    with start_engine(
        launch(engine_python, model, *words), work_directory=tmp_path / "work"
    ) as engine:
        commands = [command_of(pid) for pid in engine.pids()]
        for title in titles:
            assert any(title in command for command in commands), commands
        assert tokens_of(engine) == 8
    report = engine.stop()
    assert report.clean, report.text


# Engines of a MoE know of each other, those of a dense model do not, and vLLM numbers
# them differently. It goes by the configuration's ``num_experts``, so the dense model
# with that key left in has a MoE's engines (as K3 has) and no tokens to exchange.
WITHOUT_EXPERTS: dict[str, Any] = {
    key: value for key, value in DENSE.items() if "expert" not in key
}


@pytest.mark.parametrize("config", [DENSE, WITHOUT_EXPERTS], ids=["moe-engines", "dense-engines"])
def test_memory_of_both_data_parallel_ranks_is_judged(
    config: dict[str, Any], engine_python: Path, tmp_path: Path
) -> None:
    """vLLM returns the first engine's answers alone; the second's reading comes all the
    same, and it is judged where it is the worst.
    """
    spec = TargetSpec.model_validate(
        {
            "schema_version": 1,
            "name": "two-engines",
            "description": "two data-parallel engines behind one server",
            "hardware": {"kind": "cpu", "hardware_class": "cpu", "device_count": 2},
            "model": {"directory": "models/tiny"},
            "parallelism": {"data": 2},
            "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"},
            "stage_deadlines": {"import_s": 180, "load_s": 180, "stop_s": 10},
            "workloads": ["chat"],
            "measurement": {"mode": "reference"},
            "provenance": {"kind": "experiment", "source": "test", "date": "2026-11-29"},
        }
    )
    measured = launch_of_cell(
        spec, made(config, tmp_path), engine_python, tmp_path, data_parallel_size=2
    )
    with start_target(spec, measured, work_directory=tmp_path / "work") as engine:
        probe = ServerProbe(engine.base_url, timeout_s=60, scratch=engine.scratch)
        assert [answer["rank"] for answer in probe.call("k3perf_memory")] == [
            0
        ]  # else this test shows nothing
        before = probe.rank_memory()
        assert [rank.rank for rank in before] == [0, 1]
        first, second = before
        # two processes told, not one twice
        assert first.resident_bytes != second.resident_bytes
        assert memory_note([before], 2).startswith(
            "memory of 2 ranks: equal in weights_bytes, kv_cache_bytes; worst "
        )

        probe.call("k3perf_hold_bytes", "weights", HELD_BYTES, 1)
        grown = probe.rank_memory()
        assert [rank.weights_bytes for rank in grown] == [
            first.weights_bytes,
            (second.weights_bytes or 0) + HELD_BYTES,
        ]
        assert worst_weights_bytes(grown) == (second.weights_bytes or 0) + HELD_BYTES
        assert rank_report(grown).spreads["weights_bytes"].worst_rank == 1
        print(memory_note([grown], 2))

        probe.call("k3perf_hold_bytes", "host", 8 * HELD_BYTES, 1)
        probe.call("k3perf_hold_bytes", "host", 0)
        assert peak_over_now_bytes(probe.rank_memory()[1]) > 7 * HELD_BYTES
        probe.reset_peaks()
        assert (
            peak_over_now_bytes(probe.rank_memory()[1]) < HELD_BYTES
        )  # the second engine's peak was restarted too

        assert probe.identity()["rank"] == 0
        assert tokens_of(engine) == 8
        scratch = engine.scratch
        assert list(scratch.glob("answers-*")) == []
    report = engine.stop()
    assert report.clean, report.text
    assert not scratch.exists()


HELD_BYTES = 8 << 20


def worst_weights_bytes(memory: tuple[RankMemory, ...]) -> float | None:
    identity = EngineIdentity("0.32.0", "3.12", "2.11", "cpu", (), None, "host")
    record = SessionRecord(
        "s", "t", "c", "w", "p", Arm.CANDIDATE, "2026-11-29T00:00:00Z", identity, {}, (), memory, ()
    )
    return session_values(record)["weights_bytes"].value


def peak_over_now_bytes(rank: RankMemory) -> int:
    return (rank.peak_resident_bytes or 0) - (rank.resident_bytes or 0)


def test_a_measured_multi_node_target_reports_every_rank(
    engine_python: Path, tmp_path: Path
) -> None:
    """The whole way of a cell: target, rendered launch with probe, group start, memory
    of both ranks over the server's route, clean end.
    """
    spec = TargetSpec.model_validate(
        {
            "schema_version": 1,
            "name": "two-hosts",
            "description": "two ranks started as two hosts",
            "hardware": {
                "kind": "cpu",
                "hardware_class": "cpu",
                "device_count": 2,
                "host_count": 2,
            },
            "model": {"directory": "models/tiny"},
            "parallelism": {"tensor": 2},
            "launch": {
                "kind": "multi_node",
                "options": {
                    "host_addresses": ["127.0.0.1", "127.0.0.1"],
                    "host_commands": [
                        ["env", "VLLM_CPU_OMP_THREADS_BIND=0"],
                        ["env", "VLLM_CPU_OMP_THREADS_BIND=1"],
                    ],
                },
            },
            "environment": {"VLLM_CPU_KVCACHE_SPACE": "1"},
            "stage_deadlines": {"import_s": 180, "load_s": 180, "stop_s": 10},
            "workloads": ["chat"],
            "measurement": {"mode": "reference"},
            "provenance": {"kind": "experiment", "source": "test", "date": "2026-11-29"},
        }
    )
    measured = launch_of_cell(
        spec, made(MODEL, tmp_path), engine_python, tmp_path, tensor_parallel_size=2
    )
    with start_target(spec, measured, work_directory=tmp_path / "work") as engine:
        probe = ServerProbe(engine.base_url, scratch=engine.scratch)
        memory = probe.rank_memory()
        assert sorted(rank.rank for rank in memory) == [0, 1]
        spread = rank_report(memory).spreads["weights_bytes"]
        assert (spread.rank_count, spread.spread_ratio) == (2, 0.0)
        assert probe.kv_capacity_tokens
    report = engine.stop()
    assert report.clean, report.text


IP = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or "ip"
NAMES = ("k3t-a", "k3t-b")
ADDRESSES = ("10.231.77.1", "10.231.77.2")
LINKS = ("k3ta0", "k3tb0")


def ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run([IP, *words], check=check, capture_output=True, text=True)


@pytest.fixture
def two_hosts() -> Iterator[None]:
    """Two network namespaces joined by one link and nothing else."""
    made = [ip("netns", "add", name, check=False) for name in NAMES]
    if any(done.returncode for done in made):
        for name in NAMES:
            ip("netns", "del", name, check=False)
        pytest.fail(
            f"network namespaces cannot be made here: {[done.stderr.strip() for done in made]}"
        )
    try:
        ip(
            "link",
            "add",
            LINKS[0],
            "netns",
            NAMES[0],
            "type",
            "veth",
            "peer",
            "name",
            LINKS[1],
            "netns",
            NAMES[1],
        )
        for name, address, link in zip(NAMES, ADDRESSES, LINKS, strict=True):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", name, "link", "set", link, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    finally:
        for name in NAMES:
            ip("netns", "del", name, check=False)


def test_two_hosts_survive_a_cut_link_and_end_with_a_killed_host(
    two_hosts: None, engine_python: Path, tmp_path: Path
) -> None:
    script = Path(__file__).with_name("two_hosts.py")
    words = [
        str(engine_python),
        made(MODEL, tmp_path),
        str(tmp_path / "work"),
        NAMES[1],
        *ADDRESSES,
        *LINKS,
    ]
    done = subprocess.run(
        [IP, "netns", "exec", NAMES[0], sys.executable, str(script), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=350,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(seen, indent=1))
    assert seen["flowing"]
    assert seen["before_cut"] < 600
    assert seen["late_in_cut"] == 0
    assert seen["longest_gap_s"] > 2  # the cut lasted 3 s
    assert seen["alive_in_cut"]
    assert (seen["after_heal"], seen["finished_after_heal"], seen["error_after_heal"]) == (
        600,
        True,
        "",
    )
    assert seen["alive_after_heal"]
    assert seen["flowing_again"]
    assert seen["noticed"]
    assert seen["noticed_s"] < 5
    assert seen["all_ended"]
    assert seen["stream_ended"]
    assert "rank 1" in seen["cause"]
    assert seen["tail_ranks"] == ["rank 0", "rank 1"]
    assert seen["clean"], seen["left"]
    assert all(ip("netns", "pids", name).stdout == "" for name in NAMES)
