"""A change's suite under the rules of its base: what is served comes from the change,
what judges it and which cells there are from the base. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from k3perf.config.candidates import Candidate
from k3perf.config.models import ConfigSpec, Refusal, TargetSpec
from k3perf.config.suite import Suite
from k3perf.config.tolerances import ToleranceFile

if TYPE_CHECKING:
    from k3perf.config.workload_spec import WorkloadSpec

Held = TypeVar("Held")

_CLASS: Final = ("kind", "hardware_class", "cpu_features", "cpu_classes")
"""What chooses a target's machines and the baselines that its numbers compare with."""


@dataclass(frozen=True)
class JudgedSuite(Suite):
    """``base`` decides which of the configs that it declares are measured."""

    base: Suite = field(kw_only=True)

    def _matching(self, target: TargetSpec, config: ConfigSpec) -> Iterator[Refusal]:
        if declares(self.base, target.name, config.name):
            return self.base._matching(self.base.target(target.name), self.base.config(config.name))
        return super()._matching(target, config)

    def equivalent(self, target: TargetSpec, config: ConfigSpec) -> str:
        """As the base says of a config that it declares."""
        if declares(self.base, target.name, config.name):
            return self.base.equivalent(
                self.base.target(target.name), self.base.config(config.name)
            )
        return super().equivalent(target, config)


def declares(suite: Suite, target: str, config: str) -> bool:
    """The suite's target names the config, refused or not."""
    if target not in suite.targets or config not in suite.configs:
        return False
    named = suite.targets[target].configs
    return not named or config in named


def judged_suite(own: Suite, base: Suite) -> JudgedSuite:
    """``own`` with the tolerances, plans, validity rules and cells of ``base``.

    Targets, configs and workloads that ``own`` lost are measured as the base declares
    them. New ones are measured as ``own`` declares them, under its own tolerances.
    """
    return JudgedSuite(
        root=own.root,
        configs=_with_lost(own.configs, base.configs),
        targets={
            name: _target(spec, base.targets.get(name))
            for name, spec in _with_lost(own.targets, base.targets).items()
        },
        workloads={
            name: _workload(spec, base.workloads.get(name))
            for name, spec in _with_lost(own.workloads, base.workloads).items()
        },
        tolerances=_tolerances(own.tolerances, base),
        known_refusals=own.known_refusals,
        base=base,
    )


def _with_lost(own: Mapping[str, Held], base: Mapping[str, Held]) -> dict[str, Held]:
    return {**own, **{name: spec for name, spec in base.items() if name not in own}}


def _target(own: TargetSpec, base: TargetSpec | None) -> TargetSpec:
    if base is None:
        return own
    workloads = _both(base.workloads, own.workloads)
    on_request = _both(base.workloads_on_request, own.workloads_on_request)
    return own.model_copy(
        update={
            "measured_by_default": base.measured_by_default,
            "default_instead_of": base.default_instead_of,
            "reference": base.reference,
            "hardware": own.hardware.model_copy(
                update={key: getattr(base.hardware, key) for key in _CLASS}
            ),
            "configs": _both(base.configs, own.configs) if base.configs and own.configs else (),
            "workloads": workloads,
            "workloads_on_request": tuple(name for name in on_request if name not in workloads),
            "candidates": (*base.candidates, *_new_candidates(own, base)),
            "measurement": base.measurement,
            "validity": base.validity,
        }
    )


def _new_candidates(own: TargetSpec, base: TargetSpec) -> Iterator[Candidate]:
    """What ``own`` says of cells that the base does not have. Of the others the base
    decides: a change cannot take a cell out of the gate.
    """
    configs = [name for name in own.configs if name not in base.configs] if base.configs else []
    known = {*base.workloads, *base.workloads_on_request}
    workloads = [name for name in (*own.workloads, *own.workloads_on_request) if name not in known]
    for entry in own.candidates:
        for key, new in (("configs", configs), ("workloads", workloads)):
            named = getattr(entry, key)
            if part := tuple(name for name in new if not named or name in named):
                yield entry.model_copy(update={key: part})


def _both(first: Iterable[str], second: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _workload(own: WorkloadSpec, base: WorkloadSpec | None) -> WorkloadSpec:
    """The plan's digest covers every key that shapes requests, but not the bounds that
    goodput counts by.
    """
    if base is None:
        return own
    return own.model_copy(update={"service_level": base.service_level})


def _tolerances(own: ToleranceFile, base: Suite) -> ToleranceFile:
    judge = base.tolerances
    targets = {name: held for name, held in own.targets.items() if name not in base.targets}
    workloads = {name: held for name, held in own.workloads.items() if name not in base.workloads}
    configs = {name: dict(held) for name, held in judge.configs.items()}
    for target, held in own.configs.items():
        new = {name: one for name, one in held.items() if not declares(base, target, name)}
        if new:
            configs[target] = {**configs.get(target, {}), **new}
    return judge.model_copy(
        update={
            "targets": {**judge.targets, **targets},
            "workloads": {**judge.workloads, **workloads},
            "configs": configs,
            "memory_and_lock": _memory_and_lock(own, base),
        }
    )


def _memory_and_lock(own: ToleranceFile, base: Suite) -> dict[str, dict[str, str]]:
    """The base's, and those of configs that it does not have."""
    found = {name: dict(held) for name, held in base.tolerances.memory_and_lock.items()}
    for target, held in own.memory_and_lock.items():
        new = {name: why for name, why in held.items() if not declares(base, target, name)}
        if new:
            found[target] = {**found.get(target, {}), **new}
    return found
