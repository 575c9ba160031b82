"""All declared documents of a suite, resolved: parents applied, names checked, cells
enumerated with the reason for each omitted one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from k3perf.config.arguments import EngineTable
from k3perf.config.load_yaml import load_document
from k3perf.config.models import ConfigSpec, KnownRefusal, Refusal, TargetSpec
from k3perf.config.owned_arguments import PARALLELISM
from k3perf.config.refusals import applying, in_range, matches, model_type_of, range_text, too_old
from k3perf.config.suite_checks import (
    cell_id_problems,
    config_problems,
    refusal_problems,
    target_problems,
)
from k3perf.config.tolerances import ToleranceFile, load_tolerances, tolerance_problems
from k3perf.documents import read_json
from k3perf.errors import ConfigFileError, UnknownNameError, raise_all

if TYPE_CHECKING:
    from k3perf.config.workload_spec import WorkloadSpec

KIMI_VOCABULARY_SIZE = 163840  # moonshotai/Kimi-K3's config.json; prompts stay below it

NO_SUITE = (
    "A suite has configs/, targets/, workloads/ and tolerances.yaml. Go to the repository's root,"
    " or name the suite's directory with --suite (pytest: --k3-suite)."
)

_CORRECT_CONFIG = "Give the model's config.json as its publisher wrote it."

Named = TypeVar("Named", ConfigSpec, TargetSpec, "WorkloadSpec", KnownRefusal)


@dataclass(frozen=True, slots=True)
class Cell:
    """One (target, config, workload) with the engine arguments it resolves to.
    ``cell_id`` is the stable test id.
    """

    target: TargetSpec
    config: ConfigSpec
    workload: WorkloadSpec
    engine_arguments: dict[str, Any]

    @property
    def cell_id(self) -> str:
        """``target-config-workload``."""
        return f"{self.target.name}-{self.config.name}-{self.workload.name}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A (target, config) that is not collected, and why."""

    target: str
    config: str
    reason: str


@dataclass(frozen=True)
class Suite:
    """A suite's declarations. ``root`` is its folder (``perf_tests``)."""

    root: Path
    configs: dict[str, ConfigSpec]
    targets: dict[str, TargetSpec]
    workloads: dict[str, WorkloadSpec]
    tolerances: ToleranceFile
    known_refusals: tuple[KnownRefusal, ...] = ()

    def target(self, name: str) -> TargetSpec:
        """The target called ``name``; UnknownNameError lists the declared ones."""
        return _named("target", name, self.targets)

    def config(self, name: str) -> ConfigSpec:
        """The config called ``name``; UnknownNameError lists the declared ones."""
        return _named("config", name, self.configs)

    def workload(self, name: str) -> WorkloadSpec:
        """The workload called ``name``; UnknownNameError lists the declared ones."""
        return _named("workload", name, self.workloads)

    def lineage(self, name: str) -> tuple[str, ...]:
        """``name``, its parent, and so on up to the root config."""
        chain = [name]
        while (parent := self.config(chain[-1]).extends) is not None:
            chain.append(parent)
        return tuple(chain)

    def children(self, name: str) -> tuple[str, ...]:
        """Configs whose arguments depend on ``name``: those that extend it, directly or
        not, and combinations that list it.
        """
        return tuple(
            other
            for other, spec in self.configs.items()
            if other != name and (name in self.lineage(other) or name in spec.combines)
        )

    def changes(self, name: str) -> dict[str, Any]:
        """The engine arguments that a config sets on the way down from its root, the
        root's own excluded.
        """
        merged: dict[str, Any] = {}
        for step in reversed(self.lineage(name)[:-1]):
            spec = self.configs[step]
            merged.update(spec.change)
            for part in spec.combines:
                merged.update(self.configs[part].change)
        return merged

    def engine_arguments(self, target: TargetSpec, config: ConfigSpec) -> dict[str, Any]:
        """The root's arguments, overlaid with what the target's hardware forces,
        overlaid with the config's own changes.
        """
        root = self.configs[self.lineage(config.name)[-1]]
        return {
            **root.change,
            **target.engine_arguments,
            **self.changes(config.name),
            **_parallel_arguments(target),
        }

    def vocabulary_size(self, target: TargetSpec) -> int:
        """Token ids that prompts may use: the shipped model's vocabulary, or the
        checkpoint's where its family is known.
        """
        if target.model.vocabulary_size is not None:
            return target.model.vocabulary_size
        if target.model.directory is None:
            return KIMI_VOCABULARY_SIZE
        path = self.root / target.model.directory / "config.json"
        config = read_json(path, _CORRECT_CONFIG, finite=False)
        size = config.get("vocab_size") if isinstance(config, dict) else None
        if not isinstance(size, int) or size < 1:
            raise ConfigFileError(
                path, "vocab_size", size, "is not a number of tokens", _CORRECT_CONFIG
            )
        return size

    def cells(
        self, targets: tuple[str, ...] | None = None, *, on_request: Container[str] = ()
    ) -> tuple[Cell, ...]:
        """Every collected cell of the named targets (all without), in the order target,
        config, workload.

        ``on_request``: names of the workloads that are asked for although their target
        does not measure them by default.
        """
        found = []
        for name in targets if targets is not None else tuple(self.targets):
            target = self.target(name)
            workloads = (
                *target.workloads,
                *(workload for workload in target.workloads_on_request if workload in on_request),
            )
            for config in self._collected(target):
                arguments = self.engine_arguments(target, config)
                found += [
                    Cell(target, config, self.workload(workload), arguments)
                    for workload in workloads
                ]
        return tuple(found)

    def left_out(self, targets: tuple[str, ...] | None = None) -> tuple[LeftOut, ...]:
        """Configs that a target does not take, with the reason: a known refusal, or an
        engine equal to one already measured.
        """
        found = []
        for name in targets if targets is not None else tuple(self.targets):
            target = self.target(name)
            for config in self._declared(target):
                reason = self.refusal(target, config) or self.equivalent(target, config)
                if reason:
                    found.append(LeftOut(name, config.name, reason))
        return tuple(found)

    def refusal(self, target: TargetSpec, config: ConfigSpec) -> str:
        """Why the target is known to refuse the config; empty when it is not, or when
        only the engine's release could tell.
        """
        for refusal in self._matching(target, config):
            if not refusal.without_cpu_features and in_range(refusal, None, target):
                return refusal.reason
        return ""

    def refusal_here(
        self, target: TargetSpec, config: ConfigSpec, cpu_features: Container[str]
    ) -> Refusal | None:
        """The refusal of a CPU with these instruction sets alone; None when it can
        serve the config.
        """
        for refusal in self._matching(target, config):
            missing = any(feature not in cpu_features for feature in refusal.without_cpu_features)
            if missing and in_range(refusal, None, target) is not False:
                return refusal
        return None

    def refusal_of_release(
        self, target: TargetSpec, config: ConfigSpec, vllm_release: str | None
    ) -> str:
        """Why an engine of this release cannot serve the config, in a sentence; empty
        when nothing is known against it.
        """
        if too_old(target, vllm_release):
            return (
                f"{target.name} needs vLLM {target.hardware.minimum_vllm} or later, the engine has"
                f" {vllm_release}"
            )
        arguments = self.engine_arguments(target, config)
        for refusal in self._matching(target, config):
            known = vllm_release is not None and not refusal.without_cpu_features
            if known and in_range(refusal, vllm_release, target):
                asked = ", ".join(f"{name} {arguments.get(name)!r}" for name in refusal.when)
                return (
                    f"{target.name}-{config.name}: {asked} is refused by {range_text(refusal)}, the"
                    f" engine has {vllm_release}: {refusal.reason}"
                )
        return ""

    def _matching(self, target: TargetSpec, config: ConfigSpec) -> Iterator[Refusal]:
        arguments = self.engine_arguments(target, config)
        return (known for known in self.refusals_of(target) if matches(known, arguments))

    def refusals_of(self, target: TargetSpec) -> tuple[Refusal, ...]:
        """The target's own refusals and those of its hardware class and model."""
        return (
            applying(self.known_refusals, target, self._model_types[target.name])
            if self.known_refusals
            else target.refusals
        )

    def not_collected(self, target: TargetSpec, config: ConfigSpec) -> str:
        """Why the target has no cell of the config: not declared there, refused, or
        equal to another; empty when it has one.
        """
        if config not in self._declared(target):
            return f"{target.name} does not declare {config.name}"
        return self.refusal(target, config) or self.equivalent(target, config)

    def equivalent(self, target: TargetSpec, config: ConfigSpec) -> str:
        """Why another config of the target stands for this one; empty when none
        does.
        """
        for group in target.equivalences:
            if config.name in group.configs[1:]:
                return f"resolves to the same engine as {group.configs[0]}: {group.reason}"
        return ""

    def _declared(self, target: TargetSpec) -> tuple[ConfigSpec, ...]:
        names = target.configs or tuple(self.configs)
        return tuple(self.config(name) for name in names)

    def _collected(self, target: TargetSpec) -> tuple[ConfigSpec, ...]:
        return tuple(
            config
            for config in self._declared(target)
            if not self.refusal(target, config) and not self.equivalent(target, config)
        )

    @cached_property
    def _model_types(self) -> dict[str, str]:
        return {name: model_type_of(self.root, target) for name, target in self.targets.items()}

    @cached_property
    def config_order(self) -> dict[str, int]:
        """Position of each config in file order, for stable reordering of tests."""
        return {name: position for position, name in enumerate(self.configs)}


def _named(kind: str, name: str, known: dict[str, Named]) -> Named:
    if name not in known:
        raise UnknownNameError(kind, name, tuple(known))
    return known[name]


def _parallel_arguments(target: TargetSpec) -> dict[str, Any]:
    declared = {name: getattr(target.parallelism, key) for name, key in PARALLELISM.items()}
    return {name: value for name, value in declared.items() if value is True or value > 1}


def load_suite(root: Path, *, engine_table: EngineTable | None = None) -> Suite:
    """Load and cross-check ``root``'s configs, targets, workloads and tolerances.

    Raises one ConfigFileError for all problems found: those of single files first, then
    those between files. ``engine_table`` gives the arguments that the engine's own vLLM
    takes; it is asked only about what the shipped table objects to.
    """
    from k3perf.config.workload_spec import (
        # here, so that a memory plan, which has no workload, need not build its models
        WorkloadSpec,
    )

    problems: list[ConfigFileError] = []
    configs = _load_folder(ConfigSpec, root / "configs", problems)
    targets = _load_folder(TargetSpec, root / "targets", problems)
    workloads = _load_folder(WorkloadSpec, root / "workloads", problems)
    refusals = _load_refusals(root / "targets" / "refusals", problems, engine_table)
    tolerances_path = root / "tolerances.yaml"
    try:
        tolerances = load_tolerances(tolerances_path)
    except ConfigFileError as error:
        problems.append(error)
    raise_all(problems)
    paths = {name: path for name, (_, path) in configs.items()}
    suite = Suite(
        root=root,
        configs=_in_order({name: spec for name, (spec, _) in configs.items()}),
        targets={name: spec for name, (spec, _) in targets.items()},
        workloads={name: spec for name, (spec, _) in workloads.items()},
        tolerances=tolerances,
        known_refusals=refusals,
    )
    raise_all(config_problems(suite, paths, engine_table))
    problems = [
        problem
        for target, path in targets.values()
        for problem in target_problems(suite, target, path, engine_table)
    ]
    problems += tolerance_problems(
        tolerances,
        tolerances_path,
        targets=suite.targets,
        configs=suite.configs,
        workloads=suite.workloads,
        not_collected=lambda target, config: suite.not_collected(
            suite.target(target), suite.config(config)
        ),
    )
    raise_all(problems)
    raise_all(cell_id_problems(suite, {name: path for name, (_, path) in targets.items()}))
    return suite


def _in_order(configs: dict[str, ConfigSpec]) -> dict[str, ConfigSpec]:
    """Roots first, then by name, so that ids and reports do not depend on the file
    system's order.
    """
    return dict(
        sorted(
            configs.items(),
            key=lambda item: (item[1].extends is not None, bool(item[1].combines), item[0]),
        )
    )


def _load_folder(
    model: type[Named], folder: Path, problems: list[ConfigFileError]
) -> dict[str, tuple[Named, Path]]:
    """The folder's documents by name; what is wrong with single ones is added to
    ``problems``.
    """
    if not folder.is_dir():
        raise ConfigFileError(folder, "", None, "directory not found", NO_SUITE)
    found: dict[str, tuple[Named, Path]] = {}
    paths = sorted(folder.glob("*.y*ml"))
    for path in paths:
        try:
            spec = load_document(model, path)
        except ConfigFileError as error:
            problems.append(error)
            continue
        if spec.name in found:
            text = f"is already taken by {found[spec.name][1].name}"
            problems.append(ConfigFileError(path, "name", spec.name, text, "Give it another name."))
        found.setdefault(spec.name, (spec, path))
    if not paths:
        raise ConfigFileError(folder, "", None, "contains no YAML file", "Add at least one.")
    return found


def _load_refusals(
    folder: Path, problems: list[ConfigFileError], engine_table: EngineTable | None
) -> tuple[KnownRefusal, ...]:
    """Refusals of hardware classes; a suite need not have any."""
    if not folder.is_dir():
        return ()
    found = _load_folder(KnownRefusal, folder, problems)
    for refusal, path in found.values():
        problems += refusal_problems(refusal, path, "when", engine_table)
    return tuple(refusal for refusal, _ in found.values())
