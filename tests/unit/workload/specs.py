"""Workload specs for tests: a small one with whatever a test changes."""

from __future__ import annotations

from typing import Any

from k3perf.config.workload_spec import WorkloadSpec

SMALL: dict[str, Any] = {
    "schema_version": 1,
    "name": "small",
    "description": "A small workload for tests",
    "seed": 7,
    "requests": 12,
    "arrival": {"kind": "closed_loop", "concurrency": 4},
    "prompt_tokens": {"kind": "uniform", "low": 10, "high": 40},
    "output_tokens": {"kind": "fixed", "tokens": 8},
}


def small_spec(**changes: Any) -> WorkloadSpec:
    """The small workload with some keys replaced; a key set to None is left out."""
    merged = {key: value for key, value in (SMALL | changes).items() if value is not None}
    return WorkloadSpec.model_validate(merged)


def trace_spec(file: str = "trace.jsonl", **arrival: Any) -> WorkloadSpec:
    """A replay of ``file``."""
    return small_spec(
        requests=arrival.pop("requests", None),
        prompt_tokens=None,
        output_tokens=None,
        arrival={"kind": "trace", "file": file, **arrival},
    )
