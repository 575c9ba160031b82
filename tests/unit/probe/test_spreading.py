"""Dummy weights scaled and restored, on objects that look like tensors."""

import math

import numpy as np

from k3perf_probe.spreading import LOGIT_SPREAD, spread_weights

DRAWN = np.random.default_rng(1234)


class Tensor:
    """What the probe uses of torch's, over a numpy array."""

    def __init__(self, values, floating=True):
        self.values, self.floating = np.asarray(values, dtype=float), floating
        self.shape = self.values.shape
        self.factor = 1.0

    def is_floating_point(self):
        return self.floating

    def data_ptr(self):
        return id(self)

    def dim(self):
        return self.values.ndim

    def __getitem__(self, rows):
        return Tensor(self.values[rows])

    def float(self):
        return self

    def abs(self):
        return Tensor(np.abs(self.values))

    def mean(self):
        return self.values.mean()

    def std(self):
        return self.values.std()

    def mul_(self, factor):
        self.values *= factor
        self.factor *= factor


def drawn(*shape, limit=0.001, floating=True):
    return Tensor(DRAWN.uniform(-limit, limit, shape), floating)


class Module:
    def __init__(self, **tensors):
        self.__dict__.update(tensors)


class Worker:
    rank = 0

    def __init__(self, **modules):
        model = Module()
        model.named_modules = lambda: [("", model), *modules.items()]
        self.model_runner = Module(get_model=lambda: model)


def near_one(ratio):
    """Within half a power of two, and the sample's own noise."""
    return 2**-0.55 <= ratio <= 2**0.55


def test_matrices_get_the_spread_of_trained_ones_and_drawn_norms_the_size_of_one():
    linear, norm, head = drawn(64, 1024), drawn(1024), drawn(500, 1024)
    worker = Worker(
        proj=Module(weight=linear), norm=Module(weight=norm), lm_head=Module(weight=head)
    )
    assert spread_weights(worker, on=True)["changed_count"] == 3
    assert near_one(linear.std() * math.sqrt(1024))
    assert near_one(head.std() * math.sqrt(1024) / LOGIT_SPREAD)
    assert near_one(norm.std())


def test_norms_that_the_engine_set_to_one_stay():
    norm, head = Tensor(np.ones(1024)), drawn(500, 1024)
    worker = Worker(norm=Module(weight=norm), lm_head=Module(weight=head))
    assert spread_weights(worker, on=True)["changed_count"] == 1
    logits = head.values @ (norm.values * DRAWN.standard_normal(1024))
    assert near_one(logits.std() / LOGIT_SPREAD)


def test_quantised_weights_are_scaled_by_their_scale():
    weight, scale = drawn(64, 1024, limit=448, floating=False), Tensor([0.001 / 448])
    worker = Worker(proj=Module(weight=weight, weight_scale=scale))
    spread_weights(worker, on=True)
    assert weight.factor == 1
    assert near_one(weight.std() * scale.mean() * math.sqrt(1024))


def test_each_quantised_expert_matrix_has_its_own_scale():
    gate_up, gate_up_scale = drawn(4, 64, 1024, limit=448, floating=False), Tensor(np.full(4, 2e-6))
    down, down_scale = drawn(4, 64, 256, limit=1, floating=False), Tensor(np.full(4, 1e-3))
    experts = Module(
        w13_weight=gate_up,
        w2_weight=down,
        w13_weight_scale=gate_up_scale,
        w2_weight_scale=down_scale,
    )
    spread_weights(Worker(experts=experts), on=True)
    assert near_one(gate_up.std() * gate_up_scale.mean() * math.sqrt(1024))
    assert near_one(down.std() * down_scale.mean() * math.sqrt(256))


def test_absorbed_projections_are_scaled_too():
    absorbed = drawn(16, 128, 512)
    worker = Worker(attention=Module(W_UV=absorbed))
    spread_weights(worker, on=True)
    assert near_one(absorbed.std() * math.sqrt(512))


def test_twice_is_once_and_off_restores_every_bit():
    linear = drawn(64, 1024)
    before = linear.values.copy()
    worker = Worker(proj=Module(weight=linear))
    spread_weights(worker, on=True)
    once = linear.factor
    spread_weights(worker, on=True)
    assert linear.factor == once
    spread_weights(worker, on=False)
    spread_weights(worker, on=False)
    assert np.array_equal(linear.values, before)
    assert math.log2(once).is_integer()
