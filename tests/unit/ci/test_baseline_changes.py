"""The guard of the committed baselines: what a pull request may not do to them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from k3perf.baselines.changes import BaselineChange, Finding, check, moved
from k3perf.records.baseline import Baseline, digest_of

PATH = "baselines/alpha/tuned.json"
COLLECTED = frozenset({("alpha", "tuned"), ("alpha", "default")})


def baseline(
    values: dict[str, float] | None = None, reason: str = "first recorded sessions", **changes: Any
) -> dict[str, Any]:
    acceptance = {
        "accepted_by": "someone",
        "reason": reason,
        "accepted_at_utc": "2026-11-29T00:00:00Z",
        "commit": "c" * 40,
        "run_ids": ["run-1"],
    }
    given = values or {"tpot_mean_ms": 28.0, "output_tokens_per_s": 3378.0}
    metrics = [
        {
            "metric": name,
            "unit": "u",
            "basis": "absolute",
            "anchor_value": value,
            "sessions": [
                {"session_id": f"s{index}", "value": max(value + index, 0.0)}
                for index in (-1, 0, 1)
            ],
        }
        for name, value in given.items()
    ]
    exact = {"metric": "weights_bytes", "unit": "bytes", "basis": "absolute", "anchor_value": 100.0}
    data = {
        "schema_version": 1,
        "target": "alpha",
        "config": "tuned",
        "hardware_class": "h200",
        "versions": {"vllm": "0.33.0"},
        "resolved_config": {},
        "exact": [{**exact, "sessions": [{"session_id": "s0", "value": 100.0}]}],
        "workloads": [{"workload": "chat", "plan_digest": "d", "metrics": metrics}],
        "acceptance": acceptance,
        "anchor_acceptance": acceptance,
        "digest": "",
    }
    return data | changes


def written(data: dict[str, Any]) -> bytes:
    """As ``accept`` writes it: with the digest of its content."""
    model = Baseline.model_validate(data)
    return model.model_copy(update={"digest": digest_of(model)}).model_dump_json().encode()


def findings(old: bytes | None, new: bytes | None, path: str = PATH) -> tuple[Finding, ...]:
    return check([BaselineChange(path, old, new)], collected=COLLECTED)


OLD = written(baseline())


def test_a_new_one_and_an_improvement_pass() -> None:
    assert findings(None, OLD) == ()
    assert (
        findings(OLD, written(baseline({"tpot_mean_ms": 20.0, "output_tokens_per_s": 4000.0})))
        == ()
    )
    assert findings(OLD, OLD) == ()


def test_a_hand_edit_is_found() -> None:
    data = json.loads(OLD)
    data["workloads"][0]["metrics"][0]["sessions"][0]["value"] = 99.0
    (found,) = findings(None, json.dumps(data).encode())
    assert "edited by hand" in found.problem
    assert "k3perf baseline accept" in found.next_step


@pytest.mark.parametrize(
    "values",
    [
        {"tpot_mean_ms": 29.0, "output_tokens_per_s": 3378.0},
        {"tpot_mean_ms": 28.0, "output_tokens_per_s": 3000.0},
    ],
)
def test_a_loss_needs_a_reason_of_its_own(values: dict[str, float]) -> None:
    (found,) = findings(OLD, written(baseline(values)))
    assert "accepts losses but keeps the old reason (chat " in found.problem
    assert (
        findings(OLD, written(baseline(values, reason="the new kernel trades speed for accuracy")))
        == ()
    )
    (spaces,) = findings(OLD, written(baseline(values, reason=" first recorded sessions ")))
    assert "keeps the old reason" in spaces.problem


def test_a_vanished_metric_needs_a_reason() -> None:
    (found,) = findings(OLD, written(baseline({"tpot_mean_ms": 28.0})))
    assert "chat output_tokens_per_s gone" in found.problem


def test_another_name_than_its_place_is_found() -> None:
    (found,) = findings(None, OLD, "baselines/alpha/default.json")
    assert found.problem == "holds the baseline of alpha/tuned"


def test_deleting_is_allowed_only_with_the_config() -> None:
    (found,) = findings(OLD, None)
    assert "alpha still measures tuned" in found.problem
    assert findings(OLD, None, "baselines/alpha/retired.json") == ()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"schema_version": 2}', b" " * ((8 << 20) + 1), b"\xff"]
)
def test_what_is_no_baseline_is_refused(content: bytes) -> None:
    (found,) = findings(OLD, content)
    assert found.problem.startswith(("is not a baseline", "has "))


@pytest.mark.parametrize(
    "path", ["baselines/notes.json", "baselines/a/b/c.json", "baselines/alpha/tuned.yaml"]
)
def test_nothing_else_lies_among_the_baselines(path: str) -> None:
    (found,) = findings(None, OLD, path)
    assert "is not of the form" in found.problem


def test_an_unreadable_old_file_hides_no_hand_edit() -> None:
    assert findings(b"{", OLD) == ()
    assert findings(b"{", b"{") != ()


def test_moved_names_every_metric_that_differs() -> None:
    old, new = (
        Baseline.model_validate(baseline(values))
        for values in (
            {"tpot_mean_ms": 20.0, "itl_p50_ms": 1.0},
            {"tpot_mean_ms": 22.0, "itl_p90_ms": 2.0},
        )
    )
    rows = {row.metric: row for row in moved(old, new)}
    assert rows["tpot_mean_ms"].loss_ratio == pytest.approx(0.1)
    assert (
        rows["itl_p50_ms"].old_value,
        rows["itl_p50_ms"].new_value,
        rows["itl_p50_ms"].loss_ratio,
    ) == (1.0, None, None)
    assert (rows["itl_p90_ms"].old_value, rows["itl_p90_ms"].new_value) == (None, 2.0)
    assert "weights_bytes" not in rows
    zero, one = (Baseline.model_validate(baseline({"tpot_mean_ms": value})) for value in (0.0, 1.0))
    (row,) = moved(zero, one)
    assert (row.worse, row.loss_ratio) == (True, None)
    (back,) = moved(one, zero)
    assert (back.worse, back.loss_ratio) == (False, -1.0)
