"""What each scheme saves and what it costs: memory, tokens and throughput next to the
quality lost, one row for each config. Pure.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from k3perf.records.measurement import CellMeasurement, MetricValue, SessionMetrics
from k3perf.records.metric_definitions import METRICS, Scope
from k3perf.records.samples import Arm
from k3perf.report.numbers import value_text

COLUMNS: Final[dict[str, str]] = {
    "weights_bytes": "weights",
    "kv_bytes_per_token": "KV a token",
    "kv_capacity_tokens": "KV tokens",
    "peak_activation_bytes": "activations",
    "output_tokens_per_s": "tokens/s",
    "quality_kl_mean_nats": "KL",
    "quality_kl_mean_start_nats": "start",
    "quality_kl_mean_quarter_nats": "quarter",
    "quality_kl_mean_half_nats": "half",
    "quality_kl_mean_full_nats": "full",
    "quality_decode_kl_mean_nats": "decode KL",
    "quality_top1_ratio": "same top 1",
    "quality_perplexity_ratio": "perplexity",
}
"""Metrics of the table, with their headings."""


@dataclass(frozen=True, slots=True)
class TradeRow:
    """One config of a target: what it stores and computes in, and the median of each
    metric over its valid candidate sessions. None: not measured.
    """

    target: str
    config: str
    workload: str
    weights_scheme: str
    kv_scheme: str
    values: dict[str, float | None]


def trade_rows(cells: Iterable[CellMeasurement]) -> tuple[TradeRow, ...]:
    """A row for each cell that compared answers, in the cells' order."""
    rows = []
    for cell in cells:
        sessions = [one for one in cell.arm(Arm.CANDIDATE) if not one.invalid_reasons]
        if not any("quality_kl_mean_nats" in one.values for one in sessions):
            continue
        resolved = sessions[0].resolved_config
        values = {name: _typical(sessions, name) for name in COLUMNS}
        kv = _resolved(resolved, "cache_dtype")
        rows.append(
            TradeRow(
                cell.target,
                cell.config,
                cell.workload,
                _scheme(_resolved(resolved, "quantization")) or _resolved(resolved, "dtype") or "-",
                kv if kv not in ("", "auto") else "as the model",
                values,
            )
        )
    return tuple(rows)


def trade_table(rows: Sequence[TradeRow]) -> str:
    """The rows as text, one table for each target and workload. Empty without rows."""
    parts = []
    for target, workload in dict.fromkeys((row.target, row.workload) for row in rows):
        own = [row for row in rows if (row.target, row.workload) == (target, workload)]
        shown = [name for name in COLUMNS if any(row.values.get(name) is not None for row in own)]
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("config", "weights in", "KV in", *(COLUMNS[name] for name in shown)):
            table.add_column(heading, justify="left" if "in" in heading else "right")
        for row in own:
            cells = [_cell(name, row.values.get(name)) for name in shown]
            table.add_row(row.config, row.weights_scheme, row.kv_scheme, *cells)
        text = io.StringIO()
        Console(file=text, width=400, color_system=None).print(table)
        lines = [line.rstrip() for line in text.getvalue().splitlines()]
        parts.append("\n".join([f"{target}, {workload}: what each scheme trades", *lines]).rstrip())
    return "\n\n".join(parts) + "\n" if parts else ""


def _typical(sessions: Sequence[SessionMetrics], name: str) -> float | None:
    found: list[MetricValue] = []
    for session in sessions:
        if METRICS[name].scope is Scope.SESSION:
            found += [session.values[name]] if name in session.values else []
        else:
            valid = [one for one in session.rounds if not one.invalid_reasons]
            found += [one.values[name] for one in valid if name in one.values]
    known = [one.value for one in found if one.value is not None]
    return median(known) if known else None


def _resolved(resolved: dict[str, object], name: str) -> str:
    """The value of the first resolved key that ends in ``name``."""
    for key, value in resolved.items():
        if key.rpartition(".")[2] == name and value is not None:
            return str(value).removeprefix("torch.")
    return ""


def _scheme(text: str) -> str:
    return "" if text in ("", "None") else text


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.endswith("_nats"):
        return f"{value:.2g}"
    if name == "quality_top1_ratio":
        return f"{value:.2%}"
    return value_text(value, METRICS[name].unit)
