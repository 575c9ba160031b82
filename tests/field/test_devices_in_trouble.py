"""Every situation of ``devices.yaml``: what is collected, what doctor and the
pre-flight say, and what a window's readings are.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3perf.config.machine_spec import Hardware
from k3perf.config.suite import load_suite
from k3perf.engine.device_checks import Needs
from k3perf.engine.devices import nvml_reader
from k3perf.engine.findings import Level
from k3perf.engine.preflight import check, require
from k3perf.errors import ExitStatus, PreflightError
from k3perf.metrics.validity import ValidityRules, judge_round
from k3perf.records.samples import RoundKind, RoundRecord, TelemetryReading
from k3perf.run import readiness
from k3perf.telemetry.devices import NvmlSource
from k3perf.telemetry.hardware import DetectedHardware, read_hardware
from k3perf.telemetry.sampler import Sampler
from k3perf.telemetry.window import DeviceOwnership, device_readings
from tests.nvml.host import MEMORY_BYTES, host
from tests.unit.telemetry.fake_devices import device_sample

ENTRIES = yaml.safe_load(Path(__file__).with_name("devices.yaml").read_text())
LOST = '{"nvmlDeviceGetHandleByIndex": {"5": "raises GpuIsLost"}}'
S = 1_000_000_000


def h200(count: int, **changes: Any) -> Hardware:
    values = {
        "kind": "nvidia",
        "hardware_class": "h200",
        "device_name": "NVIDIA H200",
        "device_memory_bytes": MEMORY_BYTES,
    }
    return Hardware(**{**values, "device_count": count, **changes})


TARGETS = {
    "one": h200(1),
    "two": h200(2),
    "six": h200(6),
    "eight": h200(8),
    "limited": h200(1, power_limit_w=700),
    "new_driver": h200(1, minimum_driver="580"),
    "any": Hardware(kind="nvidia", hardware_class="any"),
    "gb10": Hardware(kind="nvidia", hardware_class="gb10", device_name="NVIDIA GB10"),
    "gb10_with_memory": Hardware(
        kind="nvidia", hardware_class="gb10", device_name="NVIDIA GB10", device_memory_bytes=1 << 37
    ),
    "cpu": Hardware(kind="cpu", hardware_class="cpu"),
}


def with_part(name: str) -> list[Any]:
    return [pytest.param(entry, id=entry["id"]) for entry in ENTRIES if name in entry]


@pytest.mark.parametrize("entry", with_part("host"))
def test_what_a_target_lacks_on_this_host(entry: dict[str, Any]) -> None:
    found = read_hardware(host(entry["calls"]))
    for name, pattern in entry["host"].items():
        lack = found.lacks(TARGETS[name])
        assert re.search(pattern, lack) if pattern else lack == "", (name, lack)


@pytest.mark.parametrize("entry", with_part("checks"))
def test_the_checks_before_a_start(entry: dict[str, Any]) -> None:
    for name, wanted in entry["checks"].items():
        hardware = TARGETS[name]
        reader = nvml_reader(tuple(range(hardware.device_count)), nvml=host(entry["calls"]))
        findings = [
            finding
            for finding in check(Needs(hardware), devices=reader)
            if finding.name.startswith("device")
        ]
        seen = {finding.name: finding for finding in findings if finding.level is not Level.OK}
        assert seen.keys() == wanted.keys(), name
        for key, (level, pattern) in wanted.items():
            assert seen[key].level == level
            assert re.search(pattern, f"{seen[key].reading} {seen[key].text}"), seen[key]
        told = " ".join(f"{finding.reading} {finding.text}" for finding in findings)
        assert re.search(entry.get("shown", {}).get(name, ""), told), told
        assert entry.get("never", "\0") not in told
        if Level.FAIL in {finding.level for finding in findings}:
            with pytest.raises(PreflightError) as refused:
                require(findings)
            assert refused.value.exit_status is ExitStatus.INVALID
        else:
            require(findings)


def window_of(calls: dict[str, Any], device: int) -> tuple[TelemetryReading, ...]:
    clock = iter(range(0, 1000 * S, S))
    sampler = Sampler(
        lambda: (),
        (device,),
        interval_s=3600,
        open_source=lambda: NvmlSource(host(calls)),
        now_ns=lambda: next(clock),
    )
    with sampler as running:
        running.sample(thorough=True)
        return running.window(S, 20 * S)


def broken_rules(readings: tuple[TelemetryReading, ...]) -> list[str]:
    of_devices = tuple(reading for reading in readings if reading.source.startswith("NVML device"))
    record = RoundRecord(0, RoundKind.MEASURED, 0, 1, (), telemetry=of_devices)
    return [
        reason.rule
        for reason in judge_round(record, ValidityRules())
        if reason.rule != "no_requests"
    ]


@pytest.mark.parametrize("entry", with_part("sampler"))
def test_the_readings_of_a_window(entry: dict[str, Any]) -> None:
    readings = window_of(entry["calls"], entry["sampler"]["device"])
    by_name = {reading.name: reading for reading in readings}
    for name, (value, pattern) in entry["sampler"]["readings"].items():
        assert by_name[name].value == value, by_name[name]
        assert re.search(pattern, by_name[name].source), by_name[name]
    assert broken_rules(readings) == entry["judged"]


def of_samples(*samples: dict[str, Any]) -> dict[str, TelemetryReading]:
    kept = [device_sample(position * S, **changes) for position, changes in enumerate(samples)]
    return {
        entry.name: entry
        for entry in device_readings(
            0, kept, 0, (len(kept) - 1) * S, DeviceOwnership(frozenset({4242}))
        )
    }


@pytest.mark.parametrize(
    ("name", "field", "values", "value"),
    [
        ("energy_j", "energy_j", [4_000_000.0, 5.0], None),
        (
            "energy_j",
            "energy_j",
            [100.0, 5.0, 900.0],
            None,
        ),  # loaded again in the middle, and past its old value since
        ("energy_j", "energy_j", [100.0, 100.0], 0.0),
        ("energy_j", "energy_j", [100.0, 700.0], 600.0),
        ("ecc_errors_count", "uncorrected_ecc_count", [3, 0], None),
        ("ecc_errors_count", "uncorrected_ecc_count", [3, 0, 4], None),
        ("ecc_errors_count", "uncorrected_ecc_count", [3, 3], 0.0),
        ("ecc_errors_count", "uncorrected_ecc_count", [3, 4], 1.0),
    ],
)
def test_a_counter_that_falls_is_unknown(
    name: str, field: str, values: list[float], value: float | None
) -> None:
    seen = of_samples(*({field: reading} for reading in values))
    assert seen[name].value == value
    assert ("the counter fell" in seen[name].source) is (value is None)
    assert seen["temperature_max_c"].value == 60.0  # the others stay
    broken = broken_rules(tuple(seen.values()))
    assert ("ecc_errors_count" in broken) is (name == "ecc_errors_count" and value != 0.0)


@pytest.mark.parametrize(
    ("ranks", "visible", "on_device", "strangers"),
    [
        # process ids of another namespace, as in nvidia-docker 1483,
        # gpu-monitoring-tools 63, HAMi-core 112, optimum-benchmark 88
        (1, {1, 2, 3, 4, 5, 6}, {645400: 5, 700000: 9}, 1),
        (1, {324, 325}, {645400: 5}, 0),
        (1, {324, 325}, {645400: 5, 324: 5}, 1),  # the engine's rank is the visible one
        (1, {324, 325, 999}, {645400: 5, 999: 1}, 1),
        # candidate and reference, both resident
        (2, {324, 325}, {645400: 5, 700000: 9}, 0),
        (2, {324, 325}, {645400: 5, 700000: 9, 700001: 9}, 1),
        (1, {324, 325}, {645400: 5, 700000: 9, 700001: 9}, 2),
        (0, {324, 325}, {645400: 5}, 1),  # nothing of this run computes there
    ],
)
def test_invisible_processes_are_the_engines_only_as_far_as_it_has_ranks(
    ranks: int, visible: set[int], on_device: dict[int, int], strangers: int
) -> None:
    ownership = DeviceOwnership(
        frozenset(visible - {999}), ranks, exists=lambda pid: pid in visible, command=lambda _: ""
    )
    samples = [device_sample(position, process_bytes=on_device) for position in range(2)]
    found = next(
        entry
        for entry in device_readings(0, samples, 0, 1, ownership)
        if entry.name == "foreign_device_processes_count"
    )
    assert found.value == strangers
    if strangers:
        assert all(f"pid {pid}" in found.source for pid in on_device if pid == 999)
        doubtful = "may be the engine's" in found.source
        assert doubtful is (found.source.count("pid ") > strangers)


def test_the_check_before_a_second_engine_forgives_as_many() -> None:
    entries = [
        type("Process", (), {"pid": 2**22 + number, "usedGpuMemory": 1})() for number in (1, 2)
    ]
    reader = nvml_reader((0,), nvml=host({"nvmlDeviceGetComputeRunningProcesses": entries}))
    needs = Needs(TARGETS["one"], own_pids=frozenset({os.getpid()}), own_ranks_count=1)
    (found,) = [
        finding for finding in check(needs, devices=reader) if finding.name == "device 0 processes"
    ]
    assert (found.level, found.reading) == (Level.FAIL, "1")
    both = check(replace(needs, own_ranks_count=2), devices=reader)
    assert not [finding for finding in both if finding.name == "device 0 processes"]


def test_a_known_need_of_memory_is_refused_where_the_device_does_not_report_it() -> None:
    reader = nvml_reader((0,), nvml=host({"nvmlDeviceGetMemoryInfo": "raises NotSupported"}))
    needs = Needs(TARGETS["any"], free_memory_bytes=1 << 30)
    (found,) = [finding for finding in check(needs, devices=reader) if finding.level is Level.FAIL]
    assert (found.name, found.reading) == ("device 0 memory", "unknown (Not Supported)")


@pytest.mark.parametrize(
    ("calls", "named"),
    [
        (
            {"nvmlDeviceGetHandleByIndex": {0: "raises GpuIsLost"}},
            "device 0: does not answer NVML: GPU is lost",
        ),
        ({"nvmlDeviceGetMemoryInfo": "raises NoPermission"}, "memory: Insufficient Permissions"),
    ],
)
def test_a_device_without_memory_is_not_waited_for(
    calls: dict[str, Any],
    named: str,
    repository: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        readiness, "nvml_reader", lambda indices: nvml_reader(indices, nvml=host(calls))
    )
    monkeypatch.setattr(readiness, "wait_for_memory", lambda *_, **__: pytest.fail("waited"))
    target = load_suite(repository / "perf_tests").target("h200-k3")
    with pytest.raises(PreflightError, match=named):
        readiness.require_ready(
            target, engines_count=1, engine_python=Path(sys.executable), results_directory=tmp_path
        )
    read = readiness.device_used_bytes_reader(target)
    assert read is not None
    assert read() is None


def test_another_targets_lost_device_is_not_this_windows_concern() -> None:
    source = NvmlSource(host({"nvmlDeviceGetHandleByIndex": {5: "raises GpuIsLost"}}))
    clock = iter(range(0, 1000 * S, S))
    with Sampler(
        lambda: (), (0, 5), interval_s=3600, open_source=lambda: source, now_ns=lambda: next(clock)
    ) as running:
        running.sample(thorough=True)
        assert broken_rules(running.window(S, 20 * S, devices=(0,))) == []
        assert broken_rules(running.window(S, 20 * S, devices=())) == []
        assert "temperature_max_c" in broken_rules(running.window(S, 20 * S, devices=(0, 5)))


def test_a_run_without_devices_leaves_nvml_alone() -> None:
    def never() -> NvmlSource:
        raise AssertionError("NVML was opened")

    with Sampler(lambda: (), (), interval_s=3600, open_source=never) as running:
        assert broken_rules(running.window(0, 1)) == []


# ---- whole commands with one GPU of eight lost


def run(repository: Path, *words: str, nvml: str = LOST) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        [
            str(repository / "tests" / "nvml"),
            str(repository / "src"),
            os.environ.get("PYTHONPATH", ""),
        ]
    )
    environment = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    environment |= {"PYTHONPATH": path, "K3PERF_TEST_NVML": nvml, "COLUMNS": "250"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr
    assert "INTERNALERROR" not in done.stdout + done.stderr
    return done


def collect(repository: Path, *words: str, nvml: str = LOST) -> subprocess.CompletedProcess[str]:
    return run(
        repository,
        "-m",
        "pytest",
        "perf_tests",
        "--collect-only",
        "-p",
        "no:cacheprovider",
        *words,
        nvml=nvml,
    )


def k3perf(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(repository, "-m", "k3perf.cli.main", *words)


NAMED = "device 5 does not answer NVML: GPU is lost"


def test_collecting_names_the_lost_device_and_goes_on(repository: Path) -> None:
    done = collect(repository, "-v")
    assert done.returncode == ExitStatus.OK, done.stdout + done.stderr
    assert f"k3perf: {NAMED}" in done.stdout
    assert re.search(rf"skipped target h200-k3-whole: needs 8 x .*{NAMED}", done.stdout)
    assert "skipped target h200-k3: only measured when named" in done.stdout  # not for its hardware
    cpu = collect(repository, "--k3-target", "cpu-hybrid", "-q")
    assert cpu.returncode == ExitStatus.OK
    assert "[cpu-hybrid-default-chat]" in cpu.stdout
    gpu = collect(repository, "--k3-target", "h200-k3-tp2", "-q")
    assert gpu.returncode == ExitStatus.OK
    assert "[h200-k3-tp2-default-serve_1k]" in gpu.stdout


@pytest.mark.parametrize(
    "call",
    [
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetName",
        "nvmlDeviceGetCount",
        "nvmlSystemGetDriverVersion",
    ],
)
def test_whatever_nvml_refuses_collecting_goes_on(repository: Path, call: str) -> None:
    done = collect(
        repository,
        "-q",
        "-k",
        "cpu-hybrid-default-chat",
        nvml=json.dumps({call: "raises NoPermission"}),
    )
    assert done.returncode == ExitStatus.OK, done.stdout + done.stderr


def test_doctor_names_it_for_every_target(repository: Path, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho vllm 0.33.0\n")
    python.chmod(0o755)
    names = ("h200-k3", "cpu-hybrid", "h200-k3-whole")
    common = (
        "--engine-python",
        str(python),
        "--results",
        str(tmp_path),
        "--json",
        *(f"--target={name}" for name in names),
    )
    done = k3perf(repository, "doctor", *common)
    assert done.returncode == ExitStatus.INVALID
    seen = {
        name: {entry["name"]: entry for entry in findings}
        for name, findings in json.loads(done.stdout).items()
    }
    for name in names:
        assert "does not answer NVML: GPU is lost" in seen[name]["device 5"]["reading"]
        assert "nvidia-smi" in seen[name]["device 5"]["text"]
    assert [seen[name]["device 5"]["level"] for name in names] == ["warn", "warn", "fail"]
    assert seen["h200-k3"]["device 0 class"]["level"] == "ok"
    assert seen["h200-k3-whole"]["device 7 class"]["level"] == "ok"


def test_a_run_that_would_take_it_is_refused_before_anything_starts(
    repository: Path, tmp_path: Path
) -> None:
    """h200-k3-tp2 takes the first two devices, of which one is lost."""
    lost = '{"nvmlDeviceGetHandleByIndex": {"1": "raises GpuIsLost"}}'
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho vllm 0.33.0\n")
    python.chmod(0o755)
    words = (
        "-m",
        "pytest",
        "perf_tests",
        "--k3-target=h200-k3-tp2",
        "-k",
        "h200-k3-tp2-default-serve_1k",
        "-m",
        "throughput",
    )
    words += (
        "-p",
        "no:cacheprovider",
        "--k3-plain",
        f"--k3-results={tmp_path / 'results'}",
        f"--k3-engine-python={python}",
    )
    done = run(repository, *words, nvml=lost)
    assert done.returncode == ExitStatus.INVALID, done.stdout + done.stderr
    assert "device 1: does not answer NVML: GPU is lost" in done.stdout
    assert not (tmp_path / "results" / "engines").exists()


def test_plan_and_export_name_it(repository: Path, tmp_path: Path) -> None:
    planned = k3perf(repository, "plan", "--target", "h200-k3")
    assert planned.returncode == ExitStatus.OK
    assert f"note: on this machine {NAMED}" in planned.stdout
    as_json = k3perf(repository, "plan", "--target", "h200-k3", "--json")
    assert any(NAMED in note for note in json.loads(as_json.stdout)["notes"])
    assert NAMED not in k3perf(repository, "plan", "--kind", "cpu").stdout
    printed = k3perf(
        repository, "export", "default", "--target", "h200-k3", "--model", "some/model"
    )
    assert printed.returncode == ExitStatus.OK
    assert f"# note: on this machine {NAMED}" in printed.stdout
    assert (
        yaml.safe_load(printed.stdout)["model"] == "some/model"
    )  # the note is a comment of the printed file
    written = k3perf(
        repository,
        "export",
        "default",
        "--target",
        "b200-k3",
        "--launch",
        "multi_node",
        "--output",
        str(tmp_path),
        "--model",
        "m",
    )
    assert written.returncode == ExitStatus.OK, written.stdout + written.stderr
    assert NAMED in written.stdout


def test_a_healthy_host_is_told_nothing(repository: Path) -> None:
    assert "NVML" not in collect(repository, nvml="{}").stdout
    assert read_hardware(host()).silent == ()
    assert isinstance(read_hardware(host()), DetectedHardware)
