"""What Python a host has and what is installed there, as JSON on standard output:
``python3 inventory.py > host.json``.

Standard library only and one file, so that it can be copied to a host without a network
and run by whatever Python is there. It imports nothing of what it lists.
"""

import importlib.metadata
import json
import os
import platform
import re
import sys
from typing import Any

SCHEMA_VERSION = 1


def marker_environment() -> dict[str, str]:
    """The variables of PEP 508 environment markers, for this Python."""
    version = sys.implementation.version
    implementation = f"{version.major}.{version.minor}.{version.micro}"
    if version.releaselevel != "final":
        implementation += version.releaselevel[0] + str(version.serial)
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": implementation,
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_python_implementation": platform.python_implementation(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def inventory() -> dict[str, Any]:
    """Everything, as plain data."""
    installed: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            # the first one found is the one that an import would find
            installed.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    return {
        "schema_version": SCHEMA_VERSION,
        "markers": marker_environment(),
        "libc": list(platform.libc_ver()),
        "installed": dict(sorted(installed.items())),
    }


if __name__ == "__main__":
    json.dump(inventory(), sys.stdout, indent=1)
    sys.stdout.write("\n")
