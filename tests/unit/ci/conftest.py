"""Declared suites of any size, built from the models, for tests of selection and
planning.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from k3perf.config.models import ConfigSpec, TargetSpec
from k3perf.config.suite import Suite
from k3perf.config.tolerances import ToleranceFile
from k3perf.config.workload_spec import WorkloadSpec

PROVENANCE = {"kind": "experiment", "source": "made for a test", "date": "2026-11-29"}


def config(
    name: str, extends: str | None = "default", combines: tuple[str, ...] = ()
) -> ConfigSpec:
    change: dict[str, Any] = {} if combines or extends is None else {"max_num_seqs": 1}
    return ConfigSpec.model_validate(
        {
            "schema_version": 1,
            "name": name,
            "extends": extends,
            "combines": combines,
            "change": change,
            "why": "made for a test",
            "provenance": PROVENANCE,
        }
    )


def target(name: str, **changes: Any) -> TargetSpec:
    declared: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "description": "made for a test",
        "hardware": {"kind": "nvidia", "hardware_class": "h200"},
        "model": {"directory": f"models/{name}"},
        "workloads": ("chat", "burst"),
        "measurement": {"mode": "baseline"},
        "provenance": PROVENANCE,
    }
    return TargetSpec.model_validate(declared | changes)


def workload(name: str, **changes: Any) -> WorkloadSpec:
    declared: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "description": "made for a test",
        "seed": 1,
        "requests": 4,
        "arrival": {"kind": "all_at_once"},
        "prompt_tokens": {"kind": "fixed", "tokens": 8},
        "output_tokens": {"kind": "fixed", "tokens": 8},
    }
    return WorkloadSpec.model_validate(
        {key: value for key, value in (declared | changes).items() if value is not None}
    )


def suite_of(
    configs: list[ConfigSpec], targets: list[TargetSpec], workloads: list[WorkloadSpec]
) -> Suite:
    tolerances = ToleranceFile.model_validate(
        {
            "schema_version": 1,
            "defaults": {
                "tpot_mean_ms": {"loss_ratio": 0.05},
                "output_tokens_per_s": {"loss_ratio": 0.05},
                "weights_bytes": {"loss_absolute": 0},
            },
        }
    )
    return Suite(
        root=Path("perf_tests"),
        configs={spec.name: spec for spec in configs},
        targets={spec.name: spec for spec in targets},
        workloads={spec.name: spec for spec in workloads},
        tolerances=tolerances,
    )


@pytest.fixture
def sixty_cells() -> Suite:
    """10 configs x 3 targets x 2 workloads: tuned_3 has a child, a grandchild, and a
    combination that lists it.
    """
    configs = [config("default", extends=None)] + [
        config(f"tuned_{index}") for index in range(1, 6)
    ]
    configs += [config("child_of_3", "tuned_3"), config("grandchild_of_3", "child_of_3")]
    configs += [
        config("combo_34", combines=("tuned_3", "tuned_4")),
        config("child_of_combo", "combo_34"),
    ]
    targets = [
        target("alpha"),
        target("beta"),
        target("gamma", hardware={"kind": "cpu", "hardware_class": "cpu-avx512"}),
    ]
    return suite_of(configs, targets, [workload("chat"), workload("burst")])


@pytest.fixture
def make_suite() -> Callable[..., Suite]:
    return suite_of
