"""CUDA_VISIBLE_DEVICES to device indices, lock keys and the readers that keep to them."""

from types import SimpleNamespace

import pytest

from k3perf.config.machine_spec import Hardware
from k3perf.errors import UsageError
from k3perf.telemetry.hardware import read_hardware, silent_device_notes
from k3perf.telemetry.visible import (
    VARIABLE,
    device_keys,
    target_device_indices,
    visible_device_indices,
)
from tests.unit.telemetry.fake_devices import NVMLError, NVMLError_GpuIsLost

UUIDS = {"GPU-aa": 0, "GPU-bb": 3}


class NVMLError_NotFound(NVMLError):  # noqa: N801  (pynvml's own spelling)
    pass


def nvml():
    def by_uuid(uuid):
        if uuid == "GPU-lost":
            raise NVMLError_GpuIsLost("GPU is lost")
        if uuid not in UUIDS:
            raise NVMLError_NotFound("Not Found")
        return UUIDS[uuid]

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetIndex=lambda handle: handle,
        nvmlDeviceGetCount=lambda: 4,
    )


def hardware(**changes):
    return Hardware(**({"kind": "nvidia", "hardware_class": "h200", "device_count": 1} | changes))


@pytest.mark.parametrize(
    ("listed", "indices"),
    [
        ("0", (0,)),
        ("3,1", (3, 1)),
        (" 2 , 0 ", (2, 0)),
        ("", ()),
        ("-1", ()),
        ("GPU-bb,GPU-aa", (3, 0)),
    ],
)
def test_listed_devices_in_their_order(monkeypatch, listed, indices):
    monkeypatch.setenv(VARIABLE, listed)
    assert visible_device_indices(nvml=nvml()) == indices


def test_unset_shows_everything(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert visible_device_indices() is None


@pytest.mark.parametrize("listed", ["x", "0,x", "1.5", "MIG-aa", "GPU-cc", "0,", "1,1", "GPU-aa,0"])
def test_an_entry_that_is_no_device_is_named(monkeypatch, listed):
    monkeypatch.setenv(VARIABLE, listed)
    with pytest.raises(UsageError, match=VARIABLE):
        visible_device_indices(nvml=nvml())


@pytest.mark.parametrize("listed", ["x", "MIG-aa", "GPU-cc", "1,1", "GPU-aa,GPU-lost"])
def test_an_odd_list_hides_the_gpus_and_leaves_cpu_targets_alone(monkeypatch, listed):
    monkeypatch.setenv(VARIABLE, listed)
    found = read_hardware(nvml())
    assert found.device_names == ()
    assert VARIABLE in found.lacks(hardware())
    assert found.lacks(hardware(kind="cpu", hardware_class="cpu-any")) == ""


def test_an_odd_list_is_noted(monkeypatch):
    monkeypatch.setenv(VARIABLE, "x")
    found = read_hardware(nvml())
    monkeypatch.setattr("k3perf.telemetry.hardware.detect_hardware", lambda: found)
    (note,) = silent_device_notes()
    assert note.startswith(f"{VARIABLE} holds 'x'. Use the indices")


def test_a_listed_device_that_is_lost_is_named_with_nvmls_words(monkeypatch):
    monkeypatch.setenv(VARIABLE, "GPU-aa,GPU-lost")
    with pytest.raises(
        UsageError, match="'GPU-lost', which no device here answers to: GPU is lost"
    ):
        visible_device_indices(nvml=nvml())


@pytest.mark.parametrize(
    ("listed", "changes", "indices", "keys"),
    [
        (None, {}, (0,), ("nvidia-0",)),
        ("5", {}, (5,), ("nvidia-5",)),
        ("6,2,4", {"device_count": 2}, (6, 2), ("nvidia-2", "nvidia-6")),
        (
            None,
            {"device_count": 16, "host_count": 2},
            tuple(range(8)),
            tuple(f"nvidia-{index}" for index in range(8)),
        ),
        ("1", {"kind": "cpu", "hardware_class": "cpu-avx512"}, (), ("cpu",)),
    ],
)
def test_a_target_takes_the_first_visible_devices_and_locks_them_in_ascending_order(
    monkeypatch, listed, changes, indices, keys
):
    monkeypatch.delenv(VARIABLE, raising=False)
    if listed is not None:
        monkeypatch.setenv(VARIABLE, listed)
    assert target_device_indices(hardware(**changes)) == indices
    assert device_keys(hardware(**changes)) == keys
