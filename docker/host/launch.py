#!/usr/bin/env python3
"""On the GPU host: one container a job, again and again. Standard library only; run by
docker/host/k3perf-runner@.service.

The container starts first and proves the device clean; only then GitHub is asked for a
just-in-time configuration, which is handed over through standard input. The token stays
on the host. SIGTERM drains: the job that runs ends in peace, then nothing new is
started.

Environment: K3PERF_REPOSITORY (OWNER/NAME), K3PERF_TOKEN_FILE (a token that may
administer the repository's runners, read anew for each job, so that it can be rotated),
K3PERF_LABELS (comma-separated, e.g. gpu,h200,pool-a), K3PERF_CONTAINER_COMMAND,
K3PERF_RUNNER_GROUP (1), GITHUB_API_URL. Exit status: 0 drained, otherwise the
container's (20 and 21 mean a dirty device, 23 that no job was taken) or 24 (GitHub did
not answer as it should). A container that ends with 0 without a job counts as 23. With
23 the launcher ends at once: one registration, then systemd's pause of 60 s.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from pathlib import Path

READY = "k3perf-runner: ready"
TAKEN = "k3perf-runner: a job was taken"
RUNNER_FAILED, GITHUB_FAILED = 23, 24
DEFAULT_COMMAND = "docker compose run --rm -T gpu-runner"
TIMEOUT_S = 60


class Launcher:
    """Starts containers until told to drain or until one reports a device that cannot
    be used.
    """

    def __init__(self) -> None:
        self.draining = False

    def drain(self, *_: object) -> None:
        """After the current job, stop."""
        self.draining = True
        print("launch: draining", flush=True)

    def run(self, *, once: bool) -> int:
        """The last container's status when it was bad, else 0."""
        while not self.draining:
            status = self._one_job()
            if status != 0 or once:
                return status
        return 0

    def _one_job(self) -> int:
        command = shlex.split(os.environ.get("K3PERF_CONTAINER_COMMAND", DEFAULT_COMMAND))
        # a session of its own: the terminal's or systemd's signals reach the container
        # through us alone
        container = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert container.stdin is not None  # noqa: S101 (for the type checker; Popen was given PIPE)
        assert container.stdout is not None  # noqa: S101
        answered = failed = taken = False
        for line in container.stdout:
            print(line, end="", flush=True)
            taken = taken or line.strip() == TAKEN
            if line.strip() == READY and not answered:
                answered = True
                configuration = "" if self.draining else _configuration_or_none()
                failed = not configuration and not self.draining
                container.stdin.write(configuration + "\n")
                container.stdin.close()
        status = container.wait()
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
    repository = os.environ["K3PERF_REPOSITORY"]
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
    url = f"{os.environ.get('GITHUB_API_URL', 'https://api.github.com')}/repos/{repository}/actions/runners/generate-jitconfig"
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
    launcher = Launcher()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, launcher.drain)
    return launcher.run(once=arguments.once)


if __name__ == "__main__":
    sys.exit(main())
