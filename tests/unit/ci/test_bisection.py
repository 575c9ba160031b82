"""The search for a loss: it finds the planted point whatever fails between, blames no
improvement, and goes on where it was interrupted.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from k3perf.ci.bisection import Answer, Question, judged_point, next_step
from k3perf.cli.main import main
from k3perf.documents import validated
from k3perf.errors import ExitStatus
from k3perf.records.bisection import BisectionState, Finding, PointJudgement
from k3perf.records.verdict import VerdictDocument

from .verdicts import cell, invalid, metric, regressed, verdict

LEVELS = tuple(f"v{index}" for index in range(16))


def search(levels: dict[str, float], said: dict[str, Finding] | None = None) -> tuple[Answer, int]:
    """By a judge that sees a loss above 5 %. ``said``: points with another finding."""
    state = BisectionState(cell="c", points=LEVELS)
    for asked in range(200):
        step = next_step(state, attempts=2)
        if isinstance(step, Answer):
            return step, asked
        change = levels[step.point] / levels[step.base] - 1
        finding = (said or {}).get(step.point) or (
            Finding.BAD if change > 0.05 else Finding.BETTER if change < -0.05 else Finding.GOOD
        )
        one = PointJudgement(base=step.base, point=step.point, finding=finding, why="made")
        state = state.model_copy(update={"judgements": (*state.judgements, one)})
    raise AssertionError("it does not end")


def step_at(index: int, size: float = 0.09) -> dict[str, float]:
    return {name: 1 + size * (place >= index) for place, name in enumerate(LEVELS)}


@pytest.mark.parametrize("index", range(1, 16))
def test_the_planted_point_is_found_in_few_comparisons(index: int) -> None:
    answer, asked = search(step_at(index))
    assert answer.culprits == (LEVELS[index],)
    assert asked <= 6, "the end, four halvings, and the confirmation"


def test_without_a_loss_no_one_is_blamed() -> None:
    answer, asked = search(step_at(99))
    assert (answer.culprits, asked) == ((), 1)
    assert "not worse" in answer.text


def test_an_improvement_is_never_blamed() -> None:
    levels = step_at(9)
    assert search({name: 2 - level for name, level in levels.items()})[0].culprits == ()
    better_between = {**levels, **{LEVELS[place]: 0.8 for place in range(4, 8)}}
    assert search(better_between)[0].culprits == ("v9",) or "v8" in search(better_between)[0].text


def test_a_loss_of_many_small_steps_has_no_culprit() -> None:
    answer, _ = search({name: 1.01**place for place, name in enumerate(LEVELS)})
    assert answer.culprits == ()
    assert "smaller steps" in answer.text


def test_points_that_cannot_run_are_kept_apart_with_their_reason() -> None:
    answer, _ = search(step_at(9), {"v8": Finding.BROKEN, "v7": Finding.UNDECIDED})
    assert answer.culprits == ("v7", "v8", "v9")
    assert "v8: broken" in answer.text
    assert "v7: undecided" in answer.text


def test_an_undecided_end_is_tried_again_and_then_said() -> None:
    answer, asked = search(step_at(3), {"v15": Finding.UNDECIDED})
    assert (answer.culprits, answer.decided, asked) == ((), False, 2)
    assert not search(step_at(3), {"v15": Finding.BROKEN})[0].decided


@pytest.mark.parametrize(
    ("entry", "finding"),
    [
        (cell("tuned", regressed()), Finding.BAD),
        (cell("tuned", metric()), Finding.GOOD),
        (cell("tuned", metric(outcome="IMPROVED")), Finding.BETTER),
        (cell("tuned", metric(outcome="SUSPECT")), Finding.UNDECIDED),
        (invalid("tuned"), Finding.INVALID),
        (cell("tuned") | {"invalid_reasons": [{"rule": "engine_died", "text": "CUDA error"}]},
         Finding.BROKEN),
        (cell("other"), Finding.INVALID),
    ],
)  # fmt: skip
def test_a_verdict_is_read_as_the_gate_gave_it(entry: dict[str, object], finding: Finding) -> None:
    document = validated(VerdictDocument, json.loads(json.dumps(verdict(entry).dump())))
    found = judged_point("a", "b", document.cells, "alpha-tuned-chat", "here")
    assert found.finding is finding


JUDGE = """
import json, sys
base, point, results, table, log = sys.argv[1:]
levels = json.load(open(table))
open(log, "a").write(point + chr(10))
loss = levels[point] / levels[base] - 1
metric = {"metric": "tpot_mean_ms", "unit": "ms", "loss_ratio": loss, "session_count": 2,
          "outcome": "REGRESSED" if loss > 0.05 else "PASS"}
cell = {"target": "tiny", "config": "fp8_kv", "workload": "quick", "metrics": [metric]}
json.dump({"schema_version": 1, "run_id": "r", "commit": "c", "created_at_utc": "",
           "false_alarm_budget": 0.01, "gated_metric_count": 1, "cells": [cell]},
          open(results + "/verdict.json", "w"))
if point == levels.get("stop"):
    sys.exit("interrupted")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from tests.plugin.sites import Site

    repository = Path(__file__).resolve().parents[3]
    Site(tmp_path, repository)
    (tmp_path / "judge.py").write_text(JUDGE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def bisect(place: Path, good: str, bad: str, *more: str) -> int:
    command = shlex.join([sys.executable, "judge.py"]) + " {base} {point} {results} levels.json log"
    return main(["bisect", good, bad, "--cell", "tiny-fp8_kv-quick", "--run", command, *more])


def test_engine_versions_are_searched_and_an_interrupted_search_goes_on(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = ("0.29.0", "0.30.0", "0.31.0", "0.32.0")
    (place / "levels.json").write_text(
        json.dumps(dict(zip(versions, (1.0, 1.01, 1.1, 1.1), strict=True)))
    )
    engines = [word for name in versions for word in ("--engine", f"{name}=/x/{name}/bin/python")]
    assert bisect(place, "0.29.0", "0.32.0", *engines) == 0
    assert "first bad: 0.31.0, worse than 0.30.0 (tpot_mean_ms +8.9%)" in capsys.readouterr().out
    asked = (place / "log").read_text().splitlines()
    state_file = place / ".k3perf" / "bisect.json"
    state = json.loads(state_file.read_text())
    state["judgements"] = state["judgements"][:1]
    state_file.write_text(json.dumps(state))
    assert bisect(place, "0.29.0", "0.32.0", *engines) == 0
    again = (place / "log").read_text().splitlines()[len(asked) :]
    assert again == asked[1:], "what was judged is not measured again"
    assert bisect(place, "0.30.0", "0.32.0", *engines) == ExitStatus.USAGE
    assert "holds a different bisection" in capsys.readouterr().err


def test_commits_are_searched_and_the_work_tree_stays(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def git(*words: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
        return subprocess.run(
            ["git", *identity, *words], capture_output=True, text=True, check=True, cwd=place
        ).stdout.strip()

    git("init", "--quiet", "--initial-branch", "main")
    levels, hashes = {}, []
    for index in range(6):
        git("commit", "--quiet", "--allow-empty", "--message", f"c{index}")
        hashes.append(git("rev-parse", "HEAD"))
        levels[hashes[-1]] = 1.1 if index >= 4 else 1.0
    (place / "levels.json").write_text(json.dumps(levels))
    assert bisect(place, hashes[0], "main") == 0
    assert f"first bad: {hashes[4]}" in capsys.readouterr().out
    assert bisect(place, "main", hashes[0], "--state", "other.json") == ExitStatus.USAGE
    assert "not an ancestor" in capsys.readouterr().err


def test_a_run_without_a_verdict_is_never_good(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engines = ["--engine", "a=/x", "--engine", "b=/y"]
    status = main(["bisect", "a", "b", "--cell", "tiny-fp8_kv-quick", "--run", "true", *engines])
    assert status == ExitStatus.INVALID
    assert "without a verdict" in capsys.readouterr().out


def test_the_question_names_both_sides() -> None:
    assert next_step(BisectionState(cell="c", points=LEVELS), attempts=1) == Question("v0", "v15")
