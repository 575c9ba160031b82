"""Makes the small pytest run around one engine that harness faults strike."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

_INNER = Path(__file__).with_name("inner_suite.py")
LEFT_OUT_PLUGINS = ("cacheprovider", "benchmark", "cov", "hypothesispytest", "timeout")


def write_inner_suite(directory: Path, spec: dict[str, Any]) -> None:
    """A conftest that starts the engine of ``spec``, and one test that serves until the
    engine ends.
    """
    shutil.copy(_INNER, directory / "conftest.py")
    (directory / "test_inner.py").write_text(
        "import conftest\n\ndef test_serving(engine):\n    conftest.serve(engine)\n"
    )
    (directory / "spec.json").write_text(json.dumps(spec))


def inner_command(directory: Path) -> list[str]:
    """The pytest call for it."""
    quiet = [part for plugin in LEFT_OUT_PLUGINS for part in ("-p", f"no:{plugin}")]
    return [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        *quiet,
        "--rootdir",
        str(directory),
        str(directory),
    ]
