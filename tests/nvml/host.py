"""A host of NVIDIA devices that behaves as a test says: a stand-in for the module
``pynvml``.

``calls`` gives, by NVML's name of a call, what it answers: a value, ``raises NAME`` (a
pynvml error without its ``NVMLError_``), ``missing`` (an older pynvml without the
call), or a mapping of device numbers to one of these. What is not named answers as on a
healthy host of eight ``NVIDIA H200``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

WORDS = {
    "GpuIsLost": "GPU is lost",
    "ResetRequired": "GPU requires restart",
    "NotSupported": "Not Supported",
    "NoPermission": "Insufficient Permissions",
    "OperatingSystem": "The operating system has blocked the request.",
    "FunctionNotFound": "Function Not Found",
    "Unknown": "Unknown Error",
    "Timeout": "Timeout",
    "Uninitialized": "Uninitialized",
    "DriverNotLoaded": "Driver Not Loaded",
}


class NVMLError(Exception):
    """The base of every error, as in pynvml."""


ERRORS = {name: type(f"NVMLError_{name}", (NVMLError,), {}) for name in WORDS}
MEMORY_BYTES = 150754820096


def healthy() -> dict[str, Callable[..., Any]]:
    """Every call that the harness makes; a device's handle is its number."""

    def answer(value: Any) -> Callable[..., Any]:
        return lambda *_: value

    return {
        "nvmlInit": answer(None),
        "nvmlShutdown": answer(None),
        "nvmlDeviceGetCount": answer(8),
        "nvmlSystemGetDriverVersion": answer("580.95.05"),
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": answer("NVIDIA H200"),
        "nvmlDeviceGetMemoryInfo": answer(SimpleNamespace(total=MEMORY_BYTES, used=0)),
        "nvmlDeviceGetComputeRunningProcesses": answer([]),
        "nvmlDeviceGetPowerUsage": answer(250_500),
        "nvmlDeviceGetTotalEnergyConsumption": answer(9_000_000),
        "nvmlDeviceGetClockInfo": answer(1700),
        "nvmlDeviceGetTemperature": answer(55),
        "nvmlDeviceGetCurrentClocksEventReasons": answer(4),
        "nvmlDeviceGetTotalEccErrors": answer(0),
        "nvmlDeviceGetRemappedRows": answer((0, 0, 0, 0)),
        "nvmlDeviceGetEnforcedPowerLimit": answer(700_000),
    }


def host(calls: Mapping[str, Any] | None = None) -> SimpleNamespace:
    """The module."""
    constants = {
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "NVML_MEMORY_ERROR_TYPE_UNCORRECTED": 1,
        "NVML_VOLATILE_ECC": 0,
    }
    functions = healthy()
    for name, behaviour in (calls or {}).items():
        if behaviour == "missing":
            del functions[name]
        else:
            functions[name] = _behaving(behaviour, functions[name])
    errors = {error.__name__: error for error in ERRORS.values()}
    return SimpleNamespace(NVMLError=NVMLError, **errors, **constants, **functions)


def _behaving(behaviour: Any, healthy_call: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        answer = behaviour
        if isinstance(behaviour, Mapping):
            index = arguments[0] if arguments else None
            answer = behaviour.get(index, behaviour.get(str(index), healthy_call))
        if answer is healthy_call:
            return healthy_call(*arguments)
        if isinstance(answer, str) and answer.startswith("raises "):
            name = answer.removeprefix("raises ")
            raise ERRORS[name](WORDS[name])
        return answer

    return call
