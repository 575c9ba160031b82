"""Every cell of a target that has hardware is guarded or a candidate with a reason, and
the page of guarded cells says what the gate says.
"""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from scripts.guarded_page import guarded_page, stale_candidates, unguarded_cells

from k3perf.baselines.accept import strictest_policy
from k3perf.baselines.guarded import Guard, guarded_cells
from k3perf.config.suite import Suite, load_suite
from k3perf.store.baselines import read_target_baselines

REPOSITORY = Path(__file__).resolve().parents[2]
BASELINES = REPOSITORY / "baselines"
ASKED_FOR = {"cache_config.user_specified_block_size"}
"""Says how the value came about, not what the engine is."""


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(REPOSITORY / "perf_tests")


def test_no_run_of_a_target_ends_without_a_baseline(suite: Suite) -> None:
    for target in suite.targets.values():
        assert not unguarded_cells(suite, target, BASELINES)


def test_no_cell_with_a_baseline_is_still_listed_as_a_candidate(suite: Suite) -> None:
    assert not stale_candidates(suite, BASELINES)


def test_two_approved_configs_are_not_one_engine(suite: Suite) -> None:
    for target in suite.targets.values():
        measured = [
            baseline
            for baseline in read_target_baselines(BASELINES, target.name)
            if not suite.not_collected(target, suite.config(baseline.config))
        ]
        for one, other in combinations(measured, 2):
            was, now = one.resolved_config, other.resolved_config
            differing = {key for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
            assert differing - ASKED_FOR, f"{target.name}: {one.config} and {other.config}"


def test_the_page_lists_every_approved_cell_once_with_its_loss(suite: Suite) -> None:
    page = guarded_page(suite, BASELINES)
    sections = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    section = sections["h200-k3"]
    baselines = read_target_baselines(BASELINES, "h200-k3")
    policy = strictest_policy(suite, "h200-k3", baselines)
    for cell in guarded_cells(suite, baselines, policy):
        (row,) = (
            line
            for line in section.splitlines()
            if line.startswith(f"| `{cell.config}` | `{cell.workload}` |")
        )
        assert f"| {cell.guard.value} |" in row
        for metric in cell.timed:
            assert metric.detectable_ratio is not None
            assert f"{100 * metric.detectable_ratio:.1f} % (" in row
    assert "| `batched_tokens_down` | `serve_1k` | memory and lock | reported |" in section
    assert "not recorded yet" in section


def test_a_loss_on_the_page_is_seen_and_a_smaller_one_is_not_promised(suite: Suite) -> None:
    """More recorded noise makes the smallest loss larger, and fewer gated metrics make it
    smaller: the figure comes from the gate's error rates and noise.
    """
    baselines = read_target_baselines(BASELINES, "h200-k3")
    policy = strictest_policy(suite, "h200-k3", baselines)

    def tpot(**changes: object) -> float:
        cells = guarded_cells(suite, baselines, replace(policy, **changes))
        cell = next(cell for cell in cells if cell.config == "default")
        (found,) = (one for one in cell.timed if one.metric == "tpot_mean_ms")
        assert found.detectable_ratio is not None
        assert found.tolerance.loss_ratio is not None
        return found.detectable_ratio

    assert tpot(gated_metric_count=1) <= tpot() < tpot(gated_metric_count=5000)
    assert tpot(missed_loss_budget=0.2) < tpot()


def test_a_config_of_memory_and_lock_gates_no_timing(suite: Suite) -> None:
    listed = suite.tolerances.memory_and_lock
    assert listed
    for target, configs in listed.items():
        baselines = read_target_baselines(BASELINES, target)
        cells = guarded_cells(suite, baselines, strictest_policy(suite, target, baselines))
        for cell in cells:
            assert (cell.guard is Guard.MEMORY_AND_LOCK) == (cell.config in configs), cell
            assert cell.exact
