"""The GPUs of one runner: K3PERF_GPU to the container's command, and a lock so that no
two runners of a host have the same GPU. Standard library only.

K3PERF_GPU: names as ``nvidia-ctk cdi list`` shows them after ``nvidia.com/gpu=``,
separated by commas (``0``, ``0,1``, ``MIG-...``), or ``all``, the default.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tempfile
from pathlib import Path
from typing import IO

COMPOSE = "docker compose"
SERVICE = "gpu-runner"
# a colon would separate a host path from a container path in Compose's short syntax
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class GpuTakenError(Exception):
    """Another runner of this host has the GPU."""


def names(value: str) -> tuple[str, ...]:
    """The GPUs that K3PERF_GPU names. Raises ValueError for other names."""
    found = tuple(part.strip() for part in (value or "all").split(","))
    for name in found:
        if not NAME.fullmatch(name):
            raise ValueError(
                f"K3PERF_GPU={value!r}: {name!r} is not a device name. Give names without a colon"
                " from `nvidia-ctk cdi list`, separated by commas, such as 0,1"
            )
    if len(set(found)) < len(found) or (len(found) > 1 and "all" in found):
        raise ValueError(f"K3PERF_GPU={value!r} names a device twice. Name each once, or all alone")
    return found


def command(gpus: tuple[str, ...], folder: Path) -> list[str]:
    """The command of one container with these GPUs. Compose merges lists of devices, so
    the first comes from K3PERF_GPU, and an override in ``folder`` adds the others.
    """
    if len(gpus) == 1:
        return [*COMPOSE.split(), "run", "--rm", "-T", SERVICE]
    override = folder / "gpus.json"  # JSON is YAML
    devices = [f"nvidia.com/gpu={name}" for name in gpus[1:]]
    override.write_text(json.dumps({"services": {SERVICE: {"devices": devices}}}), encoding="utf-8")
    # -f turns off Compose's own search, so the site's override is named too
    files = ["-f", "compose.yaml"]
    if Path("compose.override.yaml").exists():
        files += ["-f", "compose.override.yaml"]
    return [*COMPOSE.split(), *files, "-f", str(override), "run", "--rm", "-T", SERVICE]


def private_folder() -> Path:
    """A folder for the override, of this user alone."""
    return Path(tempfile.mkdtemp(prefix="k3perf-runner-"))


def hold(gpus: tuple[str, ...], folder: Path) -> list[IO[str]]:
    """Locks on the GPUs, held while the files are open. A runner of ``all`` and one of
    a single GPU exclude each other. Raises GpuTakenError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    everything = gpus == ("all",)
    wanted = [("all", fcntl.LOCK_EX if everything else fcntl.LOCK_SH)]
    wanted += [] if everything else [(name, fcntl.LOCK_EX) for name in gpus]
    held = []
    for name, kind in wanted:
        file = (folder / f"k3perf-gpu-{name}.lock").open("a", encoding="utf-8")
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except OSError:
            file.close()
            for other in held:
                other.close()
            taken = "a GPU of this host" if everything else f"GPU {name}"
            taken = "all GPUs" if name == "all" and not everything else taken
            raise GpuTakenError(
                f"another runner of this host has {taken}. Give each GPU to one runner: K3PERF_GPU"
                " in /etc/k3perf/*.env"
            ) from None
        os.set_inheritable(file.fileno(), False)
        held.append(file)
    return held
