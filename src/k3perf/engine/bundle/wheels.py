"""Wheels through pip's ordinary ``download``, and wheel files to one import folder.
Nothing else of the bundle uses a network.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import HeaderParser
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from k3perf.engine.bundle.closure import Wheel
from k3perf.engine.bundle.host import HostInventory
from k3perf.errors import ExitStatus, K3PerfError, UsageError

_IMPORT_SCHEMES = ("purelib", "platlib")


class DownloadError(K3PerfError):
    """pip could not get a wheel for the host; carries pip's own words."""

    exit_status = ExitStatus.INVALID


class PipFetcher:
    """A ``closure.Fetch`` that downloads into ``folder`` for ``host``; wheels that lie
    there already are used again.
    """

    def __init__(self, folder: Path, host: HostInventory) -> None:
        self._folder = folder
        self._host = host
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, requirements: tuple[Requirement, ...]) -> tuple[Wheel, ...]:
        """One wheel for each requirement. Raises DownloadError."""
        texts = [f"{requirement.name}{requirement.specifier}" for requirement in requirements]
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--dest",
            str(self._folder),
        ]
        command += ["--python-version", self._host.python_version, "--implementation", "cp"]
        for tag in self._host.platform_tags():
            command += ["--platform", tag]
        done = subprocess.run(
            [*command, *texts], capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode != 0:
            raise DownloadError(
                f"pip found no wheel for {', '.join(texts)} on Python {self._host.python_version}:"
                f" {_last_error(done.stderr)}. Leave the package out (--leave-out) or give a"
                " version that has one (--requirement)."
            )
        present = self._present()
        wheels = []
        for requirement in requirements:
            wheel = self._match(requirement, present)
            if wheel is None:
                raise DownloadError(
                    f"pip reported success but {self._folder} holds no wheel for {requirement} that"
                    " the host takes. Use an empty folder."
                )
            wheels.append(wheel)
        return tuple(wheels)

    def _present(self) -> dict[str, list[Wheel]]:
        """The folder's wheels that the host takes, by name, best first; those of hosts
        with another Python may lie beside them.
        """
        rank = {tag: place for place, tag in enumerate(self._host.wheel_tags())}
        found: dict[str, list[tuple[int, Wheel]]] = {}
        for path in self._folder.glob("*.whl"):
            wheel = read_wheel(path)
            fitting = [rank[tag] for tag in parse_wheel_filename(path.name)[3] if tag in rank]
            if fitting:
                found.setdefault(wheel.name, []).append((min(fitting), wheel))
        for wheels in found.values():
            wheels.sort(key=lambda entry: entry[0])
            wheels.sort(key=lambda entry: Version(entry[1].version), reverse=True)
        return {name: [wheel for _, wheel in wheels] for name, wheels in found.items()}

    @staticmethod
    def _match(requirement: Requirement, present: dict[str, list[Wheel]]) -> Wheel | None:
        wheels = present.get(canonicalize_name(requirement.name), ())
        return next(
            (
                wheel
                for wheel in wheels
                if requirement.specifier.contains(wheel.version, prereleases=True)
            ),
            None,
        )


def read_wheel(path: Path) -> Wheel:
    """Name, version and requirements of a wheel file. Raises UsageError when it is
    none.
    """
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
            f"{path} is no wheel: {error}. Remove it from the download folder."
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
            f"a wheel holds the path {name!r}, which leads outside its folder. Do not use it."
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
