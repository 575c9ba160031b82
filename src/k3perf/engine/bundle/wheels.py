"""Wheels through pip's ordinary ``download``, and wheel files to one import folder.
Nothing else of the bundle uses a network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from k3perf.engine.bundle.closure import Wheel
from k3perf.engine.bundle.host import HostInventory
from k3perf.errors import ExitStatus, K3PerfError, UsageError

_IMPORT_SCHEMES = ("purelib", "platlib")


class DownloadError(K3PerfError):
    """pip could not get a wheel for the host; carries pip's own words."""

    exit_status = ExitStatus.INVALID


class PipFetcher:
    """A ``closure.Fetch`` that downloads for ``host``. ``cache`` is pip's cache, which
    hosts of several Pythons may share. The wheels lie below ``folder``.
    """

    def __init__(self, cache: Path, folder: Path, host: HostInventory) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._command = [sys.executable, "-m", "pip", "--cache-dir", str(cache.absolute())]
        self._command += ["download", "--quiet", "--no-deps", "--only-binary=:all:"]
        self._command += ["--python-version", host.python_version, "--implementation", "cp"]
        self._command += [part for tag in host.platform_tags() for part in ("--platform", tag)]
        self._python_version = host.python_version

    def __call__(self, requirements: tuple[Requirement, ...]) -> tuple[Wheel, ...]:
        """One wheel for each requirement. Raises DownloadError."""
        texts = [f"{requirement.name}{requirement.specifier}" for requirement in requirements]
        place = Path(tempfile.mkdtemp(dir=self._folder))
        done = subprocess.run(
            [*self._command, "--dest", str(place), *texts],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode != 0:
            raise DownloadError(
                f"pip found no wheel for {', '.join(texts)} on Python {self._python_version}:"
                f" {_last_error(done.stderr)}. Leave the package out (--leave-out) or give a"
                " version that has one (--requirement)."
            )
        wheels = {wheel.name: wheel for wheel in map(read_wheel, place.glob("*.whl"))}
        return tuple(wheels[canonicalize_name(requirement.name)] for requirement in requirements)


def read_wheel(path: Path) -> Wheel:
    """Name, version and requirements of a wheel file. Raises UsageError."""
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        with zipfile.ZipFile(path) as archive:
            metadata = next(
                entry
                for entry in archive.namelist()
                if entry.count("/") == 1 and entry.endswith(".dist-info/METADATA")
            )
            headers = HeaderParser().parsestr(archive.read(metadata).decode("utf-8"))
    except (ValueError, StopIteration, zipfile.BadZipFile) as error:
        raise UsageError(
            f"{path} is not a wheel: {error}. Give another version (--requirement)."
        ) from None
    return Wheel(path, name, str(version), tuple(headers.get_all("Requires-Dist") or ()))


def unpack_wheel(wheel: Path, site: Path) -> None:
    """Put a wheel's importable files under ``site``; its scripts, headers and other
    data are not needed to run the engine.
    """
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            place = _place(entry.filename)
            if place is None or entry.is_dir():
                continue
            target = site / place
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)


def _place(name: str) -> PurePosixPath | None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise UsageError(
            f"a wheel holds the path {name!r}, which leads outside its directory. Do not use it."
        )
    if not path.parts[0].endswith(".data"):
        return path
    return (
        PurePosixPath(*path.parts[2:])
        if len(path.parts) > 2 and path.parts[1] in _IMPORT_SCHEMES
        else None
    )


def strip(site: Path, patterns: tuple[str, ...], keep: tuple[str, ...] = ()) -> dict[str, int]:
    """Delete files whose path under ``site`` matches a pattern and no ``keep`` pattern;
    ``*`` crosses slashes. Path to bytes of each.
    """
    removed: dict[str, int] = {}
    for path in sorted(site.rglob("*")):
        relative = path.relative_to(site).as_posix()
        if (
            path.is_file()
            and any(fnmatch(relative, pattern) for pattern in patterns)
            and not any(fnmatch(relative, kept) for kept in keep)
        ):
            removed[relative] = path.stat().st_size
            path.unlink()
    return removed


def _last_error(text: str) -> str:
    errors = [
        line.removeprefix("ERROR: ") for line in text.splitlines() if line.startswith("ERROR: ")
    ]
    return errors[0] if errors else text.strip()[-300:]
