"""A drafted suite to files: all of them, checked first, or none."""

from __future__ import annotations

import configparser
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from k3perf import __version__
from k3perf.config.arguments import EngineTable
from k3perf.config.gated import check_metric_names
from k3perf.config.suite import load_suite
from k3perf.errors import UsageError
from k3perf.onboarding.suite_files import SuiteDraft
from k3perf.store.atomic import replace_file

STATE: Final = ".k3perf/"
_PYTEST_INI: Final = "[pytest]\ntestpaths = {suite}\n"
_INI_SECTIONS: Final = {"pytest.ini": "pytest", "tox.ini": "pytest", "setup.cfg": "tool:pytest"}


def write_suite(
    draft: SuiteDraft, root: Path, suite: str, engine_table: EngineTable | None = None
) -> list[str]:
    """Write the draft below ``root`` and return the paths. Raises UsageError if the
    suite is there already, ConfigFileError for what it cannot hold; nothing is written
    then.
    """
    if (root / suite).exists():
        raise UsageError(
            f"{root / suite} exists already. Add a target and a config to it (docs/configs.md), or"
            " choose another directory with --suite."
        )
    with tempfile.TemporaryDirectory(prefix=".k3perf-init-", dir=root) as scratch:
        for name, text in draft.files.items():
            replace_file(Path(scratch) / name, text)
        check_metric_names(load_suite(Path(scratch) / suite, engine_table=engine_table))
        (root / suite).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(Path(scratch) / suite, root / suite)
    return sorted(draft.files)


def write_surroundings(root: Path, suite: str, target: str, *, workflow: bool) -> list[str]:
    """What the repository needs around the suite, where it is missing: pytest's
    configuration, the ignored directory, a workflow. Returns the paths written.
    """
    written = []
    if not has_pytest_configuration(root):
        replace_file(root / "pytest.ini", _PYTEST_INI.format(suite=suite))
        written.append("pytest.ini")
    ignored = root / ".gitignore"
    lines = ignored.read_text(encoding="utf-8").splitlines() if ignored.is_file() else []
    if STATE not in lines:
        replace_file(ignored, "\n".join([*lines, STATE]) + "\n")
        written.append(".gitignore")
    path = root / ".github" / "workflows" / "k3perf.yml"
    if workflow and not path.exists():
        replace_file(path, workflow_text({"suite": suite, "target": target}))
        written.append(str(path.relative_to(root)))
    return written


def has_pytest_configuration(root: Path) -> bool:
    """Whether pytest finds its configuration in ``root`` itself."""
    if (root / "pytest.ini").is_file() or (root / ".pytest.ini").is_file():
        return True
    for name, section in _INI_SECTIONS.items():
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(root / name, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        if parser.has_section(section):
            return True
    try:
        document = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    return "pytest" in document.get("tool", {})


def workflow_text(values: Mapping[str, str]) -> str:
    """The workflow that runs the suite on every pull request."""
    text = files("k3perf.onboarding").joinpath("workflow.yml.txt").read_text(encoding="utf-8")
    for name, value in {"version": __version__, **values}.items():
        text = text.replace(f"@{name}@", value)
    return text
