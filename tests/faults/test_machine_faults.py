"""A machine that is not fit: said before anything is started, naming what was read,
what was needed and who is in the way.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3perf.config.machine_spec import Hardware
from k3perf.engine.device_checks import Needs
from k3perf.engine.devices import DeviceState, MemoryHolder, device_holders, nvml_reader
from k3perf.engine.findings import Level
from k3perf.engine.lock import device_lock, lock_path, read_holder
from k3perf.engine.preflight import (
    Machine,
    check,
    host_memory_holders,
    require,
    wait_for_memory,
)
from k3perf.errors import EngineError, ExitStatus, MeasurementInvalid, PreflightError
from k3perf.run.cell_measurement import engine_reason
from k3perf.run.run_parts import RunSampler
from k3perf.units import GIB, MIB
from tests.faults.matrix import Kind, of
from tests.nvml.host import host

ROWS = {fault.name: fault for fault in of(Kind.MACHINE)}
H200 = Hardware(
    kind="nvidia",
    hardware_class="h200",
    device_name="H200",
    device_memory_bytes=140 * GIB,
    device_count=1,
    minimum_driver="580",
)
CPU = Hardware(kind="cpu", hardware_class="cpu-2")
QUIET = Machine(
    available_memory_bytes=lambda: 64 * GIB,
    free_disk_bytes=lambda path: 64 * GIB,
    usable_cpus=lambda: (0, 1),
    busy_ratio=lambda: 0.01,
    governors=lambda: ("performance",),
    used_swap_bytes=lambda: 0,
)
GOOD = DeviceState(0, "NVIDIA H200", 140 * GIB, 1 * GIB, "580.95", (), 0, False)
TRAINER = MemoryHolder(4242, "train.py", 60 * GIB)


def expect_refusal(name: str, act: Callable[[], object]) -> None:
    fault = ROWS[name]
    with pytest.raises(PreflightError) as caught:
        act()
    assert re.search(fault.shows, str(caught.value)), str(caught.value)
    assert caught.value.exit_status is fault.exit_status is ExitStatus.INVALID


def refuse(
    name: str, needs: Needs, *, machine: Machine = QUIET, states: tuple[DeviceState, ...] = (GOOD,)
) -> None:
    expect_refusal(name, lambda: require(check(needs, machine=machine, devices=lambda: states)))


def test_a_fit_machine_passes_every_check(tmp_path: Path) -> None:
    python = Path(sys.executable)
    gpu = check(
        Needs(H200, 100 * GIB, writable_directories=(tmp_path,), engine_python=python),
        machine=QUIET,
        devices=lambda: (GOOD,),
    )
    cpu = check(
        Needs(CPU, 1 * GIB, writable_directories=(tmp_path / "new",), cpus=(0, 1)), machine=QUIET
    )
    assert {finding.level for finding in (*gpu, *cpu)} == {Level.OK}
    require((*gpu, *cpu))


@pytest.mark.parametrize(
    ("name", "needs", "states"),
    [
        ("wrong_class", Needs(H200), (replace(GOOD, name="NVIDIA L4", total_bytes=24 * GIB),)),
        ("too_few_devices", Needs(H200.model_copy(update={"device_count": 2})), (GOOD,)),
        ("old_driver", Needs(H200), (replace(GOOD, driver_version="550.1"),)),
        ("sick_memory", Needs(H200), (replace(GOOD, uncorrected_ecc_count=3, needs_reset=True),)),
        ("foreign_process", Needs(H200), (replace(GOOD, holders=(TRAINER,)),)),
    ],
)
def test_an_unfit_device(name: str, needs: Needs, states: tuple[DeviceState, ...]) -> None:
    refuse(name, needs, states=states)


@pytest.mark.parametrize(
    ("limit_w", "level"),
    [(700.0, Level.OK), (690.0, Level.OK), (500.0, Level.FAIL), (None, Level.FAIL)],
)
def test_a_device_under_another_power_limit_is_another_class(
    limit_w: float | None, level: Level
) -> None:
    needs = Needs(H200.model_copy(update={"power_limit_w": 700.0}))
    findings = check(needs, machine=QUIET, devices=lambda: (replace(GOOD, power_limit_w=limit_w),))
    assert (
        next(finding.level for finding in findings if finding.name == "device 0 power limit")
        is level
    )
    undeclared = check(
        Needs(H200), machine=QUIET, devices=lambda: (replace(GOOD, power_limit_w=limit_w),)
    )
    assert not [finding for finding in undeclared if "power limit" in finding.name]


def test_too_little_device_memory_names_the_holders() -> None:
    busy = replace(GOOD, used_bytes=80 * GIB, holders=(TRAINER,))
    findings = check(Needs(H200, 100 * GIB), machine=QUIET, devices=lambda: (busy,))
    memory = next(finding for finding in findings if finding.name == "device 0 memory")
    assert memory.level is Level.FAIL
    assert TRAINER.text in memory.text


def test_a_full_disk_and_a_read_only_directory(tmp_path: Path) -> None:
    needs = Needs(CPU, writable_directories=(tmp_path,))
    refuse("disk_full_before", needs, machine=replace(QUIET, free_disk_bytes=lambda path: MIB))
    refuse("results_read_only", Needs(CPU, writable_directories=(Path("/proc/k3perf"),)))


def test_processors_and_python_that_are_not_there() -> None:
    refuse("no_such_processor", Needs(CPU, cpus=(0, 97)))
    refuse("no_engine_python", Needs(CPU, engine_python=Path("/nonexistent/python")))


def test_what_may_only_disturb_is_a_warning() -> None:
    loud = replace(
        QUIET, busy_ratio=lambda: 0.9, governors=lambda: ("powersave",), used_swap_bytes=lambda: GIB
    )
    findings = check(Needs(CPU), machine=loud)
    assert {finding.name for finding in findings if finding.level is Level.WARN} == {
        "cpu governor",
        "cpu load",
        "swap",
    }
    require(findings)


class FakeNvmlError(Exception):
    pass


def fake_nvml(**overrides: Any) -> SimpleNamespace:
    """The part of pynvml that is used, for one H200."""

    def unsupported(*_: object) -> None:
        raise FakeNvmlError("Not Supported")

    parts = {
        "NVMLError": FakeNvmlError,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(total=140 * GIB, used=GIB),
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H200",
        "nvmlSystemGetDriverVersion": lambda: "580.95",
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=1, usedGpuMemory=None)
        ],
        "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: 0,
        "nvmlDeviceGetRemappedRows": unsupported,
        **overrides,
    }
    return SimpleNamespace(**parts)


def test_nvml_is_read_into_plain_data() -> None:
    (state,) = nvml_reader(nvml=fake_nvml())()
    assert (state.name, state.free_bytes, state.uncorrected_ecc_count, state.needs_reset) == (
        "NVIDIA H200",
        139 * GIB,
        0,
        None,
    )
    # this fake has no such call, as an older library
    assert state.power_limit_w is None
    (limited,) = nvml_reader(
        nvml=fake_nvml(nvmlDeviceGetEnforcedPowerLimit=lambda handle: 700_000)
    )()
    assert limited.power_limit_w == 700.0
    assert state.holders[0].size_bytes is None
    assert "an unknown amount" in state.holders[0].text


def test_nvml_absent_or_silent() -> None:
    def fail(*_: object) -> None:
        raise FakeNvmlError("GPU is lost")

    def no_library() -> None:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    expect_refusal(
        "no_nvml",
        lambda: require(
            check(Needs(H200), devices=nvml_reader(nvml=fake_nvml(nvmlInit=no_library)))
        ),
    )
    silent = nvml_reader(nvml=fake_nvml(nvmlDeviceGetMemoryInfo=fail))
    expect_refusal("device_silent", lambda: require(check(Needs(H200), devices=silent)))


def test_a_device_that_refuses_its_memory_and_one_that_has_no_such_figure() -> None:
    refusing = nvml_reader((0,), nvml=host({"nvmlDeviceGetMemoryInfo": "raises NoPermission"}))
    expect_refusal("device_refused", lambda: require(check(Needs(H200), devices=refusing)))
    shared = nvml_reader((0,), nvml=host({"nvmlDeviceGetMemoryInfo": "raises NotSupported"}))
    assert ROWS["device_without_memory_info"].exit_status is ExitStatus.OK
    require(check(Needs(H200.model_copy(update={"device_memory_bytes": None})), devices=shared))


class Time:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def test_memory_is_waited_for_and_then_the_holders_are_named() -> None:
    clock = Time()
    held = replace(GOOD, holders=(MemoryHolder(1, "small", GIB), TRAINER))

    def wait(free: Callable[[], int]) -> int:
        return wait_for_memory(
            100 * GIB,
            free_bytes=free,
            holders=lambda: device_holders((held,)),
            deadline_s=30,
            clock_s=lambda: clock.now_s,
            sleep=clock.sleep,
        )

    expect_refusal("memory_held", lambda: wait(lambda: 79 * GIB))
    assert clock.now_s == pytest.approx(30, abs=1)
    begin_s = clock.now_s
    assert wait(lambda: 139 * GIB if clock.now_s >= begin_s + 5 else 79 * GIB) == 139 * GIB
    assert clock.now_s == pytest.approx(begin_s + 5, abs=1)


def test_host_holders_are_real_processes() -> None:
    holders = host_memory_holders()
    assert holders
    assert all(holder.size_bytes for holder in holders)


HOLD = "import sys,time\nfrom pathlib import Path\nfrom k3perf.engine.lock import device_lock\n"
HOLD += (
    "with device_lock('cpu', directory=Path(sys.argv[1])):\n    print('held', flush=True)\n   "
    " sys.stdin.read()\n"
)


def holder_process(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_two_suites_at_once(tmp_path: Path) -> None:
    process = holder_process(tmp_path)

    def take() -> None:
        with device_lock("cpu", directory=tmp_path):
            pytest.fail("two holders")

    expect_refusal("second_suite", take)
    with pytest.raises(
        PreflightError, match=rf"pid {process.pid} on \S+ since \d{{4}}-.* \(.*python"
    ):
        take()
    with device_lock("nvidia-0", directory=tmp_path):  # another device is free
        pass
    process.communicate("")
    assert process.returncode == 0
    assert list(tmp_path.iterdir()) == []
    with device_lock("cpu", directory=tmp_path) as stale:
        assert stale is None


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    process = holder_process(tmp_path)
    process.kill()
    process.wait()
    with device_lock("cpu", directory=tmp_path):
        assert read_holder(lock_path("cpu", tmp_path)) is not None
    process.communicate()


def test_a_stale_lock_is_taken_over_and_told(tmp_path: Path) -> None:
    path = lock_path("cpu", tmp_path)
    gone = {
        "pid": 2**22 + 1,
        "start_ticks": 5,
        "host": "old",
        "since_utc": "2026-01-01T00:00:00+00:00",
        "command": "pytest",
    }
    path.write_text(json.dumps(gone))
    with device_lock("cpu", directory=tmp_path) as stale:
        assert stale is not None
        assert stale.pid == gone["pid"]
        assert not stale.alive
        now = read_holder(path)
        assert now is not None
        assert now.alive
    path.write_text(json.dumps({**gone, "pid": 1}))
    with device_lock("cpu", directory=tmp_path) as stale:
        assert stale is not None
        assert not stale.alive  # pid 1 runs, but did not start at tick 5


def test_a_lock_file_without_sense_is_no_obstacle(tmp_path: Path) -> None:
    lock_path("cpu", tmp_path).write_text("{")
    with device_lock("cpu", directory=tmp_path) as stale:
        assert stale is None


def test_a_link_in_the_lock_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("somebody's")
    lock_path("cpu", tmp_path).symlink_to(tmp_path / "other.txt")
    with (
        pytest.raises(PreflightError, match="it is a link, which is not followed"),
        device_lock("cpu", directory=tmp_path),
    ):
        pytest.fail("taken")
    assert (tmp_path / "other.txt").read_text() == "somebody's"


def test_a_folder_of_locks_that_is_a_link_holds_one_lock(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    process = holder_process(tmp_path / "link")
    with (
        pytest.raises(PreflightError, match="in use by another suite"),
        device_lock("cpu", directory=tmp_path / "real"),
    ):
        pytest.fail("two holders")
    process.communicate("")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
def test_locks_are_for_every_user_of_the_machine_whatever_the_umask(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    with device_lock("cpu", directory=folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
        assert stat.S_IMODE(lock_path("cpu", folder).stat().st_mode) == 0o666


AS_NOBODY = (
    "import os,sys\nfrom pathlib import Path\nfrom k3perf.engine import lock\nfrom"
    " k3perf.engine.lock import device_lock\n"
)
# nobody may not be let to start this Python again, as a guardian is
AS_NOBODY += (
    "lock.Guardian = lambda *_, **__: type('Nothing', (), {'release': lambda self: None})()\n"
)
AS_NOBODY += (
    "os.setgroups([]); os.setgid(65534); os.setuid(65534)\ntry:\n    with device_lock('cpu',"
    " directory=Path(sys.argv[1])):\n"
)
AS_NOBODY += (
    "        print('held')\nexcept Exception as error:\n    print(type(error).__name__, error)\n"
)


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_meets_the_holder_and_takes_what_a_killed_suite_left() -> None:
    # pytest's own folders are closed to other users
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(place) / "locks"

        def ask() -> str:
            return subprocess.run(
                [sys.executable, "-c", AS_NOBODY, str(folder)],
                capture_output=True,
                text=True,
                check=False,
            ).stdout

        with device_lock("cpu", directory=folder):
            assert f"in use by another suite: pid {os.getpid()} on" in ask()
        assert ask() == "held\n"
        gone = {
            "pid": 2**22 + 1,
            "start_ticks": 5,
            "host": "old",
            "since_utc": "2026-01-01T00:00:00+00:00",
            "command": "pytest",
        }
        lock_path("cpu", folder).write_text(json.dumps(gone))
        lock_path("cpu", folder).chmod(0o666)
        assert (
            ask() == "held\n"
        )  # root's file in a sticky folder stays, and is no obstacle to anybody
        assert lock_path("cpu", folder).exists()
        with device_lock("cpu", directory=folder) as stale:
            assert stale is None  # nobody's name is gone from it


def test_a_sampler_that_ended_costs_one_cell_and_not_the_run() -> None:
    pool: Any = SimpleNamespace(pids=lambda: (), engines_count=lambda: 0)
    sampler = RunSampler(pool, ())
    with closing(sampler):
        first = sampler.running()
        assert sampler.running() is first
        first.failure = "OSError: too many open files"
        second = sampler.running()
        assert second is not first
        second.window(0, 1)


def test_what_kept_a_cell_from_being_measured_has_a_rule_of_its_own() -> None:
    errors = (
        EngineError("died"),
        PreflightError("no space"),
        MeasurementInvalid("the disk is full"),
    )
    assert [engine_reason(error).rule for error in errors] == [
        "engine_died",
        "not_fit_to_start",
        "machine_failed",
    ]
