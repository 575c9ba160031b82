"""A load run as tables for a terminal. Pure: records in, text out."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from k3perf.records.load_result import LoadLevel, LoadResult
from k3perf.records.measurement import MetricValue

_WIDTH: Final = 160
_BAR_CELLS: Final = 16
_KINDS: Final = {"concurrency": "in flight", "rate_per_s": "requests/s sent", "workload": "level"}
_LATENCY_TITLES: Final = {
    "ttft": "time to first token (TTFT)",
    "tpot": "time per output token (TPOT)",
    "itl": "inter-token latency (ITL)",
    "e2e": "whole request (E2E)",
}
_STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")
_SINGLE: Final = (
    ("requests_per_s", "requests per second", "{:.4g}"),
    ("output_tokens_per_s", "output tokens per second", "{:,.1f}"),
    ("total_tokens_per_s", "prompt and output tokens per second", "{:,.1f}"),
    ("goodput_requests_per_s", "goodput, requests per second", "{:.4g}"),
    ("goodput_ratio", "share of requests within the service level", "{:.2%}"),
    ("error_ratio", "share of failed requests", "{:.2%}"),
    ("prefix_hit_ratio", "prefix cache hits, share of prompt tokens", "{:.2%}"),
    ("spec_acceptance_ratio", "accepted draft tokens", "{:.2%}"),
    ("spec_accepted_length_tokens", "tokens per speculative step", "{:.3g}"),
)


def load_text(result: LoadResult, *, width: int = _WIDTH, color: bool = False) -> str:
    """One level in full, or several as a curve. Verdicts and problems follow."""
    console = Console(
        file=io.StringIO(), width=min(width, _WIDTH), force_terminal=color, highlight=False
    )
    if len(result.levels) == 1:
        for table in _whole_level(result.levels[0]):
            console.print(table)
    else:
        console.print(_curve(result.levels))
    for level in result.levels:
        for line in level_lines(level, several=len(result.levels) > 1):
            console.print(Text(line), soft_wrap=True)
    file = console.file
    assert isinstance(file, io.StringIO)  # noqa: S101 - given above
    return file.getvalue()


def level_name(level: LoadLevel) -> str:
    """The level with its unit."""
    if level.kind == "concurrency":
        return f"{level.level:g} in flight"
    if level.kind == "rate_per_s":
        return f"{level.level:g} requests/s"
    return "the workload"


def level_lines(level: LoadLevel, *, several: bool) -> list[str]:
    """Objectives, failures and reasons of a level, one line each."""
    prefix = f"{level_name(level)}: " if several else ""
    lines = []
    for verdict in level.objectives:
        objective = verdict.objective
        shown = "no value" if verdict.value is None else f"{verdict.value:.4g}"
        lines.append(
            f"{prefix}{'met' if verdict.met else 'MISSED'}: {objective.value_name}"
            f" {objective.bound} {objective.limit:g} (measured: {shown})"
        )
    failed = {name: count for name, count in level.statuses.items() if name != "ok"}
    if failed:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(failed.items()))
        lines.append(f"{prefix}failed requests: {counts}. The first: {level.first_detail}")
    lines += [f"{prefix}note: {note}" for note in level.notes if not several]
    lines += [f"{prefix}INVALID: {reason}" for reason in level.invalid_reasons]
    return lines


def _whole_level(level: LoadLevel) -> list[Table]:
    counts = Table("value", "", box=SIMPLE_HEAD)
    ok = level.statuses.get("ok", 0)
    counts.add_row("successful requests", f"{ok} of {level.request_count}")
    for name, title, form in _SINGLE:
        value = level.values.get(name, MetricValue(None, 0)).value
        if value is not None:
            counts.add_row(title, form.format(value))
    counts.add_row(
        "client lag, p99",
        "-" if level.client_lag_p99_ms is None else f"{level.client_lag_p99_ms:.2f} ms",
    )
    if len(level.endpoints) > 1:
        for share in level.endpoints:
            counts.add_row(
                share.base_url, f"{share.request_count} requests, {share.output_token_count} tokens"
            )
    tables = [counts, _latencies(level.values, "latency in ms")]
    tables += [_latencies(turn.values, f"turn {turn.turn}, in ms") for turn in level.turns]
    return tables


def _latencies(values: dict[str, MetricValue], title: str) -> Table:
    table = Table(title, *_STATISTICS, "n", box=SIMPLE_HEAD)
    for name, label in _LATENCY_TITLES.items():
        found = [values[f"{name}_{statistic}_ms"] for statistic in _STATISTICS]
        table.add_row(label, *(_ms(value) for value in found), f"{found[0].n:,}")
    return table


def _curve(levels: Sequence[LoadLevel]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for title in (
        _KINDS[levels[0].kind],
        "requests/s",
        "tokens/s",
        "",
        "TTFT p50",
        "p99",
        "TPOT p50",
        "p99",
        "E2E p99",
        "failed",
        "verdict",
    ):
        table.add_column(title, justify="left" if title in ("", "verdict") else "right")
    highest = max((_value(level, "output_tokens_per_s") or 0.0 for level in levels), default=0.0)
    for level in levels:
        tokens = _value(level, "output_tokens_per_s")
        table.add_row(
            f"{level.level:g}",
            _number(_value(level, "requests_per_s")),
            _number(tokens),
            "█" * (round(_BAR_CELLS * (tokens or 0.0) / highest) if highest else 0),
            *(
                _ms(level.values[name])
                for name in (
                    "ttft_p50_ms",
                    "ttft_p99_ms",
                    "tpot_p50_ms",
                    "tpot_p99_ms",
                    "e2e_p99_ms",
                )
            ),
            str(level.request_count - level.statuses.get("ok", 0)),
            _verdict(level),
        )
    return table


def _verdict(level: LoadLevel) -> str:
    if not level.valid:
        return "INVALID"
    if not level.objectives:
        return "-"
    return "met" if level.met else "MISSED"


def _value(level: LoadLevel, name: str) -> float | None:
    return level.values[name].value if name in level.values else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"


def _ms(value: MetricValue) -> str:
    if value.value is None:
        return "-"
    return f"{value.value:,.0f}" if value.value >= 1000 else f"{value.value:.4g}"
