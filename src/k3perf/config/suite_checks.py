"""Checks of a suite's documents against each other: arguments, names, parents and
combinations of configs, devices and ranks of targets, ids of cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3perf.config.arguments import EngineTable, argument_problems, environment_problems
from k3perf.config.quality_prompts import quality_problems
from k3perf.config.refusals import named_values
from k3perf.errors import ConfigFileError

if TYPE_CHECKING:
    from k3perf.config.models import ConfigSpec, Refusal, TargetSpec
    from k3perf.config.suite import Cell, Suite


def unknown_names(
    path: Path, key: str, names: Iterable[str | None], kind: str, known: Iterable[str]
) -> Iterator[ConfigFileError]:
    """Each of ``names`` that is not among the ``known`` ones. None is not a name."""
    known = tuple(known)
    for name in names:
        if name is not None and name not in known:
            problem, step = f"no {kind} has this name", f"Use one of: {', '.join(known)}."
            yield ConfigFileError(path, key, name, problem, step)


def cell_id_problems(suite: Suite, paths: Mapping[str, Path]) -> Iterator[ConfigFileError]:
    """Names may hold dashes, so two cells could have one id; one of them would then
    never be measured.
    """
    known: dict[str, Cell] = {}
    for cell in suite.cells(on_request=frozenset(suite.workloads)):
        other = known.setdefault(cell.cell_id, cell)
        if other is not cell:
            parts = f"{other.target.name} + {other.config.name} + {other.workload.name}"
            problem = (
                f"its cell {cell.config.name} + {cell.workload.name} has the id {cell.cell_id!r},"
                f" like {parts}"
            )
            step = "Rename the target or the workload."
            yield ConfigFileError(paths[cell.target.name], "name", cell.target.name, problem, step)


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
        for key, names in (("extends", (spec.extends,)), ("combines", spec.combines)):
            for problem in unknown_names(path, key, names, "config", suite.configs):
                sound = False
                yield problem
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
            step = "Let one of them extend default."
            yield ConfigFileError(path, "extends", suite.configs[name].extends, problem, step)
            return
        seen.append(parent)


def _combination_problems(suite: Suite, spec: ConfigSpec, path: Path) -> Iterator[ConfigFileError]:
    changed: dict[str, str] = {}
    for part in spec.combines:
        change = suite.configs[part].change
        if suite.configs[part].extends is None or len(change) != 1:
            problem = "is not an approved single change"
            step = "List configs that change one argument."
            yield ConfigFileError(path, "combines", part, problem, step)
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


def refusal_problems(
    refusal: Refusal, path: Path, key: str, engine_table: EngineTable | None
) -> Iterator[ConfigFileError]:
    """Problems of the arguments that a refusal names."""
    for arguments in named_values(refusal):
        yield from argument_problems(
            arguments, path, key, place="refusal", engine_table=engine_table
        )


def target_problems(
    suite: Suite, target: TargetSpec, path: Path, engine_table: EngineTable | None
) -> Iterator[ConfigFileError]:
    """Every problem of one target: arguments, names, model, devices, scaling base."""
    yield from argument_problems(
        target.engine_arguments, path, "engine_arguments", place="target", engine_table=engine_table
    )
    yield from environment_problems(target.environment, path, "environment")
    for index, refusal in enumerate(target.refusals):
        yield from refusal_problems(refusal, path, f"refusals.{index}.when", engine_table)
    yield from _names_of_target(suite, target, path)
    if (
        target.model.directory is not None
        and not (suite.root / target.model.directory / "config.json").is_file()
    ):
        problem = "the model directory has no config.json"
        step = f"The path is relative to {suite.root}."
        yield ConfigFileError(path, "model.directory", target.model.directory, problem, step)
    yield from quality_problems(suite, target, path)
    yield from _devices_problems(target, path)
    yield from _scaling_base_problems(suite.targets, target, path)
    for config in target.configs or tuple(suite.configs):
        if config in suite.configs:
            yield from _decode_context_problems(
                target, config, suite.engine_arguments(target, suite.configs[config]), path
            )


def _names_of_target(suite: Suite, target: TargetSpec, path: Path) -> Iterator[ConfigFileError]:
    same = tuple(name for group in target.equivalences for name in group.configs)
    for key, names in (
        ("reference", (target.reference,)),
        ("configs", target.configs),
        ("equivalences", same),
    ):
        yield from unknown_names(path, key, names, "config", suite.configs)
    for key in ("workloads", "workloads_on_request"):
        yield from unknown_names(path, key, getattr(target, key), "workload", suite.workloads)
    other = (target.default_instead_of,)
    yield from unknown_names(path, "default_instead_of", other, "target", suite.targets)
    for index, entry in enumerate(target.candidates):
        key = f"candidates.{index}"
        yield from unknown_names(path, f"{key}.configs", entry.configs, "config", suite.configs)
        yield from unknown_names(
            path, f"{key}.workloads", entry.workloads, "workload", suite.workloads
        )


def _devices_problems(target: TargetSpec, path: Path) -> Iterator[ConfigFileError]:
    """Each rank has a separate device, and every device a rank: locks, budgets and
    scaling efficiency count devices, engines use ranks.
    """
    hardware, parallelism = target.hardware, target.parallelism
    if hardware.kind == "cpu":
        return
    if parallelism.rank_count != hardware.device_count:
        problem = (
            f"is {hardware.device_count}, but parallelism makes {parallelism.rank_count} ranks"
            f" ({parallelism.text})"
        )
        step = "Give one device per rank, over all hosts."
        yield ConfigFileError(path, "hardware.device_count", None, problem, step)
    if hardware.device_count % hardware.host_count:
        problem = f"does not divide the {hardware.device_count} devices evenly"
        step = "Give every host the same number of devices."
        yield ConfigFileError(path, "hardware.host_count", hardware.host_count, problem, step)


def _decode_context_problems(
    target: TargetSpec, config: str, arguments: Mapping[str, Any], path: Path
) -> Iterator[ConfigFileError]:
    """Decode context parallelism adds no rank: it spreads the KV cache over ranks that
    `parallelism` has.

    The sizes that vLLM takes are those of ``ParallelConfig`` in vLLM 0.32.
    """
    name = "decode_context_parallel_size"
    size = arguments.get(name, 1)
    tensor, prefill = target.parallelism.tensor, target.parallelism.prefill_context
    possible = [count for count in range(1, tensor + 1) if tensor % count == 0]
    if prefill > 1:
        possible = sorted({1, prefill, tensor * prefill})
    if size in possible and not isinstance(size, bool):
        return
    own = name in target.engine_arguments and target.engine_arguments[name] == size
    problem = f"does not fit the ranks of parallelism ({target.parallelism.text})"
    step = f"Use one of: {', '.join(map(str, possible))}."
    if own:
        yield ConfigFileError(path, f"engine_arguments.{name}", size, problem, step)
        return
    problem = f"sets {name} {size!r}, which {problem}"
    step = f"{step} Or leave the config out."
    yield ConfigFileError(path, "configs", config, problem, step)


def _scaling_base_problems(
    targets: Mapping[str, TargetSpec], target: TargetSpec, path: Path
) -> Iterator[ConfigFileError]:
    """The same model on the same devices, only fewer of them: else the ratio would say
    something of the model or of the device.
    """
    name = target.scaling_base
    if name is None:
        return
    base = targets.get(name)
    if base is None:
        yield from unknown_names(path, "scaling_base", (name,), "target", targets)
        return
    if base.model != target.model:
        problem = (
            f"serves another model ({_model_text(base)}) than this target ({_model_text(target)})"
        )
        next_step = "Name a target of the same model, or leave the key out."
    elif (base.hardware.kind, base.hardware.device_name) != (
        target.hardware.kind,
        target.hardware.device_name,
    ):
        problem = (
            f"runs on other devices ({_device_text(base)}) than this target"
            f" ({_device_text(target)})"
        )
        next_step = "Name a target on the same devices, or leave the key out."
    elif base.hardware.device_count >= target.hardware.device_count:
        problem = (
            f"has {base.hardware.device_count} devices, not fewer than this target's"
            f" {target.hardware.device_count}"
        )
        next_step = "Name a target of fewer devices, or leave the key out."
    else:
        return
    yield ConfigFileError(path, "scaling_base", name, problem, next_step)


def _model_text(target: TargetSpec) -> str:
    return f"{target.model.directory or target.model.checkpoint}, {target.model.weights} weights"


def _device_text(target: TargetSpec) -> str:
    return target.hardware.device_name or target.hardware.kind
