"""The verdict file: the gate's own verdicts fit it, and a hostile one is refused
without being quoted.
"""

from __future__ import annotations

import json

import pytest

from k3perf.documents import LARGEST_FOREIGN_BYTES, foreign_record
from k3perf.errors import UsageError
from k3perf.records.outcome import Outcome
from k3perf.records.plan_file import PlanDocument
from k3perf.records.samples import EngineFailure, InvalidReason
from k3perf.records.verdict import (
    CellVerdict,
    ConfigDifference,
    MetricVerdict,
    VerdictDocument,
)

from .verdicts import cell, metric, plan, verdict


def parse_verdict(content: bytes) -> VerdictDocument:
    return foreign_record(
        VerdictDocument, content, "shard/verdict.json", "a verdict file", "Give another."
    )


def test_every_field_of_the_gates_verdict_is_read() -> None:
    judged = MetricVerdict(
        "ttft_mean_ms",
        "ms",
        Outcome.REGRESSED,
        10.0,
        12.0,
        0.2,
        0.1,
        0.3,
        0.05,
        None,
        True,
        True,
        0.04,
        3,
        12,
        0.001,
        "slower",
    )
    given = CellVerdict(
        "alpha",
        "tuned",
        "chat",
        "baseline",
        (judged,),
        differences=(ConfigDifference("block_size", 16, [1, None], "hybrid"),),
        invalid_reasons=(
            InvalidReason("throttled", "clocks fell", 1.0, 2.0),
            InvalidReason(
                "engine_died",
                "it died",
                failure=EngineFailure("it died", "ValueError", "/run/engine.log", ("a", "b")),
            ),
        ),
        missing="none recorded",
        notes=("a note",),
    )
    run = VerdictDocument(
        schema_version=1,
        run_id="r",
        commit="c",
        created_at_utc="t",
        false_alarm_budget=0.01,
        gated_metric_count=1,
        cells=(given,),
    )
    assert parse_verdict(run.to_json().encode()) == run
    assert run.outcome is Outcome.REGRESSED
    assert json.loads(run.to_json())["cells"][0]["outcome"] == "REGRESSED"


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"differences": [{"key": "a", "was": 1, "now": 2}]}, Outcome.CONFIG_DRIFT),
        ({"missing": "no file"}, Outcome.NO_BASELINE),
        ({"invalid_reasons": [{"rule": "r", "text": "t"}]}, Outcome.INVALID),
        ({}, Outcome.PASS),
        ({"outcome": "PASS", "missing": "no file"}, Outcome.NO_BASELINE),
    ],
)
def test_the_outcome_is_joined_anew(changes: dict[str, object], outcome: Outcome) -> None:
    assert verdict(cell("tuned", **changes)).outcome is outcome


def test_round_trip() -> None:
    document = verdict(
        cell("tuned", metric(), metric("weights_bytes", unit="bytes", loss_ratio=None))
    )
    assert parse_verdict(document.to_json().encode()) == document


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps(verdict(cell()).dump() | {"schema_version": 2}).encode(),
        json.dumps(verdict(cell()).dump() | {"cells": "SECRET"}).encode(),
        json.dumps(verdict(cell()).dump() | {"run_id": "SECRET" * 100}).encode(),
        json.dumps(verdict(cell()).dump() | {"false_alarm_budget": float("nan")}).encode(),
        json.dumps(verdict(cell()).dump() | {"gated_metric_count": -1}).encode(),
        json.dumps(verdict(cell()).dump()).replace("28.0", "1e999").encode(),
        json.dumps(verdict(cell()).dump()).replace('"PASS"', '"SECRET"').encode(),
        json.dumps(
            verdict(*[cell(f"c{index}") for index in range(2)]).dump() | {"cells": [{}] * 6_000}
        ).encode(),
    ],
)
def test_hostile_files_are_refused_by_name_without_being_quoted(content: bytes) -> None:
    with pytest.raises(UsageError) as caught:
        parse_verdict(content)
    message = str(caught.value)
    assert message.startswith("shard/verdict.json")
    assert "SECRET" not in message
    assert len(message) < 500
    assert "\n" not in message


def test_too_large_a_file_is_refused_before_parsing() -> None:
    with pytest.raises(UsageError, match="at most"):
        parse_verdict(b" " * (LARGEST_FOREIGN_BYTES + 1))


def test_unknown_keys_of_a_newer_writer_are_ignored() -> None:
    data = verdict(cell()).dump()
    data["invented_later"] = 1
    data["cells"][0]["metrics"][0]["invented_later"] = 1
    assert isinstance(parse_verdict(json.dumps(data).encode()), VerdictDocument)


def test_a_strangers_key_is_named_only_where_it_is_a_plain_word() -> None:
    def refused(data: dict[str, object]) -> str:
        with pytest.raises(UsageError) as caught:
            foreign_record(PlanDocument, json.dumps(data).encode(), "plan.json", "a plan", "Stop.")
        return str(caught.value)

    assert refused({"<b>SECRET": 1} | json.loads(plan().model_dump_json())) == (
        "plan.json is not a plan: extra_forbidden. Stop."
    )
    assert refused({}) == "plan.json is not a plan: missing at false_alarm_budget. Stop."
