"""What scripts/environment.sh finds missing before it downloads anything, and when it
makes an environment. Nothing is installed.

Programs that would change the machine (apt-get, sudo) or that describe it (id, df,
uname) are stand-ins on the PATH.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
PACKAGES = REPOSITORY / "src" / "k3perf" / "system_packages.txt"
ROWS = [
    line.split(maxsplit=3) for line in PACKAGES.read_text().splitlines() if not line.startswith("#")
]
TOOLS = (
    "bash",
    "cat",
    "sed",
    "awk",
    "grep",
    "cut",
    "paste",
    "dirname",
    "sha256sum",
    "tail",
    "env",
    "rm",
    "sort",
    "tr",
    "uname",
    "id",
    "df",
    "flock",
    "mkdir",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository in a path with spaces: the real scripts, locks of its own and an
    environment that was filled from other ones.
    """
    root = tmp_path / "a k3 perf"
    (root / "requirements").mkdir(parents=True)
    for name in (
        "scripts/environment.sh",
        "scripts/perf",
        "scripts/test",
        "src/k3perf/system_packages.txt",
        "src/k3perf/pytest_plugin/options.py",
        "src/k3perf_probe/native_module.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, root / name)
    for name in ("harness", "engine-cpu"):
        (root / "requirements" / f"{name}.txt").write_text("# another lock\n")
    (root / "pyproject.toml").write_text("")
    (root / ".venv").mkdir()
    (root / ".venv" / ".k3perf-lock").write_text("an older lock\n")
    (root / ".venv" / "old").touch()
    return root


@pytest.fixture
def active_tree(tree: Path) -> Path:
    """The same with a real environment."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tree / ".venv")],
        check=True,
        timeout=PATIENCE_S,
    )
    return tree


def bash(tree: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """``text`` with the script sourced, in a shell where the tree's environment is
    active. ``install_harness`` installs nothing.
    """
    active = {
        **{name: value for name, value in os.environ.items() if name != "DEBIAN_FRONTEND"},
        "PATH": f"{tree / '.venv' / 'bin'}:/usr/bin:/bin",
        "VIRTUAL_ENV": str(tree / ".venv"),
        "K3PERF_PYTHON": "",
        "K3PERF_ENGINE_PYTHON": "",
        **environment,
    }
    script = (
        f"set -euo pipefail\n. '{tree}/scripts/environment.sh'\ninstall_harness() {{ :; }}\n{text}"
    )
    return subprocess.run(
        ["bash", "-c", script],
        env=active,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )


class Machine:
    """A PATH of its own: a few real programs, stand-ins for the rest."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.log = folder / "log"
        self.log.touch()
        for name in TOOLS:
            (self.bin / name).symlink_to(shutil.which(name) or "")
        self.program("id", "echo 0")
        self.program("git", "true")
        self.program("ldconfig", "true")  # knows no library
        self.program("apt-get", f'echo "$DEBIAN_FRONTEND $*" >>{self.log}')
        self.python()

    def program(self, name: str, text: str) -> None:
        path = self.bin / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def python(self, *absent: str) -> None:
        """python3: this one, without modules and libraries of these names."""
        refused = " ".join(f"*{name}*) exit 1 ;;" for name in absent)
        self.program(
            "python3",
            f'case "$2" in *_base_executable*) echo "$0"; exit ;; {refused} esac; exec'
            f' {shlex.quote(sys.executable)} "$@"',
        )

    def run(self, tree: Path, text: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return bash(tree, text, PATH=str(self.bin), **environment)

    def installed(self) -> str:
        return self.log.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def assert_refused(done: subprocess.CompletedProcess[str], tree: Path, *words: str) -> None:
    """Status 10, everything missing in one report, and nothing made."""
    assert done.returncode == 10, done.stdout + done.stderr
    assert (
        done.stderr.count("this machine lacks what the set-up needs; nothing was downloaded") == 1
    )
    for word in words:
        assert word in done.stderr
    assert (tree / ".venv" / "old").exists()
    assert not (tree / ".venv-engine").exists()


@pytest.mark.parametrize("given", ["", "K3PERF_PYTHON=python3"])
def test_an_active_environment_whose_lock_changed_is_made_again(
    active_tree: Path, given: str
) -> None:
    tree = active_tree
    done = bash(
        tree,
        f"{given}\nharness_environment\n. '{tree}/scripts/environment.sh'\nharness_environment",
    )
    assert done.returncode == 0, done.stderr
    assert not (tree / ".venv" / "old").exists()
    assert done.stderr.count("setting up") == 1  # then it is in order
    works = subprocess.run(
        [tree / ".venv" / "bin" / "python", "-c", "print(1)"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert works.stdout == "1\n"


def test_the_python_found_is_none_of_the_active_environment(active_tree: Path) -> None:
    found = Path(bash(active_tree, "find_python").stdout.strip())
    assert found.is_file()
    assert active_tree not in found.parents


def test_a_python_that_lies_in_the_environment_itself_is_passed_over(active_tree: Path) -> None:
    (active_tree / ".venv" / "pyvenv.cfg").unlink()  # it is its own base now
    done = bash(active_tree, "find_python")
    assert Path(done.stdout.strip()).is_file(), done.stderr
    assert active_tree not in Path(done.stdout.strip()).parents
    inside = str(active_tree / ".venv" / "bin" / "python")
    assert bash(active_tree, "find_python", K3PERF_PYTHON=inside).returncode == 1


@contextmanager
def locked(directory: Path, how: int) -> Iterator[None]:
    """Another run's lock on an environment."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def test_an_environment_that_a_run_uses_is_not_made_again(active_tree: Path) -> None:
    environment = active_tree / ".venv"
    with locked(environment, fcntl.LOCK_SH):
        done = bash(active_tree, "harness_environment")
    assert done.returncode == 10
    assert f"{environment} is out of date, and another run uses it" in done.stderr
    assert (environment / "old").exists()


def test_a_process_that_no_script_started_is_found_by_what_it_has_mapped(active_tree: Path) -> None:
    environment = active_tree / ".venv"
    library = environment / "lib" / "native.so"
    library.write_bytes(b"code")
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ):
        done = bash(active_tree, "harness_environment")
    assert done.returncode == 10
    assert f"processes use it (pid {os.getpid()}). End them" in done.stderr
    assert (environment / "old").exists()


def test_a_run_waits_for_another_that_fills_the_environment(active_tree: Path) -> None:
    environment = active_tree / ".venv"
    digest = bash(
        active_tree,
        'lock_digest "$k3perf_root/requirements/harness.txt" "$k3perf_root/pyproject.toml"',
    ).stdout
    descriptor = os.open(environment, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)

    def finish() -> None:
        time.sleep(1)
        (environment / ".k3perf-lock").write_text(digest)
        os.close(descriptor)

    other = threading.Thread(target=finish)
    other.start()
    done = bash(active_tree, "harness_environment")
    other.join()
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"k3perf: another run sets up {environment}; waiting for it\n"
    assert (environment / "old").exists()


def test_the_program_that_follows_keeps_the_environment(active_tree: Path) -> None:
    environment = active_tree / ".venv"
    check = f"flock -n -x {shlex.quote(str(environment))} true"
    held = bash(
        active_tree, f"harness_environment\nexec bash -c {shlex.quote(check + '; echo $?')}"
    )
    assert held.stdout == "1\n", held.stderr
    with locked(environment, fcntl.LOCK_EX | fcntl.LOCK_NB):  # and gives it back with its end
        pass


def test_a_named_python_may_lie_in_a_path_with_spaces(tree: Path) -> None:
    named = tree / "the python"
    named.symlink_to(sys.executable)
    assert bash(tree, "find_python", K3PERF_PYTHON=str(named)).returncode == 0


def test_missing_packages_are_installed_by_root_without_questions(
    tree: Path, machine: Machine
) -> None:
    (machine.bin / "git").unlink()
    machine.python("ensurepip", "libnuma.so.1")
    done = machine.run(tree, "require_packages setup tests engine\nreport_problems")
    assert done.returncode == 0, done.stderr
    update, install = machine.installed().splitlines()
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    assert update == "noninteractive -qq -o Dpkg::Use-Pty=0 update"
    assert {version, "git", "libnuma1"} <= set(install.split())
    assert install.startswith(
        "noninteractive -qq -o Dpkg::Use-Pty=0 install -y --no-install-recommends "
    )
    assert "curl" not in install


def test_only_what_the_command_needs_is_asked_for(tree: Path, machine: Machine) -> None:
    (machine.bin / "git").unlink()
    assert machine.run(tree, "require_packages setup\nreport_problems").returncode == 0
    assert machine.installed() == ""


def test_without_root_the_message_has_the_command(tree: Path, machine: Machine) -> None:
    machine.program("id", "echo 1000")
    (machine.bin / "git").unlink()
    machine.python("ensurepip")
    done = machine.run(tree, "set_up setup tests")
    names = re.search(
        r"Only root can install them: apt-get update && apt-get install -y --no-install-recommends"
        r" (.*)",
        done.stderr,
    )
    assert names, done.stderr
    assert set(names[1].split()) == {f"python3.{sys.version_info[1]}-venv", "git"}
    assert_refused(done, tree, "git (the tests make repositories)")
    assert machine.installed() == ""


@pytest.mark.parametrize(("allowed", "status"), [("true", 0), ("false", 10)])
def test_sudo_is_used_where_it_asks_for_no_password(
    tree: Path, machine: Machine, allowed: str, status: int
) -> None:
    machine.program("id", "echo 1000")
    machine.program(
        "sudo", f'[ "$1" = -n ] || exit 1; shift; [ "$1" = true ] && exec {allowed}; exec "$@"'
    )
    (machine.bin / "true").symlink_to("/bin/true")
    (machine.bin / "false").symlink_to("/bin/false")
    (machine.bin / "git").unlink()
    done = machine.run(tree, "require_packages tests\nreport_problems")
    assert done.returncode == status, done.stderr
    assert ("install -y" in machine.installed()) == (status == 0)


def test_a_failed_installation_shows_what_apt_said(tree: Path, machine: Machine) -> None:
    (machine.bin / "git").unlink()
    machine.program("apt-get", "echo no such mirror; exit 100")
    done = machine.run(tree, "set_up setup tests")
    assert_refused(done, tree, "git cannot be installed", "apt-get said: no such mirror")


def test_without_apt_the_packages_are_named(tree: Path, machine: Machine) -> None:
    (machine.bin / "git").unlink()
    (machine.bin / "apt-get").unlink()
    assert_refused(
        machine.run(tree, "set_up setup tests"), tree, "There is no apt-get here", "git ("
    )


def test_everything_missing_is_reported_together(tree: Path, machine: Machine) -> None:
    machine.program("id", "echo 1000")
    machine.program("df", "echo h; echo '/dev/x 9 9 1200000 9% /'")
    machine.python("libnuma.so.1")
    machine.program("python3", '[ "$1" = --version ] && echo Python 3.9.2; exit 1')
    (tree / "cpuinfo").write_text("flags : fpu sse2 avx\n")
    done = machine.run(tree, "k3perf_cpuinfo=$k3perf_root/cpuinfo\nset_up setup engine")
    assert_refused(
        done,
        tree,
        "- Python: python3 is Python 3.9.2, 3.11 or newer is needed",
        "- processor: it has no AVX2",
        "- disk: 1228 MB are free at",
        "takes 6000 MB",
    )
    assert "download" in done.stderr


def test_another_processor_architecture_is_named(tree: Path, machine: Machine) -> None:
    machine.program("uname", "echo aarch64")
    assert_refused(
        machine.run(tree, "set_up setup engine"), tree, "processor: aarch64", "K3PERF_ENGINE_PYTHON"
    )


def test_with_an_engine_of_ones_own_the_cpu_engines_needs_are_not_asked(
    tree: Path, machine: Machine
) -> None:
    machine.program("uname", "echo aarch64")
    done = machine.run(
        tree,
        "fill_environment() { :; }\nset_up setup engine",
        K3PERF_ENGINE_PYTHON="/opt/vllm/bin/python",
    )
    assert done.returncode == 0, done.stderr
    assert not (tree / ".venv-engine").exists()


def test_a_named_python_that_is_too_old_is_not_passed_over(tree: Path, machine: Machine) -> None:
    machine.program("python3.9", "exit 1")
    done = machine.run(tree, "set_up setup", K3PERF_PYTHON="python3.9")
    assert_refused(done, tree, "K3PERF_PYTHON=python3.9 is not Python 3.11 or newer")
    assert "packages:" not in done.stderr


@pytest.mark.parametrize(
    ("settings", "installer"),
    [
        (
            "global.find-links='/wheels'",
            "-m pip install -q --disable-pip-version-check --no-deps -r",
        ),
        (
            ":env:.extra-index-url='https://torch.example/cpu'",
            "-m pip install -q --disable-pip-version-check --no-deps -r",
        ),
        (
            "install.find-links='/wheels'",
            "-m pip install -q --disable-pip-version-check --no-deps -r",
        ),
        ("global.timeout='9'", "-m uv pip install"),
        (
            "global.index-url='https://mirror.example/simple'",
            "https://mirror.example/simple -m uv pip install",
        ),
        ("", "-m uv pip install"),
    ],
)
def test_pips_own_settings_decide_between_pip_and_uv(
    tree: Path, settings: str, installer: str
) -> None:
    python = tree / ".venv-engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    log = tree / "log"
    python.write_text(
        f'#!/bin/sh\n[ "$4" = list ] && echo "{settings}" && exit\necho "$UV_DEFAULT_INDEX $*"'
        f' >>"{log}"\n'
    )
    python.chmod(0o755)
    done = bash(tree, "install_engine_cpu")
    assert done.returncode == 0, done.stderr
    assert installer in log.read_text().splitlines()[-1]
    assert log.read_text().splitlines()[-1].endswith(f"-r {tree}/requirements/engine-cpu.txt")


def test_pip_itself_writes_its_settings_that_way(tree: Path) -> None:
    (tree / ".venv-engine" / "bin").mkdir(parents=True)
    python = tree / ".venv-engine" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    done = bash(
        tree,
        "pip_setting 'find-links|extra-index-url'",
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS="/some/wheels",
    )
    assert done.stdout == "/some/wheels\n", done.stderr


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "echo 'vllm._C: libnuma.so.1: cannot open shared object file' >&2; exit 1",
            "libnuma.so.1: cannot open",
        ),
        ("kill -ILL $$", "was killed"),
    ],
)
def test_a_native_module_that_does_not_load_ends_the_set_up(
    tree: Path, script: str, words: str
) -> None:
    python = tree / ".venv-engine" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    done = bash(tree, "load_native_module")
    assert done.returncode == 10
    assert "vLLM's native module does not load in .venv-engine" in done.stderr
    assert words in done.stderr


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_installs_nothing(tree: Path, machine: Machine, option: str) -> None:
    shutil.rmtree(tree / ".venv")
    done = subprocess.run(
        ["bash", str(tree / "scripts" / "perf"), option],
        env={"PATH": str(machine.bin)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("scripts/perf [OPTION]")
    assert "--k3-engine-python" in done.stdout
    assert not (tree / ".venv").exists()
    assert machine.installed() == ""


def test_the_list_is_what_the_image_installs_and_the_docs_show() -> None:
    names = {row[0] for row in ROWS}
    assert {"libnuma1", "python3-venv", "git", "ca-certificates"} <= names
    dockerfile = (REPOSITORY / "docker" / "Dockerfile.cpu").read_text()
    installs = dockerfile[dockerfile.index("apt-get install") :].split("&& rm")[0]
    assert "packages_for setup tests engine image" in installs
    assert not names & set(re.findall(r"[\w.+-]+", installs)), "named by the list alone"
    table = (REPOSITORY / "docs" / "operating.md").read_text()
    for name, need, _, why in ROWS:
        assert f"| {name} | {need} | {why} |" in table


def test_every_row_of_the_list_can_be_recognised(tree: Path) -> None:
    for name, need, recognised, why in ROWS:
        assert need in ("setup", "tests", "engine", "image"), name
        assert why
        assert bash(tree, f"is_present {recognised} || true").returncode == 0
    assert bash(tree, "is_present smell:roses || true").returncode == 10
