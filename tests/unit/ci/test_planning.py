"""The plan: costs, budget and shards."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from k3perf.ci.costs import (
    UNRECORDED_SESSION_S,
    UNRECORDED_START_S,
    CostBasis,
    CostModel,
    RecordedCosts,
    record_costs,
)
from k3perf.ci.planning import EngineGroup, fit_budget, gated_metric_count, group_engines, split
from k3perf.ci.selection import ChangedPath, Priority, select, select_all
from k3perf.cli.plan_command import register
from k3perf.config.suite import Suite, load_suite
from k3perf.errors import ConfigFileError, UsageError
from k3perf.records.samples import (
    Arm,
    EngineIdentity,
    RoundKind,
    RoundRecord,
    SessionRecord,
    StageTiming,
)

from .conftest import config, suite_of, target, workload


def suite_of_groups(group_count: int, workloads_each: int, target_count: int = 1) -> Suite:
    configs = [config("default", extends=None)] + [
        config(f"tuned_{index}") for index in range(group_count // target_count - 1)
    ]
    loads = [workload(f"load-{index}") for index in range(workloads_each)]
    targets = [
        target(f"target-{index}", workloads=tuple(load.name for load in loads))
        for index in range(target_count)
    ]
    return suite_of(configs, targets, loads)


def recorded_at_random(suite: Suite, seed: int) -> RecordedCosts:
    dice = random.Random(seed)
    cells = suite.cells()
    return RecordedCosts(
        session_s={cell.cell_id: dice.lognormvariate(5, 0.6) for cell in cells},
        engine_start_s={
            f"{cell.target.name}/{cell.config.name}": dice.uniform(30, 160) for cell in cells
        },
    )


@pytest.mark.parametrize("seed", range(5))
def test_200_cells_over_8_shards_are_balanced_and_planned_in_under_a_second(seed: int) -> None:
    suite = suite_of_groups(50, 4, target_count=2)
    cells = select_all(suite, "asked for").cells
    assert len(cells) == 200
    costs = CostModel(recorded_at_random(suite, seed))
    started = time.process_time()  # a busy machine takes longer on the wall
    shards = split(fit_budget(cells, costs, None).groups, 8)
    assert time.process_time() - started < 1.0
    durations = [shard.duration_s for shard in shards]
    assert len(shards) == 8
    assert max(durations) <= 1.10 * sum(durations) / 8
    assert sorted(cell for shard in shards for cell in shard.cell_ids) == sorted(
        entry.cell.cell_id for entry in cells
    )


def test_engines_stay_whole() -> None:
    suite = suite_of_groups(9, 3)
    shards = split(
        group_engines(select_all(suite, "x").cells, CostModel(recorded_at_random(suite, 1))), 4
    )
    owners = Counter((group.target, group.config) for shard in shards for group in shard.groups)
    assert set(owners.values()) == {1}
    assert all(len(group.cells) == 3 for shard in shards for group in shard.groups)


@pytest.mark.parametrize(
    ("lengths", "shard_count", "best"),
    [
        pytest.param((5, 5, 4, 4, 3, 3, 3), 3, 9, id="swap: longest first alone gives 11"),
        pytest.param(
            (19, 15, 14, 9, 8, 1), 2, 33, id="swap, then a move: longest first alone gives 36"
        ),
    ],
)
def test_refinement_beats_plain_longest_first(
    lengths: tuple[int, ...], shard_count: int, best: int
) -> None:
    suite = suite_of_groups(len(lengths), 1)
    by_config = dict(zip(suite.configs, lengths, strict=True))
    costs = RecordedCosts(
        session_s={cell.cell_id: by_config[cell.config.name] - 0.5 for cell in suite.cells()},
        engine_start_s={f"target-0/{name}": 0.5 for name in by_config},
    )
    shards = split(group_engines(select_all(suite, "x").cells, CostModel(costs)), shard_count)
    assert max(shard.duration_s for shard in shards) == pytest.approx(best)


@given(
    costs=st.lists(st.floats(1, 10_000), min_size=1, max_size=40), shard_count=st.integers(1, 12)
)
@settings(max_examples=150, deadline=None)
def test_split_loses_nothing_and_never_exceeds_grahams_bound(
    costs: list[float], shard_count: int
) -> None:
    suite = suite_of_groups(len(costs), 1)
    cells = select_all(suite, "x").cells
    groups = tuple(
        EngineGroup("target-0", entry.cell.config.name, "h200", (entry,), 0.0, (cost,), 1)
        for entry, cost in zip(cells, costs, strict=True)
    )
    shards = split(groups, shard_count)
    assert sorted(cell for shard in shards for cell in shard.cell_ids) == sorted(
        entry.cell.cell_id for entry in cells
    )
    assert all(shard.groups for shard in shards)
    lower_bound = max(*costs, sum(costs) / min(shard_count, len(costs)))
    assert max(shard.duration_s for shard in shards) <= lower_bound * 4 / 3 + max(costs)


def test_shards_never_mix_hardware_classes(sixty_cells: Suite) -> None:
    shards = split(group_engines(select_all(sixty_cells, "x").cells, CostModel(RecordedCosts())), 3)
    assert Counter(shard.hardware_class for shard in shards) == {"h200": 3, "cpu-avx512": 3}
    for shard in shards:
        assert {group.hardware_class for group in shard.groups} == {shard.hardware_class}


def test_costs_fall_back_to_the_median_of_relatives_then_to_the_default() -> None:
    suite = suite_of_groups(4, 2)
    cells = {cell.cell_id: cell for cell in suite.cells()}
    recorded = RecordedCosts(
        session_s={"target-0-default-load-0": 100, "target-0-tuned_0-load-0": 300},
        engine_start_s={"target-0/default": 50},
    )
    costs = CostModel(recorded)
    assert costs.cell_s(cells["target-0-default-load-0"]) == 100
    assert costs.cell_s(cells["target-0-tuned_1-load-0"]) == 200
    assert costs.cell_s(cells["target-0-tuned_1-load-1"]) == UNRECORDED_SESSION_S
    assert costs.start_s(cells["target-0-tuned_1-load-0"]) == 50
    assert (
        CostModel(RecordedCosts()).start_s(cells["target-0-tuned_1-load-0"]) == UNRECORDED_START_S
    )
    with pytest.raises(ValidationError):
        RecordedCosts(session_s={"a": -1})


def test_budget_keeps_the_near_cells_and_names_what_it_leaves_out(sixty_cells: Suite) -> None:
    chosen = select(sixty_cells, [ChangedPath("perf_tests/configs/tuned_3.yaml")]).cells
    direct = [entry for entry in chosen if entry.priority is Priority.DIRECT]
    costs = CostModel(RecordedCosts())
    direct_s = sum(group.device_s for group in group_engines(direct, costs))
    fitted = fit_budget(chosen, costs, direct_s + UNRECORDED_START_S + UNRECORDED_SESSION_S + 1)
    kept = [entry for group in fitted.groups for entry in group.cells]
    assert {entry.cell.cell_id for entry in direct} < {entry.cell.cell_id for entry in kept}
    assert len(kept) == len(direct) + 1
    assert len(kept) + len(fitted.left_out) == len(chosen)
    assert "device minutes" in fitted.left_out[0][1]
    assert not fitted.over_budget


def test_directly_touched_cells_survive_any_budget(sixty_cells: Suite) -> None:
    chosen = select(sixty_cells, [ChangedPath("perf_tests/configs/tuned_5.yaml")]).cells
    fitted = fit_budget(chosen, CostModel(RecordedCosts()), 1.0)
    assert sum(len(group.cells) for group in fitted.groups) == len(chosen)
    assert fitted.left_out == ()
    assert fitted.over_budget


def test_wide_change_measures_every_config_once_before_any_twice() -> None:
    suite = suite_of_groups(6, 2)
    chosen = select_all(suite, "x").cells
    fitted = fit_budget(
        chosen, CostModel(RecordedCosts()), 6 * (UNRECORDED_START_S + UNRECORDED_SESSION_S) + 1
    )
    assert [len(group.cells) for group in fitted.groups] == [1] * 6


def test_devices_count_into_the_budget() -> None:
    suite = suite_of(
        [config("default", extends=None)],
        [
            target(
                "big",
                hardware={"kind": "nvidia", "hardware_class": "h200x8", "device_count": 8},
                workloads=("chat",),
            )
        ],
        [workload("chat")],
    )
    (group,) = group_engines(select_all(suite, "x").cells, CostModel(RecordedCosts()))
    assert group.device_s == 8 * group.duration_s == 8 * (UNRECORDED_START_S + UNRECORDED_SESSION_S)
    assert (
        fit_budget(
            select_all(suite, "x").cells, CostModel(RecordedCosts()), group.device_s - 1
        ).groups
        == ()
    )


def test_the_devices_of_several_hosts_are_counted_once() -> None:
    hardware = {"kind": "nvidia", "hardware_class": "h200x16", "device_count": 16, "host_count": 2}
    suite = suite_of(
        [config("default", extends=None)],
        [target("wide", hardware=hardware, workloads=("chat",))],
        [workload("chat")],
    )
    costs = CostModel(
        RecordedCosts(engine_start_s={"wide/default": 60}, session_s={"wide-default-chat": 60})
    )
    (selected,) = select_all(suite, "test").cells
    wide = replace(selected, priority=Priority.WIDE)
    assert fit_budget([wide], costs, 16 * 120).left_out == ()
    ((_, reason),) = fit_budget([wide], costs, 16 * 120 - 1).left_out
    assert reason.startswith("needs 32.0 device minutes")
    (group,) = fit_budget([wide], costs, None).groups
    assert group.device_s == 16 * 120


def test_nothing_selected_is_an_empty_plan(sixty_cells: Suite) -> None:
    assert split(fit_budget((), CostModel(RecordedCosts()), 10.0).groups, 4) == ()


def test_gated_metrics_are_counted_over_the_whole_plan(sixty_cells: Suite) -> None:
    groups = group_engines(select_all(sixty_cells, "x").cells, CostModel(RecordedCosts()))
    assert gated_metric_count(sixty_cells, groups) == 60 * 2, (
        "exact metrics spend nothing of the budget"
    )


def session(
    session_id: str,
    config: str,
    arm: Arm,
    start_s: float,
    rounds: tuple[tuple[int, int], ...],
    **changes: Any,
) -> SessionRecord:
    made = SessionRecord(
        session_id=session_id,
        target="alpha",
        config=config,
        workload="chat",
        plan_digest="d",
        arm=arm,
        started_at_utc="2026-11-29T00:00:00Z",
        identity=EngineIdentity("0.33.0", "3.12", "2.11", "h200", (), None, "host"),
        resolved_config={},
        stages=(StageTiming("load", start_s / 2), StageTiming("ready", start_s / 2)),
        memory=(),
        rounds=tuple(
            RoundRecord(index, RoundKind.MEASURED, begin * 10**9, end * 10**9, ())
            for index, (begin, end) in enumerate(rounds)
        ),
    )
    return replace(made, **changes)


def test_costs_are_medians_over_sessions_with_the_reference_beside_them() -> None:
    costs = record_costs(
        [
            session("a", "tuned", Arm.CANDIDATE, 60, ((100, 110), (120, 130))),
            session("b", "tuned", Arm.CANDIDATE, 80, ((200, 240),), pair_id="p"),
            session("c", "tuned", Arm.REFERENCE, 500, ((190, 200), (240, 250)), pair_id="p"),
            session("d", "tuned", Arm.CANDIDATE, 100, ((300, 350),)),
            session("no rounds", "tuned", Arm.CANDIDATE, 100, ()),
            session("adopted", "spare", Arm.CANDIDATE, 0, ()),
        ],
        runs=("two", "one", "two"),
    )
    assert costs == RecordedCosts(
        runs=("one", "two"), engine_start_s={"alpha/tuned": 80}, session_s={"alpha-tuned-chat": 50}
    )


def test_the_start_of_an_engine_that_serves_several_cells_counts_once() -> None:
    shared = [
        session(
            f"s{load}", "tuned", Arm.CANDIDATE, 90, ((load, load + 1),), workload=f"load_{load}"
        )
        for load in range(3)
    ]
    own = [
        session(
            f"o{index}",
            "tuned",
            Arm.CANDIDATE,
            30,
            (),
            started_at_utc=f"2026-11-29T01:0{index}:00Z",
        )
        for index in range(2)
    ]
    assert record_costs([*shared, *own]).engine_start_s == {"alpha/tuned": 30}


def test_a_cells_minutes_say_what_they_rest_on() -> None:
    suite = suite_of_groups(3, 2)
    cells = {cell.cell_id: cell for cell in suite.cells()}
    costs = CostModel(
        RecordedCosts(session_s={"target-0-tuned_0-load-0": 10, "target-0-more-tuned_0-load-1": 10})
    )
    assert costs.basis(cells["target-0-tuned_0-load-0"]) is CostBasis.MEASURED
    assert costs.basis(cells["target-0-tuned_1-load-0"]) is CostBasis.RELATED
    assert costs.basis(cells["target-0-tuned_1-load-1"]) is CostBasis.ASSUMED, (
        "target-0-more is another target"
    )


def test_every_session_of_the_minimum_is_paid_with_its_start() -> None:
    plan = {
        "mode": "baseline",
        "minimum_sessions": 3,
        "maximum_sessions": 4,
        "baseline_sessions": 5,
    }
    suite = suite_of(
        [config("default", extends=None)],
        [target("slow", measurement=plan, workloads=("chat",))],
        [workload("chat")],
    )
    (cell,) = suite.cells()
    costs = CostModel(
        RecordedCosts(session_s={"slow-default-chat": 100}, engine_start_s={"slow/default": 40})
    )
    assert costs.cell_s(cell) == 3 * 100 + 2 * 40
    (group,) = group_engines(select_all(suite, "x").cells, costs)
    assert group.duration_s == 3 * 140
    recording = replace(costs, recording=True)
    (recorded,) = group_engines(select_all(suite, "x").cells, recording)
    assert recorded.duration_s == 5 * 140
    two = replace(recording, record_sessions=2)
    assert group_engines(select_all(suite, "x").cells, two)[0].duration_s == 2 * 140


def record_costs_of(folder: Path, output: Path) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    parsed = parser.parse_args(["plan", "--record-costs", str(folder), "--costs", str(output)])
    return int(parsed.run(parsed))


def test_recorded_costs_come_from_sessions_that_ended(tmp_path: Path) -> None:
    from k3perf.store.results import ResultWriter

    whole = session("a", "tuned", Arm.CANDIDATE, 60, ((100, 110),))
    cut_short = session("b", "tuned", Arm.CANDIDATE, 60, ((200, 201),))
    slowed = session(
        "c", "tuned", Arm.CANDIDATE, 60, ((300, 390),), injected="slow_step_percent=900"
    )
    with ResultWriter(tmp_path / "run" / "results.jsonl", run_id="r") as writer:
        for measured in (whole, cut_short, slowed):
            writer.session(measured)
            writer.round(measured.session_id, measured.rounds[0])
        for ended in (whole, slowed):
            writer.session_end(ended.session_id, ())
    assert record_costs_of(tmp_path, tmp_path / "costs.json") == 0
    costs = RecordedCosts.model_validate_json((tmp_path / "costs.json").read_bytes())
    assert (costs.runs, costs.session_s) == (("r",), {"alpha-tuned-chat": 10})
    earlier = RecordedCosts(
        runs=("a",),
        engine_start_s={"beta/default": 7, "alpha/tuned": 999},
        session_s={"beta-default-chat": 3, "alpha-tuned-chat": 99},
    )
    (tmp_path / "costs.json").write_text(earlier.model_dump_json())
    assert record_costs_of(tmp_path, tmp_path / "costs.json") == 0
    both = RecordedCosts.model_validate_json((tmp_path / "costs.json").read_bytes())
    assert (both.runs, both.session_s) == (
        ("a", "r"),
        {"alpha-tuned-chat": 10, "beta-default-chat": 3},
    )
    assert both.engine_start_s == {**costs.engine_start_s, "beta/default": 7}
    for recorded in (both.engine_start_s, both.session_s):
        assert list(recorded) == sorted(recorded)  # a review shows what changed alone


def test_a_torn_file_of_costs_is_told_and_kept(tmp_path: Path) -> None:
    from k3perf.store.results import ResultWriter

    whole = session("a", "tuned", Arm.CANDIDATE, 60, ((100, 110),))
    with ResultWriter(tmp_path / "run" / "results.jsonl", run_id="r") as writer:
        writer.session(whole)
        writer.round(whole.session_id, whole.rounds[0])
        writer.session_end(whole.session_id, ())
    (tmp_path / "costs.json").write_text("{")
    with pytest.raises(ConfigFileError, match=r"costs\.json"):
        record_costs_of(tmp_path, tmp_path / "costs.json")
    assert (tmp_path / "costs.json").read_text() == "{"


def test_nothing_to_record_costs_from_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no finished session"):
        record_costs_of(tmp_path, tmp_path / "costs.json")
    assert not (tmp_path / "costs.json").exists()


def test_the_committed_costs_are_of_declared_cells(repository: Path) -> None:
    """Costs of cells that are gone would still price their relatives."""
    suite = load_suite(repository / "perf_tests")
    costs = RecordedCosts.model_validate_json(
        (repository / "perf_tests" / "costs.json").read_bytes()
    )
    assert set(costs.session_s) <= {cell.cell_id for cell in suite.cells()}
    assert set(costs.engine_start_s) <= {
        f"{cell.target.name}/{cell.config.name}" for cell in suite.cells()
    }
    assert costs.runs
