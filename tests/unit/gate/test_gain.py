"""The interval of a gain holds what it says, also between days."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from k3perf.baselines.gain import Gain, gain_lines, gains
from k3perf.baselines.target_policy import with_noise_of
from k3perf.config.models import Tolerance
from k3perf.records.baseline import Baseline
from tests.unit.gate.conftest import Build


def of_config(
    build: Build, config: str, levels: list[float], days: tuple[str, ...] = ()
) -> Baseline:
    sessions = [
        replace(
            build.session(f"{config}{index}", build.rounds(level, 4)),
            started_at_utc=f"{days[index]}T08:00:00Z" if days else "",
        )
        for index, level in enumerate(levels)
    ]
    return build.baseline(replace(build.cell(sessions), config=config))


def gain(build: Build, own: Baseline, parent: Baseline) -> Gain:
    (found,) = gains(own, parent, with_noise_of(build.policy(), (own, parent)))
    return found


def test_configs_that_do_not_differ_are_told_apart_in_one_of_twenty(build: Build) -> None:
    random = np.random.default_rng(11)
    differ = 0
    for _ in range(300):
        levels = (1000 * np.exp(random.normal(0, 0.01, (2, 6)))).tolist()
        differ += gain(
            build, of_config(build, "tuned", levels[0]), of_config(build, "default", levels[1])
        ).differs
    assert 0.02 <= differ / 300 <= 0.09


def test_the_loss_of_a_gain_is_noticed_if_the_gate_sees_as_much(build: Build) -> None:
    levels = [1000.0, 1004.0, 997.0, 1001.0, 1002.0, 996.0]
    parent = of_config(build, "default", levels)
    for factor, certain, noticed in ((1.2, True, True), (1.02, True, False), (0.9, False, False)):
        found = gain(build, of_config(build, "tuned", [factor * one for one in levels]), parent)
        assert (found.certain, found.noticed) == (certain, noticed), factor
        assert found.lower_ratio < factor - 1 < found.upper_ratio


def test_a_gain_over_a_parent_of_another_day_has_the_days_in_its_interval(build: Build) -> None:
    """Days differ by 5 %: what one config gained on another day is mostly the day's."""
    same = ("2026-01-05",) * 3 + ("2026-01-06",) * 3
    levels = [1000.0, 1002.0, 999.0, 1050.0, 1052.0, 1049.0]
    parent = of_config(build, "default", levels, same)
    beside = of_config(build, "tuned", [1.04 * one for one in levels], same)
    assert gain(build, beside, parent).certain
    apart = of_config(
        build, "tuned", [1.04 * one for one in (*levels[3:], *levels[3:])], ("2026-01-09",) * 6
    )
    assert not gain(build, apart, parent).certain


def test_a_quality_metric_has_no_gain_line(build: Build) -> None:
    """A distance from the reference's answers is a price of a config, not its aim."""
    policy = build.policy(
        tolerances={
            "weights_bytes": Tolerance(loss_ratio=0.01),
            "quality_kl_mean_nats": Tolerance(loss_absolute=0.001),
        }
    )

    def recorded(config: str, weights: float, divergence: float) -> Baseline:
        sessions = [
            build.session(
                f"{config}{index}",
                build.rounds(1000.0, 4),
                weights_bytes=weights,
                quality_kl_mean_nats=divergence,
            )
            for index in range(6)
        ]
        return build.baseline(replace(build.cell(sessions), config=config), policy)

    parent, tuned = recorded("default", 1000.0, 0.02), recorded("tuned", 500.0, 0.01)
    assert {entry.metric for entry in tuned.exact} == {"weights_bytes", "quality_kl_mean_nats"}
    suite = SimpleNamespace(config=lambda _: SimpleNamespace(extends="default"))
    lines = gain_lines(suite, tuned, (parent, tuned), policy)
    assert any("weights_bytes: +50.0%" in line for line in lines), lines
    assert not any("quality" in line for line in lines), lines
