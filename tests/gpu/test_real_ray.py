"""The Ray launch files against a real Ray: two nodes on this machine, a stand-in for
vLLM. Needs ``ray`` on PATH (pip install ray).
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3perf.config.models import TargetSpec
from k3perf.engine.launchers import render_launch

RAY = shutil.which("ray")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(RAY is None, reason="ray is not installed (pip install ray)"),
]
# asks Ray what it has, as vLLM's executor would, and ends
SERVER = """#!/bin/bash
echo "$@" > "$SEEN/words"
python -c "
import ray
ray.init(address='auto', log_to_driver=False)
print(int(ray.cluster_resources()['GPU']), len(ray.nodes()))
" > "$SEEN/cluster" 2> "$SEEN/errors"
"""


@pytest.fixture
def short_directory() -> Iterator[Path]:
    """Ray's sockets live under it, and their paths end at 108 characters."""
    path = Path(tempfile.mkdtemp(prefix="k3r-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def target() -> TargetSpec:
    return TargetSpec.model_validate(
        {
            "schema_version": 1,
            "name": "two-hosts",
            "description": "Two hosts of two for Ray",
            "hardware": {
                "kind": "nvidia",
                "hardware_class": "x4",
                "device_count": 4,
                "host_count": 2,
            },
            "model": {"checkpoint": "moonshotai/Kimi-K3", "weights": "checkpoint"},
            "parallelism": {"tensor": 4},
            "workloads": ["serve_8k"],
            "measurement": {"mode": "baseline"},
            "provenance": {"kind": "experiment", "source": "test", "date": "2026-11-29"},
        }
    )


def test_two_ray_nodes_join_serve_and_end(short_directory: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, text in render_launch(
        "ray", {}, target(), {"ray_port": port, "wait_for_hosts_s": 90}
    ).items():
        (short_directory / name).write_text(text)
    tools = short_directory / "bin"
    tools.mkdir()
    (tools / "vllm").write_text(SERVER)
    (tools / "vllm").chmod(stat.S_IRWXU)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{Path(RAY or '').parent}:{os.environ['PATH']}",
        "SEEN": str(short_directory),
        "RAY_TMPDIR": str(short_directory),
        # a worker's patience after the head is gone; 60 by default
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    }
    logs = {name: (short_directory / f"{name}.log").open("wb") for name in ("head", "worker")}

    def start(name: str, *words: str) -> subprocess.Popen[bytes]:
        command = ["/bin/bash", str(short_directory / f"ray-{name}.sh"), *words]
        return subprocess.Popen(
            command,
            env=environment,
            stdout=logs[name],
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    head = start("head", "127.0.0.1")
    worker = None
    try:
        end = time.monotonic() + 60
        while b"Local node IP" not in (short_directory / "head.log").read_bytes():
            assert time.monotonic() < end, (short_directory / "head.log").read_text()
            assert head.poll() is None, (short_directory / "head.log").read_text()
            time.sleep(0.2)
        worker = start("worker", "127.0.0.1", "127.0.0.1")
        assert head.wait(120) == 0, (short_directory / "head.log").read_text()[-2000:]
        assert (short_directory / "cluster").read_text().split() == ["4", "2"], (
            short_directory / "errors"
        ).read_text()
        assert (short_directory / "words").read_text().startswith("serve --config ")
        worker.wait(60)
    finally:
        for process in (head, worker):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(30)
        for log in logs.values():
            log.close()
    left = [
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _mentions(entry, str(short_directory))
    ]
    assert left == [], f"{left} still run on {sys.platform}"


def _mentions(entry: Path, text: str) -> bool:
    try:
        return text.encode() in (entry / "cmdline").read_bytes()
    except OSError:
        return False
