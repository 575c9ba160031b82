#!/usr/bin/env python3
"""On the GPU host: one container a job, again and again. Standard library only; run by
docker/host/k3perf-runner@.service.

The container starts first and proves the device clean; only then GitHub is asked for a
just-in-time configuration, which is handed over through standard input. The token stays
on the host. SIGTERM drains: a runner without a job ends at once, the job that runs ends
in peace, then nothing new is started.

Environment: K3PERF_REPOSITORY (OWNER/NAME) or K3PERF_ORGANIZATION (the runner group's
rule on workflows needs an organisation's runner), K3PERF_GPU (docker/host/gpus.py),
K3PERF_LOCK_FOLDER (/run/lock), K3PERF_TOKEN_FILE (a token that may
administer the runners, read again for each job, so that it can be rotated),
K3PERF_LABELS (comma-separated, e.g. gpu,h200,pool-a), K3PERF_CONTAINER_COMMAND (instead
of the GPU container; without K3PERF_GPU it takes no lock),
K3PERF_RUNNER_GROUP (1), K3PERF_PRUNE_COMMAND (once a day between jobs; empty: never),
GITHUB_API_URL. Exit status: 0 drained, otherwise the
container's (20 and 21 mean a dirty device, 23 that no job was taken) or 24 (GitHub did
not answer as it should) or 26 (another runner of this host has the GPU, or K3PERF_GPU
names none). A container that ends with 0 without a job counts as 23. With
23 the launcher ends at once: one registration, then systemd's pause of 60 s. After a
refused job (25) or one shorter than 10 s it pauses, twice as long each time, at most 10
minutes, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import gpus

DRAIN = "drain"
READY = "k3perf-runner: ready"
TAKEN = "k3perf-runner: a job was taken"
RUNNER_FAILED, GITHUB_FAILED, JOB_REFUSED, NO_GPU = 23, 24, 25, 26
DEFAULT_PRUNE = "docker image prune --force --filter until=168h"
TIMEOUT_S = 60
SHORT_JOB_S = 10.0
LONGEST_PAUSE_S = 600.0
DAY_S = 86_400.0


class Launcher:
    """Starts containers until told to drain or until one reports a device that cannot
    be used.
    """

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        """``command`` starts one container in ``environment``."""
        self._command, self._environment = command, environment
        self.draining = False
        self._container: subprocess.Popen[str] | None = None
        self._handed_over = False
        self._wake = threading.Event()
        self._short_count = 0
        self._pruned_s = time.monotonic()

    def drain(self, *_: object) -> None:
        """A runner without a job ends now, else after its job."""
        self.draining = True
        self._wake.set()
        print("launch: draining", flush=True)
        self._say_drain()

    def _say_drain(self) -> None:
        container = self._container
        if container is None or container.stdin is None or not self._handed_over:
            return
        with contextlib.suppress(OSError, ValueError):  # it is ending already
            container.stdin.write(DRAIN + "\n")
            container.stdin.flush()

    def run(self, *, once: bool) -> int:
        """The last container's status when it was bad, else 0."""
        while not self.draining:
            began_s = time.monotonic()
            status = self._one_job()
            if once or status not in (0, JOB_REFUSED):
                return status
            self._pause(refused=status == JOB_REFUSED, took_s=time.monotonic() - began_s)
            self._prune()
        return 0

    def _pause(self, *, refused: bool, took_s: float) -> None:
        """Refused and very short jobs in a row would register runners in a loop."""
        if not refused and took_s >= SHORT_JOB_S:
            self._short_count = 0
            return
        self._short_count += 1
        first_s = float(os.environ.get("K3PERF_FIRST_PAUSE_S", "5"))
        pause_s = min(first_s * 2 ** (self._short_count - 1), LONGEST_PAUSE_S)
        what = "was refused" if refused else f"took {took_s:.1f} s"
        print(f"launch: the job {what}; the next runner registers in {pause_s:g} s", flush=True)
        self._wake.wait(pause_s)

    def _prune(self) -> None:
        command = shlex.split(os.environ.get("K3PERF_PRUNE_COMMAND", DEFAULT_PRUNE))
        if not command or self.draining or time.monotonic() - self._pruned_s < DAY_S:
            return
        self._pruned_s = time.monotonic()
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        print(f"launch: pruned, status {done.returncode}: {done.stdout[-200:]}", flush=True)

    def _one_job(self) -> int:
        # a session of its own: the terminal's or systemd's signals reach the container
        # through us alone
        container = subprocess.Popen(
            self._command,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert container.stdin is not None  # noqa: S101 (for the type checker; Popen was given PIPE)
        assert container.stdout is not None  # noqa: S101
        self._container, self._handed_over = container, False
        answered = failed = taken = False
        for line in container.stdout:
            print(line, end="", flush=True)
            taken = taken or line.strip() == TAKEN
            if line.strip() == READY and not answered:
                answered = True
                configuration = "" if self.draining else _configuration_or_none()
                failed = not configuration and not self.draining
                container.stdin.write(configuration + "\n")
                container.stdin.flush()
                self._handed_over = True
                if self.draining:  # it came while GitHub was asked
                    self._say_drain()
        status = container.wait()
        self._container = None
        if self.draining and answered and status == 22:
            return 0
        if failed:
            return GITHUB_FAILED
        if status == 0 and not taken:
            print(
                "launch: the container ended without a job; the launcher ends (docs/runner.md)",
                flush=True,
            )
            return 0 if self.draining else RUNNER_FAILED
        return status


def _configuration_or_none() -> str:
    try:
        return just_in_time_configuration()
    except (OSError, ValueError, KeyError) as error:
        print(f"launch: GitHub gave no just-in-time configuration: {error}", flush=True)
        return ""


def just_in_time_configuration() -> str:
    """Register one ephemeral runner; GitHub forgets it after its one job."""
    organization = os.environ.get("K3PERF_ORGANIZATION", "")
    owner = f"orgs/{organization}" if organization else f"repos/{os.environ['K3PERF_REPOSITORY']}"
    labels = [
        "self-hosted",
        *(label for label in os.environ.get("K3PERF_LABELS", "gpu").split(",") if label),
    ]
    body = {
        "name": f"{socket.gethostname()[:40]}-{uuid.uuid4().hex[:8]}",
        "runner_group_id": int(os.environ.get("K3PERF_RUNNER_GROUP", "1")),
        "labels": labels,
        "work_folder": "_work",
    }
    url = f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}/{owner}/actions/runners/generate-jitconfig"
    if not url.startswith(("https://", "http://127.0.0.1")):
        raise ValueError(f"GITHUB_API_URL must be https, not {url}")
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": (
            f"Bearer {Path(os.environ['K3PERF_TOKEN_FILE']).read_text(encoding='ascii').strip()}"
        ),
        "Content-Type": "application/json",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    request = urllib.request.Request(  # noqa: S310 (checked above)
        url, data=json.dumps(body).encode(), headers=headers, method="POST"
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return str(json.load(answer)["encoded_jit_config"])


def main() -> int:
    """Parse the one option and go."""
    parser = argparse.ArgumentParser(description="one runner container a job, until drained")
    parser.add_argument("--once", action="store_true", help="end after one job")
    arguments = parser.parse_args()
    given = shlex.split(os.environ.get("K3PERF_CONTAINER_COMMAND", ""))
    locks = Path(os.environ.get("K3PERF_LOCK_FOLDER", "/run/lock"))
    folder = gpus.private_folder()
    try:
        own = gpus.names(os.environ.get("K3PERF_GPU", ""))
        held = [] if given and "K3PERF_GPU" not in os.environ else gpus.hold(own, locks)
        environment = {**os.environ} if given else {**os.environ, "K3PERF_GPU": own[0]}
        launcher = Launcher(given or gpus.command(own, folder), environment)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, launcher.drain)
        status = launcher.run(once=arguments.once)
        for file in held:
            file.close()
        return status
    except (ValueError, gpus.GpuTakenError) as error:
        print(f"launch: {error}", flush=True)
        return NO_GPU
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
