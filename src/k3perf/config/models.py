"""Frozen models of what a team declares: configs, targets, one tolerance.

Workloads are in ``workload_spec``, the file of tolerances in ``tolerances``. Every
model forbids unknown keys. ``k3perf.config.load_yaml`` turns a failure into one message
with file, key, value and next step.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from k3perf.config.candidates import Candidate
from k3perf.config.declared import (
    ConfigName,
    CpuFeature,
    Declared,
    EngineArguments,
    Name,
    PositiveFloat,
    Release,
)
from k3perf.config.machine_spec import Hardware, Launch, Parallelism
from k3perf.config.quality_spec import QualitySpec

SCHEMA_VERSION = 1


class Provenance(Declared):
    """Where a value comes from, and when."""

    kind: Literal["recipe", "experiment", "default", "issue"]
    """A published recipe, our own experiment, vLLM's default, or an issue report."""
    source: str = Field(min_length=3)
    """The page, issue, run or reasoning behind the value."""
    date: str = Field(pattern=r"^\d{4}-\d{2}(-\d{2})?$")
    """Day (`YYYY-MM-DD`) or month (`YYYY-MM`) of the source."""
    note: str = ""
    """A note for readers, such as `not yet run`."""


class ConfigSpec(Declared):
    """One approved serving configuration: one change away from its parent, or a
    combination of such changes.
    """

    schema_version: Literal[1]
    """Version of this file's format."""
    name: ConfigName
    """The config's name, also in test ids: small letters, digits and underscores."""
    extends: ConfigName | None = None
    """The parent config. Without it the config is the root, which holds defaults."""
    change: EngineArguments = Field(default_factory=dict)
    """The vLLM argument that this config changes, with its value. The root may set
    several.
    """
    combines: tuple[ConfigName, ...] = ()
    """At least two approved single changes of the same parent, instead of `change`."""
    why: str = Field(min_length=8)
    """Why the team serves this way."""
    provenance: Provenance
    """Where the change comes from."""

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


class ModelSource(Declared):
    """The model of a target: exactly one of ``directory`` and ``checkpoint``."""

    directory: str | None = None
    """Directory with config.json and tokenizer, relative to the suite
    (`models/NAME`).
    """
    checkpoint: str | None = None
    """Name of a checkpoint, as vLLM's `--model` takes it."""
    weights: Literal["dummy", "checkpoint"] = "dummy"
    """Random weights made at the start, or those of the checkpoint."""
    variants: dict[ConfigName, str] = Field(default_factory=dict)
    """By config: directory of the checkpoint that it serves instead."""
    trust_remote_code: bool = False
    """Let vLLM run the model code that the checkpoint brings."""
    vocabulary_size: int | None = Field(default=None, ge=1)
    """Token ids of prompts. Default: config.json's; of a checkpoint Kimi K3's."""

    @model_validator(mode="after")
    def _one_source(self) -> ModelSource:
        if (self.directory is None) == (self.checkpoint is None):
            raise ValueError("give exactly one of directory and checkpoint")
        return self

    def directory_for(self, config: str) -> str | None:
        """The directory that a config serves from; None for a checkpoint by name."""
        return self.variants.get(config, self.directory)


class Refusal(Declared):
    """A known refusal: what vLLM does not take, or silently turns into something else.
    Cells that match are not collected.
    """

    when: EngineArguments = Field(min_length=1)
    """Arguments with the refused value, or `{one_of: [...]}` or `{other_than:
    VALUE}` for one that is given. All must match.
    """
    reason: str = Field(min_length=8)
    """What vLLM does instead. Reports show it."""
    source: str = ""
    """Source of this statement."""
    minimum_vllm: Release = ""
    """First vLLM release that refuses it. Empty: every one before `below_vllm`. If
    only the engine's release can decide, the run ends before anything starts.
    """
    below_vllm: Release = ""
    """First later release that accepts it again. Empty: none so far."""
    without_cpu_features: tuple[CpuFeature, ...] = ()
    """The refusal holds only on a CPU that lacks one of these instruction sets."""


class KnownRefusal(Refusal):
    """A refusal of a hardware class and a model's family, whatever the target."""

    schema_version: Literal[1]
    """Version of this file's format."""
    name: Name
    """The refusal's name, that of its file."""
    hardware_classes: tuple[Name, ...] = Field(min_length=1)
    """Hardware classes and, with them, their sizes: `h200` means `h200-x2` too."""
    model_types: tuple[str, ...] = ()
    """`model_type` of config.json, any of these. Empty: every model."""
    provenance: Provenance
    """Source of the refusal."""


class Equivalence(Declared):
    """Configs that this target's engine resolves to one and the same. The first is
    measured, the others are reported as equal.
    """

    configs: tuple[ConfigName, ...] = Field(min_length=2)
    """Names of the configs, the measured one first."""
    reason: str = Field(min_length=8)
    """Why they are the same engine."""


class MeasurementPlan(Declared):
    """How much is measured. An undecided cell gets more rounds up to these limits."""

    mode: Literal["baseline", "reference"]
    """Compare with committed numbers (`baseline`), or with the reference config
    that is measured in the same run (`reference`).
    """
    warm_up_rounds: int = Field(ge=0, default=2)
    """Rounds of each session that are sent first and not judged."""
    minimum_rounds: int = Field(ge=1, default=4)
    """Rounds of a session before the first verdict."""
    maximum_rounds: int = Field(ge=1, default=12)
    """Most rounds of a session."""
    minimum_sessions: int = Field(ge=1, default=1)
    """Sessions of a cell before the first verdict."""
    maximum_sessions: int = Field(ge=1, default=3)
    """Most sessions (engine starts) of a cell."""
    maximum_suspect_sessions: int | None = Field(ge=1, default=None)
    """Most sessions while a loss is suspected. Default: `maximum_sessions` + 2."""
    baseline_sessions: int = Field(ge=2, default=6)
    """Sessions in a new baseline."""
    interleave: Literal["rounds", "sessions"] = "sessions"
    """Order of candidate and reference: alternate by round with both engines
    running, or by session.
    """
    repeat_invalid_rounds: int = Field(ge=0, default=4)
    """Invalid rounds of a session that are repeated before the session is given up."""
    import_ahead: bool = False
    """Import vLLM for the next engine while this one starts. Start-up times are
    then not measured. For hosts with CPUs to spare.
    """
    client_processes: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    """Processes that send a round's load, or `auto` for what its streams and rate
    need. One carries about 20,000 tokens per second.
    """

    @model_validator(mode="after")
    def _ordered(self) -> MeasurementPlan:
        sessions = (self.minimum_sessions, self.maximum_sessions, self.suspect_sessions)
        if self.minimum_rounds > self.maximum_rounds or list(sessions) != sorted(sessions):
            raise ValueError("a minimum is larger than its maximum")
        return self

    @property
    def suspect_sessions(self) -> int:
        """``maximum_suspect_sessions`` with its default."""
        return self.maximum_suspect_sessions or self.maximum_sessions + 2


class StageDeadlines(Declared):
    """Seconds without progress in the engine's log after which a stage is hung."""

    import_s: PositiveFloat = 120
    """Importing vLLM."""
    load_s: PositiveFloat = 300
    """Loading the weights."""
    profile_s: PositiveFloat = 180
    """Profiling memory."""
    compile_s: PositiveFloat = 600
    """Compiling."""
    capture_s: PositiveFloat = 300
    """Capturing CUDA graphs."""
    ready_s: PositiveFloat = 60
    """From the last stage to the first answer of the HTTP server."""
    stop_s: PositiveFloat = 20
    """From SIGTERM to SIGKILL at the end."""


class Pinning(Declared):
    """CPU numbers for the parts that must not compete. Empty: not pinned."""

    worker_cpus: tuple[int, ...] = ()
    """CPUs of the engine's workers."""
    server_cpus: tuple[int, ...] = ()
    """CPUs of the API server and the engine core."""
    client_cpus: tuple[int, ...] = ()
    """CPUs of the load generator."""


class TargetSpec(Declared):
    """Where configs run: hardware class, model, parallelism and the arguments that the
    hardware forces.
    """

    schema_version: Literal[1]
    """Version of this file's format."""
    name: Name
    """The target's name, also in test ids."""
    description: str = Field(min_length=8)
    """What the target stands for, in a sentence."""
    measured_by_default: bool = False
    """Measure the target when a run names none."""
    default_instead_of: Name | None = None
    """Measure by default if the named target's hardware is missing."""
    hardware: Hardware
    """The devices and hosts."""
    model: ModelSource
    """What is served."""
    parallelism: Parallelism = Parallelism()
    """Ranks of one engine."""
    launch: Launch = Launch()
    """Where the engine runs and how it starts: this host, several, a scheduler."""
    reference: ConfigName = "default"
    """The config that ratios are taken to."""
    scaling_base: Name | None = None
    """Target of fewer devices and the same model that scaling efficiency is
    reported against.
    """
    engine_arguments: EngineArguments = Field(default_factory=dict)
    """vLLM arguments that the hardware or the model forces, for every config."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the engine."""
    configs: tuple[ConfigName, ...] = ()
    """Configs to measure, by name. Empty: all."""
    workloads: tuple[Name, ...] = Field(min_length=1)
    """Workloads that every run of the target measures."""
    workloads_on_request: tuple[Name, ...] = ()
    """Workloads that fit the target and are measured when a run names them."""
    candidates: tuple[Candidate, ...] = ()
    """Cells without a baseline that a run leaves out unless `--k3-candidates` or
    `--k3-record` asks for them.
    """
    refusals: tuple[Refusal, ...] = ()
    """What this target's engine is known to refuse."""
    equivalences: tuple[Equivalence, ...] = ()
    """Configs that are the same engine here."""
    measurement: MeasurementPlan
    """How much is measured."""
    stage_deadlines: StageDeadlines = StageDeadlines()
    """When a start or an end counts as hung."""
    pinning: Pinning = Pinning()
    """Which CPUs the parts run on."""
    quality: QualitySpec | None = None
    """How the answers of every config are compared with the reference config's."""
    validity: dict[str, PositiveFloat] = Field(default_factory=dict)
    """Limits of validity rules, by rule name (docs/operating.md)."""
    provenance: Provenance
    """Where the target comes from."""

    @model_validator(mode="after")
    def _listed_once(self) -> TargetSpec:
        twice = sorted(set(self.workloads) & set(self.workloads_on_request))
        if twice:
            raise ValueError(
                f"{', '.join(twice)} is in both workloads and workloads_on_request; keep one"
            )
        return self


class Tolerance(Declared):
    """The largest loss of a metric that the team accepts: exactly one of a ratio and
    an amount.

    0 is for exact metrics alone. A metric that varies from run to run needs more.
    """

    loss_ratio: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    """As a ratio of the baseline: 0.05 is 5 %."""
    loss_absolute: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """As an amount in the metric's unit."""

    @model_validator(mode="after")
    def _one_kind(self) -> Tolerance:
        if (self.loss_ratio is None) == (self.loss_absolute is None):
            raise ValueError("give exactly one of loss_ratio and loss_absolute")
        return self
