"""The container's entry point, run as the program it is, with a stub of nvidia-smi; the host's launcher against a stub of GitHub."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SHA = "a" * 40

NVIDIA_SMI = """#!/bin/sh
[ -e "$FAKE_DEVICE/broken" ] && { echo "NVML: driver not loaded" >&2; exit 9; }
case "$1" in
    *compute-apps*) cat "$FAKE_DEVICE/processes" ;;
    *memory.used*) cat "$FAKE_DEVICE/memory" ;;
    *driver_version*) echo 580.95.05 ;;
esac
"""
# Stands for GitHub's runner: runs the job-started hook and then one job, as the configuration says.
RUN_SH = """#!/bin/sh
printf '%s\\n' "$ACTIONS_RUNNER_INPUT_JITCONFIG" >configuration
printf '%s\\n' "$VLLM_CACHE_ROOT" >cache
exec sh -c "$(cat job)"
"""


class Machine:
    """A runner's files in a folder, and the device's state as nvidia-smi would tell it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.image = root / "image"
        shutil.copytree(REPOSITORY / "docker" / "runner", self.image, ignore=shutil.ignore_patterns("__pycache__"))
        (self.image / "image-id").write_text("0123456789ab\n")
        self.runner = root / "runner"
        self.device = root / "device"
        for folder in (self.runner, self.device, root / "bin", root / "proc"):
            folder.mkdir()
        self.executable(root / "bin" / "nvidia-smi", NVIDIA_SMI)
        self.executable(self.runner / "run.sh", RUN_SH)
        self.clean()
        self.job("true")
        self.environment = {
            **os.environ,
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "FAKE_DEVICE": str(self.device),
            "K3PERF_STATE": str(root / "state"),
            "K3PERF_COMPILE_CACHE": str(root / "cache"),
            "K3PERF_START_WAIT_S": "0",
            "K3PERF_END_WAIT_S": "0",
            "K3PERF_PROC": str(root / "proc"),
            "K3PERF_END_LEFTOVERS": "0",  # this is no container: other processes of this user are not ours to end
        }

    @staticmethod
    def executable(path: Path, text: str) -> None:
        path.write_text(text)
        path.chmod(0o755)

    def clean(self) -> None:
        (self.device / "memory").write_text("0, 4\n1, 512\n")
        (self.device / "processes").write_text("")

    def job(self, script: str) -> None:
        (self.runner / "job").write_text(script)

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.image / "runner_entry.py")]

    def run(self, command: str = "run", given: str = "configuration-1\n", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, command],
            cwd=self.runner,
            env={**self.environment, **environment},
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_one_job_on_a_clean_device(machine: Machine) -> None:
    done = machine.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "k3perf-runner: ready"
    assert (machine.runner / "configuration").read_text() == "configuration-1\n"
    assert (machine.runner / "cache").read_text().strip() == str(machine.root / "cache" / "0123456789ab-580.95.05" / "vllm")
    assert not (machine.root / "state").exists()


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("memory", "0, 4\n1, 2048\n", "device 1: 2048 MiB in use, 1024 allowed when idle"),
        ("memory", "0, [N/A]\n", "device 0: memory in use cannot be read"),
        ("memory", "", "nvidia-smi names no device"),
        ("processes", "4711, python3, 9000\n", "process on the device: 4711, python3, 9000"),
        ("broken", "", "the device cannot be read"),
    ],
)
def test_a_dirty_or_unreadable_device_takes_no_job(machine: Machine, file: str, content: str, told: str) -> None:
    (machine.device / file).write_text(content)
    done = machine.run()
    assert done.returncode == 20
    assert told in done.stdout
    assert "ready" not in done.stdout
    assert not (machine.runner / "configuration").exists()


def test_a_job_that_leaves_the_device_dirty_takes_the_host_out_of_service(machine: Machine) -> None:
    machine.job('echo "4711, python3, 9000" >"$FAKE_DEVICE/processes"')
    done = machine.run()
    assert done.returncode == 21
    assert "take this host out of service" in done.stdout


def test_memory_that_comes_back_late_is_waited_for(machine: Machine) -> None:
    machine.job('echo "0, 9000" >"$FAKE_DEVICE/memory"; (sleep 1.5; echo "0, 4" >"$FAKE_DEVICE/memory") &')
    assert machine.run(K3PERF_END_WAIT_S="20").returncode == 0


def test_a_failing_runner_and_a_missing_configuration_are_told_apart(machine: Machine) -> None:
    assert machine.run(given="\n").returncode == 22
    machine.job("exit 3")
    assert machine.run().returncode == 23


def test_a_configuration_from_the_environment_is_used_as_kubernetes_gives_it(machine: Machine) -> None:
    done = machine.run(given="", ACTIONS_RUNNER_INPUT_JITCONFIG="from-arc")
    assert done.returncode == 0
    assert (machine.runner / "configuration").read_text() == "from-arc\n"


def test_the_cpu_device_needs_no_nvidia_smi(machine: Machine) -> None:
    (machine.device / "broken").touch()
    assert machine.run(K3PERF_DEVICE="cpu").returncode == 0


def test_a_left_over_engine_is_found(machine: Machine) -> None:
    engine = subprocess.Popen(["/bin/sh", "-c", "read line # VLLM::EngineCore"], stdin=subprocess.PIPE)
    (machine.root / "proc" / str(engine.pid)).symlink_to(f"/proc/{engine.pid}")
    (machine.root / "proc" / "1").symlink_to("/proc/1")
    try:
        done = machine.run()
    finally:
        engine.kill()
        engine.communicate()
    assert done.returncode == 20
    assert f"engine process left over: {engine.pid}" in done.stdout
    assert machine.run().returncode == 0, "an ended one is none"


def test_termination_reaches_the_runner(machine: Machine) -> None:
    machine.job("trap 'echo stopped >stopped; exit 0' TERM; echo up >up; while :; do sleep 0.1; done")
    process = subprocess.Popen([*machine.command, "run"], cwd=machine.runner, env=machine.environment, stdin=subprocess.PIPE, text=True)
    assert process.stdin is not None
    process.stdin.write("c\n")
    process.stdin.close()
    for _ in range(600):
        if (machine.runner / "up").exists():
            break
        threading.Event().wait(0.05)
    assert machine.run("health").returncode == 0
    process.terminate()
    assert process.wait(timeout=20) in {0, 23}
    assert (machine.runner / "stopped").exists()


def test_health_fails_when_the_runner_is_gone(machine: Machine) -> None:
    assert machine.run("health").returncode == 0
    (machine.root / "state").write_text("999999999")
    assert machine.run("health").returncode == 1


def test_unknown_commands_are_refused(machine: Machine) -> None:
    assert machine.run("dance").returncode == 2


def pull_request(origin: str | None, *labels: str) -> dict[str, Any]:
    head = {"sha": SHA, "repo": {"full_name": origin} if origin else None}
    return {"pull_request": {"head": head, "labels": [{"name": name} for name in labels]}}


@pytest.mark.parametrize(
    ("event_name", "event", "allowed"),
    [
        ("pull_request", pull_request("team/suite"), True),
        ("pull_request", pull_request("stranger/suite"), False),
        ("pull_request", pull_request("stranger/suite", "gpu-ok-" + SHA), True),
        ("pull_request", pull_request("stranger/suite", "gpu-ok-" + "b" * 40, "gpu-ok-"), False),
        ("pull_request", pull_request(None), False),
        ("pull_request", pull_request(None, "gpu-ok-" + SHA), True),
        ("pull_request", {}, False),
        ("pull_request", {"pull_request": {"head": {"sha": SHA}, "labels": None}}, False),
        ("pull_request_target", pull_request("team/suite"), False),
        ("issue_comment", {}, False),
        ("workflow_run", {}, False),
        ("", {}, False),
        ("schedule", {}, True),
        ("workflow_dispatch", {}, True),
    ],
)
def test_the_guard_lets_only_our_own_and_labelled_commits_run(
    machine: Machine, event_name: str, event: dict[str, Any], allowed: bool
) -> None:
    path = machine.root / "event.json"
    path.write_text(json.dumps(event))
    done = machine.run("guard", GITHUB_EVENT_NAME=event_name, GITHUB_EVENT_PATH=str(path), GITHUB_REPOSITORY="team/suite")
    assert (done.returncode == 0) is allowed, done.stdout
    assert allowed or "refused" in done.stdout


def test_the_guard_refuses_an_unreadable_event_and_a_dirty_device(machine: Machine) -> None:
    known = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_REPOSITORY": "team/suite"}
    assert machine.run("guard", GITHUB_EVENT_PATH=str(machine.root / "none"), **known).returncode == 1
    (machine.device / "processes").write_text("4711, python3, 9000\n")
    assert machine.run("guard", GITHUB_EVENT_NAME="schedule").returncode == 1


class Stub(BaseHTTPRequestHandler):
    """GitHub's generate-jitconfig."""

    requests: list[dict[str, Any]]
    status = 201

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append({"path": self.path, "token": self.headers["Authorization"], **body})
        answer = json.dumps({"encoded_jit_config": f"jit-{len(self.requests)}"}).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *arguments: object) -> None:
        return


@pytest.fixture
def github() -> Iterator[tuple[str, type[Stub]]]:
    handler = type("FreshStub", (Stub,), {"requests": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler
    server.shutdown()
    thread.join()
    server.server_close()


def launch(machine: Machine, api: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    token = machine.root / "token"
    token.write_text("the-hosts-token\n")
    settings = {
        "K3PERF_REPOSITORY": "team/suite",
        "K3PERF_TOKEN_FILE": str(token),
        "K3PERF_LABELS": "gpu,h200,pool-a",
        "K3PERF_CONTAINER_COMMAND": f"env -C {machine.runner} {shlex.join(machine.command)} run",
        "GITHUB_API_URL": api,
    }
    command = [sys.executable, str(REPOSITORY / "docker" / "host" / "launch.py"), *arguments]
    return subprocess.run(
        command, env={**machine.environment, **settings, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_launcher_registers_one_runner_for_one_job(machine: Machine, github: tuple[str, type[Stub]]) -> None:
    api, stub = github
    done = launch(machine, api, "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    (request,) = stub.requests
    assert request["path"] == "/repos/team/suite/actions/runners/generate-jitconfig"
    assert request["labels"] == ["self-hosted", "gpu", "h200", "pool-a"]
    assert request["token"] == "Bearer the-hosts-token"  # noqa: S105
    assert (machine.runner / "configuration").read_text() == "jit-1\n"
    assert "the-hosts-token" not in done.stdout


def test_nothing_registers_for_a_dirty_device(machine: Machine, github: tuple[str, type[Stub]]) -> None:
    api, stub = github
    (machine.device / "processes").write_text("4711, python3, 9000\n")
    assert launch(machine, api).returncode == 20
    assert stub.requests == []


def test_the_launcher_goes_on_until_a_device_stays_dirty(machine: Machine, github: tuple[str, type[Stub]]) -> None:
    api, stub = github
    machine.job('echo x >>count; [ "$(wc -l <count)" -lt 3 ] || echo "4711, python3, 9000" >"$FAKE_DEVICE/processes"')
    assert launch(machine, api).returncode == 21
    assert len(stub.requests) == 3


def test_a_failing_github_is_told_apart(machine: Machine, github: tuple[str, type[Stub]]) -> None:
    api, stub = github
    stub.status = 403
    done = launch(machine, api, "--once")
    assert done.returncode == 24
    assert "403" in done.stdout
    assert launch(machine, "http://example.invalid", "--once").returncode == 24


def test_draining_lets_the_job_end_and_starts_nothing_new(machine: Machine, github: tuple[str, type[Stub]]) -> None:
    api, stub = github
    machine.job('kill -TERM "$(cat launcher)"; sleep 0.5; echo done >finished')
    wrapper = f"echo $$ >{machine.runner}/launcher; exec {shlex.join([sys.executable, str(REPOSITORY / 'docker' / 'host' / 'launch.py')])}"
    token = machine.root / "token"
    token.write_text("t")
    done = subprocess.run(
        ["/bin/sh", "-c", wrapper],
        env={
            **machine.environment,
            "K3PERF_REPOSITORY": "team/suite",
            "K3PERF_TOKEN_FILE": str(token),
            "K3PERF_CONTAINER_COMMAND": f"env -C {machine.runner} {shlex.join(machine.command)} run",
            "GITHUB_API_URL": api,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (machine.runner / "finished").exists()
    assert len(stub.requests) == 1
