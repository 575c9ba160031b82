"""What a pull request's plan and report say: the owners' rules for files, the important
cells first, what was left out, the changed line, and what to do.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from k3perf.ci.advice import advice
from k3perf.ci.annotations import ChangedLines, check_run, workflow_commands
from k3perf.ci.costs import CostModel, RecordedCosts
from k3perf.ci.markdown import comment
from k3perf.ci.planning import Importance, fit_budget
from k3perf.ci.selection import ChangedPath, select, select_all
from k3perf.config.ci_rules import CiRules, load_ci_rules
from k3perf.config.suite import Suite
from k3perf.errors import ConfigFileError, UsageError
from k3perf.records.plan_file import CellLeftOut, PlanDocument, PlannedCell
from k3perf.store.repository import Repository

from .verdicts import cell, metric, regressed, verdict

RULES = CiRules.model_validate(
    {
        "schema_version": 1,
        "files": [
            {"paths": ["helm/gpu/"], "affects": {"targets": ["alpha"]}, "owner": "@infra",
             "reason": "only alpha is deployed"},
            {"paths": ["helm/"], "affects": "nothing", "owner": "@infra",
             "reason": "the charts are not measured"},
            {"paths": ["docs/served.json"], "affects": "everything", "owner": "@perf",
             "reason": "the engine reads it"},
        ],
    }
)  # fmt: skip


def test_the_owners_rule_decides_and_nothing_leaves_a_note(sixty_cells: Suite) -> None:
    whole = len(sixty_cells.cells())
    found = select(sixty_cells, [ChangedPath("helm/values.yaml")], rules=RULES)
    assert found.cells == ()
    assert found.notes == (
        "helm/values.yaml affects nothing by @infra's rule (the charts are not measured)",
    )
    assert len(select(sixty_cells, [ChangedPath("helm/values.yaml")]).cells) == whole
    part = select(sixty_cells, [ChangedPath("helm/gpu/a.yaml")], rules=RULES)
    assert {one.cell.target.name for one in part.cells} == {"alpha"}
    everything = select(sixty_cells, [ChangedPath("docs/served.json")], rules=RULES)
    assert len(everything.cells) == whole


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("files: [{paths: [baselines/], affects: nothing, owner: a, reason: because of it}]",
         "baselines/"),
        ("files: [{paths: [helm/], affects: some, owner: a, reason: because of it}]", "affects"),
        ("files: [{paths: [helm/], affects: nothing, reason: because of it}]", "owner"),
        ("fils: []", "fils"),
    ],
)  # fmt: skip
def test_a_wrong_rule_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "ci.yaml").write_text(f"schema_version: 1\n{text}\n")
    with pytest.raises(ConfigFileError, match=problem):
        load_ci_rules(tmp_path)


def test_a_tight_budget_takes_the_important_cells_first_and_turns(sixty_cells: Suite) -> None:
    cells = select_all(sixty_cells, "an engine's pin").cells
    costs = CostModel(RecordedCosts(session_s={}, engine_start_s={}))
    with_baseline = frozenset(one.cell.cell_id for one in cells if one.cell.target.name != "alpha")

    def first(seed: str) -> list[str]:
        importance = Importance(with_baseline, ("gamma",), seed)
        kept = fit_budget(cells, costs, 3_000, importance)
        return [one.cell.cell_id for group in kept.groups for one in group.cells]

    chosen = first("a")
    assert chosen
    assert all(name.startswith("gamma-") for name in chosen), "not the first by the alphabet"
    turns = {name for seed in range(40) for name in first(str(seed))}
    assert len(turns) >= 10, "every config of the target has its turn"
    assert first("a") == chosen


def plan(*left_out: str, **reasons: str) -> PlanDocument:
    cells = tuple(
        PlannedCell(cell=f"alpha-{name}-chat", target="alpha", config=name, workload="chat",
                    priority="direct", reasons=(why,))
        for name, why in reasons.items()
    )  # fmt: skip
    return PlanDocument(
        false_alarm_budget=0.01, gated_metric_count=1, cells=cells, over_budget=False, notes=(),
        left_out=tuple(CellLeftOut(cell=name, reason="no room") for name in left_out),
        device_minutes=1, shards=(),
    )  # fmt: skip


def test_what_was_left_out_is_neutral_and_counted() -> None:
    passed = verdict(cell("tuned", metric()))
    whole = check_run(passed, plan(), "a" * 40)
    assert (whole["conclusion"], whole["output"]["title"]) == ("success", "k3perf: PASS")
    part = check_run(passed, plan("x", "y"), "a" * 40)
    assert part["conclusion"] == "neutral"
    assert part["output"]["title"] == "k3perf: PASS (1 of 3 touched cells measured)"
    nothing = check_run(verdict(), plan(), "a" * 40)
    assert nothing["conclusion"] == "neutral"
    assert nothing["output"]["title"] == "k3perf: nothing was measured"
    assert "## k3perf: nothing was measured" in comment(verdict(), plan())
    red = check_run(verdict(cell("tuned", regressed())), plan("x"), "a" * 40)
    assert red["conclusion"] == "failure"


def test_the_annotation_is_on_the_changed_line(tmp_path: Path) -> None:
    path = tmp_path / "perf_tests" / "configs" / "tuned.yaml"
    path.parent.mkdir(parents=True)
    path.write_text("a: 1\nb: 1\nc: 1\n")

    def git(*words: str) -> None:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    git("init", "--quiet", "--initial-branch", "main")
    git("add", ".")
    git("commit", "--quiet", "--message", "one")
    path.write_text("a: 1\nb: 1\nc: 2\n")
    git("commit", "--quiet", "--all", "--message", "two")
    lines = ChangedLines(Repository(tmp_path).first_changed_lines("HEAD~1", "HEAD"))
    assert lines.of("perf_tests/configs/tuned.yaml") == 3
    red = verdict(cell("tuned", regressed()))
    (entry,) = check_run(red, None, "a" * 40, lines)["output"]["annotations"]
    assert (entry["start_line"], entry["end_line"]) == (3, 3)
    assert "file=perf_tests/configs/tuned.yaml,line=3," in workflow_commands(red, lines)
    with pytest.raises(UsageError, match="not an ancestor"):
        Repository(tmp_path).first_parents("HEAD", "HEAD~1")


def test_the_comment_says_how_sure_why_and_what_next() -> None:
    red = verdict(cell("tuned", regressed()))
    text = "\n".join(
        advice(red, plan(tuned="config tuned changed"), "https://github.com/team/suite/actions/1")
    )
    assert "at least +17.0 % at 99.90% confidence, from 3 sessions and 12 rounds" in text
    assert "likely cause: the config" in text
    assert "scripts/perf --k3-target alpha -k 'tuned and chat'" in text
    assert "[the run](https://github.com/team/suite/actions/1)" in text
    assert advice(verdict(cell("tuned", metric())), None) == []
    assert "](" not in "\n".join(advice(red, None, "https://evil/x) [y](https://z"))


def test_a_common_loss_points_to_machine_or_engine() -> None:
    entry = cell("tuned", regressed()) | {"reference_arm": [regressed()], "mode": "reference"}
    text = "\n".join(advice(verdict(json.loads(json.dumps(entry))), None))
    assert "machine or engine" in text
