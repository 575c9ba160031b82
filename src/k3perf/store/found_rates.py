"""``baselines/<target>/found_rates.yaml``: a target's maximum sustainable rates, which
open-loop workloads take a share of.

Written by ``k3perf load find-rate --target`` alone. A rate stays the same until the
next search, whatever engine is measured: it decides the plan, and numbers of different
plans cannot be compared.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field

from k3perf.config.declared import Declared, Name, PositiveFloat
from k3perf.config.load_yaml import load_document
from k3perf.config.models import TargetSpec
from k3perf.config.workload_spec import OpenLoop, ServiceLevel, WorkloadSpec
from k3perf.errors import ConfigFileError, UsageError
from k3perf.store.atomic import replace_file
from k3perf.workload.request_plan import work_digest

_HEADING = (
    "# yaml-language-server: $schema=../../docs/schemas/found_rates.json\n"
    "# Written by `k3perf load find-rate`; a new rate makes new plans, whose baselines are recorded"
    " again (docs/load.md).\n"
)


class StoredRate(Declared):
    """The highest rate at which one workload met its service level on one target."""

    workload: Name
    """The workload's name."""
    rate_per_s: PositiveFloat
    """Highest request rate per second that met the service level."""
    failed_rate_per_s: PositiveFloat | None
    """Lowest rate that did not. Null: the search's own ceiling passed."""
    service_level: ServiceLevel
    """Bounds that requests had to meet."""
    attainment_ratio: Annotated[float, Field(gt=0, le=1)]
    """Share of the requests that must meet the bounds."""
    work_digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of what one request asks for. Another digest needs a new search."""
    hardware_class: Name
    """Hardware class of the machine."""
    config: Name | None
    """Config that served. Null: a server that was already running."""
    vllm_version: str = Field(min_length=1)
    """vLLM that served."""
    trial_count: int = Field(ge=1)
    """Rates that were tried."""
    trial_duration_s: PositiveFloat
    """Seconds of each trial."""
    found_at_utc: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")
    """Time of the search."""
    found_by: str = Field(min_length=1)
    """Who searched."""


class StoredRates(Declared):
    """The maximum sustainable rates of one target, one for each workload."""

    schema_version: Literal[1]
    """Version of this file's format."""
    target: Name
    """The target's name, that of the directory."""
    rates: tuple[StoredRate, ...]
    """One entry for each workload."""

    def of(self, workload: str) -> StoredRate | None:
        """The workload's rate, or None."""
        return next((rate for rate in self.rates if rate.workload == workload), None)


def found_rates_path(root: Path, target: str) -> Path:
    """``ROOT/<target>/found_rates.yaml``."""
    return root / target / "found_rates.yaml"


def read_found_rates(root: Path, target: str) -> StoredRates:
    """The target's stored rates, none without a file. Raises ConfigFileError for a
    file that cannot be used.
    """
    path = found_rates_path(root, target)
    if not path.exists() and not path.is_symlink():
        return StoredRates(schema_version=1, target=target, rates=())
    stored = load_document(StoredRates, path)
    if stored.target != target:
        raise ConfigFileError(
            path,
            "target",
            stored.target,
            f"holds the rates of another target than {target}",
            "Rename its directory.",
        )
    return stored


def store_found_rate(root: Path, target: str, rate: StoredRate) -> Path:
    """Replace the workload's rate. Raises ConfigFileError for an unusable file."""
    others = [
        kept for kept in read_found_rates(root, target).rates if kept.workload != rate.workload
    ]
    rates = sorted([*others, rate], key=lambda entry: entry.workload)
    path = found_rates_path(root, target)
    document: dict[str, Any] = StoredRates(
        schema_version=1, target=target, rates=tuple(rates)
    ).model_dump(mode="json")
    replace_file(path, _HEADING + yaml.safe_dump(document, sort_keys=False, width=140))
    return path


def needs_found_rate(spec: WorkloadSpec) -> bool:
    """Whether the workload's rate is a share of a found one."""
    return isinstance(spec.arrival, OpenLoop) and spec.arrival.found_rate_share_ratio is not None


def found_rate_per_s(root: Path, target: TargetSpec, spec: WorkloadSpec) -> float | None:
    """The rate that the workload's share refers to; None for a workload that needs
    none.

    Raises UsageError when it was never found, ConfigFileError when it was found for
    other requests, bounds or hardware; both messages hold the command that finds it.
    """
    if not needs_found_rate(spec):
        return None
    path = found_rates_path(root, target.name)
    command = (
        f"Find it with `k3perf load find-rate --target {target.name} --workload {spec.name}`, which"
        " stores it there."
    )
    rate = read_found_rates(root, target.name).of(spec.name)
    if rate is None:
        raise UsageError(
            f"workload {spec.name} runs at a share of the maximum sustainable rate of"
            f" target {target.name}, which {path} does not hold. {command}"
        )
    digest = work_digest(spec)
    for key, stored, now, what in (
        ("work_digest", rate.work_digest, digest, "requests of another form"),
        (
            "service_level",
            rate.service_level,
            spec.service_level or rate.service_level,
            "another service level",
        ),
        (
            "hardware_class",
            rate.hardware_class,
            target.hardware.hardware_class,
            "another hardware class",
        ),
    ):
        if stored != now:
            shown = stored.model_dump() if isinstance(stored, ServiceLevel) else stored
            raise ConfigFileError(
                path,
                f"rates.{spec.name}.{key}",
                shown,
                f"was found for {what} than {spec.name} has now",
                command,
            )
    return rate.rate_per_s
