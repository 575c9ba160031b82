"""``k3perf ci check-judge``: every way to make the own judge milder is a row that a
person must acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3perf.ci.judge_baselines import baseline_changes, waiver_changes
from k3perf.ci.judge_changes import JudgeChange, suite_changes
from k3perf.ci.judge_table import markdown_table, text_table
from k3perf.config.models import Tolerance
from k3perf.config.suite import Suite
from k3perf.errors import ExitStatus, UsageError
from k3perf.records.baseline import Baseline, Waiver, digest_of

from .conftest import config, suite_of, target, workload
from .test_baseline_changes import baseline, written
from .test_ci_commands import checkout, git, origin, run

__all__ = ["checkout", "origin"]

APPROVED = frozenset({("alpha", "tuned"), ("alpha", "default")})


def suite(gated: dict[str, Any] | None = None, **changes: Any) -> Suite:
    """One target with two configs and two workloads."""
    made = suite_of(
        [config("default", extends=None), config("tuned")],
        [target("alpha", **changes)],
        [workload("chat"), workload("burst")],
    )
    if gated is None:
        return made
    return Suite(
        root=made.root,
        configs=made.configs,
        targets=made.targets,
        workloads=made.workloads,
        tolerances=made.tolerances.model_copy(update=gated),
    )


def rows(changes: Iterator[JudgeChange]) -> list[tuple[str, str, str, str, str]]:
    return sorted((one.kind, one.key, one.was, one.now, one.effect.value) for one in changes)


def ratio(value: float) -> Tolerance:
    return Tolerance(loss_ratio=value)


@pytest.mark.parametrize(
    ("changed", "row"),
    [
        (
            {"defaults": {"tpot_mean_ms": ratio(0.9), "output_tokens_per_s": ratio(0.05)}},
            ("5 %", "90 %", "looser"),
        ),
        (
            {"defaults": {"tpot_mean_ms": ratio(0.01), "output_tokens_per_s": ratio(0.05)}},
            ("5 %", "1 %", "stricter"),
        ),
        ({"defaults": {"output_tokens_per_s": ratio(0.05)}}, ("5 %", "not judged", "looser")),
        (
            {
                "defaults": {
                    "tpot_mean_ms": Tolerance(loss_absolute=3),
                    "output_tokens_per_s": ratio(0.05),
                }
            },
            ("5 %", "3 ms", "changed"),
        ),
    ],
)
def test_a_tolerance_is_compared_in_every_cell(
    changed: dict[str, Any], row: tuple[str, ...]
) -> None:
    gated = changed["defaults"] | {"weights_bytes": Tolerance(loss_absolute=0)}
    (found,) = rows(suite_changes(suite(), suite({"defaults": gated}), APPROVED))
    assert found == (
        "tolerance",
        "tpot_mean_ms of alpha-default-burst, alpha-default-chat, alpha-tuned-burst and 1 more",
        *row,
    )


def test_an_overlay_that_changes_nothing_but_the_noise_pool_is_a_row() -> None:
    own = {"configs": {"alpha": {"tuned": {"tpot_mean_ms": ratio(0.05)}}}}
    assert rows(suite_changes(suite(), suite(own), APPROVED)) == [
        ("noise pool", "tpot_mean_ms of alpha-tuned", "common", "separate", "changed")
    ]


@pytest.mark.parametrize(
    ("key", "value", "row"),
    [
        ("false_alarm_budget", 0.001, ("0.01", "0.001", "looser")),
        ("false_alarm_budget", 0.02, ("0.01", "0.02", "stricter")),
        ("missed_loss_budget", 0.2, ("0.05", "0.2", "looser")),
        ("cumulative_loss_cap_ratio", 0.9, ("0.1", "0.9", "looser")),
    ],
)
def test_error_rates(key: str, value: float, row: tuple[str, ...]) -> None:
    found = rows(suite_changes(suite(), suite({key: value}), APPROVED))
    assert found == [("error rate", key, *row)]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"configs": ("default",)},
            (
                "approved config",
                "alpha/tuned",
                "measured",
                "leaves the gate: alpha does not declare tuned",
                "looser",
            ),
        ),
        (
            {"refusals": ({"when": {"max_num_seqs": 1}, "reason": "made for a test"},)},
            ("approved config", "alpha/tuned", "measured", "leaves the gate: made for a", "looser"),
        ),
        (
            {"equivalences": ({"configs": ("default", "tuned"), "reason": "made for a test"},)},
            (
                "approved config",
                "alpha/tuned",
                "measured",
                "leaves the gate: resolves to the same engine as default",
                "looser",
            ),
        ),
        ({"workloads": ("chat",)}, ("cells", "alpha/tuned", "chat, burst", "chat", "looser")),
        (
            {"workloads": ("chat",), "workloads_on_request": ("burst",)},
            ("cells", "alpha/tuned", "burst", "burst on request only", "looser"),
        ),
        (
            {"candidates": ({"configs": ("tuned",), "reason": "made for a test"},)},
            (
                "cells",
                "alpha-tuned-chat, alpha-tuned-burst",
                "approved",
                "candidate: made for a test",
                "looser",
            ),
        ),
        (
            {"validity": {"foreign_cpu_ratio": 10}},
            ("validity rule", "alpha: foreign_cpu_ratio", "0.1", "10", "looser"),
        ),
        (
            {"validity": {"foreign_cpu_ratio": 0.01}},
            ("validity rule", "alpha: foreign_cpu_ratio", "0.1", "0.01", "stricter"),
        ),
        (
            {"validity": {"sm_clock_min_mhz": 900}},
            ("validity rule", "alpha: sm_clock_min_mhz", "off", "900", "stricter"),
        ),
        (
            {"measurement": {"mode": "baseline", "maximum_sessions": 1}},
            ("plan", "alpha: maximum_sessions", "3", "1", "looser"),
        ),
        (
            {"measurement": {"mode": "reference"}},
            ("plan", "alpha: mode", "baseline", "reference", "changed"),
        ),
        ({"reference": "tuned"}, ("target", "alpha: reference", "default", "tuned", "changed")),
        (
            {"environment": {"SLOW": "1"}},
            ("target", "alpha: environment.SLOW", "-", "1", "changed"),
        ),
    ],
)
def test_targets_plans_rules_and_cells(changes: dict[str, Any], found: tuple[str, ...]) -> None:
    given = rows(suite_changes(suite(), suite(**changes), APPROVED))
    assert any(
        all(text.startswith(start) for text, start in zip(row, found, strict=True)) for row in given
    ), given
    assert not rows(suite_changes(suite(**changes), suite(**changes), APPROVED))


def test_a_config_or_target_that_is_gone_and_a_new_one() -> None:
    fewer = suite_of([config("default", extends=None)], [target("beta")], [workload("chat")])
    fewer.targets["beta"] = fewer.targets["beta"].model_copy(update={"workloads": ("chat",)})
    assert rows(suite_changes(suite(), fewer, APPROVED)) == [
        (
            "approved config",
            f"alpha/{name}",
            "measured",
            "leaves the gate: the target is gone",
            "looser",
        )
        for name in ("default", "tuned")
    ] + [("cells", "beta/default", "-", "chat", "new")]


def test_a_workload_that_asks_for_less_is_a_row() -> None:
    loose, tight = suite(), suite()
    for held, ttft_ms in ((loose, 900.0), (tight, 100.0)):
        level = {"ttft_ms": ttft_ms, "tpot_ms": 50.0}
        held.workloads["chat"] = workload("chat", service_level=level)
    assert rows(suite_changes(tight, loose, APPROVED)) == [
        ("workload", "chat: service_level.ttft_ms", "100.0", "900.0", "looser")
    ]
    loose.workloads["chat"] = workload("chat", requests=1)
    assert ("workload", "chat: requests", "4", "1", "changed") in rows(
        suite_changes(tight, loose, APPROVED)
    )


def accepted(data: dict[str, Any]) -> Baseline:
    made = Baseline.model_validate(data)
    return made.model_copy(update={"digest": digest_of(made)})


KEY = ("alpha", "tuned")


def edited(made: Baseline, change: Callable[[dict[str, Any]], None]) -> Baseline:
    data = made.model_dump(mode="json")
    change(data)
    return accepted(data)


def first_metric(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["workloads"][0]["metrics"][0]
    return found


def slower(data: dict[str, Any]) -> None:
    entry = first_metric(data)
    for session in entry["sessions"]:
        session["value"] *= 1.1


def noisier(data: dict[str, Any]) -> None:
    sessions = first_metric(data)["sessions"]
    middle = sorted(session["value"] for session in sessions)[len(sessions) // 2]
    for session in sessions:
        session["value"] = (
            middle + 10 * (session["value"] - middle) + 1e-3 * (session is sessions[0])
        )


def milder_anchor(data: dict[str, Any]) -> None:
    entry = first_metric(data)
    entry["anchor_value"] *= 2


def fewer_metrics(data: dict[str, Any]) -> None:
    del data["workloads"][0]["metrics"][0]


def unlocked(data: dict[str, Any]) -> None:
    data["resolved_config"]["new_key"] = 1


def other_reason(data: dict[str, Any]) -> None:
    data["acceptance"]["reason"] = "another reason"


@pytest.mark.parametrize(
    ("change", "kind", "effect"),
    [
        (slower, "baseline", "looser"),
        (noisier, "baseline", "looser"),
        (milder_anchor, "baseline", "looser"),
        (fewer_metrics, "baseline", "looser"),
        (unlocked, "locked configuration", "changed"),
        (other_reason, "baseline", "changed"),
    ],
)
def test_a_rewritten_baseline_is_a_row(
    change: Callable[[dict[str, Any]], None], kind: str, effect: str
) -> None:
    was = accepted(baseline(config="tuned"))
    found = rows(baseline_changes({KEY: was}, {KEY: edited(was, change)}))
    assert [(row[0], row[4]) for row in found] == [(kind, effect)]
    assert not rows(baseline_changes({KEY: was}, {KEY: was}))


def left_out(baseline: Baseline, reason: str | None) -> Baseline:
    """With its first metric recorded and not judged."""
    part = baseline.workloads[0]
    omitted = {} if reason is None else {part.metrics[0].metric: reason}
    part = part.model_copy(update={"not_gated": omitted})
    made = baseline.model_copy(update={"workloads": (part, *baseline.workloads[1:])})
    return made.model_copy(update={"digest": digest_of(made)})


@pytest.mark.parametrize(
    ("was", "now", "effect"),
    [
        (None, "too noisy", "looser"),
        ("too noisy", None, "stricter"),
        ("too noisy", "another reason", "changed"),
    ],
)
def test_a_metric_that_leaves_the_gate_is_a_row(
    was: str | None, now: str | None, effect: str
) -> None:
    both = [left_out(accepted(baseline(config="tuned")), reason) for reason in (was, now)]
    found = rows(baseline_changes({KEY: both[0]}, {KEY: both[1]}))
    assert [(row[0], *row[2:]) for row in found] == [
        ("not gated", was or "gated", now or "gated", effect)
    ]
    part = both[0].workloads[0]
    assert found[0][1].endswith(f"{part.workload} {part.metrics[0].metric}")


def test_a_new_baseline_lists_what_it_does_not_gate() -> None:
    new = left_out(accepted(baseline(config="tuned")), "too noisy")
    assert [(row[0], row[3], row[4]) for row in rows(baseline_changes({}, {KEY: new}))][1:] == [
        ("not gated", "too noisy", "new")
    ]


def test_a_removed_a_new_and_a_damaged_baseline() -> None:
    was = accepted(baseline(config="tuned"))
    assert rows(baseline_changes({KEY: was}, {}))[0][3:] == ("removed", "looser")
    assert rows(baseline_changes({}, {KEY: was}))[0][4] == "new"
    assert rows(baseline_changes({KEY: was}, {KEY: "is not a baseline"}))[0][4] == "looser"
    by_hand = was.model_copy(update={"digest": "sha256:0"})
    said = "edited by hand: its digest does not fit"
    assert said in [row[3] for row in rows(baseline_changes({KEY: was}, {KEY: by_hand}))]


def waiver(**changes: Any) -> Waiver:
    given = {"target": "alpha", "config": "tuned", "workload": "chat", "metric": "tpot_mean_ms"}
    given |= {"owner": "ann", "build": "0.32", "reason": "made for a test"}
    return Waiver.model_validate({**given, "expires_on": "2026-06-01", **changes})


@pytest.mark.parametrize(
    ("was", "now", "effect"),
    [
        ([], [waiver()], "looser"),
        ([waiver()], [], "stricter"),
        ([waiver()], [waiver(expires_on="2026-07-01")], "looser"),
        ([waiver()], [waiver(), waiver(expires_on="9999-12-31")], "looser"),
        ([waiver()], [waiver(expires_on="2026-05-01")], "stricter"),
        ([waiver(largest_loss_ratio=0.1)], [waiver()], "looser"),
        ([waiver(largest_loss_ratio=0.1)], [waiver(largest_loss_ratio=0.05)], "stricter"),
        ([waiver()], [waiver(owner="bob")], "changed"),
    ],
)
def test_a_waiver_is_a_row(was: list[Waiver], now: list[Waiver], effect: str) -> None:
    (found,) = rows(waiver_changes(was, now))
    assert (found[0], found[4]) == ("waiver", effect)
    assert found[1] == "alpha-tuned-chat tpot_mean_ms of 0.32"


def test_a_hostile_name_is_shown_as_text() -> None:
    (made,) = waiver_changes([], [waiver(reason="<img> | @team [x](http://x) \n## y")])
    for shown in (markdown_table([made], acknowledged=False), text_table([made])):
        assert len(shown.splitlines()) < 12
    shown = markdown_table([made], acknowledged=False)
    for raw in ("<img>", "@team", "](http", "\n## y"):
        assert raw not in shown


def judged(*arguments: str) -> int:
    return run("ci", "check-judge", "--base", "main", *arguments)


def write_tolerance(checkout: Path, ratio: float) -> None:
    (checkout / "perf_tests" / "tolerances.yaml").write_text(
        yaml.safe_dump({"schema_version": 1, "defaults": {"tpot_mean_ms": {"loss_ratio": ratio}}})
    )


def test_a_finding_has_its_own_status_until_a_person_acknowledges_the_commit(
    checkout: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert judged() == ExitStatus.OK
    assert capsys.readouterr().out == "0 changes of the judge, 0 to acknowledge\n"
    write_tolerance(checkout, 0.9)
    assert judged() == ExitStatus.JUDGE_CHANGED
    found = capsys.readouterr()
    assert "looser  tolerance  tpot_mean_ms of alpha-default-burst" in found.out
    assert "let a person read the table" in found.err
    git(checkout, "commit", "--quiet", "--all", "--message", "looser")
    commit = git(checkout, "rev-parse", "HEAD")
    for wrong in ("HEAD", commit[:12], git(checkout, "rev-parse", "main"), ""):
        with pytest.raises(UsageError, match="--acknowledge"):
            judged("--acknowledge", wrong)
    output = tmp_path / "judge.md"
    options = ("--format", "markdown", "--output", str(output))
    assert judged(*options) == ExitStatus.JUDGE_CHANGED
    assert "A person must acknowledge the rows in bold" in output.read_text()
    assert judged("--acknowledge", commit, *options) == ExitStatus.OK
    assert "Acknowledged by a person" in output.read_text()
    write_tolerance(checkout, 0.95)
    with pytest.raises(UsageError, match="without changed files"):
        judged("--acknowledge", commit)
    git(checkout, "commit", "--quiet", "--all", "--message", "looser still")
    with pytest.raises(UsageError, match=f"the change is {git(checkout, 'rev-parse', 'HEAD')}"):
        judged("--acknowledge", commit)


def test_stricter_rules_need_no_acknowledgement(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tolerance(checkout, 0.01)
    assert judged() == ExitStatus.OK
    assert "1 changes of the judge, 0 to acknowledge" in capsys.readouterr().out


def test_a_head_is_read_from_git_and_never_from_the_work_tree(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / "perf_tests" / "configs" / "seqs_1.yaml"
    path.unlink()
    named = {"alpha/seqs_2": "x", "notes/rates.yaml": "y"}
    (checkout / "baselines" / "alpha" / "seqs_2.json").write_bytes(
        written(baseline(config="seqs_1"))
    )
    (checkout / "baselines" / "alpha" / "found_rates.yaml").write_text(str(named))
    until = str(datetime.now(UTC).date() + timedelta(days=91))
    (checkout / "baselines" / "waivers.yaml").write_text(
        yaml.safe_dump([{**waiver(config="seqs_2").model_dump(), "expires_on": until}])
    )
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "worse")
    git(checkout, "checkout", "--quiet", "main")
    assert judged() == ExitStatus.OK
    assert judged("--head", "topic") == ExitStatus.JUDGE_CHANGED
    found = capsys.readouterr().out
    for said in (
        "looser   approved config  alpha/seqs_1",
        "is the baseline of alpha/seqs_1",
        "baselines/alpha/found_rates.yaml",
        "baselines/waivers.yaml at '0.expires_on': a waiver lasts at",
    ):
        assert said in found, found


def test_a_suite_that_cannot_be_read_is_a_finding(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "perf_tests" / "tolerances.yaml").write_text("schema_version: 2\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "of the next release")
    with pytest.raises(UsageError, match="schema_version"):
        judged()
    assert judged("--head", "topic") == ExitStatus.JUDGE_CHANGED
    assert "changed  file  perf_tests  read  perf_tests/tolerances.yaml" in capsys.readouterr().out
