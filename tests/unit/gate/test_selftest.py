from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.cli import gate as command
from k3perf.config.models import MeasurementPlan
from k3perf.errors import ConfigFileError, UsageError
from k3perf.gate.replay import tally
from k3perf.gate.rivals import RIVALS
from k3perf.gate.selftest import THE_GATE, recorded_metrics, recorded_setting, recorded_source, render, run_trial, simulated_setting
from k3perf.gate.simulation import DRAWS, SHAPES, Noise, cell_of, paired_rounds, session_of, session_rounds, value_of
from k3perf.metrics.values import CellMeasurement
from k3perf.samples import Arm, InvalidReason
from k3perf.stats.location import mean, sample_variance
from k3perf.store.measurements import write_measurement_file

RATE = "output_tokens_per_s"
FLAT = (0.0, 0.001, -0.001, 0.0005)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_has_mean_zero_and_variance_one(shape: str) -> None:
    rng = random.Random(1)
    drawn = [DRAWS[shape](rng) for _ in range(20000)]
    assert mean(drawn) == pytest.approx(0, abs=0.03)
    assert sample_variance(drawn) == pytest.approx(1, abs=0.12)


def test_the_shapes_are_what_their_names_say() -> None:
    rng = random.Random(2)
    skew = [value**3 for value in (DRAWS["log_normal"](rng) for _ in range(20000))]
    assert mean(skew) > 0.5
    fourth = [value**4 for value in (DRAWS["heavy_tailed"](rng) for _ in range(20000))]
    assert mean(fourth) > 4
    assert {DRAWS["two_level"](rng) for _ in range(50)} == {-1.0, 1.0}
    quiet = Noise("outlier_contaminated", 0.0, 1e-6)
    slow = [loss for _ in range(300) for loss in session_rounds(quiet, 10, rng) if loss > 0.5]
    assert len(slow) == pytest.approx(300, abs=60)
    slide = session_rounds(Noise("drifting", 0.0, 1e-9), 12, rng)
    assert abs(slide[-1] - slide[0]) <= 0.0075 * 11 + 1e-6
    assert slide[0] != pytest.approx(slide[-1], abs=1e-4)


def test_pairs_share_the_machine() -> None:
    rng = random.Random(3)
    pairs = [paired_rounds(Noise("drifting", 0.001, 0.01), 12, rng) for _ in range(200)]
    single = sample_variance([own[-1] - own[0] for own, _ in pairs])
    difference = sample_variance([(own[-1] - ref[-1]) - (own[0] - ref[0]) for own, ref in pairs])
    assert difference < single / 3
    assert mean([own[-1] - own[0] for own, _ in pairs]) == pytest.approx(0.0825, abs=0.01)


def test_a_loss_lowers_a_rate_and_raises_a_latency() -> None:
    assert value_of(RATE, 0.1) == pytest.approx(100 * math.exp(-0.1))
    assert value_of("ttft_mean_ms", 0.1) == pytest.approx(100 * math.exp(0.1))


def shifted(loss: float) -> tuple[float, ...]:
    return tuple(value + loss for value in FLAT)


@pytest.mark.parametrize(
    ("rule", "alarms_at", "quiet_at"),
    [
        ("fixed 5 %, one run", 0.06, 0.04),
        ("fixed 10 %, one run", 0.11, 0.08),
        ("2 x the last point", 0.8, 0.6),
        ("P95 of rolling 3-means x 0.95", 0.06, 0.04),
        ("P95 of rolling 3-means x 0.9", 0.12, 0.09),
        ("Welch's t, 5 %, rounds", 0.01, -0.01),
    ],
)
def test_rivals_alarm_where_their_rule_says(rule: str, alarms_at: float, quiet_at: float) -> None:
    recorded = [shifted(0.0)] * 6
    assert RIVALS[rule](RATE, recorded, shifted(alarms_at))
    assert not RIVALS[rule](RATE, recorded, shifted(quiet_at))


def test_pytest_benchmark_takes_a_gain_in_throughput_for_a_loss() -> None:
    rule = RIVALS["pytest-benchmark mean:5%"]
    recorded = [shifted(0.0)] * 6
    assert rule("ttft_mean_ms", recorded, shifted(0.06))
    assert not rule(RATE, recorded, shifted(0.5))
    assert rule(RATE, recorded, shifted(-0.06))


def test_the_rolling_baseline_is_the_upper_end_and_welch_needs_rounds() -> None:
    rising = [shifted(0.1), shifted(0.1), shifted(0.1), shifted(0.0), shifted(0.0), shifted(0.0)]
    assert RIVALS["P95 of rolling 3-means x 0.95"](RATE, rising, shifted(0.065))
    assert not RIVALS["Welch's t, 5 %, rounds"](RATE, [(0.0,)], (1.0,))


def recorded_cell(config: str, sessions: int = 12, mode: str = "baseline") -> CellMeasurement:
    """Synthetic: stands for a recorded cell in tests of the replay alone."""
    rng = random.Random(config)
    made = []
    for number in range(sessions):
        own, beside = paired_rounds(Noise("normal", 0.004, 0.01), 12, rng)
        pair = f"p{number}" if mode == "reference" else None
        made.append(session_of(f"c{number}", {RATE: own}, pair_id=pair))
        if pair:
            made.append(session_of(f"r{number}", {RATE: beside}, arm=Arm.REFERENCE, pair_id=pair))
    return cell_of(config, made, mode=mode)


@pytest.mark.parametrize("mode", ["baseline", "reference"])
def test_recorded_sessions_are_replayed_unchanged(mode: str) -> None:
    cell = recorded_cell("a", mode=mode)
    invalid = replace(cell.sessions[0], invalid_reasons=(InvalidReason("x", "y"),))
    cell = replace(cell, sessions=(invalid, *cell.sessions[1:]))
    drawn = recorded_source(cell, (RATE,))(random.Random(1), 11)
    first = {own[RATE][0] for own, _ in drawn}
    assert len(first) == 11
    assert all((beside is None) == (mode == "baseline") for _, beside in drawn)
    value = cell.sessions[2].rounds[0].values[RATE].value
    assert any(value_of(RATE, loss) == pytest.approx(value) for loss in first)


def test_an_invalid_round_takes_its_neighbour_with_it() -> None:
    cell = recorded_cell("a", mode="reference")
    own = cell.sessions[0]
    spoiled = replace(own.rounds[3], invalid_reasons=(InvalidReason("x", "y"),))
    broken = replace(own, rounds=(*own.rounds[:3], spoiled, *own.rounds[4:]))
    source = recorded_source(replace(cell, sessions=(broken, *cell.sessions[1:])), (RATE,))
    lengths = sorted((len(mine[RATE]), len(beside[RATE])) for mine, beside in source(random.Random(1), 12) if beside)
    assert lengths == [(11, 11), *[(12, 12)] * 11]


def test_recorded_trials_reach_sixty_metrics_with_the_noise_of_the_cells_there_are() -> None:
    setting = recorded_setting([recorded_cell("a"), recorded_cell("b")], tolerance=0.1, plan=MeasurementPlan(mode="baseline"))
    assert recorded_metrics([recorded_cell("a")]) == (RATE,)
    result = tally(setting, 0.0, 2, 1)
    assert (result.metrics, result.runs, result.red_runs) == (120, 2, 0)
    assert tally(setting, math.log1p(0.15), 1, 1).red_runs == 1


def test_metrics_that_are_not_gated_stand_in_where_no_gated_one_was_recorded() -> None:
    cell = recorded_cell("a")
    renamed = replace(
        cell,
        sessions=tuple(
            replace(s, rounds=tuple(replace(r, values={"itl_p50_ms": r.values[RATE]}) for r in s.rounds)) for s in cell.sessions
        ),
    )
    assert recorded_metrics([renamed]) == ("itl_p50_ms",)
    assert recorded_metrics([cell, renamed]) == ()


def test_the_table_holds_every_rule_with_its_interval() -> None:
    trial = run_trial("name", "note", simulated_setting("normal", plan=MeasurementPlan(mode="baseline")), runs=2, seed=1)
    text = render([trial])
    assert all(rule in text for rule in (THE_GATE, *RIVALS))
    assert "| k3perf gate | 0.0% (0.0%-84.2%)" in text
    assert "2 clean runs of 60 metrics" in text


@pytest.fixture
def run() -> Callable[..., int]:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())

    def call(*words: str) -> int:
        arguments = parser.parse_args(["gate", "selftest", *words])
        return int(arguments.run(arguments))

    return call


def record(folder: Path, *cells: CellMeasurement) -> None:
    write_measurement_file(
        folder / "synthetic.json", run_id="r", commit="c", created_at_utc="2026-01-01T00:00:00Z", identity={}, cells=cells
    )


def test_the_command_writes_between_the_markers_and_nowhere_else(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, recorded_cell("a"), recorded_cell("b", mode="reference"))
    page = tmp_path / "gate.md"
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    assert run("--runs", "1", "--recorded", str(tmp_path), "--recorded-only", "--write", str(page)) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "recorded synthetic, simulated, reference mode" in text
    assert "recorded synthetic, simulated, baseline mode" in capsys.readouterr().out


def test_the_command_simulates_the_shapes_asked_for(run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run("--runs", "1", "--shape", "two_level", "--recorded", str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "two level noise" in said
    assert "Wald" in said
    assert "No recorded sessions" in said


def test_misuse_is_told(tmp_path: Path, run: Callable[..., int]) -> None:
    with pytest.raises(UsageError, match="--runs is 0"):
        run("--runs", "0")
    with pytest.raises(UsageError, match="--tolerance is 5"):
        run("--tolerance", "5")
    with pytest.raises(UsageError, match="no such folder"):
        run("--recorded", str(tmp_path / "none"))
    record(tmp_path, recorded_cell("a", sessions=8))
    with pytest.raises(ConfigFileError, match="too few valid sessions"):
        run("--recorded", str(tmp_path), "--recorded-only", "--runs", "1")
    record(tmp_path, replace(recorded_cell("a"), mode="ab"))
    with pytest.raises(ConfigFileError, match="baseline or reference"):
        run("--recorded", str(tmp_path), "--recorded-only", "--runs", "1")
    empty = recorded_cell("a")
    record(tmp_path, replace(empty, sessions=tuple(replace(s, rounds=()) for s in empty.sessions)))
    with pytest.raises(ConfigFileError, match="no statistical metric"):
        run("--recorded", str(tmp_path), "--recorded-only", "--runs", "1")
    record(tmp_path, recorded_cell("a"))
    page = tmp_path / "page.md"
    page.write_text("no markers")
    with pytest.raises(ConfigFileError, match="markers are missing"):
        run("--recorded", str(tmp_path), "--recorded-only", "--runs", "1", "--write", str(page))
