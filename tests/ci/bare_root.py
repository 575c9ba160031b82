"""A bare Debian: made by debootstrap, entered by chroot in namespaces that end with the
command. Needs root and debootstrap.

    python tests/ci/bare_root.py SUITE USER COMMAND...      # USER is root or user; COMMAND runs in the copy of the repository

K3PERF_BARE_ROOTS names the folder of the roots (default: a temporary folder, removed at
the end); roots there are kept and used again.

What this machine's pip and apt are configured with goes into the root as configuration
files, and folders and files that it names come along read-only. No environment variable
but those of a proxy is passed on, so the set-up sees what a user's machine has:
/etc/pip.conf.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
USERS = {"root": 0, "user": 1500}
TREE = "work here/k3 perf"  # below the user's home: a path with spaces
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# $1: the root, $2: its binds, "FROM<tab>TO" each; the rest is the command. Everything
# mounted here ends with the namespace. The shell stays as the namespace's first
# process, so that the command gets signals and its orphans are reaped.
ENTER = r"""
set -eu
root=$1 binds=$2
shift 2
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/dev/shm"
while IFS=$(printf '\t') read -r from to; do
    [ -n "$from" ] || continue
    mkdir -p "$root$to"
    mount --bind "$from" "$root$to"
    case $to in /var/cache/*) ;; *) mount -o remount,bind,ro "$root$to" ;; esac
done <"$binds"
"$@"
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a command in the root ended."""

    status: int
    text: str
    wall_s: float


class BareRoot:
    """One root with one user's copy of the repository, kept until ``remove``."""

    def __init__(self, folder: Path, suite: str, user: str) -> None:
        """``folder``: where roots live. The suite's base is made there once, the root
        is a copy of it.
        """
        self.user = user
        self.folder = folder
        self.path = folder / f"{suite}-{user}"
        self.binds = folder / f"{suite}-{user}.binds"
        self.home = Path("/root") if user == "root" else Path("/home") / user
        if not self.path.is_dir():
            half = folder / f"{suite}-{user}.half"
            shutil.rmtree(half, ignore_errors=True)
            subprocess.run(
                ["cp", "-a", str(_base(folder, suite)), str(half)], check=True, timeout=600
            )
            self._furnish(half)
            half.rename(self.path)
        copy_tree(self.tree, USERS[user])
        self.binds.write_text("".join(f"{source}\t{target}\n" for source, target in self._binds()))

    def _furnish(self, root: Path) -> None:
        for name in ("resolv.conf", "hosts"):
            shutil.copy(f"/etc/{name}", root / "etc" / name)
        proxy = subprocess.run(
            ["apt-config", "dump", "Acquire::http::Proxy", "Acquire::https::Proxy"],
            capture_output=True,
            text=True,
            check=False,
        )
        (root / "etc" / "apt" / "apt.conf.d" / "90host-proxy").write_text(proxy.stdout)
        lines = ["[global]"]
        for key, value in pip_settings().items():
            lines.append(f"{key} = " + "\n    ".join(_inside(word, root) for word in value.split()))
        (root / "etc" / "pip.conf").write_text("\n".join(lines) + "\n")
        if self.user != "root":
            command = [
                "useradd",
                "--create-home",
                "--shell",
                "/bin/bash",
                "--uid",
                str(USERS[self.user]),
                self.user,
            ]
            subprocess.run(
                ["chroot", str(root), *command], check=True, timeout=60, env={"PATH": SYSTEM_PATH}
            )

    def _binds(self) -> list[tuple[Path, str]]:
        # pip uses only a cache that its user owns
        cache = self.folder / f"pip-cache-{self.user}"
        cache.mkdir(exist_ok=True)
        os.chown(cache, USERS[self.user], USERS[self.user])
        return [(cache, "/var/cache/pip"), *((folder, str(folder)) for folder in pip_folders())]

    @property
    def tree(self) -> Path:
        """The copy of the repository as seen from outside."""
        return self.path / self.home.relative_to("/") / TREE

    def run(
        self, *command: str, user: str = "", timeout_s: float = 3_000, **environment: str
    ) -> Ran:
        """One command in the copy of the repository, with a system's environment alone;
        its processes and mounts end with it.
        """
        user = user or self.user
        given = {
            "PATH": SYSTEM_PATH,
            "HOME": "/root" if user == "root" else str(self.home),
            "USER": user,
            "LANG": "C.UTF-8",
            "PIP_CACHE_DIR": "/var/cache/pip" if user == self.user else "/nowhere",
            **{
                name: os.environ[name]
                for name in (*PROXIES, *map(str.upper, PROXIES))
                if name in os.environ
            },
            **environment,
        }
        ids = f"{USERS[user]}:{USERS[user]}"
        inside = ["env", "-i", *(f"{name}={value}" for name, value in given.items())]
        inside += ["bash", "-c", 'cd "$1"; shift; "$@"', "bare", str(self.home / TREE), *command]
        spaces = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "--kill-child=KILL",
            "--propagation",
            "private",
        ]
        entered = [
            *spaces,
            "sh",
            "-c",
            ENTER,
            "enter",
            str(self.path),
            str(self.binds),
            "chroot",
            f"--userspec={ids}",
            str(self.path),
            *inside,
        ]
        started = time.monotonic()
        with (self.folder / f"{self.path.name}.{os.getpid()}.log").open(
            "w+", encoding="utf-8", errors="replace"
        ) as log:
            process = subprocess.Popen(
                entered, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
            try:
                status = process.wait(timeout=timeout_s)
            finally:
                process.kill()
                process.wait()
            log.seek(0)
            return Ran(status, log.read(), time.monotonic() - started)

    def used_bytes(self, *parts: str) -> int:
        """What the root, or a path of the copy of the repository, takes on the disk."""
        place = self.tree.joinpath(*parts) if parts else self.path
        done = subprocess.run(
            ["du", "-sxB1", str(place)], capture_output=True, text=True, check=True, timeout=300
        )
        return int(done.stdout.split()[0])

    def remove(self) -> None:
        """Delete the root."""
        shutil.rmtree(self.path)
        self.binds.unlink()


def processes_in(root: Path) -> list[int]:
    """Processes that have ``root``, or a folder in it, as their root directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if (entry / "root").readlink().is_relative_to(root):
                    found.append(int(entry.name))
    return found


def _base(folder: Path, suite: str) -> Path:
    base = folder / f"{suite}-base"
    if not base.is_dir():
        half = folder / f"{suite}-base.half"
        shutil.rmtree(half, ignore_errors=True)
        command = ["debootstrap", "--variant=minbase", "--include=python3", suite, str(half)]
        mirror = os.environ.get("K3PERF_DEBIAN_MIRROR")
        done = subprocess.run(
            [*command, *([mirror] if mirror else [])],
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        half.rename(base)
    return base


def pip_settings() -> dict[str, str]:
    """This machine's pip settings of every command, from its files and PIP_* variables
    together; the later word wins, as in pip.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found, variables = {}, {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.rpartition(".")
        if section in ("global", ":env:"):
            (variables if section == ":env:" else found)[key] = str(ast.literal_eval(value))
    return {
        key: value
        for key, value in (found | variables).items()
        if key not in ("cache-dir", "no-cache-dir")
    }


def pip_folders() -> list[Path]:
    """Folders that the settings name. An index in a folder links to files beside it, so
    the folder above comes along.
    """
    words = [word for value in pip_settings().values() for word in value.split()]
    folders = [
        Path(word.removeprefix("file://")).parent if word.startswith("file://") else Path(word)
        for word in words
        if "/" in word
    ]
    return [folder for folder in dict.fromkeys(folders) if folder.is_absolute() and folder.is_dir()]


def _inside(word: str, root: Path) -> str:
    """``word`` as it holds in the root: a file that it names is copied there, under a
    path that no package owns.
    """
    source = Path(word)
    if not (source.is_absolute() and source.is_file()):
        return word
    place = root / "opt" / "host" / source.name
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, place)
    return f"/{place.relative_to(root)}"


def copy_tree(destination: Path, owner: int) -> None:
    """What a tarball of the repository holds: the files that git knows or would take,
    without .git. Environments made there stay.
    """
    for entry in destination.glob("*"):
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            shutil.rmtree(entry)
    if (REPOSITORY / ".git").exists():
        command = [
            "git",
            "-C",
            str(REPOSITORY),
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]
        names = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=60
        ).stdout.split("\0")
        for name in filter(None, names):
            if (source := REPOSITORY / name).is_symlink() or source.is_file():
                (destination / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, destination / name, follow_symlinks=False)
    else:
        made = shutil.ignore_patterns(".venv*", ".k3perf", "__pycache__", ".*_cache", "*.egg-info")
        shutil.copytree(REPOSITORY, destination, symlinks=True, ignore=made, dirs_exist_ok=True)
    top = destination.parents[len(Path(TREE).parts) - 2]
    subprocess.run(["chown", "-R", f"{owner}:{owner}", str(top)], check=True, timeout=60)


def main(arguments: Sequence[str]) -> int:
    """Run one command in a root."""
    suite, user, *command = arguments
    kept = os.environ.get("K3PERF_BARE_ROOTS")
    folder = Path(kept or tempfile.mkdtemp(prefix="k3perf-bare-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        ran = BareRoot(folder, suite, user).run(*command)
        sys.stdout.write(f"{ran.text}\nstatus {ran.status} after {ran.wall_s:.0f} s\n")
        return ran.status
    finally:
        if not kept:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
