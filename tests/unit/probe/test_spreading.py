"""Dummy weights scaled and restored, on objects that look like tensors."""

import math

from k3perf_probe.spreading import DUMMY_SPREAD, LOGIT_SPREAD, exponent_for, spread_weights


class Tensor:
    def __init__(self, *shape, floating=True):
        self.shape, self.ndim, self.factor, self.floating = shape, len(shape), 1.0, floating

    def is_floating_point(self):
        return self.floating

    def data_ptr(self):
        return id(self)

    def mul_(self, factor):
        self.factor *= factor


class Module:
    def __init__(self, **tensors):
        self.__dict__.update(tensors)


class Worker:
    rank = 0

    def __init__(self, **modules):
        model = Module()
        model.named_modules = lambda: [("", model), *modules.items()]
        self.model_runner = Module(get_model=lambda: model)


def test_matrices_get_the_spread_of_trained_ones_and_norms_the_size_of_one():
    linear, norm, head = Tensor(64, 1024), Tensor(1024), Tensor(500, 1024)
    worker = Worker(
        proj=Module(weight=linear), norm=Module(weight=norm), lm_head=Module(weight=head)
    )
    assert spread_weights(worker, on=True)["changed_count"] == 3
    spread = linear.factor * DUMMY_SPREAD * math.sqrt(1024)
    assert 2**-0.5 <= spread <= 2**0.5
    assert 2**-0.5 <= head.factor * DUMMY_SPREAD * math.sqrt(1024) / LOGIT_SPREAD <= 2**0.5
    assert 2**-0.5 <= norm.factor * DUMMY_SPREAD <= 2**0.5


def test_quantised_weights_are_scaled_by_their_scale():
    weight, scale = Tensor(64, 1024, floating=False), Tensor(1)
    worker = Worker(proj=Module(weight=weight, weight_scale=scale))
    spread_weights(worker, on=True)
    assert (weight.factor, scale.factor) == (1, 2.0 ** exponent_for(1024))


def test_absorbed_projections_are_scaled_too():
    absorbed = Tensor(16, 128, 512)
    worker = Worker(attention=Module(W_UV=absorbed))
    spread_weights(worker, on=True)
    assert absorbed.factor > 1


def test_twice_is_once_and_off_restores_every_bit():
    linear = Tensor(64, 1024)
    worker = Worker(proj=Module(weight=linear))
    spread_weights(worker, on=True)
    once = linear.factor
    spread_weights(worker, on=True)
    assert linear.factor == once
    spread_weights(worker, on=False)
    spread_weights(worker, on=False)
    assert linear.factor == 1
    assert math.log2(once).is_integer()
