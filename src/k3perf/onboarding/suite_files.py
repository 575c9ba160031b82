"""A deployment and a machine to the files of a suite: one target, one root config, one
workload, tolerances of lock and memory. Pure: text in, text out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from k3perf.engine.model_directory import vocabulary_size
from k3perf.errors import UsageError, shortened
from k3perf.onboarding.serving import Serving

CONFIG_NAME: Final = "tuned"
WORKLOAD_NAME: Final = "first"
SAFE_VOCABULARY_SIZE: Final = 1_000
"""Used where the model's own is unknown. Every model has at least as many."""

_TIMINGS: Final = {
    "output_tokens_per_s": {"loss_ratio": 0.1},
    "ttft_mean_ms": {"loss_ratio": 0.25},
    "tpot_mean_ms": {"loss_ratio": 0.1},
}
"""Gated from the start where a running server may show neither lock nor memory."""

_LONGEST_NAME: Final = 48
_DEFAULT_CONTEXT_TOKENS: Final = 4096
_PROMPT_TOKENS: Final = 96
_OUTPUT_TOKENS: Final = 24


@dataclass(frozen=True, slots=True)
class Machine:
    """What serves. ``kind`` as in a target's hardware. ``device_name`` and
    ``device_memory_bytes`` are empty and None on a CPU, and where the devices are not
    here.
    """

    kind: str
    hardware_class: str
    device_name: str = ""
    device_memory_bytes: int | None = None
    cpu_features: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SuiteDraft:
    """Names and files of a new suite. ``files``: text by path below the repository."""

    target: str
    files: dict[str, str]


def draft(
    serving: Serving,
    machine: Machine,
    *,
    day: str,
    model_config: Mapping[str, Any] | None,
    suite: str = "perf_tests",
    name: str = "",
    started_here: bool = True,
) -> SuiteDraft:
    """The suite of one deployment. ``day`` is ``YYYY-MM-DD``. ``model_config``: the
    model's config.json, which is kept for memory plans. ``started_here``: k3perf
    starts the engine, which a server's address cannot say. Raises UsageError for a name
    that a target cannot have.
    """
    target = name or target_name(serving.model, machine.hardware_class)
    if not re.fullmatch(r"[a-z0-9]+([_-][a-z0-9]+)*", target) or len(target) > _LONGEST_NAME:
        raise UsageError(
            f"--name {shortened(target)!r}: give at most {_LONGEST_NAME} small letters, digits and"
            " single dashes."
        )
    known = None if model_config is None else vocabulary_size(dict(model_config))
    files = {
        f"{suite}/targets/{target}.yaml": _target(
            target, serving, machine, day, known, started_here
        ),
        f"{suite}/configs/{CONFIG_NAME}.yaml": _config(serving, day),
        f"{suite}/workloads/{WORKLOAD_NAME}.yaml": _workload(serving),
        f"{suite}/tolerances.yaml": _tolerances(machine, started_here),
    }
    if model_config is not None:
        # where `k3perf memory plan` looks for a checkpoint's config.json
        stem = serving.model.rpartition("/")[2].lower()
        text = json.dumps(model_config, indent=1) + "\n"
        files[f"{suite}/models/{stem}/config.json"] = text
    return SuiteDraft(target, files)


def target_name(model: str, hardware_class: str) -> str:
    """``llama-3-1-8b-h200`` for ``meta-llama/Llama-3.1-8B`` on class ``h200``."""
    stem = slug(model.rstrip("/").rpartition("/")[2]) or "model"
    room = _LONGEST_NAME - len(hardware_class) - 1
    return f"{stem[:room].strip('-')}-{hardware_class}"


def slug(text: str) -> str:
    """Small letters, digits and single dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _target(
    name: str,
    serving: Serving,
    machine: Machine,
    day: str,
    vocabulary_size: int | None,
    started_here: bool,
) -> str:
    document: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "description": f"{serving.model} as it is deployed",
        "measured_by_default": True,
        "hardware": _hardware(machine, serving.rank_count),
        "model": _model(serving, vocabulary_size),
        "reference": CONFIG_NAME,
        "configs": [CONFIG_NAME],
        "workloads": [WORKLOAD_NAME],
        "measurement": {
            "mode": "baseline",
            "warm_up_rounds": 1 if started_here else 2,
            "minimum_rounds": 1 if started_here else 4,
            "maximum_rounds": 1 if started_here else 8,
            "minimum_sessions": 1,
            "maximum_sessions": 1,
            "baseline_sessions": 2,
        },
        "provenance": {
            "kind": "experiment",
            "source": f"k3perf init from {serving.source}",
            "date": day,
        },
    }
    if serving.parallelism:
        document["parallelism"] = serving.parallelism
    if serving.environment:
        document["environment"] = serving.environment
    if not started_here:
        document["launch"] = {"kind": "server"}
    return _text(
        document,
        "Where the config runs. Lock and memory need one round. To gate timings, raise the rounds"
        " and sessions",
        "and give the timings a tolerance, then record again.",
    )


def _hardware(machine: Machine, rank_count: int) -> dict[str, Any]:
    hardware: dict[str, Any] = {"kind": machine.kind, "hardware_class": machine.hardware_class}
    if machine.kind != "cpu":
        hardware["device_count"] = rank_count
        if machine.device_name:
            hardware["device_name"] = machine.device_name
        if machine.device_memory_bytes is not None:
            hardware["device_memory_bytes"] = machine.device_memory_bytes
    if machine.cpu_features:
        hardware["cpu_features"] = list(machine.cpu_features)
    return hardware


def _model(serving: Serving, vocabulary_size: int | None) -> dict[str, Any]:
    model: dict[str, Any] = {
        "checkpoint": serving.model,
        "weights": "dummy" if serving.dummy_weights else "checkpoint",
        "vocabulary_size": vocabulary_size or SAFE_VOCABULARY_SIZE,
    }
    if serving.trust_remote_code:
        model["trust_remote_code"] = True
    return model


def _config(serving: Serving, day: str) -> str:
    return _text(
        {
            "schema_version": 1,
            "name": CONFIG_NAME,
            "change": serving.arguments or {"max_model_len": _DEFAULT_CONTEXT_TOKENS},
            "why": "The arguments that the team tuned, all of them approved together",
            "provenance": {
                "kind": "experiment",
                "source": f"k3perf init from {serving.source}",
                "date": day,
            },
        },
        "Every argument of the deployment. A run fails if the engine resolves one of them"
        " differently.",
    )


def _workload(serving: Serving) -> str:
    context = serving.arguments.get("max_model_len")
    short = isinstance(context, int) and context < 2 * (_PROMPT_TOKENS + _OUTPUT_TOKENS)
    prompt, output = (
        (context // 4, max(context // 8, 1))
        if short and context
        else (
            _PROMPT_TOKENS,
            _OUTPUT_TOKENS,
        )
    )
    seats = serving.arguments.get("max_num_seqs")
    concurrency = min(8, seats) if isinstance(seats, int) and seats > 0 else 8
    return _text(
        {
            "schema_version": 1,
            "name": WORKLOAD_NAME,
            "description": "A few short requests, enough to read memory after work",
            "seed": 1,
            "requests": 8,
            "arrival": {"kind": "closed_loop", "concurrency": concurrency},
            "prompt_tokens": {"kind": "fixed", "tokens": prompt},
            "output_tokens": {"kind": "fixed", "tokens": output},
        },
        "What is sent. Add a workload with your own lengths and arrivals before you gate timings.",
    )


def _tolerances(machine: Machine, started_here: bool) -> str:
    """The cache of a GPU is what profiling leaves over. It varies by a few blocks."""
    cache = {"loss_absolute": 0} if machine.kind == "cpu" else {"loss_ratio": 0.01}
    metrics: Mapping[str, Any] = (
        {"weights_bytes": {"loss_absolute": 0}, "kv_cache_bytes": cache}
        if started_here
        else _TIMINGS
    ) | {"kv_capacity_tokens": cache}
    return _text(
        {"schema_version": 1, "defaults": dict(metrics)},
        "The largest losses that you accept. Only these metrics are gated, next to the lock. To"
        " gate another, add it:",
        "itl_p99_ms: {loss_ratio: 0.2}",
    )


def _text(document: Mapping[str, Any], *comments: str) -> str:
    lines = [f"# {line}" for line in comments]
    body = yaml.dump(dict(document), Dumper=_WithoutAliases, sort_keys=False, width=100)
    return "\n".join(lines) + "\n" + body


class _WithoutAliases(yaml.SafeDumper):
    """Writes equal values out, since a reader edits them one by one."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - PyYAML's name
        """Never an alias."""
        return True
