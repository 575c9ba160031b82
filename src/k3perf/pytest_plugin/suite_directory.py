"""A suite's directory with the test modules that ship with k3perf, so that a repository
holds no copy of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest


class SuiteDirectory(pytest.Directory):
    """Its own test modules as pytest's ``Dir`` collects them, then the shipped ones
    that it lacks. A file of the same name takes a shipped module's place.
    """

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        """The directory's own modules, then the shipped ones by name."""
        yield from self._own()
        shown_folder = self.nodeid if self.nodeid not in ("", ".") else self.path.name
        for module in shipped_modules():
            if not (self.path / module.name).exists():
                collector: pytest.Collector = pytest.Module.from_parent(
                    self, path=module, nodeid=f"{shown_folder}/{module.name}"
                )
                yield collector

    def _own(self) -> Iterator[pytest.Collector]:
        for path in sorted(self.path.iterdir()):
            named = self.session.isinitpath(path, with_parents=path.is_dir())
            ignored = not named and self.ihook.pytest_ignore_collect(
                collection_path=path, config=self.config
            )
            if ignored or path.name == "__pycache__":
                continue
            if path.is_dir():
                found = self.ihook.pytest_collect_directory(path=path, parent=self)
                yield from () if found is None else (found,)
            elif path.is_file():
                yield from self.ihook.pytest_collect_file(file_path=path, parent=self)


def shipped_modules() -> tuple[Path, ...]:
    """The shipped test modules, by name."""
    folder = Path(str(files("k3perf.pytest_plugin").joinpath("suite_modules")))
    return tuple(sorted(folder.glob("test_*.py")))
