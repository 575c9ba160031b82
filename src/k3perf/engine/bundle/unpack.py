"""Check a bundle and unpack it: ``python3 unpack.py DESTINATION`` beside the parts, on the host, with the standard library alone.

A copy of this file is part of every bundle. It refuses parts that are not whole and a Python or torch other than those the bundle was
made for, and prints the line that puts the packages on the path.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import platform
import sys
import tarfile
from pathlib import Path
from typing import Any


class Parts(io.RawIOBase):
    """The parts, one after the other, as one readable stream."""

    def __init__(self, paths: list[Path]) -> None:
        self._paths = list(paths)
        self._current: io.BufferedReader | None = None

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` from the current part, or the next one; 0 after the last."""
        while True:
            if self._current is None:
                if not self._paths:
                    return 0
                self._current = self._paths.pop(0).open("rb")
            size = self._current.readinto(buffer)
            if size:
                return size
            self._current.close()
            self._current = None


def problems(folder: Path) -> list[str]:
    """What is wrong with the files, or with this host for these files."""
    sums = folder / "SHA256SUMS"
    if not sums.is_file():
        return ["SHA256SUMS is missing; copy it again"]
    found, listed = [], set()
    for line in sums.read_text(errors="replace").splitlines():
        digest, _, name = line.partition("  ")
        listed.add(name)
        if not (folder / name).is_file():
            found.append(f"{name} is missing; copy it again")
        elif _digest(folder / name) != digest:
            found.append(f"{name} is damaged; copy it again")
    if "manifest.json" not in listed:
        found.append("SHA256SUMS does not list manifest.json; copy it again")
    if found:  # a manifest that may be damaged says nothing of the parts or of the host
        return found
    manifest = json.loads((folder / "manifest.json").read_text())
    found += [f"SHA256SUMS does not list {name}; copy it again" for name in manifest["parts"] if name not in listed]
    strays = {path.name for path in folder.glob("site.tar.xz.*")} - set(manifest["parts"])
    found += [f"{name} is no part of this bundle; remove it, or copy the bundle into an empty folder" for name in sorted(strays)]
    return found + _unfit(manifest)


def _digest(path: Path) -> str:
    seen = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            seen.update(block)
    return seen.hexdigest()


def _unfit(manifest: dict[str, Any]) -> list[str]:
    """Why this host is not the one that the bundle was made for."""
    found = []
    here = ".".join(platform.python_version_tuple()[:2])
    if here != manifest["python_version"]:
        found.append(f"the bundle is for Python {manifest['python_version']}, this is {here}")
    machine = manifest.get("machine", platform.machine())
    if machine != platform.machine():
        found.append(f"the bundle is for {machine} processors, these are {platform.machine()}")
    for name, wanted in manifest["host_must_have"].items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        if version != wanted:
            found.append(f"the bundle is for a host with {name} {wanted}, here it is {version}")
    return found


def main() -> int:
    """Unpack to the folder named on the command line; 4 for wrong use, 1 for a bundle that does not fit or is not whole."""
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python3 unpack.py DESTINATION\n")
        return 4
    folder, destination = Path(__file__).resolve().parent, Path(sys.argv[1]).resolve()
    found = problems(folder)
    if found:
        sys.stderr.write("".join(f"{line}\n" for line in found))
        return 1
    parts = sorted(folder.glob("site.tar.xz.*"))
    with tarfile.open(fileobj=io.BufferedReader(Parts(parts), 1 << 20), mode="r|xz") as archive:
        archive.extractall(destination, filter="data")
    count = sum(1 for path in destination.rglob("*") if path.is_file())
    expected = json.loads((folder / "manifest.json").read_text())["file_count"]
    if count < expected:
        sys.stderr.write(f"{count} of {expected} files were unpacked to {destination}; is it full?\n")
        return 1
    sys.stdout.write(f"export PYTHONPATH={destination}${{PYTHONPATH:+:$PYTHONPATH}}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
