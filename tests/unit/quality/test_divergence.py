"""The divergence over the top k: its bounds, its truth at full k, exact zero."""

import numpy as np
import pytest
from scipy.special import rel_entr

from k3perf.stats.divergence import clustered_error, common_prefix, top_k_divergence
from tests.unit.quality.books import distributions


def listed(logs, k):
    ids = np.argsort(-logs, axis=1)[:, :k]
    return ids, np.take_along_axis(logs, ids, axis=1)


def test_equal_distributions_give_exactly_zero():
    ids, logs = listed(distributions(1, 50, 40), 8)
    assert (top_k_divergence(ids, logs, ids, logs) == 0).all()


def test_all_tokens_listed_is_the_textbook_divergence():
    p, q = distributions(1, 50, 12), distributions(2, 50, 12)
    found = top_k_divergence(*listed(p, 12), *listed(q, 12))
    assert found == pytest.approx(rel_entr(np.exp(p), np.exp(q)).sum(axis=1), rel=1e-6)


def test_fewer_tokens_never_give_more():
    p = distributions(1, 200, 40)
    q = p + np.random.default_rng(3).normal(0, 0.1, p.shape)
    q -= np.log(np.exp(q).sum(axis=1, keepdims=True))
    whole = rel_entr(np.exp(p), np.exp(q)).sum(axis=1)
    shorter = [top_k_divergence(*listed(p, k), *listed(q, k)).mean() for k in (1, 5, 20)]
    assert shorter == sorted(shorter)
    assert shorter[-1] <= whole.mean()
    assert shorter[-1] > 0.5 * whole.mean()


def test_the_mass_outside_the_list_counts():
    """Both sides list one token; all that differs is the rest."""
    ids = np.array([[5]])
    p, q = np.log([[0.5]]), np.log([[0.25]])
    truth = 0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)
    assert top_k_divergence(ids, p, ids, q)[0] == pytest.approx(truth)


def test_lists_without_a_common_token_differ_by_their_rest_alone():
    found = top_k_divergence(np.array([[1]]), np.log([[0.9]]), np.array([[2]]), np.log([[0.9]]))
    assert found[0] == 0.0  # one class of everything: nothing can be told apart


def test_clustered_error_is_larger_where_prompts_differ():
    values = np.repeat([0.0, 1.0, 0.0, 1.0], 100)
    prompts = np.repeat([0, 1, 2, 3], 100)
    naive = values.std() / np.sqrt(len(values))
    assert clustered_error(values, prompts) > 5 * naive
    assert np.isnan(clustered_error(values, np.zeros(400, dtype=int)))


@pytest.mark.parametrize(
    ("one", "other", "count"), [((1, 2, 3), (1, 2, 4), 2), ((), (), 0), ((7,), (7,), 1)]
)
def test_common_prefix(one, other, count):
    assert common_prefix(one, other) == count
