"""Verdict and plan documents for tests."""

from __future__ import annotations

from typing import Any

from k3perf.documents import validated
from k3perf.records.plan_file import PlanDocument
from k3perf.records.verdict import CellVerdict, VerdictDocument


def metric(name: str = "tpot_mean_ms", outcome: str = "PASS", **changes: Any) -> dict[str, Any]:
    entry = {
        "metric": name,
        "unit": "ms",
        "outcome": outcome,
        "baseline_value": 28.0,
        "now_value": 28.1,
        "loss_ratio": 0.004,
        "loss_lower_bound_ratio": -0.01,
        "loss_upper_bound_ratio": 0.02,
        "tolerance_ratio": 0.05,
        "tolerance_absolute": None,
        "relevant": False,
        "significant": False,
        "smallest_detectable_loss_ratio": 0.03,
        "session_count": 3,
        "round_count": 12,
        "alpha": 0.001,
        "reason": "made for a test",
    }
    return entry | changes


def regressed(**changes: Any) -> dict[str, Any]:
    worse = {
        "now_value": 33.6,
        "loss_ratio": 0.2,
        "loss_lower_bound_ratio": 0.17,
        "loss_upper_bound_ratio": 0.23,
    }
    return metric(outcome="REGRESSED", relevant=True, significant=True, **(worse | changes))


def cell(
    config: str = "tuned",
    *metrics: dict[str, Any],
    target: str = "alpha",
    workload: str = "chat",
    **changes: Any,
) -> dict[str, Any]:
    return {
        "target": target,
        "config": config,
        "workload": workload,
        "mode": "baseline",
        "metrics": list(metrics or (metric(),)),
    } | changes


def invalid(config: str = "tuned", rule: str = "throttled", **changes: Any) -> dict[str, Any]:
    reason = {"rule": rule, "text": "the clocks fell", "reading": 1200.0, "limit": 1500.0}
    return cell(config, invalid_reasons=[reason], **changes) | {"metrics": []}


def verdict(
    *cells: dict[str, Any], budget: float = 0.01, gated: int | None = None, **changes: Any
) -> VerdictDocument:
    data = {
        "schema_version": 1,
        "run_id": "run-1",
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "created_at_utc": "2026-11-29T10:00:00Z",
        "vllm_version": "0.33.0",
        "false_alarm_budget": budget,
        "gated_metric_count": gated
        if gated is not None
        else sum(len(entry["metrics"]) for entry in cells),
        "cells": cells,
    }
    return validated(VerdictDocument, data | changes)


def plan(
    *cells: str, shards: dict[str, tuple[str, ...]] | None = None, **changes: Any
) -> PlanDocument:
    """Cells are ``target-config-workload``; all in one GPU shard unless ``shards`` says
    otherwise.
    """
    entries = []
    for name in cells:
        target, config, workload = name.split("-")
        known = {"cell": name, "target": target, "config": config, "workload": workload}
        entries.append({**known, "priority": "direct", "reasons": [f"config {config} changed"]})
    data = {
        "false_alarm_budget": 0.01,
        "gated_metric_count": len(cells),
        "cells": entries,
        "left_out": [],
        "over_budget": False,
        "notes": [],
        "device_minutes": 12.5,
        "shards": [
            {
                "shard": name,
                "kind": "nvidia",
                "hardware_class": "h200",
                "targets": ["alpha"],
                "cells": members,
                "minutes": 10.0,
            }
            for name, members in (shards or {"h200-0": cells}).items()
        ],
    }
    return validated(PlanDocument, data | changes)


def entry(document: VerdictDocument, cell_id: str) -> CellVerdict:
    return next(found for found in document.cells if found.cell_id == cell_id)
