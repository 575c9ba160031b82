"""Whether vLLM's native module loads, asked of an engine's Python: a stand-in package
that loads its library as vLLM does.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from k3perf.engine.installed_vllm import NativeModule, native_module

# vLLM only warns, and imports libraries as modules that they are not
PLATFORMS = """
import logging
class current_platform:
    @classmethod
    def import_kernels(cls):
        print("INFO 01-01 00:00:00 [a line of vLLM's log]")
        try:
            import vllm._C
        except ImportError as error:
            logging.getLogger("vllm").warning("Failed to import from vllm._C: %r", error)
"""
NO_SUCH_FILE = "cannot open shared object file: No such file or directory"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The folder of a package called vllm; its platform is the one above."""
    folder = tmp_path / "site packages" / "vllm"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "platforms.py").write_text(PLATFORMS)
    return folder


def ask(package: Path, **environment: str) -> NativeModule:
    python = package.parents[1] / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{package.parent}" exec {shlex.quote(sys.executable)} "$@"\n'
    )
    python.chmod(0o755)
    return native_module(python, environment)


def some_library() -> Path:
    return next(Path(sysconfig.get_config_var("DESTSHARED")).glob("*.so"))


def test_a_library_that_is_mapped_counts_whatever_python_says_of_its_import(package: Path) -> None:
    shutil.copy(
        some_library(), package / "_C.abi3.so"
    )  # no PyInit__C in it: an ImportError, as from vllm._C_AVX2
    assert ask(package) == NativeModule(("_C.abi3.so",))


@pytest.mark.parametrize(
    ("library", "mend"),
    [
        ("libnuma.so.1", "apt-get install libnuma1"),
        (
            "libstrange.so.7",
            "apt-file search libstrange.so.7   # then apt-get install what it names",
        ),
    ],
)
def test_a_missing_library_is_named_with_what_mends_it(
    package: Path, library: str, mend: str
) -> None:
    (package / "_C.py").write_text(f"raise ImportError('{library}: {NO_SUCH_FILE}')\n")
    found = ask(package)
    assert found == NativeModule((), f"vllm._C: {library}: {NO_SUCH_FILE}", mend)


def test_a_library_of_torch_that_is_missing_is_named_too(package: Path) -> None:
    (package / "platforms.py").write_text(f"raise OSError('/x/libgomp.so.1: {NO_SUCH_FILE}')\n")
    found = ask(package)
    assert found.problem.startswith("OSError: /x/libgomp.so.1")
    assert found.mend.startswith("apt-file search libgomp.so.1")


def test_a_platform_that_loads_nothing_is_a_problem(package: Path) -> None:
    (package / "platforms.py").write_text(
        "class current_platform:\n    import_kernels = staticmethod(lambda: None)\n"
    )
    assert ask(package) == NativeModule((), "vLLM loaded no native module and gave no reason")


def test_a_process_that_dies_is_a_problem_with_its_signal(package: Path) -> None:
    (package / "platforms.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n"
    )
    found = ask(package)
    assert not found.loaded
    assert "SIGILL; this CPU lacks an instruction that the library uses" in found.problem


def test_the_targets_environment_is_the_loaders(package: Path) -> None:
    shutil.copy(some_library(), package / "_C.abi3.so")
    text = PLATFORMS.replace(
        "import logging", "import logging, os\nassert os.environ['LD_LIBRARY_PATH'] == '/opt/lib'"
    )
    (package / "platforms.py").write_text(text)
    assert "LD_LIBRARY_PATH" not in os.environ or os.environ["LD_LIBRARY_PATH"] != "/opt/lib"
    assert ask(package, LD_LIBRARY_PATH="/opt/lib").loaded


def test_no_vllm_at_all_is_a_problem(package: Path) -> None:
    shutil.rmtree(package)
    assert ask(package).problem == "ModuleNotFoundError: No module named 'vllm'"
