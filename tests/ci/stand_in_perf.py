#!/usr/bin/env python3
"""Stands for scripts/perf in local runs of the workflows: takes its options and writes
the files that a run would write.

The file ``injected`` of the measured commit holds "CONFIG FAULT" lines: ``slow`` (a
loss), ``spoiled`` (INVALID), ``once`` (INVALID the first time); "runner dies" leaves no
result.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

METRICS = ("tpot_mean_ms", "ttft_mean_ms", "output_tokens_per_s")


def judged(cell: str, fault: str, count: int, *, retry: bool) -> dict[str, Any]:
    target, config, workload = cell.rsplit("-", 2)
    entry: dict[str, Any] = {
        "target": target,
        "config": config,
        "workload": workload,
        "mode": "reference",
    }
    if fault == "spoiled" or (fault == "once" and not retry):
        return entry | {
            "metrics": [],
            "invalid_reasons": [
                {"rule": "throttled", "text": "the clocks fell", "reading": 1.0, "limit": 2.0}
            ],
        }
    slow = fault == "slow"
    metric = {
        "metric": "tpot_mean_ms",
        "unit": "ms",
        "outcome": "REGRESSED" if slow else "PASS",
        "baseline_value": 28.0,
    }
    metric |= {
        "now_value": 33.6 if slow else 28.0,
        "loss_ratio": 0.2 if slow else 0.0,
        "tolerance_ratio": 0.1,
        "alpha": 0.01 / count,
    }
    return entry | {"metrics": [metric]}


def measured(cell: str) -> dict[str, Any]:
    target, config, workload = cell.rsplit("-", 2)

    def one_round(session: int, number: int) -> dict[str, Any]:
        value = {"value": 28.0 + session * 0.01 + number * 0.001, "n": 1}
        return {
            "round_index": number,
            "pair_index": number,
            "values": dict.fromkeys(METRICS, value),
        }

    sessions = [
        {
            "session_id": f"{cell}-{index}-{arm}",
            "arm": arm,
            "pair_id": f"{cell}-{index}",
            "rounds": [one_round(index, number) for number in range(4)],
            "values": {},
            "resolved_config": {"a": 1},
        }
        for index in range(6)
        for arm in ("candidate", "reference")
    ]
    known = {
        "target": target,
        "config": config,
        "workload": workload,
        "mode": "reference",
        "hardware_class": "cpu-avx2",
    }
    return known | {"schema_version": 1, "plan_digest": "sha256:" + "0" * 64, "sessions": sessions}


def main() -> int:
    arguments = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    cells = json.loads(Path(arguments["--k3-cells"]).read_text(encoding="utf-8"))
    results = Path(arguments["--k3-results"])
    (results / "arguments.txt").write_text(" ".join(sys.argv[1:]), encoding="utf-8")
    count = int(arguments["--k3-gated-metric-count"])
    injected = (
        dict(line.split() for line in Path("injected").read_text().splitlines())
        if Path("injected").exists()
        else {}
    )
    if injected.get("runner") == "dies":
        return 137
    retry = json.loads((results / "runner.json").read_text(encoding="utf-8"))["shard"].endswith(
        "-retry"
    )
    entries = [
        judged(cell, injected.get(cell.rsplit("-", 2)[1], ""), count, retry=retry) for cell in cells
    ]
    head = {
        "schema_version": 1,
        "run_id": os.environ["GITHUB_RUN_ID"],
        "commit": os.environ["STUB_COMMIT"],
    }
    head["created_at_utc"] = "2026-11-29T00:00:00Z"
    budget = {"vllm_version": "0.32.0", "false_alarm_budget": 0.01, "gated_metric_count": count}
    (results / "verdict.json").write_text(
        json.dumps({**head, **budget, "cells": entries}), encoding="utf-8"
    )
    night = {**head, "identity": {"vllm": "0.32.0"}, "cells": [measured(cell) for cell in cells]}
    (results / "measurements.json").write_text(json.dumps(night), encoding="utf-8")
    return int(
        any(metric["outcome"] == "REGRESSED" for entry in entries for metric in entry["metrics"])
    )


if __name__ == "__main__":
    raise SystemExit(main())
