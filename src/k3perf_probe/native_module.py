"""Load vLLM's native module as an engine does: ``python -c SOURCE [SYSTEM_PACKAGES]``
with the engine's Python.

The last line printed is JSON, ``{"loaded": [path], "problem": "", "mend": ""}``; the
status is 0 when a module was loaded. vLLM itself only warns when it cannot load the
module, and its engine fails later with another error. ``SYSTEM_PACKAGES`` is k3perf's
list of packages: it names the one that holds a missing library.
"""

from __future__ import annotations

import builtins
import json
import logging
import re
import sys
from pathlib import Path
from typing import Any

_MISSING_LIBRARY = re.compile(r"(\S+\.so\S*): cannot open shared object file")
_NATIVE_MODULE = re.compile(r"/vllm/_C[^/]*\.so$")


def load() -> tuple[list[str], str]:
    """The files of the native module that are mapped after vLLM's own loading; what
    went wrong when there are none.
    """
    logging.disable(
        logging.WARNING
    )  # vLLM's warning names the library; the answer also names its package
    failures: list[str] = []
    plain_import = builtins.__import__

    def watched_import(name: str, *arguments: Any, **keywords: Any) -> Any:
        try:
            return plain_import(name, *arguments, **keywords)
        except ImportError as error:
            if name.startswith("vllm._"):
                failures.append(f"{name}: {error}")
            raise

    try:
        from vllm.platforms import current_platform

        builtins.__import__ = watched_import
        current_platform.import_kernels()
    except Exception as error:
        failures.insert(0, f"{type(error).__name__}: {error}")
    finally:
        builtins.__import__ = plain_import
    loaded = mapped_modules()
    if (
        loaded
    ):  # vLLM imports libraries as modules that they are not: an ImportError says nothing then
        return loaded, ""
    return [], failures[0] if failures else "vLLM loaded no native module and gave no reason"


def mapped_modules() -> list[str]:
    """Paths of vLLM's native modules in this process's memory."""
    with Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        # a path may have spaces
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps}
    return sorted(path for path in paths if _NATIVE_MODULE.search(path))


def mend(problem: str, packages_file: str) -> str:
    """The command that brings the missing library, or how to find its package. Empty
    when no library is missing.
    """
    missing = _MISSING_LIBRARY.search(problem)
    if missing is None:
        return ""
    library = missing[1].rpartition("/")[2]
    package = package_of(library, packages_file)
    return (
        f"apt-get install {package}"
        if package
        else f"apt-file search {library}   # then apt-get install what it names"
    )


def package_of(library: str, packages_file: str) -> str:
    """The package that the list gives for a library; empty when it does not name it."""
    if packages_file:
        for line in Path(packages_file).read_text(encoding="utf-8").splitlines():
            words = line.split()
            if len(words) > 2 and words[2] == f"library:{library}":
                return words[0]
    return ""


def main() -> int:
    """Print the answer."""
    loaded, problem = load()
    packages_file = sys.argv[1] if len(sys.argv) > 1 else ""
    answer = {"loaded": loaded, "problem": problem, "mend": mend(problem, packages_file)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")
    if problem:
        sys.stderr.write(
            f"{problem}\n" + (f"Run as root: {answer['mend']}\n" if answer["mend"] else "")
        )
    return 0 if loaded else 1


if __name__ == "__main__":
    sys.exit(main())
