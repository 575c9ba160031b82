from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.config.tolerances import ToleranceFile
from k3perf.errors import ConfigFileError, UsageError
from k3perf.records.measurement import CellMeasurement, MeasurementFile
from k3perf.records.outcome import Outcome
from k3perf.records.samples import Arm, InvalidReason
from k3perf.stats.estimators import Location
from k3perf.store.measurements import write_measurement_file
from tests.calibration.lab import command
from tests.calibration.lab.location_trial import location_table
from tests.calibration.lab.recorded_setting import (
    recorded_setting,
    recorded_source,
    testable_tolerances,
)
from tests.calibration.lab.recordings import (
    Recording,
    recorded_metrics,
    recordings_of,
    recordings_of_files,
)
from tests.calibration.lab.replay import Setting, metric_loss, quick_runs, suite_run, tally
from tests.calibration.lab.rivals import RIVALS, seen
from tests.calibration.lab.selftest import (
    GATED,
    LOSSES,
    SUITE_METRICS,
    THE_GATE,
    in_order_of_time,
    render,
    run_trial,
    simulated_noise,
    simulated_setting,
)
from tests.calibration.lab.simulation import (
    DRAWS,
    SHAPES,
    Noise,
    cell_of,
    paired_rounds,
    realised_sigma,
    session_of,
    session_rounds,
    session_sigma_for,
    value_of,
)

RATE = "output_tokens_per_s"
FLAT = (0.0, 0.001, -0.001, 0.0005)


@pytest.mark.parametrize("shape", DRAWS)
def test_every_shape_has_mean_zero_and_variance_one(shape: str) -> None:
    drawn = DRAWS[shape](np.random.default_rng(1), (100_000,))
    assert drawn.mean() == pytest.approx(0, abs=0.02)
    assert drawn.var() == pytest.approx(1, abs=0.1)


def test_the_shapes_are_what_their_names_say() -> None:
    rng = np.random.default_rng(2)
    assert (DRAWS["log_normal"](rng, (100_000,)) ** 3).mean() == pytest.approx(0.78, abs=0.1)
    assert (DRAWS["strongly_skewed"](rng, (400_000,)) ** 3).mean() == pytest.approx(1.75, abs=0.2)
    assert (DRAWS["heavy_tailed"](rng, (100_000,)) ** 4).mean() > 4
    assert set(DRAWS["two_level"](rng, (50,)).tolist()) == {-1.0, 1.0}
    slow = session_rounds(Noise("outlier_contaminated", 0.0, 1e-6), 300, 10, rng) > 0.5
    assert slow.sum() == pytest.approx(300, abs=60)
    slides = np.diff(session_rounds(Noise("drifting", 0.0, 1e-12), 200, 12, rng)[:, [0, 11]])
    assert abs(slides).max() == pytest.approx(0.0075 * 11, abs=0.003)
    assert slides.std() == pytest.approx(0.0075 * 11 / math.sqrt(3), abs=0.008)


def test_pairs_share_the_machine() -> None:
    own, ref = paired_rounds(Noise("drifting", 0.001, 0.01), 400, 12, np.random.default_rng(3))
    single, difference = own[:, -1] - own[:, 0], (own - ref)[:, -1] - (own - ref)[:, 0]
    assert difference.var() < single.var() / 3
    assert single.mean() == pytest.approx(0.0825, abs=0.01)


@pytest.mark.parametrize(
    ("shape", "paired"),
    [
        (shape, paired)
        for shape in DRAWS
        for paired in (False, True)
        if not paired or shape != "outlier_contaminated"
    ],
)
def test_noise_is_scaled_until_session_values_really_have_the_stated_deviation(
    shape: str, paired: bool
) -> None:
    location = Location.LOWER_QUARTILE if shape == "outlier_contaminated" else Location.MEDIAN
    sigma = session_sigma_for(shape, 0.0122, location, 12, paired=paired)
    assert realised_sigma(
        Noise(shape, sigma, sigma), location, 12, 12, paired=paired
    ) == pytest.approx(0.0122, rel=0.005)
    assert sigma < 0.0122


def test_slow_rounds_that_alone_exceed_the_deviation_are_told_and_come_on_top() -> None:
    with pytest.raises(ValueError, match="alone exceeds"):
        session_sigma_for("outlier_contaminated", 0.001, Location.MEDIAN, 4)
    plan = MeasurementPlan(mode="reference")
    assert (
        simulated_noise("outlier_contaminated", 0.0122, plan).session_sigma
        == simulated_noise("normal", 0.0122, plan).session_sigma
    )


@pytest.mark.parametrize("mode", ["baseline", "reference"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_quick_replay_gives_what_the_real_path_gives(shape: str, mode: str) -> None:
    """Documents, logarithms, pairing, pooling, compare and buying against bare series:
    every outcome and every round bought.
    """
    plan = MeasurementPlan.model_validate({"mode": mode, "maximum_sessions": 4})
    whole = simulated_setting(shape, plan=plan)
    setting = replace(whole, sources=whole.sources[:4])
    quick = quick_runs(setting, LOSSES, np.random.default_rng(11))
    found = set()
    for loss, run in zip(LOSSES, quick, strict=True):
        real = suite_run(setting, loss, np.random.default_rng(11))
        assert [(cell.outcomes, cell.round_count, cell.session_count) for cell in run] == [
            (cell.outcomes, cell.round_count, cell.session_count) for cell in real
        ]
        found |= {outcome for cell in run for outcome in cell.outcomes}
    assert {Outcome.PASS, Outcome.REGRESSED} <= found


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
    assert RIVALS[rule](seen(RATE, recorded, shifted(alarms_at)))
    assert not RIVALS[rule](seen(RATE, recorded, shifted(quiet_at)))


def test_pytest_benchmark_takes_a_gain_in_throughput_for_a_loss() -> None:
    rule = RIVALS["pytest-benchmark mean:5%"]
    recorded = [shifted(0.0)] * 6
    assert rule(seen("ttft_mean_ms", recorded, shifted(0.06)))
    assert not rule(seen(RATE, recorded, shifted(0.5)))
    assert rule(seen(RATE, recorded, shifted(-0.06)))


def test_the_rolling_baseline_is_the_upper_end() -> None:
    rising = [shifted(0.1), shifted(0.1), shifted(0.1), shifted(0.0), shifted(0.0), shifted(0.0)]
    assert RIVALS["P95 of rolling 3-means x 0.95"](seen(RATE, rising, shifted(0.065)))


def test_welch_equals_scipy_and_needs_rounds_that_differ() -> None:
    from scipy.stats import ttest_ind

    rule = RIVALS["Welch's t, 5 %, rounds"]
    rng = np.random.default_rng(8)
    alarms = []
    for shift in np.linspace(-0.5, 2.5, 60):
        before, now = rng.standard_normal(12), rng.standard_normal(9) * 1.5 + shift
        expected = ttest_ind(now, before, equal_var=False)
        alarms.append(bool(expected.pvalue < 0.05 and expected.statistic > 0))
        assert rule(seen(RATE, [tuple(before.tolist())], tuple(now.tolist()))) == alarms[-1]
    assert 10 < sum(alarms) < 50
    assert not rule(seen(RATE, [(0.0,)], (1.0,)))
    assert not rule(seen(RATE, [(0.0, 0.0)], (1.0, 1.0)))


def recorded_cell(
    config: str, sessions: int = 12, mode: str = "baseline", rounds: int = 12
) -> CellMeasurement:
    """Synthetic: stands for a recorded cell in tests of the replay alone."""
    rng = np.random.default_rng(sum(config.encode()))
    own, beside = (
        arm.tolist() for arm in paired_rounds(Noise("normal", 0.004, 0.01), sessions, rounds, rng)
    )
    made = []
    for number in range(sessions):
        pair = f"p{number}" if mode == "reference" else None
        made.append(session_of(f"c{number}", {RATE: own[number]}, pair_id=pair))
        if pair:
            made.append(
                session_of(f"r{number}", {RATE: beside[number]}, arm=Arm.REFERENCE, pair_id=pair)
            )
    return cell_of(config, made, mode=mode)


SPOILED = (InvalidReason("x", "y"),)


def recording(*cells: CellMeasurement) -> Recording:
    found, left_out = recordings_of("synthetic", cells)
    assert not left_out
    return found[0]


@pytest.mark.parametrize("mode", ["baseline", "reference"])
def test_recorded_sessions_are_replayed_unchanged(mode: str) -> None:
    cell = recorded_cell("a", mode=mode)
    cell = replace(
        cell, sessions=(replace(cell.sessions[0], invalid_reasons=SPOILED), *cell.sessions[1:])
    )
    drawn = recorded_source(cell, (RATE,))(np.random.default_rng(1), 11)
    first = {own[RATE][0] for own, _ in drawn}
    assert len(first) == 11
    assert all((beside is None) == (mode == "baseline") for _, beside in drawn)
    value = cell.sessions[2].rounds[0].values[RATE].value
    assert any(value_of(RATE, loss) == pytest.approx(value) for loss in first)
    ordered = recorded_source(cell, (RATE,), in_order=True)(np.random.default_rng(1), 3)
    assert value_of(RATE, ordered[0][0][RATE][0]) == pytest.approx(
        cell.sessions[1 if mode == "baseline" else 2].rounds[0].values[RATE].value
    )


def test_an_invalid_round_takes_its_neighbour_with_it_and_an_invalid_reference_its_session() -> (
    None
):
    cell = recorded_cell("a", mode="reference")
    own = cell.sessions[0]
    broken = replace(
        own,
        rounds=(*own.rounds[:3], replace(own.rounds[3], invalid_reasons=SPOILED), *own.rounds[4:]),
    )
    lost = replace(cell.sessions[3], invalid_reasons=SPOILED)
    source = recorded_source(
        replace(cell, sessions=(broken, *cell.sessions[1:3], lost, *cell.sessions[4:])), (RATE,)
    )
    lengths = sorted(
        (len(mine[RATE]), len(beside[RATE]))
        for mine, beside in source(np.random.default_rng(1), 12)
        if beside
    )
    assert lengths == [(11, 11), *[(12, 12)] * 10]


def test_recorded_trials_reach_sixty_metrics_with_the_noise_of_the_cells_there_are() -> None:
    both = recording(recorded_cell("a"), recorded_cell("b"))
    setting = recorded_setting(both, {RATE: Tolerance(loss_ratio=0.1)}, suite_metrics=SUITE_METRICS)
    result = tally(setting, 0.0, 2, 1)
    assert (result.metrics, result.runs, result.red_runs) == (120, 2, 0)
    assert tally(setting, 1.5, 1, 1).red_runs == 1
    said = in_order_of_time(
        recorded_setting(
            both, {RATE: Tolerance(loss_ratio=0.1)}, suite_metrics=SUITE_METRICS, in_order=True
        )
    )
    assert "first 8 sessions" in said
    assert "2 PASS without a change" in said
    assert "2 REGRESSED at 1.5 x tolerance" in said


def test_the_tolerance_of_a_recording_is_the_smallest_that_its_noise_can_test() -> None:
    both = recording(recorded_cell("a"), recorded_cell("b"))
    found = testable_tolerances(both, (RATE,), suite_metrics=SUITE_METRICS)
    ratio = found[RATE].loss_ratio
    assert ratio is not None
    assert 0.02 <= ratio <= 0.1
    assert ratio == pytest.approx(round(ratio, 2))
    caught = tally(recorded_setting(both, found, suite_metrics=SUITE_METRICS), 1.5, 10, 1)
    assert caught.regressed >= 0.9 * caught.metrics


def test_metrics_that_are_not_gated_stand_in_where_no_gated_one_was_recorded() -> None:
    cell = recorded_cell("a")
    renamed = replace(
        cell,
        sessions=tuple(
            replace(
                s, rounds=tuple(replace(r, values={"itl_p50_ms": r.values[RATE]}) for r in s.rounds)
            )
            for s in cell.sessions
        ),
    )
    assert recorded_metrics([cell], GATED) == (RATE,)
    assert recorded_metrics([renamed], GATED) == ("itl_p50_ms",)
    assert recorded_metrics([cell, renamed], GATED) == ()


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (recorded_cell("a", sessions=8), "8 usable sessions, a replay needs 9"),
        (recorded_cell("a", rounds=3), "3 usable rounds, a replay needs 4"),
        (replace(recorded_cell("a"), mode="ab"), "an ab run"),
        (
            replace(
                recorded_cell("a"),
                sessions=tuple(replace(s, rounds=()) for s in recorded_cell("a").sessions),
            ),
            "0 usable rounds",
        ),
        (
            replace(
                recorded_cell("a"),
                sessions=tuple(
                    replace(s, rounds=tuple(replace(r, values={}) for r in s.rounds))
                    for s in recorded_cell("a").sessions
                ),
            ),
            "no statistical metric",
        ),
        (
            replace(
                recorded_cell("a", mode="reference"),
                sessions=recorded_cell("a", mode="reference").sessions[::2],
            ),
            "0 usable sessions",
        ),
    ],
)
def test_a_recording_that_is_too_short_is_left_out_and_the_others_are_replayed(
    cell: CellMeasurement, said: str
) -> None:
    found, left_out = recordings_of("file", [cell, recorded_cell("b")])
    assert [(one.target, one.sessions, one.rounds, len(one.cells)) for one in found] == [
        ("simulated", 12, 12, 1)
    ]
    assert len(left_out) == 1
    assert said in left_out[0]
    assert (found[0].plan().maximum_sessions, found[0].plan().baseline_sessions) == (4, 8)


def in_run(cell: CellMeasurement, run: str, **changes: object) -> CellMeasurement:
    """The cell as another run measured it: session ids of its own."""
    return replace(
        cell,
        sessions=tuple(
            replace(session, session_id=f"{run}-{session.session_id}") for session in cell.sessions
        ),
        **changes,
    )


def test_sessions_of_several_files_are_replayed_together_where_each_has_too_few() -> None:
    files = {
        "one": [
            recorded_cell("a"),
            in_run(recorded_cell("b", sessions=5), "1"),
            in_run(recorded_cell("c", sessions=5), "1"),
        ],
        "two": [
            in_run(recorded_cell("b", sessions=4), "2"),
            in_run(recorded_cell("c", sessions=4), "2"),
        ],
        "three": [in_run(recorded_cell("b", sessions=9), "3", target="other")],
    }
    found, left_out = recordings_of_files(files)
    assert [
        (one.name, [cell.config for cell in one.cells], one.sessions, one.rounds) for one in found
    ] == [
        ("one", ["a"], 12, 12),
        ("three", ["b"], 9, 12),
        ("one, two", ["b", "c"], 9, 12),
    ]
    assert left_out == []


def test_configs_with_tolerances_of_their_own_are_replayed_apart(
    tmp_path: Path, run: Callable[..., int], capsys
) -> None:
    cells = [recorded_cell(config) for config in ("a", "b", "c", "d")]
    wide = {RATE: {"loss_ratio": 0.4}}
    declared = {
        "schema_version": 1,
        "defaults": {RATE: {"loss_ratio": 0.05}},
        "configs": {"simulated": {"b": wide, "c": {RATE: None}, "d": wide}, "other": {"a": wide}},
    }
    found, _ = recordings_of_files({"one": cells}, ToleranceFile.model_validate(declared))
    assert [[cell.config for cell in one.cells] for one in found] == [["a"], ["c"], ["b", "d"]]
    assert [one.name for one in found] == ["one", "one (c apart)", "one (b, d apart)"]
    assert [
        [cell.config for cell in one.cells] for one in recordings_of_files({"one": cells})[0]
    ] == [["a", "b", "c", "d"]]
    folder = tmp_path / "recordings"
    folder.mkdir()
    record(folder, *cells)
    (tmp_path / "tolerances.yaml").write_text(json.dumps(declared))
    assert run("--runs", "1", "--recorded-only", "--recorded", str(folder)) == 0
    said = capsys.readouterr().out
    assert [
        f"({cells})" in said for cells in ("a/simulated", "c/simulated", "b/simulated, d/simulated")
    ] == [True] * 3


def test_configs_are_replayed_apart_only_for_what_is_replayed() -> None:
    """A tolerance of memory, or of a metric that others stand in for, leaves throughput
    pooled as the gate pools it.
    """
    own = {
        "b": {"weights_bytes": {"loss_absolute": 4096}},
        "c": {"itl_p50_ms": {"loss_ratio": 0.3}},
    }
    declared = ToleranceFile.model_validate(
        {
            "schema_version": 1,
            "defaults": {RATE: {"loss_ratio": 0.05}},
            "configs": {"simulated": own},
        }
    )
    cells = [recorded_cell(config) for config in ("a", "b")]
    both = recorded_cell("c")
    both = replace(
        both,
        sessions=tuple(
            replace(
                s,
                rounds=tuple(
                    replace(r, values={**r.values, "itl_p50_ms": r.values[RATE]}) for r in s.rounds
                ),
            )
            for s in both.sessions
        ),
    )
    (one,), _ = recordings_of_files({"one": [*cells, both]}, declared, GATED)
    assert (one.name, [cell.config for cell in one.cells]) == ("one", ["a", "b", "c"])


def test_what_is_left_out_is_told_with_the_part_it_belongs_to() -> None:
    declared = ToleranceFile.model_validate(
        {
            "schema_version": 1,
            "defaults": {RATE: {"loss_ratio": 0.05}},
            "configs": {
                "simulated": {config: {RATE: {"loss_ratio": 0.4}} for config in ("b", "d")}
            },
        }
    )
    cells = [
        recorded_cell("a"),
        recorded_cell("b"),
        recorded_cell("c", rounds=3),
        recorded_cell("d", rounds=3),
    ]
    found, left_out = recordings_of_files({"one": cells}, declared)
    assert [(one.name, len(one.left_out)) for one in found] == [("one", 1), ("one (b apart)", 1)]
    assert ["/c/" in found[0].left_out[0], "/d/" in found[1].left_out[0], len(left_out)] == [
        True,
        True,
        2,
    ]


def cut(cell: CellMeasurement, rounds: int) -> CellMeasurement:
    return replace(
        cell,
        sessions=tuple(
            replace(session, rounds=session.rounds[:rounds]) for session in cell.sessions
        ),
    )


@pytest.mark.parametrize(
    ("sessions", "shorter_sessions", "shorter_rounds", "kept"),
    [
        (9, 3, 9, (9, 12)),
        (6, 4, 11, (10, 11)),
        (6, 3, 8, (9, 8)),
        (6, 4, 7, None),
        (2, 8, 6, (10, 6)),
    ],
)
def test_shorter_sessions_are_joined_only_where_they_are_needed_and_not_cut_short(
    sessions: int, shorter_sessions: int, shorter_rounds: int, kept: tuple[int, int] | None
) -> None:
    long, short = (
        recorded_cell("b", sessions=sessions),
        cut(recorded_cell("b", sessions=shorter_sessions), shorter_rounds),
    )
    halves = [replace(long, sessions=long.sessions[:3]), replace(long, sessions=long.sessions[3:])]
    files = {
        "one": [in_run(halves[0], "1")],
        "two": [in_run(halves[1], "2")],
        "three": [in_run(short, "3")],
    }
    found, left_out = recordings_of_files(files)
    assert [(one.sessions, one.rounds) for one in found] == ([] if kept is None else [kept])
    assert [f"(b/simulated {sessions})" in text for text in left_out] == (
        [True] if kept is None else []
    )


def test_invalid_sessions_have_no_say_in_what_is_usual() -> None:
    good, spoiled = cut(recorded_cell("b", sessions=8), 6), recorded_cell("b", sessions=12)
    spoiled = replace(
        spoiled,
        sessions=tuple(replace(session, invalid_reasons=SPOILED) for session in spoiled.sessions),
    )
    more = in_run(cut(recorded_cell("b", sessions=2), 6), "2")
    found, _ = recordings_of_files(
        {"one": [in_run(good, "1")], "two": [in_run(spoiled, "3"), more]}
    )
    assert [(one.sessions, one.rounds) for one in found] == [(10, 6)]


def test_a_session_counts_once_however_often_its_file_is_there() -> None:
    cell = recorded_cell("b", sessions=5)
    found, left_out = recordings_of_files({"one": [cell], "copy of one": [cell]})
    assert found == []
    assert "(b/simulated 5)" in left_out[0]
    halves = [in_run(cell, "1"), in_run(cell, "2")]
    assert (
        recordings_of_files({"one": halves})[0][0].sessions == 10
    )  # one file may hold a cell twice


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            replace(recorded_cell("b", sessions=6), plan_digest="other requests"),
            ["(b/simulated 6, b/simulated 6)"],
        ),
        (
            replace(recorded_cell("b", sessions=6), hardware_class="other"),
            ["(b/simulated 6)", "(b/simulated 6)"],
        ),
        (recorded_cell("c", sessions=6), ["(b/simulated 6, c/simulated 6)"]),
        (recorded_cell("b", sessions=2), ["(b/simulated 8)"]),
        (
            recorded_cell("b", sessions=6, mode="reference"),
            ["6 usable sessions", "(b/simulated 6)"],
        ),
        (replace(recorded_cell("b", sessions=2), sessions=()), ["(b/simulated 6)"]),
        (
            replace(
                recorded_cell("b", sessions=6),
                sessions=tuple(
                    replace(s, resolved_config={"version.vllm": "0.1"})
                    for s in recorded_cell("b", sessions=6).sessions
                ),
            ),
            ["(b/simulated 6, b/simulated 6)"],
        ),
    ],
)
def test_sessions_that_do_not_belong_together_or_are_too_few_are_left_out(
    other: CellMeasurement, said: list[str]
) -> None:
    found, left_out = recordings_of_files(
        {"one": [in_run(recorded_cell("b", sessions=6), "1")], "two": [other]}
    )
    assert found == []
    assert len(left_out) == len(said)
    for text, part in zip(left_out, said, strict=True):
        assert part in text
        assert "a replay needs 9" in text


def test_a_session_that_was_cut_short_does_not_shorten_the_others() -> None:
    cell = recorded_cell("a")
    short = replace(cell.sessions[4], rounds=cell.sessions[4].rounds[:5])
    found = recording(replace(cell, sessions=(*cell.sessions[:4], short, *cell.sessions[5:])))
    assert (found.sessions, found.rounds) == (11, 12)


def test_the_table_holds_every_rule_with_its_interval() -> None:
    trial = run_trial(
        "name",
        "note",
        simulated_setting("normal", plan=MeasurementPlan(mode="baseline")),
        runs=2,
        seed=1,
    )
    text = render([trial])
    assert all(rule in text for rule in (THE_GATE, *RIVALS))
    assert "| k3perf gate | 0.0% (0.0%-84.2%)" in text
    assert "2 clean runs of 60 metrics" in text
    trial.remark = "said so"
    assert "said so" in render([trial])


def test_losses_are_shares_of_the_metric_whichever_way_it_points() -> None:
    assert metric_loss(RATE, 0.075) == pytest.approx(-math.log(0.925))
    assert metric_loss("ttft_mean_ms", 0.075) == pytest.approx(math.log(1.075))
    setting = Setting((), {RATE: Tolerance(loss_ratio=0.05)}, MeasurementPlan(mode="baseline"))
    assert setting.loss_of(RATE, 1.5) == pytest.approx(-math.log(0.925))


def test_the_table_of_locations_says_what_differs_and_what_was_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.calibration.lab.simulation.SIGMA_SESSIONS", 2000)
    monkeypatch.setattr("tests.calibration.lab.location_trial.DRAWN", 3)
    noises = {shape: Noise(shape, 0.01, 0.01) for shape in DRAWS}
    lines = location_table(noises, 0.0122, MeasurementPlan(mode="baseline")).splitlines()
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in lines[2:]}
    assert set(rows) == {shape.replace("_", " ") for shape in DRAWS}
    assert "median of 4 rounds" in rows["normal"]
    assert "lower quartile of" in rows["outlier contaminated"]
    medians = [float(value) for value in rows["outlier contaminated"].split(" | ")[1].split(" / ")]
    assert medians == sorted(medians, reverse=True)
    assert medians[0] > 3


@pytest.fixture
def run() -> Callable[..., int]:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())

    def call(*words: str) -> int:
        arguments = parser.parse_args(["selftest", *words])
        return int(arguments.run(arguments))

    return call


def record(
    folder: Path, *cells: CellMeasurement, name: str = "synthetic", injected: str = ""
) -> None:
    about = {"run_id": "r", "commit": "c", "created_at_utc": "2026-01-01T00:00:00Z", "identity": {}}
    write_measurement_file(
        folder / f"{name}.json", MeasurementFile(**about, cells=cells, injected=injected)
    )


def test_the_command_writes_between_the_markers_and_nowhere_else(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path, recorded_cell("a"), recorded_cell("b", mode="reference"))
    page = tmp_path / "gate.md"
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    assert (
        run("--runs", "1", "--recorded", str(tmp_path), "--recorded-only", "--write", str(page))
        == 0
    )
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "recorded synthetic, simulated, reference mode" in text
    assert "recorded synthetic, simulated, baseline mode" in capsys.readouterr().out


def test_recordings_of_the_repository_are_found_from_any_folder_inside(
    tmp_path: Path,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "perf_tests" / "recordings"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder.parent)
    assert run("--runs", "1", "--recorded-only") == 0
    assert "No recording is long enough" in capsys.readouterr().out
    record(folder, recorded_cell("a"), name="long")
    record(folder, recorded_cell("a", sessions=4), name="short")
    (folder / "torn.json").write_text("{")
    record(folder, recorded_cell("a", sessions=4), name="faulty", injected="slow_step_percent=5.0")
    assert run("--runs", "1", "--recorded-only", "--tolerance", "0.2") == 0
    said = capsys.readouterr().out
    assert "recorded long, simulated, baseline mode" in said
    assert f"Tolerances (as given): {RATE} 20%" in said
    assert (
        "* simulated on simulated in baseline mode: too few usable sessions (a/simulated 4), a"
        " replay needs 9" in said
    )
    assert "* torn.json: is not valid JSON, or was cut short" in said
    assert (
        "* faulty.json: a fault was put into its candidate on purpose (slow_step_percent=5.0)"
        in said
    )


def test_noise_that_no_tolerance_can_test_is_left_out(
    tmp_path: Path, run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(1)
    wild = [
        session_of(f"c{n}", {RATE: rng.standard_normal(6) + 4 * rng.standard_normal()})
        for n in range(12)
    ]
    record(tmp_path, cell_of("wild", wild))
    assert run("--runs", "1", "--recorded-only", "--recorded", str(tmp_path)) == 0
    assert "no tolerance up to 66% could be tested" in capsys.readouterr().out


def test_the_command_simulates_the_shapes_asked_for(
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--runs", "1", "--shape", "two_level") == 0
    said = capsys.readouterr().out
    assert "two level noise, baseline mode" in said
    assert "two level noise, reference mode" in said
    assert "Wald" in said
    assert "there is no perf_tests/recordings around" in said
    with pytest.raises(UsageError, match=r"no perf_tests/recordings around.*--recorded"):
        run("--recorded-only")


def test_misuse_is_told(tmp_path: Path, run: Callable[..., int]) -> None:
    with pytest.raises(SystemExit):  # argparse refuses it
        run("--runs", "0")
    with pytest.raises(UsageError, match="--tolerance is 5"):
        run("--tolerance", "5")
    with pytest.raises(UsageError, match="no such folder"):
        run("--recorded", str(tmp_path / "none"))
    record(tmp_path, recorded_cell("a"))
    page = tmp_path / "page.md"
    page.write_text("no markers")
    with pytest.raises(ConfigFileError, match="markers are missing"):
        run("--recorded", str(tmp_path), "--recorded-only", "--runs", "1", "--write", str(page))
