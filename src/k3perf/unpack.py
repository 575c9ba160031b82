"""Unpack archives. As a script, check a bundle and unpack it: ``python3 unpack.py
DESTINATION``.

The script runs beside the bundle's parts, on the host, with the standard library alone:
a copy of this file is part of every bundle. It refuses damaged parts, and a Python or
torch other than those that the bundle was made for. It prints the line that puts the
packages on the path.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
import stat
import sys
import tarfile
from pathlib import Path
from typing import Any


def extract(archive: tarfile.TarFile, destination: Path) -> None:
    """Unpack every member below ``destination``; raises tarfile.TarError for one that
    would land elsewhere.

    Python 3.11.4 added the filter that checks members. Before it, the members are
    checked here.
    """
    if hasattr(tarfile, "data_filter"):
        archive.extractall(destination, filter="data")
        return
    for member in archive:  # in order, because the archive may be a stream
        _check_member(member, destination)
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        archive.extract(member, destination)


def _check_member(member: tarfile.TarInfo, destination: Path) -> None:
    """Refuse what the filter "data" refuses: other places, links to other places,
    devices. Write bits of others go.
    """
    if not (member.isfile() or member.isdir() or member.islnk() or member.issym()):
        raise tarfile.TarError(f"{member.name!r} is not a file, directory or link")
    top = destination.resolve()
    target = (top / member.name).resolve()
    places = [Path(member.name), target]
    if member.islnk():
        places += [Path(member.linkname), (top / member.linkname).resolve()]
    elif member.issym():
        places += [Path(member.linkname), (target.parent / member.linkname).resolve()]
    for given, place in zip(places[::2], places[1::2], strict=True):
        if given.is_absolute() or not place.is_relative_to(top):
            raise tarfile.TarError(f"{member.name!r} would be unpacked to {place}, outside {top}")
    member.mode &= stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH
    member.mode |= stat.S_IRWXU if member.isdir() else stat.S_IRUSR | stat.S_IWUSR


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
    found += [
        f"SHA256SUMS does not list {name}; copy it again"
        for name in manifest["parts"]
        if name not in listed
    ]
    strays = {path.name for path in folder.glob("site.tar.xz.*")} - set(manifest["parts"])
    found += [
        f"{name} is not part of this bundle; remove it, or copy the bundle into an empty directory"
        for name in sorted(strays)
    ]
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
        found.append(f"the bundle is for {machine} CPUs, this machine has {platform.machine()}")
    for name, wanted in manifest["host_must_have"].items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        if version != wanted:
            found.append(f"the bundle is for a host with {name} {wanted}, here it is {version}")
    return found


def main() -> int:
    """Unpack to the folder named on the command line; 4 for wrong use, 1 for a bundle
    that does not fit or is not whole.
    """
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python3 unpack.py DESTINATION\n")
        return 4
    folder, destination = Path(__file__).resolve().parent, Path(sys.argv[1]).resolve()
    found = problems(folder)
    if found:
        sys.stderr.write("".join(f"{line}\n" for line in found))
        return 1
    parts = sorted(folder.glob("site.tar.xz.*"))
    try:
        with tarfile.open(fileobj=io.BufferedReader(Parts(parts), 1 << 20), mode="r|xz") as archive:
            extract(archive, destination)
    except tarfile.TarError as error:
        sys.stderr.write(f"the bundle cannot be unpacked: {error}. Make it again\n")
        return 1
    count = sum(1 for path in destination.rglob("*") if path.is_file())
    expected = json.loads((folder / "manifest.json").read_text())["file_count"]
    if count < expected:
        sys.stderr.write(
            f"{count} of {expected} files were unpacked to {destination}; is it full?\n"
        )
        return 1
    sys.stdout.write(f"export PYTHONPATH={destination}${{PYTHONPATH:+:$PYTHONPATH}}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
