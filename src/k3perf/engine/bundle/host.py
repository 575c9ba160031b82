"""``host.json`` (written by ``k3perf_probe/inventory.py`` on the host) to a checked
description of Python, platform and packages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from k3perf.config.declared import Declared
from k3perf.documents import read_record

# Names that manylinux had before it counted glibc versions.
_LEGACY_MANYLINUX = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
_OLDEST_GLIBC_MINOR = 5


class HostInventory(Declared):
    """A host's Python and packages. ``installed`` maps normalised names to versions;
    ``markers`` are the PEP 508 variables.
    """

    schema_version: Literal[1]
    markers: dict[str, str] = Field(min_length=1)
    libc: tuple[str, str]
    installed: dict[str, str]

    @property
    def python_version(self) -> str:
        """``3.12``."""
        return self.markers["python_version"]

    def platform_tags(self) -> tuple[str, ...]:
        """Wheel platform tags that the host takes, newest glibc first; a host without
        glibc takes plain ``linux`` only.
        """
        machine = self.markers["platform_machine"]
        library, version = self.libc
        tags = []
        if library == "glibc":
            major, minor = (int(part) for part in version.split(".")[:2])
            for step in range(minor, _OLDEST_GLIBC_MINOR - 1, -1):
                tags.append(f"manylinux_{major}_{step}_{machine}")
                legacy = _LEGACY_MANYLINUX.get((major, step))
                if legacy is not None:
                    tags.append(f"{legacy}_{machine}")
        return (*tags, f"linux_{machine}")


def read_inventory(path: Path) -> HostInventory:
    """The inventory in ``path``. Raises ConfigFileError."""
    step = (
        "Run `python3 inventory.py > host.json` on the host (k3perf bundle inventory --show-script"
        " prints the script)."
    )
    return read_record(HostInventory, path, step)
