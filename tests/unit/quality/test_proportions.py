"""Sample sizes against simulated scores, McNemar's test against its definition."""

import numpy as np
import pytest

from k3perf.stats.proportions import detectable_loss, mcnemar_p, paired_need, unpaired_need

RUNS = 4000


@pytest.mark.parametrize(("score", "loss"), [(0.76, 0.03), (0.95, 0.02), (0.5, 0.05)])
def test_the_unpaired_need_keeps_both_error_rates(score, loss):
    need = unpaired_need(score, loss, 0.05, 0.9)
    random = np.random.default_rng(1)
    before = random.binomial(need.questions, score, RUNS) / need.questions
    same = random.binomial(need.questions, score, RUNS) / need.questions
    worse = random.binomial(need.questions, score - loss, RUNS) / need.questions
    assert np.mean(before - same > need.threshold_ratio) < 0.07
    assert np.mean(before - worse > need.threshold_ratio) > 0.87


def test_the_paired_need_keeps_both_error_rates():
    lost, won = 0.03, 0.01
    need = paired_need(lost + won, lost - won, 0.05, 0.9)
    random = np.random.default_rng(2)
    changed = random.multinomial(need.questions, [lost, won, 1 - lost - won], RUNS)
    drop = (changed[:, 0] - changed[:, 1]) / need.questions
    assert np.mean(drop > need.threshold_ratio) == pytest.approx(0.9, abs=0.03)
    even = random.multinomial(need.questions, [0.02, 0.02, 0.96], RUNS)
    drop = (even[:, 0] - even[:, 1]) / need.questions
    assert np.mean(drop > need.threshold_ratio) < 0.07


def test_pairing_needs_fewer_questions():
    assert (
        paired_need(0.06, 0.02, 0.01, 0.95).questions
        < unpaired_need(0.76, 0.02, 0.01, 0.95).questions / 4
    )


def test_detectable_loss_is_the_inverse():
    need = unpaired_need(0.76, 0.02, 0.01, 0.95)
    assert detectable_loss(0.76, need.questions, 0.01, 0.95) == pytest.approx(0.02, rel=1e-3)
    assert detectable_loss(0.76, 1319, 0.05, 0.8) == pytest.approx(0.042, abs=0.003)
    assert detectable_loss(0.5, 2, 0.01, 0.95) == pytest.approx(0.5)


def test_mcnemar():
    assert mcnemar_p(0, 0) == 1
    assert mcnemar_p(5, 0) == pytest.approx(0.5**5)
    assert mcnemar_p(3, 3) > 0.5


@pytest.mark.parametrize("value", [0, 1, -0.1, 2])
def test_shares_outside_their_range_are_refused(value):
    with pytest.raises(ValueError, match="give a number between 0 and 1"):
        unpaired_need(0.7, 0.02, value, 0.9)


def test_impossible_losses_are_refused():
    with pytest.raises(ValueError, match="leaves nothing"):
        unpaired_need(0.1, 0.2, 0.05, 0.9)
    with pytest.raises(ValueError, match="changed answers"):
        paired_need(0.01, 0.02, 0.05, 0.9)
