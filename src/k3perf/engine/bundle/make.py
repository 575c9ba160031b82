"""Inventory and requirements to a finished bundle: fetch, unpack, strip, pack, write
the manifest, the unpack script and the checksums.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from k3perf import __version__
from k3perf.config.load_yaml import read_yaml
from k3perf.engine.bundle import archive
from k3perf.engine.bundle.closure import Closure, Fetch, LeaveOut, missing_packages
from k3perf.engine.bundle.host import HostInventory
from k3perf.engine.bundle.wheels import PipFetcher, strip, unpack_wheel
from k3perf.errors import UsageError

MANIFEST_FILE: Final = "manifest.json"
MANIFEST_VERSION: Final = 1
# A compiled extension is built against these; another version on the host is not the
# host that the bundle was made for.
PINNED_ON_HOST: Final = ("torch", "triton", "transformers")


@dataclass(frozen=True, slots=True)
class BundlePlan:
    """What to carry and what to leave behind. ``strip`` and ``keep`` are patterns of
    paths under the import folder.
    """

    requirements: tuple[str, ...]
    part_bytes: int
    leave_out: tuple[LeaveOut, ...] = ()
    strip: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    closed: bool = False
    """True: ``requirements`` are complete, nothing is looked up beyond them."""


def read_recipe(path: Path | None) -> tuple[tuple[LeaveOut, ...], tuple[str, ...], tuple[str, ...]]:
    """``leave_out``, ``strip`` and ``keep`` of a recipe file, or of the shipped recipe
    for Hopper. Raises ConfigFileError.
    """
    source = path or Path(str(files("k3perf.engine.bundle").joinpath("hopper.yaml")))
    data = read_yaml(source)
    unknown = set(data) - {"leave_out", "strip", "keep"}
    if unknown:
        raise UsageError(
            f"{source}: unknown key {sorted(unknown)[0]!r}. A bundle recipe has leave_out, strip"
            " and keep."
        )
    left_out = tuple(
        LeaveOut(pattern, reason) for pattern, reason in (data.get("leave_out") or {}).items()
    )
    return left_out, tuple(data.get("strip") or ()), tuple(data.get("keep") or ())


def make_bundle(
    host: HostInventory,
    plan: BundlePlan,
    output: Path,
    *,
    download_folder: Path,
    fetch: Fetch | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> dict[str, Any]:
    """Write the bundle into the empty folder ``output`` and return its manifest. Raises
    UsageError, DownloadError.
    """
    if output.exists() and any(output.iterdir()):
        raise UsageError(
            f"{output} is not empty. Name a new directory, so that no part of an older bundle stays"
            " in it."
        )
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="k3perf-bundle-", dir=output.parent) as scratch:
        downloads, site = Path(scratch) / "wheels", Path(scratch) / "site"
        downloads.mkdir()
        site.mkdir()
        closure = _fetch_all(host, plan, fetch or PipFetcher(download_folder, downloads, host))
        say(
            f"{len(closure.carried)} packages are carried, {len(closure.kept)} of the host's are"
            f" kept, {len(closure.left_out)} omitted"
        )
        for wheel in closure.carried.values():
            unpack_wheel(wheel.path, site)
        removed = strip(site, plan.strip, plan.keep)
        say(f"{len(removed)} files of {sum(removed.values())} bytes are stripped")
        file_count = sum(1 for path in site.rglob("*") if path.is_file())
        parts = archive.pack(site, output, part_bytes=plan.part_bytes)
    say(f"{len(parts)} parts of {sum(part.stat().st_size for part in parts)} bytes")
    manifest = _manifest(host, closure, removed, file_count, parts)
    (output / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(str(files("k3perf").joinpath("unpack.py")), output / "unpack.py")
    archive.write_checksums(output)
    return manifest


def _fetch_all(host: HostInventory, plan: BundlePlan, fetch: Fetch) -> Closure:
    if not plan.closed:
        return missing_packages(plan.requirements, host, fetch, plan.leave_out)
    from packaging.requirements import Requirement

    return Closure(
        carried={wheel.name: wheel for wheel in fetch(tuple(map(Requirement, plan.requirements)))}
    )


def _manifest(
    host: HostInventory,
    closure: Closure,
    removed: dict[str, int],
    file_count: int,
    parts: tuple[Path, ...],
) -> dict[str, Any]:
    return {
        "schema_version": MANIFEST_VERSION,
        "made_by": f"k3perf {__version__}",
        "python_version": host.python_version,
        "machine": host.markers["platform_machine"],
        "host_must_have": {
            name: host.installed[name] for name in PINNED_ON_HOST if name in host.installed
        },
        "file_count": file_count,
        "parts": {part.name: part.stat().st_size for part in parts},
        "carried": {name: wheel.version for name, wheel in sorted(closure.carried.items())},
        "kept": dict(sorted(closure.kept.items())),
        "left_out": dict(sorted(closure.left_out.items())),
        "conflicts": sorted(closure.conflicts),
        "stripped_bytes": removed,
    }
