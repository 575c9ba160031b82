"""The generated page ``docs/guarded-cells.md``: which cells are guarded, how small a
loss each sees, and which cells are candidates.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from scripts.command_pages import GENERATED

from k3perf.baselines.accept import strictest_policy
from k3perf.baselines.guarded import Guard, GuardedCell, GuardedMetric, guarded_cells
from k3perf.config.candidates import CandidateCell, candidate_reason, candidates_of
from k3perf.config.models import TargetSpec
from k3perf.config.suite import Suite
from k3perf.records.baseline import Baseline
from k3perf.store.baselines import baseline_known, read_target_baselines

_HEADING: Final = f"""\
# Guarded cells

{GENERATED}

A cell is a config and a workload on a target. An **approved** cell has a baseline, and every run of its target judges it. A
**candidate** has no baseline yet. Its target lists it with the reason, and runs skip it. Any other cell gets NO_BASELINE (exit
status 11), so a lost baseline never goes unnoticed.

* `pytest perf_tests --k3-target T` judges the approved cells of a target.
* `--k3-record` records candidates too. `--k3-candidates` collects candidates without recording them.
* `k3perf baseline accept` approves the cell. Then delete its entry under `candidates` in the target's file.

A cell is guarded in one of two ways:

* **timed**: throughput and latency are judged with an interval, in addition to memory, capacity and the locked configuration.
* **memory and lock**: no timing is judged, because timings are too noisy to test a useful tolerance. `memory_and_lock` in
  `perf_tests/tolerances.yaml` lists these configs with the reason.

The tables give the minimum detectable effect (MDE), computed by the gate's own code, with the tolerance in brackets. The gate
detects a loss of this size with a probability of 95 %, after all planned sessions, in a run of the whole target. A gain is
measured against the parent config and has a 95 % interval. "Not proven" means that this workload shows no difference from the
parent.

A workload can only show a difference if it uses what the config changes:

| what a config changes | workload that uses it |
| --- | --- |
| `max_num_seqs` | `wide` on CPUs, `serve_128` on GPUs: more requests in flight than the default serves |
| `max_num_batched_tokens` | `long_prompts` on CPUs, `serve_1k` on GPUs: prompts that fill several steps |
| `enable_prefix_caching`, `prefix_match_unit` | `prefix`, `conversation`, `trace` and the workloads of `h200-k3-prefix` |
| `kv_cache_dtype`, `block_size` | none shows it in timings; memory and capacity do |

`users_1k` measures TTFT below saturation, as users experience it. It needs the target's maximum sustainable rate
([load.md](load.md)).

## Summary

"Omitted" counts the configs that are not measured on a target: either its engine refuses them, or they result in the engine
of another config. The target's section gives the reason for each.

| target | approved | of which memory and lock | candidates | omitted |
| --- | --- | --- | --- | --- |
"""
_SHORT: Final = {
    "output_tokens_per_s": "throughput",
    "ttft_mean_ms": "TTFT",
    "tpot_mean_ms": "TPOT",
    "goodput_requests_per_s": "goodput",
}


def guarded_page(suite: Suite, baselines_directory: Path) -> str:
    """``docs/guarded-cells.md``."""
    rows, sections = [], []
    for name, target in sorted(suite.targets.items()):
        baselines = read_target_baselines(baselines_directory, name)
        policy = strictest_policy(suite, name, baselines)
        cells = guarded_cells(suite, baselines, policy)
        every = suite.cells((name,), on_request=frozenset(suite.workloads))
        listed = candidates_of(every, baseline_known([baselines_directory]))
        untimed = sum(cell.guard is Guard.MEMORY_AND_LOCK for cell in cells)
        left_out = len(suite.left_out((name,)))
        rows.append(f"| `{name}` | {len(cells)} | {untimed} | {len(listed)} | {left_out} |\n")
        lines = [f"## {name}", "", _sentences(target.description), ""]
        lines += _cell_table(cells) if cells else ["No cell is approved.", ""]
        lines += _not_told_apart(cells)
        lines += _candidate_table(listed)
        lines += _left_out_table(suite, name, baselines)
        sections.append("\n".join(lines))
    return _HEADING + "".join(rows) + "\n" + "\n".join(sections)


def stale_candidates(suite: Suite, baselines_directory: Path) -> list[str]:
    """Cells that their target still lists as candidates, although they have a
    baseline.
    """
    known = baseline_known([baselines_directory])
    return [
        cell.cell_id
        for cell in suite.cells(on_request=frozenset(suite.workloads))
        if candidate_reason(cell.target, cell.config.name, cell.workload.name) and known(cell)
    ]


def unguarded_cells(suite: Suite, target: TargetSpec, baselines_directory: Path) -> list[str]:
    """Cells of a run of the target that would end NO_BASELINE."""
    known = baseline_known([baselines_directory])
    return [
        cell.cell_id
        for cell in suite.cells((target.name,))
        if not candidate_reason(target, cell.config.name, cell.workload.name) and not known(cell)
    ]


def _cell_table(cells: tuple[GuardedCell, ...]) -> list[str]:
    names = list(dict.fromkeys(metric.metric for cell in cells for metric in cell.timed))
    heads = ["config", "workload", "guard", *(f"{_SHORT.get(name, name)}: MDE" for name in names)]
    heads += ["sessions", "gain over the parent"]
    rows = [
        [
            f"`{cell.config}`",
            f"`{cell.workload}`",
            cell.guard.value,
            *_losses(cell, names),
            _sessions(cell),
            _gain(cell),
        ]
        for cell in cells
    ]
    exact = sorted({name for cell in cells for name in cell.exact})
    short = [name for name in exact if not name.startswith("quality_")]
    names = [f"`{name}`" for name in short]
    if len(short) < len(exact):
        names.append(f"{len(exact) - len(short)} metrics of the [quality](quality.md) family")
    said = f"Also gated, exactly or with an absolute tolerance: {', '.join(names)}."
    return [*_table(heads, rows), "", said, ""]


def _losses(cell: GuardedCell, names: list[str]) -> Iterator[str]:
    by_name = {metric.metric: metric for metric in cell.timed}
    return (_loss(by_name[name]) if name in by_name else "reported" for name in names)


def _loss(metric: GuardedMetric) -> str:
    tolerance = metric.tolerance
    allowed = (
        f"{tolerance.loss_absolute:g}"
        if tolerance.loss_ratio is None
        else f"{100 * tolerance.loss_ratio:g} %"
    )
    seen = "none" if metric.detectable_ratio is None else f"{metric.detectable_ratio:.1%}"
    return f"{seen.replace('%', ' %')} ({allowed})"


def _sessions(cell: GuardedCell) -> str:
    if not cell.batch_count:
        return f"{cell.session_count}, hosts and days not recorded"
    return f"{cell.session_count} in {cell.batch_count} batches on {cell.host_count} hosts"


def _gain(cell: GuardedCell) -> str:
    """The metrics that differ from the parent's with certainty."""
    if not cell.gains:
        return "-"
    found = [
        f"{_SHORT.get(gain.metric, gain.metric)} {100 * gain.gain_ratio:+.1f} %"
        f" ({100 * gain.lower_ratio:+.1f} to {100 * gain.upper_ratio:+.1f})"
        for gain in cell.gains
        if gain.differs
    ]
    return ", ".join(found) or "not proven"


def _sentences(description: str) -> str:
    """The target's description, a sentence for each of its parts."""
    return " ".join(f"{part[:1].upper()}{part[1:]}." for part in description.split("; "))


def _not_told_apart(cells: tuple[GuardedCell, ...]) -> list[str]:
    """Configs whose gain over the parent no recorded workload shows."""
    told = {cell.config for cell in cells if any(gain.certain for gain in cell.gains)}
    compared = dict.fromkeys(cell.config for cell in cells if cell.gains)
    unknown = [name for name in compared if name not in told]
    if not unknown:
        return []
    return [f"No recorded workload proves a gain in timings for {_named(unknown)}.", ""]


def _candidate_table(listed: tuple[CandidateCell, ...]) -> list[str]:
    """A row for each reason and set of workloads."""
    by_config: dict[tuple[str, str], list[str]] = {}
    for entry in listed:
        key = (entry.reason, entry.cell.config.name)
        by_config.setdefault(key, []).append(entry.cell.workload.name)
    grouped: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (reason, config), workloads in by_config.items():
        grouped.setdefault((reason, tuple(workloads)), []).append(config)
    rows = [[_named(configs), _named(names), why] for (why, names), configs in grouped.items()]
    return [*_table(["candidates", "workloads", "why"], rows), ""] if rows else []


def _left_out_table(suite: Suite, name: str, baselines: tuple[Baseline, ...]) -> list[str]:
    kept = {baseline.config for baseline in baselines}
    rows = [
        [
            f"`{left.config}`",
            left.reason
            + ("; its recorded sessions still count as noise" if left.config in kept else ""),
        ]
        for left in suite.left_out((name,))
    ]
    return [*_table(["not a cell", "why"], rows), ""] if rows else []


def _named(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(heads: list[str], rows: list[list[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(text.replace("|", "\\|") for text in line) + " |" for line in lines]
