"""The container's entry point, run as the program it is, with a stub of nvidia-smi; the
host's launcher against a stub of GitHub.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.processes import PATIENCE_S, WAIT_S

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
# GitHub's run.sh and run-helper.sh in one: whatever the listener ends with, the status
# is 0, but for 7 where it is asked for. Statuses after which the real one starts the
# listener again (2, 3, 4) are not played here: it never ends then.
RUN_SH = """#!/bin/sh
printf '%s\\n' "$ACTIONS_RUNNER_INPUT_JITCONFIG" >configuration
printf '%s\\n' "$VLLM_CACHE_ROOT" >cache
sh listener
status=$?
case $status in
    0) echo "Runner listener exit with 0 return code, stop the service, no retry needed." ;;
    1) echo "Runner listener exit with terminated error, stop the service, no retry needed." ;;
    5) echo "Runner listener exit with Session Conflict error, stop the service, no retry needed." ;;
    7)
        if [ "$OLD_RUN_SH" != 1 ] && [ "$ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE" = 1 ]; then
            echo "Runner listener exit with deprecated version exit code: 7."
            exit 7
        fi
        echo "Exiting with unknown error code: 7" ;;
    *) echo "Exiting with unknown error code: $status" ;;
esac
echo "Exiting runner..."
exit 0
"""
# The listener takes one job. The hook is the first step of the job's own list
# (actions/runner at 258d6c8, src/Runner.Worker/JobExtension.cs line 305): a failed hook
# skips steps with the default condition, and one with `if: always()` still runs
# (src/Runner.Worker/StepsRunner.cs). The listener ends with 0 in each case.
LISTENER = """export GITHUB_EVENT_NAME=${FAKE_EVENT_NAME:-schedule}
if "$ACTIONS_RUNNER_HOOK_JOB_STARTED"; then sh ./job; echo "Job completed with status $?"; else echo "Job failed in its hook"; fi
echo reached >always-step
exit 0
"""


class Machine:
    """A runner's files in a folder, and the device's state as nvidia-smi would tell it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.image = root / "image"
        shutil.copytree(
            REPOSITORY / "docker" / "runner",
            self.image,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
        (self.image / "image-id").write_text("0123456789ab\n")
        self.runner = root / "runner"
        self.device = root / "device"
        for folder in (self.runner, self.device, root / "bin", root / "proc"):
            folder.mkdir()
        self.executable(root / "bin" / "nvidia-smi", NVIDIA_SMI)
        self.executable(self.runner / "run.sh", RUN_SH)
        self.clean()
        self.job("true")
        self.listener(LISTENER)
        self.environment = {
            **os.environ,
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "FAKE_DEVICE": str(self.device),
            "K3PERF_STATE": str(root / "state"),
            "K3PERF_COMPILE_CACHE": str(root / "cache"),
            "K3PERF_START_WAIT_S": "0",
            "K3PERF_END_WAIT_S": "0",
            "K3PERF_PROC": str(root / "proc"),
            # this is no container: other processes of this user are not ours to end
            "K3PERF_END_LEFTOVERS": "0",
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

    def listener(self, script: str) -> None:
        (self.runner / "listener").write_text(script)

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(self.image / "runner_entry.py")]

    def run(
        self, command: str = "run", given: str = "configuration-1\n", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, command],
            cwd=self.runner,
            env={**self.environment, **environment},
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
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
    assert (machine.runner / "cache").read_text().strip() == str(
        machine.root / "cache" / "0123456789ab-580.95.05" / "vllm"
    )
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
def test_a_dirty_or_unreadable_device_takes_no_job(
    machine: Machine, file: str, content: str, told: str
) -> None:
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
    machine.job(
        'echo "0, 9000" >"$FAKE_DEVICE/memory"; (sleep 1.5; echo "0, 4" >"$FAKE_DEVICE/memory") &'
    )
    assert machine.run(K3PERF_END_WAIT_S=str(WAIT_S)).returncode == 0


def test_a_missing_configuration_is_its_own_status(machine: Machine) -> None:
    assert machine.run(given="\n").returncode == 22


@pytest.mark.parametrize("status", [0, 1, 77])
def test_a_job_was_taken_whatever_it_ended_with(machine: Machine, status: int) -> None:
    machine.job(f"exit {status}")
    done = machine.run()
    assert done.returncode == 0, done.stdout
    assert f"Job completed with status {status}" in done.stdout, "the runner's output is passed on"
    assert "k3perf-runner: a job was taken" in done.stdout.splitlines()


def test_no_step_of_a_refused_job_runs_not_even_one_that_always_does(machine: Machine) -> None:
    """With a guard that returned its refusal, `if: always()` reached the GPU."""
    done = machine.run(FAKE_EVENT_NAME="issue_comment")
    assert done.returncode == 25, done.stdout
    assert "the job was refused, the runner was ended" in done.stdout
    assert "event 'issue_comment' is none of" in done.stdout
    assert not (machine.runner / "always-step").exists()
    assert machine.run().returncode == 0
    assert (machine.runner / "always-step").exists(), "the stub plays the step that always runs"


def test_a_refusing_guard_ends_the_runner_itself_where_the_entry_point_is_gone(
    machine: Machine,
) -> None:
    machine.listener(LISTENER)
    done = subprocess.run(
        ["setsid", "sh", "listener"],
        cwd=machine.runner,
        env={
            **machine.environment,
            "FAKE_EVENT_NAME": "issue_comment",
            "K3PERF_GUARD_PATIENCE_S": "0.2",
            "ACTIONS_RUNNER_HOOK_JOB_STARTED": str(machine.image / "job-started.sh"),
        },
        check=False,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == -signal.SIGKILL
    assert not (machine.runner / "always-step").exists()


def test_a_read_only_cache_is_copied_and_stays_as_it_was(machine: Machine) -> None:
    cache = machine.root / "cache"
    kept = cache / "0123456789ab-580.95.05" / "vllm"
    kept.mkdir(parents=True)
    (kept / "kernel").write_text("of main")
    machine.job('cat "$VLLM_CACHE_ROOT/kernel" >seen; echo mine >"$VLLM_CACHE_ROOT/left"')
    private = machine.root / "private"
    blocked = machine.root / "unwritable.py"
    blocked.write_text(
        "import os, runpy, sys\n"
        "real = os.access\n"
        f"os.access = lambda path, mode: str(path) != {str(cache)!r} and real(path, mode)\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, str(blocked), str(machine.image / "runner_entry.py"), "run"],
        cwd=machine.runner, input="c\n", capture_output=True, text=True, check=False,
        env={**machine.environment, "K3PERF_PRIVATE_CACHE": str(private)}, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (machine.runner / "seen").read_text() == "of main"
    assert sorted(path.name for path in kept.iterdir()) == ["kernel"]


def test_caches_that_no_job_used_for_weeks_are_removed(machine: Machine) -> None:
    old, recent = (machine.root / "cache" / name for name in ("old-570", "recent-575"))
    for folder in (old, recent):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    assert machine.run().returncode == 0
    assert not old.exists()
    assert recent.exists()


def test_a_drain_ends_a_runner_without_a_job_and_waits_for_one_with_a_job(
    machine: Machine,
) -> None:
    for script, taken in ((WAITS, False), ("sleep 0.4; echo done >finished", True)):
        (machine.listener if not taken else machine.job)(script)
        if taken:
            machine.listener(LISTENER)
        done = machine.run(given="c\ndrain\n") if not taken else late_drain(machine)
        assert done.returncode == 0, done.stdout
        assert ("draining before a job was taken" in done.stdout) is not taken
    assert (machine.runner / "finished").exists()


def late_drain(machine: Machine) -> subprocess.CompletedProcess[str]:
    """``drain`` comes once the job runs."""
    machine.job("echo up >up; sleep 0.6; echo done >finished")
    process = subprocess.Popen(
        [*machine.command, "run"], cwd=machine.runner, env=machine.environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write("c\n")
    process.stdin.flush()
    for _ in range(20 * WAIT_S):
        if (machine.runner / "up").exists() and (machine.root / "job-taken").exists():
            break
        threading.Event().wait(0.05)
    said, _ = process.communicate("drain\n", timeout=PATIENCE_S)
    return subprocess.CompletedProcess([], process.returncode, said)


# (listener, what the report must say; each ends run.sh with 0, and no job was taken)
WITHOUT_A_JOB = {
    "listener_1": (
        "echo 'Runner not found: r1'; exit 1",
        ["Runner not found: r1", "exit with terminated error", "GitHub refused"],
    ),
    "listener_5": (
        "exit 5",
        ["exit with Session Conflict error", "another runner holds the session"],
    ),
    "listener_7": (
        "echo 'version is deprecated and cannot receive messages.'; exit 7",
        ["too old", "docs/runner.md, Versions", "is deprecated"],
    ),
    "listener_7_silent": ("exit 7", ["too old", "docs/runner.md, Versions"]),
    "listener_0_without_a_job": ("exit 0", ["exit with 0 return code", "the cause is not known"]),
    "listener_unknown": (
        "echo 'Unhandled exception'; exit 139",
        ["Unhandled exception", "unknown error code: 139"],
    ),
    "listener_killed": ("kill -KILL $$", ["unknown error code: 137"]),
    "listener_missing": ("exec ./bin/Runner.Listener", ["not found", "unknown error code: 127"]),
}


@pytest.mark.parametrize(
    ("name", "old_run_sh"),
    [*((name, "0") for name in WITHOUT_A_JOB), ("listener_7", "1"), ("listener_7_silent", "1")],
)
def test_a_runner_that_takes_no_job_has_failed(
    machine: Machine, name: str, old_run_sh: str
) -> None:
    listener, words = WITHOUT_A_JOB[name]
    machine.listener(listener)
    done = machine.run(OLD_RUN_SH=old_run_sh)
    assert done.returncode == 23, done.stdout
    report = done.stdout[
        done.stdout.index("k3perf-runner: the runner ended without taking a job") :
    ]
    for word in words:
        assert word in report
    assert "k3perf-runner: a job was taken" not in done.stdout


def test_a_mark_of_an_earlier_job_proves_nothing(machine: Machine) -> None:
    assert machine.run().returncode == 0
    assert (machine.root / "job-taken").exists()
    machine.listener("exit 1")
    assert machine.run().returncode == 23


def test_a_failure_after_the_job_is_told_apart(machine: Machine) -> None:
    machine.executable(machine.runner / "run.sh", RUN_SH.replace("exit 0\n", "exit 4\n"))
    done = machine.run()
    assert done.returncode == 23
    assert "the runner failed after it took a job (run.sh ended with status 4)" in done.stdout


def test_a_dirty_device_counts_more_than_a_missing_job(machine: Machine) -> None:
    machine.listener('echo "4711, python3, 9000" >"$FAKE_DEVICE/processes"; exit 1')
    assert machine.run().returncode == 21


def test_only_the_last_lines_are_repeated_and_long_ones_are_cut(machine: Machine) -> None:
    machine.listener(
        "i=0; while [ $i -lt 100 ]; do echo \"line $i\"; i=$((i+1)); done; printf '%01000d\\n' 7;"
        " exit 1"
    )
    report = machine.run().stdout.partition("the runner ended without taking a job")[2].splitlines()
    assert "k3perf-runner:   line 99" in report
    assert "k3perf-runner:   line 50" not in report
    assert max(len(line) for line in report) < 500


def test_a_process_that_outlives_the_runner_does_not_hold_the_entry_point(machine: Machine) -> None:
    """It keeps run.sh's output open; K3PERF_END_LEFTOVERS is off here, so it is not
    ended either.
    """
    machine.job("sleep 600 & echo $! >left")
    try:
        assert machine.run().returncode == 0
        os.kill(
            int((machine.runner / "left").read_text()), 0
        )  # it outlived the entry point, which did not wait for it
    finally:
        os.kill(int((machine.runner / "left").read_text()), signal.SIGKILL)


def test_a_configuration_from_the_environment_is_used_as_kubernetes_gives_it(
    machine: Machine,
) -> None:
    done = machine.run(given="", ACTIONS_RUNNER_INPUT_JITCONFIG="from-arc")
    assert done.returncode == 0
    assert (machine.runner / "configuration").read_text() == "from-arc\n"


def test_the_cpu_device_needs_no_nvidia_smi(machine: Machine) -> None:
    (machine.device / "broken").touch()
    assert machine.run(K3PERF_DEVICE="cpu").returncode == 0


def test_a_left_over_engine_is_found(machine: Machine) -> None:
    engine = subprocess.Popen(
        ["/bin/sh", "-c", "read line # VLLM::EngineCore"], stdin=subprocess.PIPE
    )
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


def start(machine: Machine) -> subprocess.Popen[str]:
    """The entry point with a configuration; waits until the listener or the job says
    that it is up.
    """
    process = subprocess.Popen(
        [*machine.command, "run"],
        cwd=machine.runner,
        env=machine.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write("c\n")
    process.stdin.close()
    process.stdin = None
    for _ in range(20 * WAIT_S):
        if (machine.runner / "up").exists():
            return process
        assert process.poll() is None
        threading.Event().wait(0.05)
    pytest.fail("the runner did not start in time")


WAITS = "trap 'echo stopped >stopped; exit 0' TERM; echo up >up; while :; do sleep 0.1; done"


def test_termination_reaches_the_job(machine: Machine) -> None:
    machine.job(WAITS)
    process = start(machine)
    assert machine.run("health").returncode == 0
    process.terminate()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in {0, 23}  # run.sh itself is in the signalled group too
    assert (machine.runner / "stopped").exists()
    assert "k3perf-runner: a job was taken" in said


def test_a_stop_before_a_job_is_not_a_failure(machine: Machine) -> None:
    machine.listener(WAITS)
    process = start(machine)
    process.terminate()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert "stopped before a job was taken" in said
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
    done = guarded(
        machine,
        GITHUB_EVENT_NAME=event_name,
        GITHUB_EVENT_PATH=str(path),
        GITHUB_REPOSITORY="team/suite",
    )
    assert (done.returncode == 0) is allowed, done.stdout
    assert allowed or "refused" in done.stdout


def guarded(machine: Machine, **environment: str) -> subprocess.CompletedProcess[str]:
    """The hook alone, in a session of its own: a refusal ends its process group."""
    return subprocess.run(
        ["setsid", "--wait", *machine.command, "guard"],
        cwd=machine.runner,
        env={**machine.environment, "K3PERF_GUARD_PATIENCE_S": "0", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_guard_refuses_an_unreadable_event_and_a_dirty_device(machine: Machine) -> None:
    known = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_REPOSITORY": "team/suite"}
    assert guarded(machine, GITHUB_EVENT_PATH=str(machine.root / "none"), **known).returncode != 0
    (machine.device / "processes").write_text("4711, python3, 9000\n")
    assert guarded(machine, GITHUB_EVENT_NAME="schedule").returncode != 0


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


def launch(
    machine: Machine, api: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    token = machine.root / "token"
    token.write_text("the-hosts-token\n")
    settings = {
        "K3PERF_REPOSITORY": "team/suite",
        "K3PERF_TOKEN_FILE": str(token),
        "K3PERF_LABELS": "gpu,h200,pool-a",
        "K3PERF_CONTAINER_COMMAND": f"env -C {machine.runner} {shlex.join(machine.command)} run",
        "GITHUB_API_URL": api,
        "K3PERF_FIRST_PAUSE_S": "0.02",
    }
    command = [sys.executable, str(REPOSITORY / "docker" / "host" / "launch.py"), *arguments]
    return subprocess.run(
        command,
        env={**machine.environment, **settings, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def test_the_launcher_registers_one_runner_for_one_job(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    api, stub = github
    done = launch(machine, api, "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    (request,) = stub.requests
    assert request["path"] == "/repos/team/suite/actions/runners/generate-jitconfig"
    assert request["labels"] == ["self-hosted", "gpu", "h200", "pool-a"]
    assert request["token"] == "Bearer the-hosts-token"  # noqa: S105
    assert (machine.runner / "configuration").read_text() == "jit-1\n"
    assert "the-hosts-token" not in done.stdout


def test_nothing_registers_for_a_dirty_device(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    api, stub = github
    (machine.device / "processes").write_text("4711, python3, 9000\n")
    assert launch(machine, api).returncode == 20
    assert stub.requests == []


def test_the_launcher_goes_on_until_a_device_stays_dirty(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    api, stub = github
    machine.job(
        'echo x >>count; [ "$(wc -l <count)" -lt 3 ] || echo "4711, python3, 9000"'
        ' >"$FAKE_DEVICE/processes"'
    )
    assert launch(machine, api).returncode == 21
    assert len(stub.requests) == 3


@pytest.mark.parametrize("name", ["listener_1", "listener_5", "listener_7", "listener_unknown"])
def test_the_launcher_ends_when_a_runner_takes_no_job(
    machine: Machine, github: tuple[str, type[Stub]], name: str
) -> None:
    api, stub = github
    machine.listener(WITHOUT_A_JOB[name][0])
    done = launch(machine, api)  # without --once: it ends by itself
    assert done.returncode == 23
    assert 1 <= len(stub.requests) <= 3
    assert "the runner ended without taking a job" in done.stdout


def test_an_image_that_does_not_report_its_job_does_not_keep_the_launcher_going(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    """The status 0 of an older entry point proves nothing either."""
    api, stub = github
    old = "echo k3perf-runner: ready; read -r configuration; exit 0"
    done = launch(machine, api, K3PERF_CONTAINER_COMMAND=f"sh -c {shlex.quote(old)}")
    assert done.returncode == 23
    assert len(stub.requests) == 1
    assert "ended without a job" in done.stdout


def test_refused_jobs_are_jobs_to_the_launcher(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    api, stub = github
    machine.listener(f'echo x >>count; [ "$(wc -l <count)" -lt 5 ] || exit 1\n{LISTENER}')
    assert launch(machine, api, FAKE_EVENT_NAME="issue_comment").returncode == 23
    assert len(stub.requests) == 5, (
        "four refused jobs, one after the other, then a runner without a job"
    )


def test_refused_jobs_slow_the_registrations_down_and_the_log_says_so(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    """123 registrations in 12 s were seen without a pause."""
    api, _ = github
    machine.listener(f'echo x >>count; [ "$(wc -l <count)" -lt 4 ] || exit 1\n{LISTENER}')
    done = launch(machine, api, FAKE_EVENT_NAME="issue_comment", K3PERF_FIRST_PAUSE_S="0.1")
    pauses = [line for line in done.stdout.splitlines() if "registers in" in line]
    assert [line.rsplit("in ", 1)[1] for line in pauses] == ["0.1 s", "0.2 s", "0.4 s"]
    assert all("was refused" in line for line in pauses)


def test_an_idle_runner_drains_at_once(machine: Machine, github: tuple[str, type[Stub]]) -> None:
    api, stub = github
    machine.listener(WAITS)
    token = machine.root / "token"
    token.write_text("t")
    process = subprocess.Popen(
        [sys.executable, str(REPOSITORY / "docker" / "host" / "launch.py")],
        env={
            **machine.environment,
            "K3PERF_REPOSITORY": "team/suite",
            "K3PERF_TOKEN_FILE": str(token),
            "K3PERF_CONTAINER_COMMAND": (
                f"env -C {machine.runner} {shlex.join(machine.command)} run"
            ),
            "GITHUB_API_URL": api,
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    for _ in range(20 * WAIT_S):
        if (machine.runner / "up").exists():
            break
        threading.Event().wait(0.05)
    process.terminate()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert "draining before a job was taken" in said
    assert len(stub.requests) == 1


def test_a_runner_of_an_organisation_registers_there(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    api, stub = github
    done = launch(machine, api, "--once", K3PERF_ORGANIZATION="team", K3PERF_RUNNER_GROUP="7")
    assert done.returncode == 0, done.stdout
    assert stub.requests[0]["path"] == "/orgs/team/actions/runners/generate-jitconfig"
    assert stub.requests[0]["runner_group_id"] == 7


def test_a_failing_github_is_told_apart(machine: Machine, github: tuple[str, type[Stub]]) -> None:
    api, stub = github
    stub.status = 403
    done = launch(machine, api, "--once")
    assert done.returncode == 24
    assert "403" in done.stdout
    assert launch(machine, "http://example.invalid", "--once").returncode == 24


def test_draining_lets_the_job_end_and_starts_nothing_new(
    machine: Machine, github: tuple[str, type[Stub]]
) -> None:
    api, stub = github
    machine.job('kill -TERM "$(cat launcher)"; sleep 0.5; echo done >finished')
    wrapper = (
        f"echo $$ >{machine.runner}/launcher; exec"
        f" {shlex.join([sys.executable, str(REPOSITORY / 'docker' / 'host' / 'launch.py')])}"
    )
    token = machine.root / "token"
    token.write_text("t")
    done = subprocess.run(
        ["/bin/sh", "-c", wrapper],
        env={
            **machine.environment,
            "K3PERF_REPOSITORY": "team/suite",
            "K3PERF_TOKEN_FILE": str(token),
            "K3PERF_CONTAINER_COMMAND": (
                f"env -C {machine.runner} {shlex.join(machine.command)} run"
            ),
            "GITHUB_API_URL": api,
            "K3PERF_FIRST_PAUSE_S": "0.02",
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (machine.runner / "finished").exists()
    assert len(stub.requests) == 1


@pytest.fixture
def docker(machine: Machine) -> Path:
    """A ``docker`` that notes its arguments, K3PERF_GPU and override, then runs the entry
    point.
    """
    notes = machine.root / "docker-calls"
    script = (
        f'#!/bin/sh\necho "$K3PERF_GPU $*" >>{notes}\n'
        f'for part; do case "$part" in *gpus.json) cat "$part" >{notes}.override ;; esac; done\n'
        f"cd {machine.runner} && exec {shlex.join(machine.command)} run\n"
    )
    machine.executable(machine.root / "bin" / "docker", script)
    return notes


def launch_gpus(
    machine: Machine, api: str, gpus: str, *arguments: str
) -> subprocess.CompletedProcess[str]:
    """As production starts it: no container command, locks in a folder."""
    locks = str(machine.root / "locks")
    environment = {"K3PERF_CONTAINER_COMMAND": "", "K3PERF_LOCK_FOLDER": locks, "K3PERF_GPU": gpus}
    return launch(machine, api, *arguments, **environment)


def test_a_runner_of_two_gpus_gets_both_and_no_other(
    machine: Machine, github: tuple[str, type[Stub]], docker: Path
) -> None:
    api, stub = github
    done = launch_gpus(machine, api, "2,5", "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(stub.requests) == 1
    first, *command = docker.read_text().split()
    assert first == "2", "compose.yaml names the first device by it"
    assert command[:4] == ["compose", "-f", "compose.yaml", "-f"]
    assert command[5:] == ["run", "--rm", "-T", "gpu-runner"]
    override = json.loads(Path(f"{docker}.override").read_text())
    assert override == {"services": {"gpu-runner": {"devices": ["nvidia.com/gpu=5"]}}}
    assert not Path(command[4]).exists(), "the override is removed"


@pytest.mark.parametrize("gpus", ["0", "all", "MIG-4f3a8c1e"])
def test_one_device_needs_no_override(
    machine: Machine, github: tuple[str, type[Stub]], docker: Path, gpus: str
) -> None:
    assert launch_gpus(machine, github[0], gpus, "--once").returncode == 0
    assert docker.read_text() == f"{gpus} compose run --rm -T gpu-runner\n"


@pytest.mark.parametrize(
    ("held", "wanted", "told"),
    [
        ("0,1", "1,2", "another runner of this host has GPU 1"),
        ("3", "all", "another runner of this host has a GPU of this host"),
        ("all", "0", "another runner of this host has all GPUs"),
        ("0,1", "2,3", ""),
    ],
)
def test_two_runners_of_a_host_share_no_gpu(
    machine: Machine,
    github: tuple[str, type[Stub]],
    docker: Path,
    held: str,
    wanted: str,
    told: str,
) -> None:
    api, stub = github
    locks = machine.root / "locks"
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); import gpus;"
        " held = gpus.hold(gpus.names(sys.argv[2]), Path(sys.argv[3])); print('held', flush=True);"
        " sys.stdin.read()"
    )
    host = str(REPOSITORY / "docker" / "host")
    other = subprocess.Popen(
        [sys.executable, "-c", script, host, held, str(locks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    machine.job("true")
    try:
        done = launch_gpus(machine, api, wanted, "--once")
    finally:
        other.communicate("")
    assert done.returncode == (26 if told else 0), done.stdout
    assert told in done.stdout
    assert len(stub.requests) == (0 if told else 1), "nothing registers for a GPU that is taken"


@pytest.mark.parametrize("gpus", ["0,0", "0,all", "1:0", "0,,1", "-f"])
def test_a_gpu_that_cannot_be_meant_is_refused(
    machine: Machine, github: tuple[str, type[Stub]], docker: Path, gpus: str
) -> None:
    done = launch_gpus(machine, github[0], gpus, "--once")
    assert done.returncode == 26
    assert f"K3PERF_GPU={gpus!r}" in done.stdout
    assert not docker.exists()
