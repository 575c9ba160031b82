"""The stand-in for ordinary processors on vLLM's libraries for them: capped, with
vLLM's own choice forced, and under qemu with a Haswell.

What vLLM 0.32.0 does is written down here. Capped, it asks the processor all the same
and runs its AVX-512 attention kernels, so an FP8 KV cache is served. Without AVX-512 it
loads ``_C_AVX2`` and serves everything but an FP8 KV cache.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from k3perf.config.suite import load_suite
from k3perf.errors import EngineError
from tests.engine.live_engine import Live, StartLive

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1200)]

QEMU = shutil.which("qemu-x86_64-static") or shutil.which("qemu-x86_64")
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
WITHOUT_AVX512 = AVX2 | {"K3PERF_TEST_HIDDEN_CPU_FEATURES": "avx512,amx"}
WITHOUT_BF16 = AVX512 | {"K3PERF_TEST_HIDDEN_CPU_FEATURES": "avx512_bf16,avx512_fp16,amx"}

SHIM = '''
"""Hides instruction sets from what torch.cpu answers, in every process of an engine."""
import importlib.machinery
import os
import sys


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name != "torch.cpu":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            hidden = tuple(os.environ["K3PERF_TEST_HIDDEN_CPU_FEATURES"].split(","))
            seen = module.get_capabilities()
            module.get_capabilities = lambda: {name: value and not name.startswith(hidden) for name, value in seen.items()}

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("K3PERF_TEST_HIDDEN_CPU_FEATURES"):
    sys.meta_path.insert(0, Hide())
'''

On = Callable[..., Live]


@pytest.fixture
def on(start_live: StartLive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> On:
    """``on(environment, **arguments)``: a fresh engine of cpu-gqa in this environment."""
    (tmp_path / "sitecustomize.py").write_text(SHIM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def start(environment: dict[str, str], **arguments: object) -> Live:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        return start_live("cpu-gqa", again=True, **arguments)

    return start


def libraries(live: Live) -> set[str]:
    """Native libraries of vLLM that the engine's processes have loaded."""
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in live.engine.pids()]
    return {
        line.rpartition("/")[2] for text in maps for line in text.splitlines() if "/vllm/_C" in line
    }


def assert_serves(live: Live) -> None:
    for length in (7, 96, 700):  # in one block, and over block edges
        answer = live.complete([10 + index for index in range(length)], 8)
        assert answer["usage"]["completion_tokens"] == 8
    assert live.probe.rank_memory()[0].weights_bytes


@pytest.mark.parametrize("cache", ["fp8", "auto"])
@pytest.mark.parametrize("caps", [AVX2, AVX512], ids=["AVX2", "AVX-512 without BF16"])
def test_a_capped_engine_serves(on: On, caps: dict[str, str], cache: str) -> None:
    assert_serves(on(caps, kv_cache_dtype=cache))


@pytest.mark.parametrize("cache", ["fp8", "auto"])
def test_vllms_library_for_avx512_without_bf16_serves(on: On, cache: str) -> None:
    live = on(WITHOUT_BF16, kv_cache_dtype=cache)
    assert libraries(live) == {"_C_AVX512.abi3.so"}
    assert_serves(live)


@pytest.mark.parametrize("block_size", [None, 32])
def test_vllms_library_for_avx2_serves(on: On, block_size: int | None) -> None:
    live = on(
        WITHOUT_AVX512,
        kv_cache_dtype="auto",
        **({} if block_size is None else {"block_size": block_size}),
    )
    assert libraries(live) == {"_C_AVX2.abi3.so"}
    assert_serves(live)


def test_vllms_library_for_avx2_has_no_fp8_cache_and_the_suite_knows(
    on: On, repository: Path
) -> None:
    with pytest.raises(EngineError, match="FP8 KV cache on CPU requires x86 with AVX-512 or AMX"):
        on(WITHOUT_AVX512, kv_cache_dtype="fp8")
    suite = load_suite(repository / "perf_tests")
    refusal = suite.refusal_here(suite.target("cpu-gqa"), suite.config("fp8_kv"), {"avx2"})
    assert refusal is not None
    assert refusal.without_cpu_features == ("avx512f",)


@pytest.mark.skipif(QEMU is None, reason="no qemu-user")
def test_vllms_library_for_avx2_runs_on_a_haswell(engine_python: Path) -> None:
    """As far as it goes: torch and vLLM under qemu's AVX2 processor, the library that
    is chosen there, and one of its kernels.
    """
    program = (
        "import torch\nfrom vllm.platforms import"
        " current_platform\ncurrent_platform.import_kernels()\nprint(sorted({line.split('/')[-1].strip()"
        " for line in open('/proc/self/maps') if '/vllm/_C' in line}))\nx, out = torch.randn(4, 64,"
        " dtype=torch.bfloat16), torch.empty(4, 64,"
        " dtype=torch.bfloat16)\ntorch.ops._C.rms_norm(out, x, torch.ones(64,"
        " dtype=torch.bfloat16), 1e-6)\nprint(round(float(out.float().pow(2).mean()), 1))\n"
    )
    done = subprocess.run(
        [str(QEMU), "-cpu", "Haswell", str(engine_python), "-c", program],
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.stdout.splitlines()[-2:] == ["['_C_AVX2.abi3.so']", "1.0"], (
        done.stdout + done.stderr[-3000:]
    )
