"""The main job on processors that cannot run cpu-hybrid, as far as a cap makes one: the
target that it chooses there passes, again and again.

Needs a quiet machine, as the other runs of the main job do.
"""

import json
import os
import subprocess
import sys

import pytest

from k3perf.errors import ExitStatus

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(3600)]

CAPS = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "AVX-512 without BF16": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
}


@pytest.mark.parametrize("caps", CAPS.values(), ids=CAPS)
def test_three_runs_in_a_row_pass_on_the_default_target(repository, tmp_path, engine_python, caps):
    environment = {**os.environ, "K3PERF_ENGINE_PYTHON": str(engine_python), **caps}
    for number in range(3):
        results = tmp_path / f"out-{number}"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "perf_tests",
            "-p",
            "no:cacheprovider",
            "--k3-plain",
            "-k",
            "fp8_kv",
        ]
        done = subprocess.run(
            [*command, "--k3-results", str(results)],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1100,
            check=False,
        )
        assert done.returncode == ExitStatus.OK, done.stdout + done.stderr
        assert "k3perf: cpu-gqa instead of cpu-hybrid: " in done.stdout
        (cell,) = json.loads((results / "verdict.json").read_text())["cells"]
        judged = {metric["metric"]: metric["outcome"] for metric in cell["metrics"]}
        assert {judged["output_tokens_per_s"], judged["tpot_mean_ms"]} <= {
            "PASS",
            "IMPROVED",
            "INCONCLUSIVE",
        }
        assert (judged["kv_cache_bytes"], judged["kv_capacity_tokens"]) == ("PASS", "PASS")
