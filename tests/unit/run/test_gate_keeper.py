"""Which files judge a cell under ``--k3-judge-from``: ``k3perf.run.gate_keeper``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml

from k3perf.config.judged import judged_suite
from k3perf.config.suite import Cell, load_suite
from k3perf.records.baseline import Baseline
from k3perf.records.measurement import CellMeasurement
from k3perf.records.verdict import CellVerdict
from k3perf.run.gate_keeper import GateKeeper
from k3perf.run.settings import RunSettings
from k3perf.store.base_checkout import judge_from
from k3perf.store.baselines import read_baseline, write_baseline

TARGET, NEW = "cpu-hybrid", "seqs_more"


def rewritten(root: Path, config: str, *, as_config: str, factor: float) -> None:
    """The config's baseline, its sessions ``factor`` times as far apart, accepted."""
    found = read_baseline(root, TARGET, config)
    assert found is not None
    data = found.model_dump(mode="json")
    for workload in data["workloads"]:
        for entry in workload["metrics"]:
            middle = entry["sessions"][0]["value"]
            for session in entry["sessions"]:
                moved = middle + factor * (session["value"] - middle)
                session["value"] = max(moved, middle / 100)
                session["round_values"] = [session["value"] for _ in session["round_values"]]
    write_baseline(root, Baseline.model_validate({**data, "config": as_config}))


@pytest.fixture
def change(repository: Path, suite_copy: Path) -> Path:
    """A change with a new config, and rewritten noise in its baselines."""
    root = suite_copy.parent
    shutil.copytree(repository / "baselines", root / "baselines")
    config = yaml.safe_load((suite_copy / "configs" / "seqs_up.yaml").read_text())
    (suite_copy / "configs" / f"{NEW}.yaml").write_text(yaml.safe_dump({**config, "name": NEW}))
    path = suite_copy / "targets" / f"{TARGET}.yaml"
    target = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**target, "configs": [*target["configs"], NEW]}))
    rewritten(root / "baselines", "seqs_up", as_config=NEW, factor=30)
    rewritten(root / "baselines", "seqs_down", as_config="seqs_down", factor=30)
    return root


def keeper(change: Path, base: Path | None) -> GateKeeper:
    suite = load_suite(change / "perf_tests")
    judge = None if base is None else judge_from(change, str(base), change / "cache")
    if judge is not None:
        suite = judged_suite(suite, judge.suite)
    settings = RunSettings(
        suite=suite,
        judge=judge,
        run_id="r",
        commit="c",
        baselines_directory=change / "baselines",
        results_directory=change / "results",
        cache_directory=change / "cache",
        engine_python=Path("python"),
        engine_python_path="",
    )
    return GateKeeper(settings, suite.cells((TARGET,)))


def cell(made: GateKeeper, config: str) -> Cell:
    return next(one for one in made._cells if one.config.name == config)


def noise(made: GateKeeper, config: str) -> dict[object, tuple[str, ...]]:
    """By metric and basis, the recorded sessions of each cell that varies."""
    found = made.policy(cell(made, config)).noise
    return {key: tuple(map(str, held.cells)) for key, held in found.items()}


def test_the_noise_of_a_change_judges_none_of_the_cells_of_its_base(
    change: Path, repository: Path
) -> None:
    base = keeper(repository, None)
    judged, alone = keeper(change, repository), keeper(change, None)
    recorded = noise(base, "seqs_down")
    for config in ("seqs_down", "seqs_up"):
        assert noise(judged, config) == recorded
        assert noise(alone, config) != recorded
    of_new = noise(judged, NEW)
    assert of_new.keys() == recorded.keys()
    for key, sessions in recorded.items():
        assert set(sessions) <= set(of_new[key])
        assert len(of_new[key]) <= len(sessions) + 1
    assert of_new != recorded


def test_only_a_cell_that_the_base_does_not_know_has_its_own_baseline(
    change: Path, repository: Path
) -> None:
    judged = keeper(change, repository)
    for config, root in (("seqs_down", repository), (NEW, change)):
        found = judged._baseline(cell(judged, config))
        assert found == read_baseline(root / "baselines", TARGET, config)


def test_an_explanation_that_fails_costs_no_verdict(
    change: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("made")

    monkeypatch.setattr("k3perf.run.gate_keeper.attributed", fail)
    found = keeper(change, None)
    verdict = CellVerdict(TARGET, "seqs_up", "chat", "reference")
    measurement = CellMeasurement(
        target=TARGET,
        config="seqs_up",
        workload="chat",
        mode="reference",
        hardware_class="cpu-avx512",
        plan_digest="d",
        sessions=(),
    )
    noted = found.attribute(cell(found, "seqs_up"), measurement, verdict)
    assert noted.attribution is None
    assert "ZeroDivisionError: made" in noted.notes[-1]
