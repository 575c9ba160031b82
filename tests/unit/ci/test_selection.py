"""Which cells a change selects: everything it can affect, nothing it cannot, and
nothing in silence.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.ci.selection import ChangedPath, Priority, Selection, descendants, select, select_all
from k3perf.config.models import KnownRefusal
from k3perf.config.suite import Suite, load_suite

from .conftest import config, suite_of, target, workload


def selected(selection: Selection) -> set[tuple[str, str, str]]:
    return {
        (entry.cell.target.name, entry.cell.config.name, entry.cell.workload.name)
        for entry in selection.cells
    }


def configs_of(selection: Selection) -> set[str]:
    return {entry.cell.config.name for entry in selection.cells}


def change(suite: Suite, *paths: str, deleted: bool = False) -> Selection:
    return select(suite, [ChangedPath(path, deleted) for path in paths])


def test_one_config_selects_itself_its_reference_and_what_depends_on_it(sixty_cells: Suite) -> None:
    assert len(sixty_cells.cells()) == 60
    selection = change(sixty_cells, "perf_tests/configs/tuned_3.yaml")
    assert configs_of(selection) == {
        "default",
        "tuned_3",
        "child_of_3",
        "grandchild_of_3",
        "combo_34",
        "child_of_combo",
    }
    assert len(selection.cells) == 6 * 3 * 2
    priorities = {entry.cell.config.name: entry.priority for entry in selection.cells}
    assert priorities["tuned_3"] is Priority.DIRECT
    assert priorities["child_of_combo"] is Priority.DESCENDANT
    assert priorities["default"] is Priority.DIRECT, (
        "the reference is as urgent as what is compared with it"
    )


def test_leaf_config_selects_itself_and_its_reference_only(sixty_cells: Suite) -> None:
    selection = change(sixty_cells, "perf_tests/configs/tuned_5.yaml")
    assert configs_of(selection) == {"default", "tuned_5"}
    reasons = {entry.cell.config.name: entry.reasons for entry in selection.cells}
    assert reasons == {"tuned_5": ("config tuned_5 changed",), "default": ("reference of tuned_5",)}


def test_reference_is_the_targets_own() -> None:
    configs = [config("default", extends=None), config("other"), config("tuned")]
    suite = suite_of(
        configs,
        [target("alpha", reference="other"), target("beta")],
        [workload("chat"), workload("burst")],
    )
    selection = change(suite, "perf_tests/configs/tuned.yaml")
    assert {(name, cfg) for name, cfg, _ in selected(selection)} == {
        ("alpha", "tuned"),
        ("alpha", "other"),
        ("beta", "tuned"),
        ("beta", "default"),
    }


def test_root_config_selects_everything(sixty_cells: Suite) -> None:
    assert len(change(sixty_cells, "perf_tests/configs/default.yaml").cells) == 60


@pytest.mark.parametrize(
    "path",
    [
        "perf_tests/tolerances.yaml",
        "baselines/waivers.yaml",
        "perf_tests/test_latency.py",
        "perf_tests/configs",
        "src/k3perf/gate/compare.py",
        "src/k3perf_probe/worker.py",
        "pyproject.toml",
        "docker/versions.env",
        "scripts/perf",
        "requirements/engine-cpu.txt",
        ".github/workflows/perf-pr.yml",
        "something/nobody/has/seen.bin",
        "perf_tests/unheard_of/file.yaml",
    ],
)
def test_harness_pin_tolerance_and_unknown_files_select_everything(
    sixty_cells: Suite, path: str
) -> None:
    selection = change(sixty_cells, path)
    assert len(selection.cells) == 60
    assert {entry.priority for entry in selection.cells} == {Priority.WIDE}
    assert all(path in entry.reasons[0] for entry in selection.cells)


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "docs/gate.md",
        "docs/picture.svg",
        "tests/unit/test_x.py",
        ".github/CODEOWNERS",
        "perf.md",
        "perf_tests/costs.json",
        "perf_tests/recordings/cpu-hybrid.json",
        "perf_tests/recordings/README.md",
    ],
)
def test_files_that_cannot_change_a_measurement_select_nothing(
    sixty_cells: Suite, path: str
) -> None:
    assert change(sixty_cells, path) == Selection(())


def test_target_workload_and_model_select_their_cells(sixty_cells: Suite) -> None:
    assert {
        name for name, _, _ in selected(change(sixty_cells, "perf_tests/targets/beta.yaml"))
    } == {"beta"}
    assert {
        name for *_, name in selected(change(sixty_cells, "perf_tests/workloads/burst.yaml"))
    } == {"burst"}
    assert {
        name for name, _, _ in selected(change(sixty_cells, "perf_tests/models/gamma/config.json"))
    } == {"gamma"}
    unused = change(sixty_cells, "perf_tests/models/unused/config.json")
    assert unused.cells == ()
    assert unused.notes == (
        "perf_tests/models/unused/config.json does not belong to a target's model",
    )


def test_trace_selects_the_workloads_that_replay_it() -> None:
    replay = workload(
        "replay",
        arrival={"kind": "trace", "file": "traces/mooncake.jsonl"},
        requests=None,
        prompt_tokens=None,
        output_tokens=None,
    )
    suite = suite_of(
        [config("default", extends=None)],
        [target("alpha", workloads=("chat", "replay"))],
        [workload("chat"), replay],
    )
    assert {name for *_, name in selected(change(suite, "perf_tests/traces/mooncake.jsonl"))} == {
        "replay"
    }
    assert change(suite, "perf_tests/traces/other.jsonl").notes == (
        "perf_tests/traces/other.jsonl is used by no workload",
    )


def test_baseline_selects_its_config_on_its_target(sixty_cells: Suite) -> None:
    hit = selected(change(sixty_cells, "baselines/beta/tuned_2.json"))
    assert hit == {
        ("beta", name, load) for name in ("tuned_2", "default") for load in ("chat", "burst")
    }
    assert change(sixty_cells, "baselines/beta/gone.json").notes == (
        "baselines/beta/gone.json does not belong to a collected cell",
    )
    assert "not a baseline of the form" in change(sixty_cells, "baselines/notes.txt").notes[0]


def test_deleted_and_misnamed_documents(sixty_cells: Suite) -> None:
    gone = change(sixty_cells, "perf_tests/configs/old.yaml", deleted=True)
    assert gone.cells == ()
    assert gone.notes == (
        "perf_tests/configs/old.yaml was deleted; its cells are no longer measured",
    )
    misnamed = change(sixty_cells, "perf_tests/configs/old.yaml")
    assert len(misnamed.cells) == 60
    for folder in ("targets", "workloads"):
        assert change(sixty_cells, f"perf_tests/{folder}/old.yaml", deleted=True).notes
        assert len(change(sixty_cells, f"perf_tests/{folder}/old.yaml").cells) == 60


def test_config_whose_engine_another_stands_for_selects_the_stand_in() -> None:
    configs = [config("default", extends=None), config("head"), config("same"), config("other")]
    equal = (
        {"configs": ("default", "other"), "reason": "one and the same engine"},
        {"configs": ("head", "same"), "reason": "one and the same engine"},
    )
    suite = suite_of(
        configs, [target("alpha", equivalences=equal)], [workload("chat"), workload("burst")]
    )
    selection = change(suite, "perf_tests/configs/same.yaml")
    assert configs_of(selection) == {"head", "default"}
    assert "on alpha head stands for same" in selection.cells[-1].reasons[0]


def test_config_on_no_target_is_noted() -> None:
    configs = [config("default", extends=None), config("spare")]
    suite = suite_of(
        configs, [target("alpha", configs=("default",))], [workload("chat"), workload("burst")]
    )
    assert change(suite, "perf_tests/configs/spare.yaml") == Selection(
        (), ("config spare has no cell on any target",)
    )


def test_several_changes_join_with_their_reasons_once_each(sixty_cells: Suite) -> None:
    twice = change(
        sixty_cells,
        "perf_tests/configs/tuned_5.yaml",
        "baselines/alpha/tuned_5.json",
        "perf_tests/configs/tuned_5.yaml",
    )
    entry = next(entry for entry in twice.cells if entry.cell.cell_id == "alpha-tuned_5-chat")
    assert entry.reasons == ("config tuned_5 changed", "baseline of alpha/tuned_5 changed")


def test_nearer_change_wins_the_priority(sixty_cells: Suite) -> None:
    both = change(sixty_cells, "pyproject.toml", "perf_tests/configs/tuned_5.yaml")
    priorities = {entry.cell.config.name: entry.priority for entry in both.cells}
    assert priorities["tuned_5"] is Priority.DIRECT
    assert priorities["default"] is Priority.DIRECT
    assert priorities["tuned_1"] is Priority.WIDE


def test_suite_in_another_folder(sixty_cells: Suite) -> None:
    selection = select(
        sixty_cells, [ChangedPath("team/suite/configs/tuned_5.yaml")], suite_folder="team/suite"
    )
    assert configs_of(selection) == {"default", "tuned_5"}


def test_select_all_and_descendants(sixty_cells: Suite) -> None:
    assert len(select_all(sixty_cells, "asked for").cells) == 60
    assert descendants(sixty_cells, "tuned_3") == (
        "child_of_3",
        "grandchild_of_3",
        "combo_34",
        "child_of_combo",
    )
    assert descendants(sixty_cells, "tuned_5") == ()


def test_found_rates_select_the_workloads_that_take_a_share_of_them() -> None:
    share = workload("steady", arrival={"kind": "poisson", "found_rate_share_ratio": 0.5})
    fixed = workload("chat", arrival={"kind": "poisson", "rate_per_s": 2})
    targets = [
        target("alpha", workloads=("chat", "steady")),
        target("beta", workloads=("chat", "steady")),
    ]
    suite = suite_of([config("default", extends=None)], targets, [fixed, share])
    assert selected(change(suite, "baselines/alpha/found_rates.yaml")) == {
        ("alpha", "default", "steady")
    }
    assert change(suite, "baselines/gamma/found_rates.yaml").notes == (
        "baselines/gamma/found_rates.yaml is used by no collected cell",
    )


def test_a_refusal_selects_the_cells_that_it_may_have_freed(repository: Path) -> None:
    """With the shipped suite: what sets a block size on the CPU's MLA path, of which
    there is no target; FP8 KV for K3 on Hopper.
    """
    suite = load_suite(repository / "perf_tests")
    assert selected(change(suite, "perf_tests/targets/refusals/cpu-mla-block-size.yaml")) == set()
    narrowed = replace(
        suite, known_refusals=tuple(replace_reach(known) for known in suite.known_refusals)
    )
    hit = configs_of(change(narrowed, "perf_tests/targets/refusals/hopper-k3-fp8-kv.yaml"))
    assert hit == {"fp8_kv", "default"}  # and what it is compared with
    assert len(
        selected(change(suite, "perf_tests/targets/refusals/gone.yaml", deleted=True))
    ) == len(suite.cells())


def replace_reach(known: KnownRefusal) -> KnownRefusal:
    """The same refusal, fixed by a release that every target is past: its cells are
    collected again.
    """
    return known.model_copy(update={"below_vllm": "0.27.0", "minimum_vllm": ""})
