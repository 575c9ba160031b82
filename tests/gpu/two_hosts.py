"""Run inside the first of two network namespaces: a real engine over both, the link cut
and healed, then the second host killed.

    ip netns exec A python two_hosts.py ENGINE_PYTHON MODEL WORK B OWN_ADDRESS OTHER_ADDRESS OWN_LINK OTHER_LINK

Prints one JSON object of what was seen; the test judges it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from k3perf.config.models import StageDeadlines
from k3perf.engine.group import EngineGroup, start_group
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.multi_node import multi_node_launch

SOURCE = str(Path(__file__).resolve().parents[2] / "src")
IP = shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") or "ip"
TOKENS = 600


class Stream(threading.Thread):
    """One streamed completion; ``arrivals`` are monotonic seconds of each chunk."""

    def __init__(self, group: EngineGroup) -> None:
        super().__init__(daemon=True)
        self.group = group
        self.arrivals: list[float] = []
        self.error = ""
        self.finished = False

    def run(self) -> None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.group.head.port, timeout=60)
            body = {
                "model": "m",
                "prompt": [5, 6, 7],
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
            }
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            for line in connection.getresponse():
                if line.startswith(b"data: {"):
                    self.arrivals.append(time.monotonic())
                self.finished |= line.startswith(b"data: [DONE]")
        except OSError as error:
            self.error = repr(error)


def wait(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def running(pids: tuple[int, ...]) -> list[int]:
    return [
        pid
        for pid in pids
        if Path(f"/proc/{pid}/stat").exists()
        and ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    ]


def main() -> None:
    engine_python, model, work, other, own_address, other_address, own_link, other_link = sys.argv[
        1:
    ]
    words = [
        engine_python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        "--served-model-name",
        "m",
        "--load-format",
        "dummy",
    ]
    words += [
        "--enforce-eager",
        "--max-model-len",
        "1024",
        "--max-num-seqs",
        "4",
        "--dtype",
        "bfloat16",
        "--tensor-parallel-size",
        "2",
    ]
    words += ["--host", "127.0.0.1", "--port", "{port}"]
    environment: dict[str, str | None] = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONPATH": SOURCE,
    }
    launch = EngineLaunch(
        argv=tuple(words),
        model_name="m",
        environment=environment,
        deadlines=StageDeadlines(import_s=180, load_s=180, stop_s=10),
    )
    places = [(own_address, own_link, "0"), (other_address, other_link, "1")]
    ranks = tuple(
        {"VLLM_HOST_IP": ip, "GLOO_SOCKET_IFNAME": link, "VLLM_CPU_OMP_THREADS_BIND": core}
        for ip, link, core in places
    )
    group_launch = multi_node_launch(
        launch,
        hosts=2,
        master_host=own_address,
        prefixes=((), ("ip", "netns", "exec", other)),
        environments=ranks,
    )
    seen: dict[str, Any] = {}
    with start_group(group_launch, work_directory=Path(work)) as group:
        seen["start_s"] = (group.head.ready_ns - group.head.started_ns) / 1e9
        cut_and_heal(group, other, other_link, seen)
        kill_other_host(group, seen)
    report = group.stop()
    seen["clean"], seen["left"] = report.clean, report.text
    print(json.dumps(seen))


def cut_and_heal(group: EngineGroup, other: str, other_link: str, seen: dict[str, Any]) -> None:
    stream = Stream(group)
    stream.start()
    seen["flowing"] = wait(lambda: len(stream.arrivals) > 40, 60)
    link(other, other_link, "down")
    cut = time.monotonic()
    seen["before_cut"] = len(stream.arrivals)
    time.sleep(3)
    seen["late_in_cut"] = sum(1 for arrival in stream.arrivals if arrival > cut + 1)
    seen["alive_in_cut"] = group.alive()
    link(other, other_link, "up")
    stream.join(90)
    seen["after_heal"], seen["finished_after_heal"], seen["error_after_heal"] = (
        len(stream.arrivals),
        stream.finished,
        stream.error,
    )
    seen["longest_gap_s"] = max(
        later - earlier for earlier, later in itertools.pairwise(stream.arrivals)
    )
    seen["alive_after_heal"] = group.alive()


def kill_other_host(group: EngineGroup, seen: dict[str, Any]) -> None:
    pids = group.pids()
    stream = Stream(group)
    stream.start()
    seen["flowing_again"] = wait(lambda: len(stream.arrivals) > 10, 60)
    killed = time.monotonic()
    follower = group.followers[0].tree.pids()
    seen["follower_processes"] = len(follower)
    os.kill(follower[0], signal.SIGKILL)
    seen["noticed"] = group.death_event.wait(20)
    seen["noticed_s"] = time.monotonic() - killed
    seen["all_ended"] = wait(lambda: not running(pids), 20)
    stream.join(20)
    seen["stream_ended"] = not stream.is_alive() and not stream.finished
    seen["cause"] = group.death_cause()
    seen["tail_ranks"] = sorted({line.split(" | ")[0] for line in group.log_tail()})


def link(namespace: str, name: str, state: str) -> None:
    subprocess.run([IP, "-n", namespace, "link", "set", name, state], check=True)


if __name__ == "__main__":
    main()
