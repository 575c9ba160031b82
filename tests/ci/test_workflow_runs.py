"""The workflows' jobs run on this machine by act with a stand-in for the measurement
(tests/ci/workplace.py says what else is a stub).

Everything between (plan, matrix, conditions, merge, retry, verdict, report, history,
refresh) is what production runs. The same with real engines is in
test_measured_workflow_runs.py.
"""

from __future__ import annotations

import json
import lzma
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .workplace import GIT, REPOSITORY, Workplace, git, merge_group

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def shards(workplace: Workplace) -> list[str]:
    return sorted(
        path.name for path in workplace.store.iterdir() if path.name.startswith("results-")
    )


def test_a_clean_pull_request_is_green(workplace: Workplace) -> None:
    head = workplace.change()
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status == 0, run.text[-6000:]
    plan = json.loads((workplace.store / "plan" / "plan.json").read_text())
    assert {entry["config"] for entry in plan["cells"]} == {"default", "block_size_32"}
    assert shards(workplace) == ["results-cpu-avx2-0"]
    assert workplace.verdict["outcome"] == "PASS"


def test_an_injected_slow_down_is_red_and_its_comment_says_so(workplace: Workplace) -> None:
    head = workplace.change("block_size_32 slow")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status != 0
    assert workplace.verdict["outcome"] == "REGRESSED"
    assert re.search(
        r"::error file=perf_tests/configs/block_size_32.yaml|k3perf: REGRESSED", run.text
    )
    report = workplace.report(head)
    assert report.status == 0, report.text[-6000:]
    comment = workplace.comment
    assert comment.startswith("<!-- k3perf-report -->\n## k3perf: REGRESSED")
    assert "`block_size_32`" in comment
    assert "+20.0 %" in comment
    check_run = workplace.check_run
    assert (check_run["head_sha"], check_run["conclusion"]) == (head, "failure")
    assert check_run["output"]["annotations"][0]["path"] == "perf_tests/configs/block_size_32.yaml"


def test_a_report_without_results_says_so(workplace: Workplace) -> None:
    report = workplace.report("0" * 40)
    assert report.status == 0, report.text[-6000:]
    assert "INVALID" in workplace.comment


def gpu_change(workplace: Workplace, *faults: str) -> str:
    return workplace.change(*faults, config=GPU_CONFIG)


GPU_CONFIG = "seqs_down"
GPU = {"K3PERF_HARDWARE_CLASSES": "h200", "K3PERF_POOLS": "a,b", "K3PERF_BUDGET_MINUTES": "1"}


def test_a_forks_pull_request_without_the_label_does_not_reach_the_gpu(
    workplace: Workplace,
) -> None:
    head = gpu_change(workplace)
    run = workplace.act(
        "pull_request", "perf-pr.yml", workplace.pull_request(head, origin="stranger/suite"), **GPU
    )
    assert run.status != 0, "unmeasured cells are not green"
    assert shards(workplace) == []
    assert "gpu-ok-" in run.text
    verdict = workplace.verdict
    assert verdict["outcome"] == "INVALID"
    assert verdict["cells"][0]["invalid_reasons"][0]["rule"] == "shard_lost"


def test_a_label_of_another_commit_is_no_permission(workplace: Workplace) -> None:
    head = gpu_change(workplace)
    event = workplace.pull_request(
        head, "gpu-ok-" + "b" * 40, origin="stranger/suite", action="labeled"
    )
    assert workplace.act("pull_request", "perf-pr.yml", event, **GPU).status != 0
    assert shards(workplace) == []


def test_the_label_of_the_head_commit_lets_a_fork_reach_the_gpu(workplace: Workplace) -> None:
    head = gpu_change(workplace)
    event = workplace.pull_request(
        head, f"gpu-ok-{head}", origin="stranger/suite", action="labeled"
    )
    run = workplace.act("pull_request", "perf-pr.yml", event, **GPU)
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == ["results-h200-0"]


def test_an_unrelated_label_measures_nothing_and_claims_nothing(workplace: Workplace) -> None:
    head = workplace.change()
    run = workplace.act(
        "pull_request",
        "perf-pr.yml",
        workplace.pull_request(head, "documentation", action="labeled"),
    )
    assert run.status == 0, run.text[-6000:]
    assert "[perf-pr/unrelated label" in run.text
    assert "perf verdict" not in run.text
    assert list(workplace.store.iterdir()) == []


def test_an_invalid_cell_is_measured_once_more_on_another_pool(workplace: Workplace) -> None:
    head = gpu_change(workplace, f"{GPU_CONFIG} once")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head), **GPU)
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == ["results-h200-0", "results-h200-0-retry"]
    retried = json.loads((workplace.store / "results-h200-0-retry" / "cells.json").read_text())
    assert retried
    assert all(f"-{GPU_CONFIG}-" in cell for cell in retried)
    verdict = workplace.verdict
    assert any("another runner" in note for cell in verdict["cells"] for note in cell["notes"])


def test_a_cell_that_stays_invalid_is_red(workplace: Workplace) -> None:
    head = workplace.change("block_size_32 spoiled")
    assert workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head)).status != 0
    assert shards(workplace) == ["results-cpu-avx2-0", "results-cpu-avx2-0-retry"]
    assert workplace.verdict["outcome"] == "INVALID"


def test_a_lost_runner_is_red(workplace: Workplace) -> None:
    head = workplace.change("runner dies")
    assert workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head)).status != 0
    verdict = workplace.verdict
    assert {reason["rule"] for cell in verdict["cells"] for reason in cell["invalid_reasons"]} == {
        "shard_lost"
    }


def test_a_suite_that_cannot_be_read_is_red(workplace: Workplace) -> None:
    workplace.change()
    (workplace.tree / "perf_tests" / "tolerances.yaml").write_text("schema_version: [\n")
    head = workplace.commit("broken")
    git(workplace.tree, "push", "--quiet", "--force", "origin", "topic")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status != 0
    assert "tolerances.yaml" in run.text
    assert shards(workplace) == []


def test_a_documentation_change_measures_nothing_and_is_green(workplace: Workplace) -> None:
    git(workplace.tree, "checkout", "--quiet", "-B", "topic", "main")
    (workplace.tree / "README.md").write_text("words\n")
    head = workplace.commit("words")
    git(workplace.tree, "push", "--quiet", "origin", "topic")
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == []


NIGHT = {"repository": {"full_name": "team/suite"}}


def kept_nights(workplace: Workplace) -> list[dict[str, Any]]:
    names = git(workplace.origin, "ls-tree", "-r", "--name-only", "perf-history").splitlines()
    found = []
    for name in names:
        data = subprocess.run(
            [GIT, "-C", str(workplace.origin), "show", f"perf-history:{name}"],
            capture_output=True,
            check=True,
        ).stdout
        found.append(json.loads(lzma.decompress(data)))
    return found


def test_a_night_is_kept_and_its_sessions_make_first_baselines(workplace: Workplace) -> None:
    run = workplace.act("schedule", "nightly.yml", NIGHT)
    assert run.status == 0, run.text[-6000:]
    (night,) = kept_nights(workplace)
    assert {name for cell in night["cells"] for name in cell["values"]} == {
        "tpot_mean_ms",
        "ttft_mean_ms",
        "output_tokens_per_s",
    }
    assert {cell["outcome"] for cell in night["cells"]} == {None}, "nothing could judge them"
    said = (workplace.store / "results-cpu-avx2-new-0" / "arguments.txt").read_text()
    assert "--k3-record --k3-sessions 2" in said
    changed = git(workplace.origin, "diff", "--name-only", "main", "baseline-refresh").splitlines()
    assert changed
    assert all(name.startswith("baselines/") for name in changed)
    baseline = json.loads(git(workplace.origin, "show", f"baseline-refresh:{changed[0]}"))
    assert baseline["acceptance"]["accepted_by"] == "nightly refresh"
    assert "pr create --head baseline-refresh" in workplace.calls.read_text()
    table = Path(f"{workplace.calls}.refresh.md").read_text()
    assert "0 to 6" in table
    assert "issue create" not in workplace.calls.read_text()
    again = workplace.act("schedule", "nightly.yml", NIGHT)
    assert again.status == 0, again.text[-6000:]
    assert len(kept_nights(workplace)) == 1, "the same run is not kept twice"


def recorded(workplace: Workplace, *faults: str) -> None:
    """main with committed baselines, and faults for the stand-in to show."""
    shutil.copytree(REPOSITORY / "baselines", workplace.tree / "baselines", dirs_exist_ok=True)
    (workplace.tree / "injected").write_text("".join(f"{fault}\n" for fault in faults))
    workplace.base = workplace.commit("recorded")
    git(workplace.tree, "push", "--quiet", "origin", "main")


def test_a_red_main_opens_an_issue_that_closes_when_it_is_mended(workplace: Workplace) -> None:
    recorded(workplace, "block_size_32 slow")
    run = workplace.act("schedule", "nightly.yml", NIGHT)
    assert run.status != 0
    text = Path(f"{workplace.calls}.main.md").read_text()
    assert text.startswith("<!-- k3perf-main -->")
    assert "`block_size_32`" in text
    assert "REGRESSED" in text
    assert "issue create --title main fails its performance gate" in workplace.calls.read_text()
    if git(workplace.origin, "for-each-ref", "refs/heads/baseline-refresh"):
        changed = git(workplace.origin, "diff", "--name-only", "main", "baseline-refresh")
        assert "block_size_32" not in changed, "a loss is in no baseline"
    recorded(workplace, "block_size_64 fine")
    Path(f"{workplace.calls}.issues").write_text("12\n")
    workplace.environment["GITHUB_RUN_ID"] = "4712"
    mended = workplace.act("schedule", "nightly.yml", NIGHT)
    assert "issue close 12" in workplace.calls.read_text(), mended.text[-6000:]


def test_a_night_that_lost_its_cells_is_red_and_names_them(workplace: Workplace) -> None:
    (workplace.tree / "injected").write_text("runner dies\n")
    workplace.commit("a runner that dies")
    git(workplace.tree, "push", "--quiet", "origin", "main")
    run = workplace.act("schedule", "nightly.yml", NIGHT)
    assert run.status != 0
    assert "cpu-gqa-default-chat: no valid session" in run.text
    assert git(workplace.origin, "for-each-ref", "refs/heads/baseline-refresh") == ""
    assert not workplace.calls.exists() or "pr create" not in workplace.calls.read_text()


def test_a_merge_to_main_measures_what_it_touches(workplace: Workplace) -> None:
    before = workplace.base
    path = workplace.tree / "perf_tests" / "configs" / "block_size_32.yaml"
    path.write_text(path.read_text() + "# touched\n")
    workplace.commit("touched")
    git(workplace.tree, "push", "--quiet", "origin", "main")
    event = {**NIGHT, "before": before, "ref": "refs/heads/main"}
    workplace.act("push", "nightly.yml", event)
    plan = json.loads((workplace.store / "plan" / "plan.json").read_text())
    assert {entry["config"] for entry in plan["cells"]} == {"default", "block_size_32"}
    assert git(workplace.origin, "for-each-ref", "refs/heads/baseline-refresh") == ""


def test_a_group_in_the_merge_queue_is_measured(workplace: Workplace) -> None:
    head = workplace.change()
    event = merge_group(workplace.base, head)
    run = workplace.act("merge_group", "perf-pr.yml", event)
    assert run.status == 0, run.text[-6000:]
    assert workplace.verdict["outcome"] == "PASS"
    assert shards(workplace) == ["results-cpu-avx2-0"]


def test_a_draft_is_not_measured_and_does_not_pass(workplace: Workplace) -> None:
    event = workplace.pull_request(workplace.change(), draft=True)
    run = workplace.act("pull_request", "perf-pr.yml", event)
    assert "[perf-pr/draft" in run.text
    assert "perf verdict" not in run.text
    assert shards(workplace) == []


def test_a_label_does_not_replace_the_report_of_a_run_that_measured(workplace: Workplace) -> None:
    head = workplace.change()
    Path(f"{workplace.calls}.verdicts").write_text("0\n")
    report = workplace.report(head)
    assert report.status == 0, report.text[-6000:]
    assert not Path(f"{workplace.calls}.comment.md").exists()
    assert "check-runs" not in workplace.calls.read_text()


def test_another_engine_than_the_commits_is_not_measured(
    workplace: Workplace, tmp_path: Path
) -> None:
    image = tmp_path / "image"
    image.mkdir()
    (image / "base-image").write_text("vllm/vllm-openai:old")
    (workplace.tree / "docker").mkdir()
    (workplace.tree / "docker" / "Dockerfile").write_text("ARG BASE_IMAGE=vllm/vllm-openai:new\n")
    workplace.base = workplace.commit("an image")
    git(workplace.tree, "push", "--quiet", "origin", "main")
    head = workplace.change()
    workplace.environment["K3PERF_IMAGE_FOLDER"] = str(image)
    run = workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert run.status != 0
    assert workplace.verdict["outcome"] == "INVALID"
    (reason,) = workplace.verdict["cells"][0]["invalid_reasons"]
    assert "vllm/vllm-openai:old, the commit declares vllm/vllm-openai:new" in reason["text"]
    (image / "base-image").write_text("vllm/vllm-openai:new")
    shutil.copy(workplace.tree / "docker" / "Dockerfile", image)
    shutil.rmtree(workplace.store)  # another run has other artefacts
    workplace.store.mkdir()
    workplace.act("pull_request", "perf-pr.yml", workplace.pull_request(head))
    assert workplace.verdict["outcome"] == "PASS"


def test_whole_models_are_measured_by_hand_or_by_label_and_never_for_an_unlabelled_fork(
    workplace: Workplace,
) -> None:
    classes = {"K3PERF_HARDWARE_CLASSES": "h200-x16"}
    head = workplace.change()
    fork = workplace.pull_request(head, "perf-full", origin="stranger/suite", action="labeled")
    assert workplace.act("pull_request", "perf-full.yml", fork, **classes).status == 0
    assert list(workplace.store.iterdir()) == [], "nothing ran"
    ours = workplace.pull_request(head, "perf-full", action="labeled")
    run = workplace.act("pull_request", "perf-full.yml", ours, **classes)
    assert run.status == 0, run.text[-6000:]
    assert shards(workplace) == ["results-h200-x16-0"]
    plan = json.loads((workplace.store / "plan" / "plan.json").read_text())
    assert {entry["target"] for entry in plan["cells"]} == {"h200-k3-whole"}


def test_whole_models_are_planned_and_judged_by_the_bases_code(workplace: Workplace) -> None:
    """A pull request that makes its own k3perf program pass everything."""
    workplace.change("default slow")
    program = workplace.tree / "scripts" / "k3perf"
    program.write_text(
        '#!/bin/sh\ncase "$1" in plan | merge) echo it judges itself; exit 0 ;; esac\n'
        f'exec {sys.executable} -m k3perf.cli.main "$@"\n'
    )
    head = workplace.commit("an own judge")
    git(workplace.tree, "push", "--quiet", "--force", "origin", "topic")
    classes = {"K3PERF_HARDWARE_CLASSES": "h200-x16"}
    ours = workplace.pull_request(head, "perf-full", action="labeled")
    run = workplace.act("pull_request", "perf-full.yml", ours, **classes)
    assert run.status != 0
    assert shards(workplace) == ["results-h200-x16-0"]
    assert "k3perf: REGRESSED" in run.text
    assert "it judges itself" not in run.text


def test_a_baseline_changed_by_hand_is_red(workplace: Workplace) -> None:
    shutil.copytree(REPOSITORY / "baselines", workplace.tree / "baselines")
    workplace.base = workplace.commit("recorded")
    git(workplace.tree, "push", "--quiet", "origin", "main")
    clean = workplace.act(
        "pull_request", "checks.yml", workplace.pull_request(workplace.change()), job="baselines"
    )
    assert clean.status == 0, clean.text[-6000:]
    path = workplace.tree / "baselines" / "cpu-hybrid" / "seqs_down.json"
    text, count = re.subn(r'"value": (\d)', r'"value": 1\1', path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    head = workplace.commit("a better number")
    git(workplace.tree, "push", "--quiet", "--force", "origin", "topic")
    run = workplace.act("pull_request", "checks.yml", workplace.pull_request(head), job="baselines")
    assert run.status != 0
    assert "its digest" in run.text


def looser(workplace: Workplace) -> str:
    """A pull request's commit: a tolerance from 10 to 90 %."""
    workplace.change()
    path = workplace.tree / "perf_tests" / "tolerances.yaml"
    text, count = re.subn(r"loss_ratio: 0\.\d+", "loss_ratio: 0.9", path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    head = workplace.commit("a wider tolerance")
    git(workplace.tree, "push", "--quiet", "--force", "origin", "topic")
    return head


def test_a_looser_judge_is_red_until_a_person_acknowledges_it(workplace: Workplace) -> None:
    head = looser(workplace)
    event = workplace.pull_request(head)
    events = Path(f"{workplace.calls}.events")
    for said, green in (
        ("", False),
        ("labeled Bot\n", False),
        ("labeled User\nunlabeled User\n", False),
        ("labeled User\nlabeled Bot\n", False),
        ("labeled User\n", True),
    ):
        events.write_text(said)
        run = workplace.act("pull_request_target", "judge.yml", event)
        assert (run.status == 0) is green, (said, run.text[-6000:])
        assert "**looser** | tolerance" in run.text
        assert (f"set the label judge-ok-{head}" in run.text) is not green
    assert f'select(.label.name == "judge-ok-{head}")' in workplace.calls.read_text()


def test_a_pull_request_is_judged_by_its_base_until_the_label_is_set(
    workplace: Workplace,
) -> None:
    head = looser(workplace)
    label = f"judge-ok-{head}"
    for labels, action, asked in (((), "opened", True), ((label,), "labeled", False)):
        event = workplace.pull_request(head, *labels, action=action)
        run = workplace.act("pull_request", "perf-pr.yml", event)
        assert run.status == 0, run.text[-6000:]
        said = (workplace.store / "results-cpu-avx2-0" / "arguments.txt").read_text()
        assert (f"--k3-judge-from {workplace.base}" in said) is asked


def test_a_slide_in_the_history_opens_one_issue(workplace: Workplace) -> None:
    night = {
        "schema_version": 1, "commit": "c", "vllm_version": "0.32.0", "hardware_class": "cpu-avx512", "target": "cpu-hybrid", "config": "default",
        "workload": "chat", "plan_digest": "sha256:" + "0" * 64, "metric": "tpot_mean_ms", "session_count": 6,
    }  # fmt: skip
    nights = [
        {
            **night,
            "run_id": f"old-{index}",
            "created_at_utc": f"2026-10-{index + 1:02d}T00:00:00Z",
            "value": (20.0 if index < 20 else 28.0) + index * 7 % 5 * 0.01,
        }
        for index in range(28)
    ]
    git(workplace.tree, "checkout", "--quiet", "--orphan", "perf-history")
    git(workplace.tree, "rm", "-r", "--force", "--quiet", ".")
    (workplace.tree / "history.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in nights)
    )
    git(workplace.tree, "add", "history.jsonl")
    git(workplace.tree, "commit", "--quiet", "--message", "nights")
    git(workplace.tree, "push", "--quiet", "origin", "perf-history")
    git(workplace.tree, "checkout", "--quiet", "--force", "main")
    run = workplace.act("schedule", "nightly.yml", {"repository": {"full_name": "team/suite"}})
    assert run.status == 0, run.text[-6000:]
    assert "issue create --title" in workplace.calls.read_text()
    text = Path(f"{workplace.calls}.slide.md").read_text()
    assert "`cpu-hybrid` `default` `chat`" in text
    assert "2026-10-21" in text
    assert len(git(workplace.origin, "show", "perf-history:history.jsonl").splitlines()) == len(
        nights
    )
    assert "nights/" in git(workplace.origin, "ls-tree", "-r", "--name-only", "perf-history")
