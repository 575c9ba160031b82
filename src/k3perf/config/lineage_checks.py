"""Checks of a suite's configs against each other: arguments, parents, combinations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from k3perf.config.arguments import EngineTable, argument_problems
from k3perf.errors import ConfigFileError

if TYPE_CHECKING:
    from k3perf.config.models import ConfigSpec
    from k3perf.config.suite import Suite


def config_problems(
    suite: Suite, paths: dict[str, Path], engine_table: EngineTable | None
) -> Iterator[ConfigFileError]:
    """Every problem of arguments and names; where there is none, those of parents and
    combinations.
    """
    sound = True
    for name, spec in suite.configs.items():
        path = paths[name]
        for problem in argument_problems(
            spec.change, path, "change", place="config", engine_table=engine_table
        ):
            sound = False
            yield problem
        for key, wanted in [("extends", spec.extends)] + [
            ("combines", part) for part in spec.combines
        ]:
            if wanted is not None and wanted not in suite.configs:
                sound = False
                yield ConfigFileError(
                    path,
                    key,
                    wanted,
                    "no config has this name",
                    f"Use one of: {', '.join(suite.configs)}.",
                )
    if sound:
        for name, spec in suite.configs.items():
            yield from _cycle(suite, name, paths[name])
            yield from _combination_problems(suite, spec, paths[name])


def _cycle(suite: Suite, name: str, path: Path) -> Iterator[ConfigFileError]:
    seen = [name]
    while (parent := suite.configs[seen[-1]].extends) is not None:
        if parent in seen:
            ring = " -> ".join([*seen[seen.index(parent) :], parent])
            problem = f"the parents form a cycle: {ring}"
            yield ConfigFileError(
                path,
                "extends",
                suite.configs[name].extends,
                problem,
                "Let one of them extend default.",
            )
            return
        seen.append(parent)


def _combination_problems(suite: Suite, spec: ConfigSpec, path: Path) -> Iterator[ConfigFileError]:
    changed: dict[str, str] = {}
    for part in spec.combines:
        change = suite.configs[part].change
        if suite.configs[part].extends is None or len(change) != 1:
            yield ConfigFileError(
                path,
                "combines",
                part,
                "is not an approved single change",
                "List configs that change one argument.",
            )
            continue
        argument = next(iter(change))
        if suite.configs[part].extends != spec.extends:
            problem = (
                f"extends {suite.configs[part].extends}, the combination extends {spec.extends}"
            )
            yield ConfigFileError(path, "combines", part, problem, "Combine changes of one parent.")
        if argument in changed:
            problem = f"sets {argument}, as {changed[argument]} does"
            yield ConfigFileError(
                path, "combines", part, problem, "A combination sets each argument once."
            )
        changed[argument] = part
