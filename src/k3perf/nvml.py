"""NVML behind one door: every call that can fail goes through ``ask`` or ``look``, and
every failure is classified here.

A figure can be missing for three reasons. The device does not offer it, the driver
refuses it to this process, or the device does not answer. Readers treat the three
differently, so no other module catches an NVML error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self, TypeVar

Value = TypeVar("Value")

_NOT_OFFERED: Final = frozenset(
    {
        "NotSupported",
        "FunctionNotFound",
        "ArgumentVersionMismatch",
        "VgpuEccNotSupported",
        "FreqNotSupported",
        "Deprecated",
        "NoData",
    }
)
_REFUSED: Final = frozenset({"NoPermission", "OperatingSystem"})
_GONE: Final = frozenset(
    {
        "GpuIsLost",
        "GpuNotFound",
        "ResetRequired",
        "Uninitialized",
        "DriverNotLoaded",
        "LibRmVersionMismatch",
    }
)


class Cause(StrEnum):
    """Why a figure is missing."""

    NOT_OFFERED = "not offered"
    REFUSED = "refused"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Unread:
    """A figure that could not be read. ``words`` are NVML's own; ``gone``: the device
    itself no longer answers, not this call alone.
    """

    cause: Cause
    words: str
    gone: bool = False

    @property
    def next_step(self) -> str:
        """What to look at."""
        if self.cause is Cause.REFUSED:
            return (
                "Is MIG on (`nvidia-smi -L`)? A MIG slice cannot be measured here. Otherwise run"
                " with permission to read the device."
            )
        return "See `nvidia-smi` and the kernel's log (`dmesg`) for Xid errors."


class NvmlError(Exception):
    """A call failed and its caller has no use for a missing figure."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(unread.words)
        self.unread = unread


class Nvml:
    """The library, loaded and initialised. Context manager. Raises NvmlError when it
    cannot be loaded.

    ``module`` is pynvml; tests pass another one.
    """

    def __init__(self, module: Any = None) -> None:
        try:
            self._module = importlib.import_module("pynvml") if module is None else module
            self._module.nvmlInit()
        except Exception as error:  # pynvml raises its own classes, and OSError without the library
            raise NvmlError(
                Unread(Cause.LOST, str(error) or type(error).__name__, gone=True)
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Shut NVML down. A library that is gone already is not an error."""
        with suppress(self._module.NVMLError):
            self._module.nvmlShutdown()

    def ask(self, read: Callable[[Any], Value]) -> Value:
        """``read(pynvml)``. Raises NvmlError."""
        answer = self.look(read)
        if isinstance(answer, Unread):
            raise NvmlError(answer)
        return answer

    def look(self, read: Callable[[Any], Value]) -> Value | Unread:
        """``read(pynvml)``, or why it has no answer."""
        try:
            return read(self._module)
        except AttributeError as error:  # an older pynvml lacks the call
            return Unread(Cause.NOT_OFFERED, str(error))
        except self._module.NVMLError as error:
            return _classified(error)

    def device_count(self) -> int:
        """How many devices there are, silent ones included. Raises NvmlError."""
        return self.ask(lambda nvml: int(nvml.nvmlDeviceGetCount()))

    def driver_version(self) -> str | Unread:
        """The driver's version."""
        return self.look(lambda nvml: _text(nvml.nvmlSystemGetDriverVersion()))

    def handle(self, index: int) -> Any:
        """The device's handle, or an ``Unread``."""
        return self.look(lambda nvml: nvml.nvmlDeviceGetHandleByIndex(index))

    def name(self, handle: Any) -> str | Unread:
        """The device's name."""
        return self.look(lambda nvml: _text(nvml.nvmlDeviceGetName(handle)))

    def memory(self, handle: Any) -> Memory | Unread:
        """Total and used memory."""
        return self.look(lambda nvml: _memory(nvml.nvmlDeviceGetMemoryInfo(handle)))

    def process_bytes(self, handle: Any) -> dict[int, int | None] | Unread:
        """Memory in bytes by process id; None where the driver does not say."""
        return self.look(
            lambda nvml: {
                int(entry.pid): entry.usedGpuMemory
                for entry in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            }
        )

    def uncorrected_ecc_count(self, handle: Any) -> int | Unread:
        """Uncorrected ECC errors since the driver was loaded."""
        return self.look(
            lambda nvml: int(
                nvml.nvmlDeviceGetTotalEccErrors(
                    handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                )
            )
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes."""

    total_bytes: int
    used_bytes: int


def offered(answer: Value | Unread) -> Value | None:
    """The answer, or None for one that could not be read."""
    return None if isinstance(answer, Unread) else answer


def _classified(error: Exception) -> Unread:
    name = type(error).__name__.removeprefix("NVMLError_")
    words = str(error) or name
    if name in _NOT_OFFERED:
        return Unread(Cause.NOT_OFFERED, words)
    if name in _REFUSED:
        return Unread(Cause.REFUSED, words)
    return Unread(Cause.LOST, words, gone=name in _GONE)


def _memory(info: Any) -> Memory:
    return Memory(int(info.total), int(info.used))


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
