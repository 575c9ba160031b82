"""Comment, summary, annotations and check run against golden files.

After an intended change: ``K3PERF_WRITE_GOLDEN=1 pytest tests/unit/ci``, then review
the diff.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.ci.annotations import check_run, refused_check_run, workflow_commands
from k3perf.ci.markdown import (
    COMMENT_MARKER,
    MAXIMUM_COMMENT_CHARACTERS,
    comment,
    refusal_comment,
    summary,
)
from k3perf.metrics.resolved import ABSENT
from k3perf.records.plan_file import PlanDocument
from k3perf.records.verdict import ConfigDifference, VerdictDocument

from .test_escaping import HOSTILE, rendered
from .verdicts import cell, invalid, metric, plan, regressed, verdict

GOLDEN = Path(__file__).parent / "golden"

EXACT = metric(
    "weights_bytes",
    "REGRESSED",
    unit="bytes",
    baseline_value=55152766304.0,
    now_value=55152766305.0,
    loss_ratio=1.8e-11,
    loss_lower_bound_ratio=None,
    loss_upper_bound_ratio=None,
    tolerance_ratio=None,
    tolerance_absolute=0.0,
)
CLEAN = verdict(
    cell("tuned"),
    cell(
        "fp8_kv",
        metric("output_tokens_per_s", unit="tokens/s", baseline_value=3378.0, now_value=3370.5),
    ),
)
MIXED = verdict(
    cell(
        "tuned",
        regressed(),
        metric("ttft_mean_ms", outcome="INCONCLUSIVE", smallest_detectable_loss_ratio=0.12),
    ),
    cell("tuned", regressed(now_value=30.8, loss_ratio=0.1), workload="burst"),
    cell(
        "fp8_kv",
        metric(outcome="IMPROVED", loss_ratio=-0.08),
        notes=["2 rounds repeated after a throttle"],
    ),
    cell("weights", EXACT),
    cell(
        "drifted",
        differences=[
            {
                "key": "cache_config.block_size",
                "was": 768,
                "now": 384,
                "forced_by": "tensor_parallel_size",
            }
        ],
    ),
    cell("fresh", missing="baselines/alpha/fresh.json does not exist; run k3perf baseline propose"),
    invalid("hot"),
)
PLANNED = plan(
    "alpha-tuned-chat",
    left_out=[
        {
            "cell": "alpha-spare-chat",
            "reason": "needs 7.0 device minutes, 2.5 of the budget are left",
        }
    ],
    notes=["perf_tests/configs/old.yaml was deleted; its cells are no longer measured"],
)


def evil_cell(text: str) -> dict[str, object]:
    findings = {
        "differences": [{"key": text, "was": text, "now": {text: [text]}, "forced_by": text}],
        "invalid_reasons": [{"rule": text, "text": text}],
    }
    return cell(
        text,
        regressed(metric=text, unit=text, reason=text),
        target=text,
        workload=text,
        notes=[text],
        missing=text,
        **findings,
    )


EVIL = verdict(
    *[evil_cell(text) for text in HOSTILE],
    run_id=HOSTILE[2],
    commit=HOSTILE[4],
    vllm_version=HOSTILE[7],
)


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("K3PERF_WRITE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "document", "planned"),
    [
        ("clean", CLEAN, None),
        ("mixed", MIXED, PLANNED),
        ("hostile", EVIL, None),
        ("nothing", verdict(), plan()),
    ],
)
def test_golden(name: str, document: VerdictDocument, planned: PlanDocument | None) -> None:
    check_golden(f"{name}.comment.md", comment(document, planned))
    check_golden(f"{name}.summary.md", summary(document, planned))
    check_golden(f"{name}.commands.txt", workflow_commands(document))
    check_golden(
        f"{name}.check-run.json",
        json.dumps(check_run(document, planned, "0" * 40), indent=1) + "\n",
    )


def test_refusals() -> None:
    check_golden(
        "refused.comment.md", refusal_comment("x/verdict.json: <b>is</b> no verdict file @someone")
    )
    assert refused_check_run("broken", "0" * 40)["conclusion"] == "failure"


def test_hostile_text_adds_no_element_no_link_and_no_second_marker() -> None:
    text = comment(EVIL)
    assert rendered(text).tags <= {
        "h2",
        "h3",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
        "code",
        "details",
        "summary",
    }
    assert text.count(COMMENT_MARKER) == 1
    assert text.startswith(COMMENT_MARKER)


def test_hostile_commands_are_only_commands() -> None:
    lines = workflow_commands(EVIL).splitlines()
    assert all(line.startswith("::error file=perf_tests/configs/plain.yaml,") for line in lines)
    assert len(lines) == 1, "names that are no config names get no annotation"


def test_long_results_are_cut_at_a_line_and_say_so() -> None:
    many = verdict(
        *[
            cell(
                f"config_{index}",
                *[regressed(metric=f"m{inner}") for inner in range(20)],
                notes=["n" * 300] * 5,
            )
            for index in range(400)
        ]
    )
    huge = comment(many)
    assert len(huge) <= MAXIMUM_COMMENT_CHARACTERS
    assert "and 7960 more" in huge
    entities = verdict(
        *[
            cell(
                "@" * 200,
                missing="@" * 300,
                notes=["|" * 300],
                invalid_reasons=[{"rule": "|" * 200, "text": "|" * 2000}] * 20,
            )
        ]
        * 50
    )
    cut = summary(entities)
    assert len(cut) <= MAXIMUM_COMMENT_CHARACTERS
    assert cut.count("<details>") == cut.count("</details>")
    assert "Truncated" in cut


def test_check_run_conclusions_and_limits() -> None:
    def conclusion(document: VerdictDocument) -> object:
        return check_run(document, None, "0" * 40)["conclusion"]

    assert conclusion(CLEAN) == "success"
    assert conclusion(MIXED) == "failure"
    assert conclusion(verdict(invalid())) == "failure"
    assert conclusion(verdict(cell("tuned", metric(outcome="INCONCLUSIVE")))) == "neutral"
    suspect = verdict(cell("tuned", metric(outcome="SUSPECT", loss_ratio=0.23)))
    assert conclusion(suspect) == "failure"
    assert "Suspected: beyond the tolerance, not proven" in comment(suspect)
    assert workflow_commands(suspect).startswith("::error file=perf_tests/configs/tuned.yaml")
    many = check_run(
        verdict(*[cell(f"c{index}", regressed()) for index in range(80)]), None, "0" * 40
    )
    assert len(many["output"]["annotations"]) == 50


def test_an_exceeded_budget_is_said() -> None:
    assert "alone exceed the budget" in comment(CLEAN, plan("alpha-tuned-chat", over_budget=True))


def test_recorded_cells_are_not_called_proven() -> None:
    assert "Nothing was judged." in comment(verdict(cell("tuned") | {"metrics": []}))


def test_ab_shows_what_differs_beside_the_verdict_and_folds_the_rest() -> None:
    changes = (
        ConfigDifference("a.new", ABSENT, 1),
        ConfigDifference("b.gone", 1, ABSENT),
        ConfigDifference("c.changed", 16, 32),
    )
    document = verdict(cell("fp8_kv", regressed()))
    found = replace(document.cells[0], mode="ab", differences=changes)
    text = comment(replace(document, cells=(found,)))
    assert "| cell | metric | base | candidate |" in text
    folded = text.partition("Candidate and base differ (not judged)")[2].partition("</details>")[0]
    changed, rest = [line for line in folded.splitlines() if line.startswith("* ")]
    assert changed.endswith("`c.changed`: base `16`, candidate `32`")
    assert rest.endswith("1 only in the candidate and 1 only in the base; verdict.json names them")
    assert "CONFIG_DRIFT" not in text
