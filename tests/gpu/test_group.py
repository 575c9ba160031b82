"""Several ranks supervised as one, with the fake engine as head and a small program as
follower.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.processes import PATIENCE_S, WAIT_S

from k3perf.config.models import StageDeadlines, TargetSpec
from k3perf.engine.group import EngineGroup, Follower, GroupLaunch, start_group
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.multi_node import multi_node_launch, start_target
from k3perf.errors import EngineError, UsageError

FAKE = Path(__file__).parents[1] / "faults" / "fake_engine.py"
DEADLINES = StageDeadlines(
    import_s=PATIENCE_S,
    load_s=PATIENCE_S,
    profile_s=PATIENCE_S,
    compile_s=PATIENCE_S,
    capture_s=PATIENCE_S,
    ready_s=PATIENCE_S,
    stop_s=0.5,
)
# a follower whose worker is a process of its own, as vLLM's is, and survives the death
# of its parent
FOLLOWER = """
import os, subprocess, sys, time
print("follower up, master port", sys.argv[1], flush=True)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)", "VLLM::Worker_TP1"])
if len(sys.argv) > 2:
    time.sleep(float(sys.argv[2]))
    print("ERROR 01-01 00:00:00 [core.py:1] RuntimeError: no such device", flush=True)
    child.kill()
    sys.exit(7)
child.wait()
"""


def head(*faults: str) -> EngineLaunch:
    words = [
        sys.executable,
        "-S",
        "-E",
        str(FAKE),
        "--port",
        "{port}",
        "--model",
        "fake",
        "--stage-s",
        "0.05",
    ]
    return EngineLaunch(
        argv=(*words, *(word for fault in faults for word in ("--fault", fault))),
        model_name="fake",
        deadlines=DEADLINES,
    )


def follower(*words: str) -> EngineLaunch:
    return EngineLaunch(
        argv=(sys.executable, "-S", "-c", FOLLOWER, "{master_port}", *words),
        model_name="fake",
        deadlines=DEADLINES,
    )


def start(tmp_path: Path, *ranks: EngineLaunch) -> EngineGroup:
    return start_group(GroupLaunch(ranks), work_directory=tmp_path)


def running(pids: tuple[int, ...]) -> list[int]:
    def runs(pid: int) -> bool:
        try:
            return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
        except OSError:  # gone, even between opening and reading
            return False

    return [pid for pid in pids if runs(pid)]


def wait_until(condition: Any, seconds: float = WAIT_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def test_group_serves_and_stops_clean(tmp_path: Path) -> None:
    with start(tmp_path, head(), follower(), follower()) as group:
        assert group.alive()
        assert group.death_cause() is None
        pids = group.pids()
        assert len(pids) >= 3 + 2 * 2
        ports = {
            line.split()[-1]
            for rank in (1, 2)
            for line in (tmp_path / f"rank-{rank}" / "engine.log").read_text().splitlines()
        }
        assert len(ports) == 1
        assert ports.pop().isdigit()
    report = group.stop()
    assert report.clean, report.text
    assert running(pids) == []


@pytest.mark.parametrize("which", ["root", "worker"])
def test_a_follower_s_death_ends_every_rank_and_is_named(which: str, tmp_path: Path) -> None:
    with start(tmp_path, head(), follower(), follower()) as group:
        pids = group.pids()
        wait_until(lambda: len(group.followers[1].tree.pids()) == 2)
        root, worker = group.followers[1].tree.pids()
        os.kill(root if which == "root" else worker, signal.SIGKILL)
        assert group.death_event.wait(WAIT_S)
        wait_until(lambda: running(pids) == [])
        assert not group.alive()
        assert "rank 2" in (group.death_cause() or "")
        error = group.death_error()
    assert "rank 2" in str(error)
    assert any(line.startswith("rank 0 | ") for line in error.log_tail)
    assert any(line.startswith("rank 1 | follower up") for line in error.log_tail)
    assert group.stop().clean


def test_the_head_s_death_ends_the_followers(tmp_path: Path) -> None:
    with start(tmp_path, head(), follower()) as group:
        pids = group.pids()
        os.kill(group.head.pid, signal.SIGKILL)
        wait_until(lambda: running(pids) == [])
        assert (group.death_cause() or "").startswith("rank 0: ")


def test_a_follower_that_dies_in_the_start_ends_it_at_once_with_its_cause(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(EngineError, match=r"rank 1: .*exit status 7.*no such device") as caught:
        start(tmp_path, head("hang:load"), follower("0.3"))
    assert time.monotonic() - begin < WAIT_S  # the head's own deadline is far later
    assert any(line.startswith("rank 1 | ") for line in caught.value.log_tail)


def test_a_head_that_dies_in_the_start_takes_the_followers_along(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="injected death") as caught:
        start(tmp_path, head("die:load"), follower())
    assert any("follower up" in line for line in caught.value.log_tail)
    marked = [
        entry
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and _runs(entry, FOLLOWER)
    ]
    assert marked == []


def test_ranks_that_cannot_be_watched_are_not_left_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Follower, "watch", no_descriptor)
    with pytest.raises(OSError, match="Too many open files"):
        start(tmp_path, head(), follower())
    entries = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    assert [entry for entry in entries if _runs(entry, FOLLOWER) or _runs(entry, str(FAKE))] == []


def _runs(entry: Path, text: str) -> bool:
    try:
        return text.encode() in (entry / "cmdline").read_bytes()
    except OSError:
        return False


def test_follower_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="rank 1 could not be started"):
        start(tmp_path, head(), replace(follower(), argv=("/no/such/program",)))


def test_multi_node_launch_gives_each_rank_its_place() -> None:
    single = EngineLaunch(
        argv=(
            "python",
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--config",
            "{config_file}",
            "--port",
            "{port}",
        ),
        model_name="m",
        environment={"A": "1"},
    )
    group = multi_node_launch(
        single,
        hosts=2,
        master_host="10.9.0.1",
        prefixes=((), ("ip", "netns", "exec", "b")),
        environments=({}, {"A": "2", "B": None}),
    )
    zero, one = group.ranks
    assert zero.argv[:4] == ("python", "-m", "k3perf_probe.serve", "serve")
    assert one.argv[:4] == ("ip", "netns", "exec", "b")
    assert "--headless" in one.argv
    assert "--headless" not in zero.argv
    for rank, launch in enumerate(group.ranks):
        assert launch.argv[launch.argv.index("--node-rank") + 1] == str(rank)
        assert launch.argv[launch.argv.index("--master-addr") + 1] == "10.9.0.1"
    assert (zero.environment, one.environment) == ({"A": "1"}, {"A": "2", "B": None})


# stands for a Python with vLLM: serves as the fake engine, or follows as the program
# above
STAND_IN_PYTHON = """#!/bin/bash
for word in "$@"; do [[ $word == --headless ]] && exec {python} -S -c "$FOLLOWER" "$@"; done
while [[ $1 != --port ]]; do shift; done
exec {python} -S -E {fake} --port "$2" --model fake --stage-s 0.05
"""


def target(kind: str, **options: Any) -> TargetSpec:
    return TargetSpec.model_validate(
        {
            "schema_version": 1,
            "name": "two",
            "description": "two hosts of one core",
            "hardware": {
                "kind": "cpu",
                "hardware_class": "cpu",
                "device_count": 2,
                "host_count": 2,
            },
            "model": {"directory": "models/x"},
            "parallelism": {"tensor": 2},
            "launch": {"kind": kind, "options": options},
            "workloads": ["chat"],
            "measurement": {"mode": "reference"},
            "provenance": {"kind": "experiment", "source": "test", "date": "2026-11-29"},
        }
    )


def test_a_multi_node_target_is_started_as_its_launch_section_says(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        STAND_IN_PYTHON.format(python=shlex.quote(sys.executable), fake=shlex.quote(str(FAKE)))
    )
    python.chmod(0o755)
    launch = EngineLaunch(
        argv=(str(python), "-m", "vllm.entrypoints.openai.api_server", "--port", "{port}"),
        model_name="fake",
        environment={"FOLLOWER": FOLLOWER.replace("len(sys.argv) > 2", "False")},
        deadlines=DEADLINES,
    )
    spec = target(
        "multi_node",
        host_addresses=["127.0.0.1", "127.0.0.2"],
        host_commands=[[], ["env", "SECOND_HOST=1"]],
    )
    with start_target(spec, launch, work_directory=tmp_path / "work") as group:
        assert isinstance(group, EngineGroup)
        assert group.stages
        environment = (
            Path(f"/proc/{group.followers[0].tree.pids()[0]}/environ").read_bytes().split(b"\0")
        )
        assert b"VLLM_HOST_IP=127.0.0.2" in environment
        assert b"SECOND_HOST=1" in environment
    assert group.stop().clean


@pytest.mark.parametrize("kind", ["slurm", "kubernetes", "ray"])
def test_what_a_cluster_starts_is_not_started_here(kind: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--launch {kind}"):
        start_target(target(kind), head(), work_directory=tmp_path)


def test_multi_node_launch_refuses_another_program() -> None:
    with pytest.raises(ValueError, match="does not run"):
        multi_node_launch(EngineLaunch(argv=("python", "-m", "other"), model_name="m"), hosts=2)


def test_a_start_can_be_interrupted_from_outside(tmp_path: Path) -> None:
    begin = time.monotonic()
    with pytest.raises(EngineError, match="was interrupted"):
        start_group(
            GroupLaunch((head("hang:load"), follower())),
            work_directory=tmp_path,
            companion_failed=lambda: (
                EngineError("the start was interrupted") if time.monotonic() > begin + 0.5 else None
            ),
        )
    assert time.monotonic() - begin < WAIT_S  # the head's own deadline is far later
