"""Shards to one verdict: nothing lost in silence, nothing washed away, the error budget
kept.
"""

from __future__ import annotations

import pytest

from k3perf.ci.merging import LOST_RULE, UNJUDGED_RULE, merge, retry_shards
from k3perf.errors import UsageError
from k3perf.records.outcome import Outcome

from .verdicts import cell, entry, invalid, metric, plan, regressed, verdict


def test_a_lost_shard_makes_its_cells_invalid_never_absent() -> None:
    planned = plan("alpha-one-chat", "alpha-two-chat", "alpha-three-chat")
    merged = merge(
        planned, [verdict(cell("one"), gated=3)], lost="b/verdict.json: is no verdict file"
    )
    assert [found.cell_id for found in merged.cells] == [
        "alpha-one-chat",
        "alpha-two-chat",
        "alpha-three-chat",
    ]
    assert [found.outcome for found in merged.cells] == [
        Outcome.PASS,
        Outcome.INVALID,
        Outcome.INVALID,
    ]
    assert merged.cells[1].invalid_reasons[0].rule == LOST_RULE
    assert "b/verdict.json" in merged.cells[1].invalid_reasons[0].text
    assert merged.outcome is Outcome.INVALID


def test_no_result_at_all_is_invalid_and_an_empty_plan_passes() -> None:
    assert merge(plan("alpha-one-chat"), []).outcome is Outcome.INVALID
    assert merge(plan(), []).outcome is Outcome.PASS


def test_cells_come_in_the_plans_order_and_strangers_last() -> None:
    planned = plan("alpha-one-chat", "alpha-two-chat")
    merged = merge(
        planned, [verdict(cell("two"), cell("stray"), gated=3), verdict(cell("one"), gated=3)]
    )
    assert [found.config for found in merged.cells] == ["one", "two", "stray"]
    assert merged.cells[2].notes == ("measured, but not in the plan",)


def test_a_retry_replaces_an_invalid_result_in_either_order() -> None:
    planned = plan("alpha-one-chat")
    for files in (
        [verdict(invalid("one")), verdict(cell("one"))],
        [verdict(cell("one")), verdict(invalid("one"))],
    ):
        merged = merge(planned, files)
        assert merged.outcome is Outcome.PASS
        assert "INVALID (throttled)" in merged.cells[0].notes[0]


def test_a_retry_cannot_wash_a_loss_away() -> None:
    planned = plan("alpha-one-chat", gated_metric_count=2)
    for files in ([verdict(cell("one", regressed()), gated=2), verdict(cell("one"), gated=2)],) * 2:
        merged = merge(planned, files)
        assert merged.outcome is Outcome.REGRESSED
        assert merged.cells[0].notes == ("measured twice; the worse result counts",)


def test_invalid_twice_stays_invalid() -> None:
    merged = merge(
        plan("alpha-one-chat"), [verdict(invalid("one")), verdict(invalid("one", rule="dirty"))]
    )
    assert merged.outcome is Outcome.INVALID
    assert merged.cells[0].notes == ("measured twice, INVALID both times",)


def test_shards_judged_under_the_whole_plans_count_keep_the_budget() -> None:
    names = [f"alpha-c{index}-chat" for index in range(8)]
    shards = [
        verdict(
            cell(f"c{index}", metric(alpha=0.01 / 8), metric("weights_bytes", alpha=None)), gated=8
        )
        for index in range(8)
    ]
    merged = merge(plan(*names), shards)
    assert merged.false_alarm_budget == 0.01
    assert merged.gated_metric_count == 8


def test_shards_that_each_spent_the_whole_budget_are_refused() -> None:
    shards = [verdict(cell("one", metric(alpha=0.01))), verdict(cell("two", metric(alpha=0.01)))]
    with pytest.raises(UsageError, match=r"0\.02, the suite's is 0\.01.*--k3-gated-metric-count"):
        merge(plan("alpha-one-chat", "alpha-two-chat"), shards)


def test_provenance_shows_a_mixture() -> None:
    merged = merge(
        plan("alpha-one-chat", "alpha-two-chat"),
        [
            verdict(cell("one"), gated=2),
            verdict(
                cell("two"), gated=2, vllm_version="0.34.0", created_at_utc="2026-11-29T11:00:00Z"
            ),
        ],
    )
    assert merged.vllm_version == "0.33.0, 0.34.0"
    assert merged.created_at_utc == "2026-11-29T11:00:00Z"


def test_shards_of_one_commit_are_merged_however_each_names_it() -> None:
    full = "9bf9beb" + "1" * 33
    planned = plan("alpha-one-chat", "alpha-two-chat")
    short, other = (
        verdict(cell("two"), gated=2, commit=full[:7]),
        verdict(cell("two"), gated=2, commit=f"{full}-dirty"),
    )
    for files in (
        [verdict(cell("one"), gated=2, commit=full), short],
        [short, verdict(cell("one"), gated=2, commit=full)],
    ):
        assert merge(planned, files).commit == full
    with pytest.raises(UsageError, match="2 commits"):
        merge(planned, [verdict(cell("one"), gated=2, commit=full), other])


def test_merged_document_dumps_its_outcomes() -> None:
    dumped = merge(
        plan("alpha-one-chat"), [verdict(cell("one", regressed(), metric("ttft_mean_ms")))]
    ).dump()
    assert dumped["outcome"] == dumped["cells"][0]["outcome"] == "REGRESSED"


def test_retry_takes_invalid_cells_to_another_pool() -> None:
    shards = {"h200-0": ("alpha-one-chat", "alpha-two-chat"), "h200-1": ("alpha-three-chat",)}
    planned = plan("alpha-one-chat", "alpha-two-chat", "alpha-three-chat", shards=shards)
    merged = merge(planned, [verdict(cell("one"), invalid("two"), cell("three"), gated=3)])
    (retry,) = retry_shards(planned, merged, ("a", "b"), {"h200-0": "a"})
    assert retry.cells == ("alpha-two-chat",)
    assert retry.pool == "b"
    assert retry.shard == "h200-0-retry"
    assert retry.minutes == 5.0
    assert retry_shards(planned, merged, ("a", "b"), {"h200-0": "b"})[0].pool == "a"
    assert retry_shards(planned, merged, ("a",), {"h200-0": "a"})[0].pool == "", (
        "with one pool any runner may take it"
    )
    clean = merge(planned, [verdict(cell("one"), cell("two"), cell("three"), gated=3)])
    assert retry_shards(planned, clean, ("a", "b"), {}) == ()


def test_entry_of_the_merged_document_is_found_by_cell_id() -> None:
    merged = merge(plan("alpha-one-chat"), [verdict(cell("one"))])
    assert entry(merged, "alpha-one-chat").config == "one"


def test_a_cell_that_judged_nothing_does_not_pass() -> None:
    recorded = cell("one", notes=["6 sessions recorded, not judged"]) | {"metrics": []}
    merged = merge(plan("alpha-one-chat"), [verdict(recorded)])
    assert merged.outcome is Outcome.INVALID
    assert merged.cells[0].invalid_reasons[0].rule == UNJUDGED_RULE
    empty = cell("one", missing="no baseline") | {"metrics": []}
    assert merge(plan("alpha-one-chat"), [verdict(empty)]).outcome is Outcome.NO_BASELINE


def test_a_file_that_is_given_twice_counts_once() -> None:
    shard = verdict(cell("one", metric(alpha=0.01)))
    copy = verdict(cell("one", metric(alpha=0.01)))
    merged = merge(plan("alpha-one-chat"), [shard, copy])
    assert (merged.outcome, merged.cells[0].notes) == (Outcome.PASS, ())


def test_shards_of_several_commits_are_refused() -> None:
    """Else an artefact of an older commit, which passed, would stand for the new one's
    lost shard.
    """
    old = verdict(cell("two"), gated=2, commit="f" * 40)
    with pytest.raises(UsageError, match=r"from 2 commits.*ffff.*Merge those of one commit"):
        merge(plan("alpha-one-chat", "alpha-two-chat"), [verdict(cell("one"), gated=2), old])
