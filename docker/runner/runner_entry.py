#!/usr/bin/env python3
"""The container's entry point: prove the device clean, take one job, prove the device clean again. Standard library only.

``run``: says READY on standard output when the device is clean, then reads a just-in-time configuration from standard input (or takes it
from ACTIONS_RUNNER_INPUT_JITCONFIG), so that nothing registers for a device that cannot be used. No token ever enters the container.
``guard``: the runner's job-started hook. ``health``: the container's health check.

Exit statuses: 0 one job done and the device clean; 20 dirty at the start; 21 dirty at the end; 22 no configuration came;
23 the runner itself failed; 1 a job or health check refused.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import device
import job_guard

READY = "k3perf-runner: ready"
DIRTY_AT_START, DIRTY_AT_END, NO_CONFIGURATION, RUNNER_FAILED = 20, 21, 22, 23
CONFIGURATION_VARIABLE = "ACTIONS_RUNNER_INPUT_JITCONFIG"
STATE = Path(os.environ.get("K3PERF_STATE", "/run/k3perf/state"))


def say(text: str) -> None:
    """One line to standard output, at once."""
    print(text, flush=True)


def run() -> int:
    """One job."""
    kind = os.environ.get("K3PERF_DEVICE", "nvidia")
    dirty = _wait_until_clean(kind, float(os.environ.get("K3PERF_START_WAIT_S", "30")))
    if dirty:
        return _refuse("the device is dirty, no job is taken", dirty, DIRTY_AT_START)
    say(READY)
    configuration = os.environ.pop(CONFIGURATION_VARIABLE, "") or sys.stdin.readline().strip()
    if not configuration:
        return _refuse("no just-in-time configuration came", [], NO_CONFIGURATION)
    status = _serve(configuration, _cache_environment(kind))
    _end_leftovers()
    dirty = _wait_until_clean(kind, float(os.environ.get("K3PERF_END_WAIT_S", "60")))
    if dirty:
        return _refuse("the device is dirty after the job; take this host out of service", dirty, DIRTY_AT_END)
    say(f"k3perf-runner: clean, the runner ended with status {status}")
    return 0 if status == 0 else RUNNER_FAILED


def _refuse(text: str, dirty: list[str], status: int) -> int:
    say(f"k3perf-runner: {text}")
    for line in dirty:
        say(f"k3perf-runner:   {line}")
    return status


def _wait_until_clean(kind: str, limit_s: float) -> list[str]:
    """Memory of an ended process comes back late, so look again until the limit."""
    deadline = time.monotonic() + limit_s
    while True:
        dirty = device.findings(kind)
        if not dirty or time.monotonic() >= deadline:
            return dirty
        time.sleep(min(1.0, limit_s))


def _cache_environment(kind: str) -> dict[str, str]:
    """Compile caches under a folder for this image and this driver; another image's code is never picked up."""
    image = Path(__file__).with_name("image-id").read_text(encoding="ascii").strip()
    folder = Path(os.environ.get("K3PERF_COMPILE_CACHE", "/cache/compile")) / f"{image}-{device.driver_version(kind)}"
    names = {"VLLM_CACHE_ROOT": "vllm", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    for name in names.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {variable: str(folder / name) for variable, name in names.items()}


def _serve(configuration: str, cache: dict[str, str]) -> int:
    environment = {**os.environ, **cache, CONFIGURATION_VARIABLE: configuration}
    runner = subprocess.Popen(["./run.sh"], env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    STATE.write_text(str(runner.pid), encoding="ascii")

    def pass_on(number: int, _: object) -> None:
        os.killpg(runner.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    try:
        return runner.wait()
    finally:
        STATE.unlink(missing_ok=True)


def _end_leftovers() -> None:
    """End every process of this user but this one and its ancestors: a job's processes must not outlive it."""
    kept = {os.getpid()}
    current = os.getpid()
    while current > 1:
        current = _parent(current)
        kept.add(current)
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        others = _mine_but(kept)
        for pid in others:
            _kill(pid, number)
        deadline = time.monotonic() + patience_s
        while others and time.monotonic() < deadline:
            time.sleep(0.1)
            others = _mine_but(kept)
        if not others:
            return


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def _mine_but(kept: set[int]) -> list[int]:
    """Only inside a container, where every process of this user belongs to the job."""
    if os.environ.get("K3PERF_END_LEFTOVERS", "1") != "1":
        return []
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            if entry.stat().st_uid == os.getuid() and stat[0] != "Z" and int(entry.name) not in kept:
                found.append(int(entry.name))
        except OSError:
            continue  # it ended while we looked
    return found


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def guard() -> int:
    """Refuses jobs that may not run here, and devices that another process took since the start."""
    environment = os.environ
    why = job_guard.refusal(
        environment.get("GITHUB_EVENT_NAME", ""), environment.get("GITHUB_EVENT_PATH", ""), environment.get("GITHUB_REPOSITORY", "")
    )
    dirty = [] if why else device.findings(environment.get("K3PERF_DEVICE", "nvidia"))
    if not why and not dirty:
        return 0
    return _refuse(f"this job is refused: {why or 'the device is dirty'}", dirty, 1)


def health() -> int:
    """Healthy: waiting for a configuration, or the runner process is alive."""
    try:
        pid = int(STATE.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return 0 if Path(f"/proc/{pid}").exists() else 1


def main(arguments: list[str]) -> int:
    """Dispatch on the one argument."""
    commands = {"run": run, "guard": guard, "health": health}
    if len(arguments) != 1 or arguments[0] not in commands:
        say(f"usage: runner_entry.py {'|'.join(commands)}")
        return 2
    return commands[arguments[0]]()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
