"""A run's results for other tools: rows of rounds and samples, JUnit XML, Prometheus
text. Pure.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from k3perf.metrics.latency import tpot_ns, ttft_ns
from k3perf.records.metric_definitions import METRICS
from k3perf.records.outcome import SEVERITY, Outcome
from k3perf.records.verdict import CellVerdict, MetricVerdict
from k3perf.report.attribution_lines import attribution_lines
from k3perf.report.page.cells import reproduce
from k3perf.report.page.material import RunMaterial
from k3perf.report.page.shown import plain
from k3perf.report.table import failure_text
from k3perf.units import NS_PER_MS

Value = str | int | float | bool | None
Row = dict[str, Value]

_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")
_FAILED: Final = (Outcome.REGRESSED, Outcome.CONFIG_DRIFT, Outcome.SUSPECT)
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def round_rows(materials: Iterable[RunMaterial]) -> Iterator[Row]:
    """One row for each metric of each measured round, invalid ones with the reason."""
    for material in materials:
        for cell in material.measurements.cells if material.measurements else ():
            for session in cell.sessions:
                for measured in session.rounds:
                    reasons = (*session.invalid_reasons, *measured.invalid_reasons)
                    for metric, value in measured.values.items():
                        yield {
                            "run": material.verdict.run_id,
                            "commit": material.verdict.commit,
                            "target": cell.target,
                            "config": cell.config,
                            "workload": cell.workload,
                            "mode": cell.mode,
                            "arm": str(session.arm),
                            "session": session.session_id,
                            "pair": session.pair_id,
                            "started_at_utc": session.started_at_utc,
                            "host": session.host,
                            "round": measured.round_index,
                            "duration_s": measured.duration_s,
                            "metric": metric,
                            "unit": METRICS[metric].unit if metric in METRICS else "",
                            "value": value.value,
                            "n": value.n,
                            "valid": not reasons,
                            "reason": reasons[0].text if reasons else "",
                        }


def sample_rows(materials: Iterable[RunMaterial]) -> Iterator[Row]:
    """One row for each request of ``results.jsonl``, times in milliseconds."""
    for material in materials:
        for record in material.sessions.values():
            for measured in record.rounds:
                for sample in measured.samples:
                    first_ns, per_token_ns = ttft_ns(sample), tpot_ns(sample)
                    yield {
                        "run": material.verdict.run_id,
                        "target": record.target,
                        "config": record.config,
                        "workload": record.workload,
                        "arm": str(record.arm),
                        "session": record.session_id,
                        "round": measured.round_index,
                        "kind": str(measured.kind),
                        "request": sample.request_index,
                        "status": str(sample.status),
                        "scheduled_ns": sample.scheduled_ns,
                        "sent_ns": sample.sent_ns,
                        "end_ns": sample.end_ns,
                        "ttft_ms": None if first_ns is None else first_ns / NS_PER_MS,
                        "tpot_ms": None if per_token_ns is None else per_token_ns / NS_PER_MS,
                        "prompt_tokens": sample.prompt_token_count,
                        "cached_prompt_tokens": sample.cached_prompt_token_count,
                        "output_tokens": sample.output_token_count,
                        "valid": measured.valid,
                    }


def csv_text(rows: Iterable[Row]) -> str:
    """Comma-separated with a heading. Empty for no row. A text that a spreadsheet would
    take for a formula gets an apostrophe.
    """
    stream = io.StringIO()
    writer: csv.DictWriter[str] | None = None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(stream, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow({name: _cell(value) for name, value in row.items()})
    return stream.getvalue()


def _cell(value: Value) -> Value:
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return repr(value) if isinstance(value, float) else value


def junit_text(materials: Sequence[RunMaterial]) -> str:
    """One suite for each cell, one case for each judged metric, its numbers as
    properties. A cell without metrics is one case.
    """
    suites = [_suite(material, cell) for material in materials for cell in material.verdict.cells]
    return "\n".join(
        ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>", *suites, "</testsuites>", ""]
    )


def _suite(material: RunMaterial, cell: CellVerdict) -> str:
    cases = [_case(cell, metric) for metric in cell.metrics] or [_cell_case(cell)]
    properties = {
        "outcome": cell.outcome_text,
        "mode": cell.mode,
        "run": material.verdict.run_id,
        "commit": material.verdict.commit,
        "vllm": material.verdict.vllm_version,
        "reproduce": reproduce(material, cell).replace("\n", "; "),
    }
    counts = [cell.outcome] if not cell.metrics else [one.outcome for one in cell.metrics]
    failed_count = sum(one in _FAILED for one in counts)
    error_count = sum(one in (Outcome.INVALID, Outcome.NO_BASELINE) for one in counts)
    head = f"tests={quoteattr(str(len(cases)))} failures={quoteattr(str(failed_count))}"
    head += f" errors={quoteattr(str(error_count))}"
    return f"<testsuite name={_attribute(cell.cell_id)} {head}>\n{_properties(properties)}" + (
        "\n".join(cases) + "\n</testsuite>"
    )


def _case(cell: CellVerdict, metric: MetricVerdict) -> str:
    numbers = {
        "outcome": str(metric.outcome),
        "unit": metric.unit,
        "baseline_value": metric.baseline_value,
        "now_value": metric.now_value,
        "loss_ratio": metric.loss_ratio,
        "loss_lower_bound_ratio": metric.loss_lower_bound_ratio,
        "loss_upper_bound_ratio": metric.loss_upper_bound_ratio,
        "tolerance_ratio": metric.tolerance_ratio,
        "tolerance_absolute": metric.tolerance_absolute,
        "smallest_detectable_loss_ratio": metric.smallest_detectable_loss_ratio,
    }
    known = {name: str(value) for name, value in numbers.items() if value is not None}
    body = _properties(known)
    if metric.outcome in _FAILED:
        lines = "\n".join([metric.reason, *attribution_lines(cell)])
        body += f"<failure message={_attribute(str(metric.outcome))}>{_text(lines)}</failure>"
    return f"<testcase classname={_attribute(cell.cell_id)} name={_attribute(metric.metric)}>\n{body}</testcase>"  # noqa: E501


def _cell_case(cell: CellVerdict) -> str:
    tag = "failure" if cell.outcome in _FAILED else "error"
    kept = cell.outcome in (Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE)
    body = (
        ""
        if kept
        else f"<{tag} message={_attribute(str(cell.outcome))}>{_text(failure_text(cell))}</{tag}>"
    )
    return f'<testcase classname={_attribute(cell.cell_id)} name="cell">{body}</testcase>'


def _properties(values: dict[str, str]) -> str:
    lines = [
        f"<property name={_attribute(name)} value={_attribute(value)}/>"
        for name, value in values.items()
    ]
    return f"<properties>{''.join(lines)}</properties>\n"


def _text(text: str) -> str:
    return escape(_NOT_XML.sub(" ", text))


def _attribute(text: str) -> str:
    return quoteattr(_NOT_XML.sub(" ", plain(text)))


def prometheus_text(materials: Iterable[RunMaterial]) -> str:
    """For the textfile collector of node_exporter: each judged value, loss, tolerance,
    and each cell's severity.
    """
    series: dict[str, list[str]] = {name: [] for name in _HELP}
    for material in materials:
        for cell in material.verdict.cells:
            labels = {
                "target": cell.target,
                "config": cell.config,
                "workload": cell.workload,
                "mode": cell.mode,
            }
            severity = float(SEVERITY[cell.outcome])
            series["k3perf_outcome"].append(
                _sample("k3perf_outcome", {**labels, "outcome": str(cell.outcome)}, severity)
            )
            for metric in cell.metrics:
                own = {**labels, "metric": metric.metric, "unit": metric.unit}
                for name, value in (
                    ("k3perf_value", metric.now_value),
                    ("k3perf_baseline_value", metric.baseline_value),
                    ("k3perf_loss_ratio", metric.loss_ratio),
                    ("k3perf_tolerance_ratio", metric.tolerance_ratio),
                ):
                    if value is not None:
                        series[name].append(_sample(name, own, value))
    lines = []
    for name, samples in series.items():
        if samples:
            lines += [f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge", *samples]
    return "\n".join(lines) + "\n"


_HELP: Final = {
    "k3perf_outcome": "Outcome of a cell as its severity: 0 PASS to 7 REGRESSED",
    "k3perf_value": "Judged value of a metric",
    "k3perf_baseline_value": "What the value was compared with",
    "k3perf_loss_ratio": "Estimated loss as a share of the baseline, positive is worse",
    "k3perf_tolerance_ratio": "Accepted loss as a share of the baseline",
}


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_label(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {value!r}"


def _label(text: str) -> str:
    return plain(text).replace("\\", "\\\\").replace('"', '\\"')
