#!/usr/bin/env python3
"""The container's entry point: prove the device clean, take one job, prove the device
clean again. Standard library only.

``run``: says READY on standard output when the device is clean, then reads a
just-in-time configuration from standard input (or takes it from
ACTIONS_RUNNER_INPUT_JITCONFIG), so that nothing registers for a device that cannot be
used. No token ever enters the container. ``guard``: the runner's job-started hook.
``health``: the container's health check.

GitHub's run.sh ends with 0 also when the runner was refused, had a session conflict or
is too old. So its status proves nothing. The job-started hook runs only for a job: the
guard leaves a mark, and the mark decides.

A hook that fails is a failed step to the runner, the first of the job's own list
(actions/runner, src/Runner.Worker/JobExtension.cs and StepsRunner.cs): a later step
with ``if: always()`` would run. So a refusing guard never returns. It leaves the reason
in a file, and the entry point ends the runner with all its processes.

The line ``drain`` on standard input, after the configuration, ends a runner that has no
job yet.

Exit statuses: 0 one job taken and the device clean, or stopped before a job; 20 dirty
at the start; 21 dirty at the end; 22 no configuration came; 23 the runner ended without
taking a job, or failed after it; 25 the guard refused the job and the runner was ended;
1 a health check refused.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

sys.path.insert(0, str(Path(__file__).resolve().parent))

import device
import job_guard

READY = "k3perf-runner: ready"
DIRTY_AT_START, DIRTY_AT_END, NO_CONFIGURATION, RUNNER_FAILED, JOB_REFUSED = 20, 21, 22, 23, 25
CONFIGURATION_VARIABLE = "ACTIONS_RUNNER_INPUT_JITCONFIG"
STATE = Path(os.environ.get("K3PERF_STATE", "/run/k3perf/state"))
MARK = STATE.with_name("job-taken")
REFUSED = STATE.with_name("job-refused")
DRAIN = "drain"
WATCH_S = 0.05
GUARD_PATIENCE_S = 60.0
OLD_CACHE_S = 14 * 86_400
# the launcher on the host starts the next container at once only after this line
# (docker/host/launch.py)
TAKEN = "k3perf-runner: a job was taken"
# without it run.sh ends with 0 when GitHub refuses the runner's version
DEPRECATED_VARIABLE, DEPRECATED_STATUS = "ACTIONS_RUNNER_RETURN_VERSION_DEPRECATED_EXIT_CODE", 7
OUTPUT_WAIT_S = 2.0
LAST_LINES_COUNT = 15
LINE_CHARACTERS_COUNT = 400
TOO_OLD = "GitHub's runner is probably too old for GitHub (docs/runner.md, Versions)"
# what run.sh or its listener prints, in lower case -> what to do about it
CAUSES = (
    ("deprecated", TOO_OLD),
    (f"unknown error code: {DEPRECATED_STATUS}", TOO_OLD),
    ("session conflict", "another runner holds the session of this name; end that runner"),
    ("terminated error", "GitHub refused this runner for the reason in the lines above"),
)
UNKNOWN_CAUSE = "the cause is not known; see docs/runner.md, What each ending means"


@dataclass(frozen=True)
class Ending:
    """How run.sh ended: its status, its last lines, and whether a signal stopped it."""

    status: int
    last_lines: tuple[str, ...]
    stopped: bool


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
    MARK.unlink(missing_ok=True)
    REFUSED.unlink(missing_ok=True)
    ending = _serve(configuration, _cache_environment(kind))
    _end_leftovers()
    taken = MARK.exists()
    if taken:
        say(TAKEN)
    dirty = _wait_until_clean(kind, float(os.environ.get("K3PERF_END_WAIT_S", "60")))
    if dirty:
        return _refuse(
            "the device is dirty after the job; take this host out of service", dirty, DIRTY_AT_END
        )
    if REFUSED.exists():
        why = REFUSED.read_text(encoding="utf-8").splitlines()
        return _refuse("the job was refused, the runner was ended:", why, JOB_REFUSED)
    return _judge(ending, taken=taken)


def _judge(ending: Ending, *, taken: bool) -> int:
    """The exit status on a clean device. ``taken``: whether the job-started hook left
    its mark.
    """
    if taken and ending.status == 0:
        say("k3perf-runner: clean, the runner ended after its job")
        return 0
    if not taken and ending.stopped:
        say("k3perf-runner: clean, stopped before a job was taken")
        return 0
    what = (
        "the runner failed after it took a job"
        if taken
        else "the runner ended without taking a job"
    )
    said = "\n".join(ending.last_lines).lower()
    cause = next((advice for words, advice in CAUSES if words in said), UNKNOWN_CAUSE)
    if ending.status == DEPRECATED_STATUS:
        cause = TOO_OLD
    lines = ending.last_lines or ("(it printed nothing)",)
    _refuse(
        f"{what} (run.sh ended with status {ending.status}); its last lines:",
        list(lines),
        RUNNER_FAILED,
    )
    say(f"k3perf-runner: {cause}")
    return RUNNER_FAILED


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
    """Compile caches under a folder for this image and this driver; another image's
    code is never picked up. A cache that is mounted read-only is copied for the job, so
    that a pull request leaves nothing in it.
    """
    image = Path(__file__).with_name("image-id").read_text(encoding="ascii").strip()
    shared = Path(os.environ.get("K3PERF_COMPILE_CACHE", "/cache/compile"))
    name = f"{image}-{device.driver_version(kind)}"
    folder = shared / name
    if os.access(shared, os.W_OK) or not shared.is_dir():
        _prune_caches(shared, name)
    else:
        folder = Path(os.environ.get("K3PERF_PRIVATE_CACHE", "/tmp/k3perf-compile")) / name  # noqa: S108
        if (shared / name).is_dir():
            shutil.copytree(shared / name, folder, dirs_exist_ok=True)
    names = {
        "VLLM_CACHE_ROOT": "vllm",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
    }
    for name in names.values():
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {variable: str(folder / name) for variable, name in names.items()}


def _prune_caches(shared: Path, current: str) -> None:
    """Remove caches of other images and drivers that no job used for two weeks."""
    for folder in shared.glob("*/") if shared.is_dir() else ():
        if folder.name != current and time.time() - folder.stat().st_mtime > OLD_CACHE_S:
            shutil.rmtree(folder, ignore_errors=True)
            say(f"k3perf-runner: removed the old compile cache {folder.name}")
    if (shared / current).is_dir():
        os.utime(shared / current)


def _serve(configuration: str, cache: dict[str, str]) -> Ending:
    """Run GitHub's runner to its end and pass its output on."""
    environment = {
        **os.environ,
        **cache,
        CONFIGURATION_VARIABLE: configuration,
        DEPRECATED_VARIABLE: "1",
    }
    environment.setdefault(
        "ACTIONS_RUNNER_HOOK_JOB_STARTED", str(Path(__file__).with_name("job-started.sh").resolve())
    )
    runner = subprocess.Popen(
        ["./run.sh"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    STATE.write_text(str(runner.pid), encoding="ascii")
    last_lines: deque[str] = deque(maxlen=LAST_LINES_COUNT)
    reader = threading.Thread(target=_pass_output, args=(runner.stdout, last_lines), daemon=True)
    reader.start()
    stopped = False

    def pass_on(number: int, _: object) -> None:
        nonlocal stopped
        stopped = True
        os.killpg(runner.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    drained = threading.Event()
    threading.Thread(target=_read_drain, args=(drained,), daemon=True).start()
    try:
        while (ended := runner.poll()) is None:
            if REFUSED.exists():
                os.killpg(runner.pid, signal.SIGKILL)
            elif drained.is_set() and not MARK.exists() and not stopped:
                say("k3perf-runner: draining before a job was taken")
                pass_on(signal.SIGTERM, None)
            time.sleep(WATCH_S)
        status = ended
    finally:
        STATE.unlink(missing_ok=True)
    reader.join(OUTPUT_WAIT_S)  # a process that outlived its job may hold the pipe open
    return Ending(status, tuple(last_lines), stopped)


def _read_drain(drained: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == DRAIN:
            drained.set()


def _pass_output(output: IO[str], last_lines: deque[str]) -> None:
    for line in output:
        say(line.rstrip("\n"))
        if line.strip():
            last_lines.append(line.strip()[:LINE_CHARACTERS_COUNT])


def _end_leftovers() -> None:
    """End every process of this user but this one and its ancestors: a job's processes
    must not outlive it.
    """
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
            if (
                entry.stat().st_uid == os.getuid()
                and stat[0] != "Z"
                and int(entry.name) not in kept
            ):
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
    """Leave the mark of a job. A job that may not run here, or a device that another
    process took: leave the reason and wait to be ended. Returning would let the job's
    later steps run.
    """
    MARK.touch()
    environment = os.environ
    why = job_guard.refusal(
        environment.get("GITHUB_EVENT_NAME", ""),
        environment.get("GITHUB_EVENT_PATH", ""),
        environment.get("GITHUB_REPOSITORY", ""),
    )
    dirty = [] if why else device.findings(environment.get("K3PERF_DEVICE", "nvidia"))
    if not why and not dirty:
        return 0
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _refuse(f"this job is refused: {why or 'the device is dirty'}", dirty, JOB_REFUSED)
    draft = REFUSED.with_suffix(".new")
    draft.write_text("\n".join([why, *dirty]).strip() + "\n", encoding="utf-8")
    draft.replace(REFUSED)
    sys.stdout.flush()
    time.sleep(float(environment.get("K3PERF_GUARD_PATIENCE_S", str(GUARD_PATIENCE_S))))
    os.killpg(0, signal.SIGKILL)  # the entry point is gone: end what is left of the runner
    return JOB_REFUSED


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
