"""Frozen models of what a team declares: configs, targets, tolerances. YAML in, nothing
computed.

Workload models are in ``k3perf.config.workload_spec``. Every model forbids unknown
keys; ``k3perf.config.load`` turns a failure into one message with file, key, value and
next step.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1

Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([_-][a-z0-9]+)*$", max_length=48)]
ConfigName = Annotated[str, Field(pattern=r"^[a-z0-9]+(_[a-z0-9]+)*$", max_length=48)]
Release = Annotated[str, Field(pattern=r"^(\d+(\.\d+)*)?$")]
CpuFeature = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=48)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
EngineArguments = dict[str, Any]


class Declared(BaseModel):
    """Base of every declared document part: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(Declared):
    """Why somebody may believe a value: where it came from and when."""

    kind: Literal["recipe", "experiment", "default", "issue"]
    source: str = Field(min_length=3)
    date: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    note: str = ""


class ConfigSpec(Declared):
    """One approved serving configuration, as written: one change away from its parent,
    or a named combination of such.
    """

    schema_version: Literal[1]
    name: ConfigName
    extends: ConfigName | None = None
    change: EngineArguments = Field(default_factory=dict)
    combines: tuple[ConfigName, ...] = ()
    why: str = Field(min_length=8)
    provenance: Provenance

    @model_validator(mode="after")
    def _one_change(self) -> ConfigSpec:
        if self.extends is None:
            if self.combines:
                raise ValueError("combines needs extends; the root config only holds defaults")
            return self
        if self.combines and self.change:
            raise ValueError("give either change or combines, not both")
        if self.combines:
            if len(self.combines) < 2:
                raise ValueError("combines lists at least two approved single changes")
            return self
        if len(self.change) != 1:
            listed = ", ".join(self.change) or "nothing"
            raise ValueError(
                f"a config is exactly one change away from its parent, this one changes {listed}; "
                "split it into one config per change and name the combination with combines"
            )
        return self


class Hardware(Declared):
    """The hardware class a target runs on; the class is part of every baseline's key.

    ``cpu_features``: instruction sets that the engine needs, by their names in
    /proc/cpuinfo. ``cpu_classes``: classes of processors that can do more, each with
    the instruction sets that make it; a run is of the first class that fits, else of
    ``hardware_class``. ``power_limit_w``: what each device may draw, to 2 %; a device
    under another limit is refused before anything starts.
    """

    kind: Literal["cpu", "nvidia", "amd"]
    hardware_class: Name
    device_count: int = Field(ge=1, default=1)
    device_name: str = ""
    device_memory_bytes: int | None = Field(default=None, gt=0)
    power_limit_w: PositiveFloat | None = None
    host_count: int = Field(ge=1, default=1)
    minimum_driver: str = ""
    minimum_vllm: Release = ""
    cpu_features: tuple[CpuFeature, ...] = ()
    cpu_classes: dict[Name, tuple[CpuFeature, ...]] = Field(default_factory=dict)

    def class_with(self, cpu_features: Container[str]) -> str:
        """The class of a machine on which these instruction sets can be used."""
        fitting = (
            name
            for name, needed in self.cpu_classes.items()
            if all(feature in cpu_features for feature in needed)
        )
        return next(fitting, self.hardware_class)


class ModelSource(Declared):
    """Either a directory shipped in ``perf_tests/models`` (dummy weights) or a
    checkpoint name.
    """

    directory: str | None = None
    checkpoint: str | None = None
    weights: Literal["dummy", "checkpoint"] = "dummy"
    trust_remote_code: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> ModelSource:
        if (self.directory is None) == (self.checkpoint is None):
            raise ValueError("give exactly one of directory and checkpoint")
        return self


class Parallelism(Declared):
    """Ranks of one engine. Their number is the product of all sizes.

    On accelerators it must be ``hardware.device_count``. Only these keys declare ranks.
    vLLM's arguments for them follow from here and are refused elsewhere.
    """

    tensor: int = Field(ge=1, default=1)
    pipeline: int = Field(ge=1, default=1)
    data: int = Field(ge=1, default=1)
    prefill_context: int = Field(ge=1, default=1)
    expert: bool = False

    @property
    def rank_count(self) -> int:
        """Ranks of all hosts together."""
        return self.tensor * self.pipeline * self.data * self.prefill_context

    @property
    def text(self) -> str:
        """``tensor 8 x pipeline 2 x data 1``, with prefill context only where there is
        some.
        """
        own = f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}"
        return (
            own if self.prefill_context == 1 else f"{own} x prefill context {self.prefill_context}"
        )


class Launch(Declared):
    """How the engine's processes come to be: one process tree here, vLLM's own
    multi-node start, Ray, Slurm or Kubernetes.
    """

    kind: Literal["single", "multi_node", "ray", "slurm", "kubernetes"] = "single"
    options: dict[str, Any] = Field(default_factory=dict)


class Refusal(Declared):
    """A known refusal: what vLLM does not take, or silently turns into something else.
    Cells that match are not collected.

    ``when`` names arguments with the value that is refused, or with ``{one_of: [...]}``
    or ``{other_than: VALUE}`` for one that is given. Releases from ``minimum_vllm`` on
    and before ``below_vllm`` refuse it; empty: no end on that side. Where only the
    engine's release can tell, the cell is collected and the run ends with a
    configuration error before anything is started. ``without_cpu_features``: the
    refusal holds only on a processor that lacks one of these.
    """

    when: EngineArguments = Field(min_length=1)
    reason: str = Field(min_length=8)
    source: str = ""
    minimum_vllm: Release = ""
    below_vllm: Release = ""
    without_cpu_features: tuple[CpuFeature, ...] = ()


class KnownRefusal(Refusal):
    """A refusal of a hardware class and a model's family, whatever the target:
    ``targets/refusals/*.yaml``.

    ``hardware_classes`` means these classes and their sizes (``h200`` means ``h200-x2``
    too); ``model_types`` are those of config.json, none for all.
    """

    schema_version: Literal[1]
    name: Name
    hardware_classes: tuple[Name, ...] = Field(min_length=1)
    model_types: tuple[str, ...] = ()
    provenance: Provenance


class Equivalence(Declared):
    """Configs that this target's engine resolves to one and the same; measured once,
    reported as equal.
    """

    configs: tuple[ConfigName, ...] = Field(min_length=2)
    reason: str = Field(min_length=8)


class MeasurementPlan(Declared):
    """How much is measured: rounds are bought up to these limits while a cell is
    undecided.

    ``import_ahead``: the next engine's process imports vLLM while this one starts,
    which shortens every start but the first. For hosts with processors to spare;
    start-up times are then not measured.
    """

    mode: Literal["baseline", "reference"]
    warm_up_rounds: int = Field(ge=0, default=2)
    minimum_rounds: int = Field(ge=1, default=4)
    maximum_rounds: int = Field(ge=1, default=12)
    minimum_sessions: int = Field(ge=1, default=1)
    maximum_sessions: int = Field(ge=1, default=3)
    baseline_sessions: int = Field(ge=2, default=6)
    interleave: Literal["rounds", "sessions"] = "sessions"
    repeat_invalid_rounds: int = Field(ge=0, default=4)
    import_ahead: bool = False

    @model_validator(mode="after")
    def _ordered(self) -> MeasurementPlan:
        if (
            self.minimum_rounds > self.maximum_rounds
            or self.minimum_sessions > self.maximum_sessions
        ):
            raise ValueError("a minimum is larger than its maximum")
        return self


class StageDeadlines(Declared):
    """Seconds without progress in the engine's log after which a stage counts as hung,
    per stage.
    """

    import_s: PositiveFloat = 120
    load_s: PositiveFloat = 300
    profile_s: PositiveFloat = 180
    compile_s: PositiveFloat = 600
    capture_s: PositiveFloat = 300
    ready_s: PositiveFloat = 60
    stop_s: PositiveFloat = 20


class Pinning(Declared):
    """Processor numbers for the parts that must not steal from each other. Empty: not
    pinned.
    """

    worker_cpus: tuple[int, ...] = ()
    server_cpus: tuple[int, ...] = ()
    client_cpus: tuple[int, ...] = ()


class TargetSpec(Declared):
    """Where configs run: hardware class, model, parallelism and the arguments the
    hardware forces.

    ``workloads`` are measured by every run of the target; ``workloads_on_request`` fit
    it too, and are measured when a run names them. ``default_instead_of``: measured by
    default where the named target's hardware is missing. ``scaling_base`` names the
    target of fewer devices and the same model that scaling efficiency is reported
    against.
    """

    schema_version: Literal[1]
    name: Name
    description: str = Field(min_length=8)
    measured_by_default: bool = False
    default_instead_of: Name | None = None
    hardware: Hardware
    model: ModelSource
    parallelism: Parallelism = Parallelism()
    launch: Launch = Launch()
    reference: ConfigName = "default"
    scaling_base: Name | None = None
    engine_arguments: EngineArguments = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    configs: tuple[ConfigName, ...] = ()
    workloads: tuple[Name, ...] = Field(min_length=1)
    workloads_on_request: tuple[Name, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    equivalences: tuple[Equivalence, ...] = ()
    measurement: MeasurementPlan
    stage_deadlines: StageDeadlines = StageDeadlines()
    pinning: Pinning = Pinning()
    validity: dict[str, PositiveFloat] = Field(default_factory=dict)
    provenance: Provenance

    @model_validator(mode="after")
    def _listed_once(self) -> TargetSpec:
        twice = sorted(set(self.workloads) & set(self.workloads_on_request))
        if twice:
            raise ValueError(
                f"{', '.join(twice)} stands in workloads and in workloads_on_request; keep one"
            )
        return self


class Tolerance(Declared):
    """The largest loss of a metric that the team accepts: a ratio (0.05 is 5 %) or an
    absolute amount in the metric's unit.

    0 is for exact metrics alone. A metric that varies from run to run needs more.
    """

    loss_ratio: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    loss_absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Tolerance:
        if (self.loss_ratio is None) == (self.loss_absolute is None):
            raise ValueError("give exactly one of loss_ratio and loss_absolute")
        return self


class ToleranceFile(Declared):
    """``perf_tests/tolerances.yaml``: gated metrics with their tolerances, and the
    error budgets.

    From general to special: ``defaults``, ``targets``, ``workloads``, ``configs``; the
    last that names a metric holds, and null means not gated. ``workloads``: a metric
    that says something of some workloads only, such as the hit ratio of those that
    share prefixes, is gated there alone. ``configs``, by target and then by config: one
    config of one target that is far noisier or quieter than its siblings. The noise of
    the metrics that it names is pooled apart from theirs (docs/gate.md).
    """

    schema_version: Literal[1]
    false_alarm_budget: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.01
    missed_loss_budget: Annotated[float, Field(gt=0, lt=0.5, allow_inf_nan=False)] = 0.05
    cumulative_loss_cap_ratio: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.1
    defaults: dict[str, Tolerance] = Field(min_length=1)
    targets: dict[Name, dict[str, Tolerance | None]] = Field(default_factory=dict)
    workloads: dict[Name, dict[str, Tolerance | None]] = Field(default_factory=dict)
    configs: dict[Name, dict[ConfigName, dict[str, Tolerance | None]]] = Field(default_factory=dict)

    def places(self) -> Iterator[tuple[str, Mapping[str, Tolerance | None]]]:
        """Every mapping of metrics to tolerances with its key in the file, from general
        to special.
        """
        yield "defaults", self.defaults
        for target, own in self.targets.items():
            yield f"targets.{target}", own
        for workload, own in self.workloads.items():
            yield f"workloads.{workload}", own
        for target, configs in self.configs.items():
            for config, own in configs.items():
                yield f"configs.{target}.{config}", own

    def for_target(self, target: str) -> dict[str, Tolerance]:
        """Metric name to tolerance for every workload of one target: the defaults
        overlaid with the target's own.
        """
        overlaid = {**self.defaults, **self.targets.get(target, {})}
        return {name: tolerance for name, tolerance in overlaid.items() if tolerance is not None}

    def own(self, target: str) -> dict[ConfigName, dict[str, Tolerance | None]]:
        """What single configs of the target say of metrics themselves; None: not gated
        there.
        """
        return self.configs.get(target, {})

    def for_cell(self, target: str, config: str, workload: str) -> dict[str, Tolerance]:
        """Metric name to tolerance for one cell: what holds for the target, overlaid
        with the workload's own and then the config's own.
        """
        overlaid = {
            **self.for_target(target),
            **self.workloads.get(workload, {}),
            **self.own(target).get(config, {}),
        }
        return {name: tolerance for name, tolerance in overlaid.items() if tolerance is not None}
