from __future__ import annotations

import json
import os

import pytest

from k3perf.telemetry.server import rank_memory
from k3perf_probe.memory import MEMORY_FIELDS
from tests.unit.probe.fakes import (
    FakeHandler,
    FakeModel,
    FakeModule,
    FakeRunner,
    FakeStorage,
    FakeTensor,
    FakeWorker,
    packed,
)


def test_every_storage_counts_once() -> None:
    tied = FakeStorage(1000)
    model = FakeModel(
        [FakeTensor(1000, storage=tied), FakeTensor(1000, storage=tied), FakeTensor(50)],
        [FakeTensor(7)],
    )
    assert FakeWorker(model).k3perf_memory()["weights_bytes"] == 1057


def test_hybrid_layers_share_cache_storage() -> None:
    pool = FakeStorage(4096)
    caches = [
        FakeTensor(10, storage=pool),
        [FakeTensor(20, storage=pool), FakeTensor(30, storage=pool)],
        {"a": FakeTensor(8)},
    ]
    assert FakeWorker(kv_caches=caches).k3perf_memory()["kv_cache_bytes"] == 4104


def test_packed_weights_count_whether_the_parameter_is_emptied_or_kept() -> None:
    model = FakeModel([FakeTensor(0), FakeTensor(600)])
    model.children = {
        "emptied": FakeModule(weight=FakeTensor(0), cpu_linear=packed(FakeHandler(8, 16))),
        "kept": FakeModule(weight=FakeTensor(600), cpu_linear=packed(FakeHandler(30, 10))),
        "tensor": FakeModule(weight=FakeTensor(0), cpu_linear=packed(FakeTensor(40))),
        "plain": FakeModule(weight=FakeTensor(600)),
    }
    assert FakeWorker(model).k3perf_memory()["weights_bytes"] == 600 + 8 * 16 * 2 + 30 * 10 * 2 + 40


def test_a_packed_weight_of_unknown_size_makes_the_part_absent_not_smaller() -> None:
    model = FakeModel([FakeTensor(600)])
    model.children = {"layers.0.odd": FakeModule(weight=FakeTensor(0), cpu_linear=packed("opaque"))}
    seen = FakeWorker(model).k3perf_memory()
    assert seen["weights_bytes"] is None
    assert "weights_bytes" in seen["absent"]
    assert "layers.0.odd" in seen["why"]["weights_bytes"]


def test_a_moved_attribute_makes_one_part_absent_and_leaves_the_rest() -> None:
    worker = FakeWorker()
    del worker.model_runner.kv_caches
    seen = worker.k3perf_memory()
    assert seen["kv_cache_bytes"] is None
    assert "has no attribute 'kv_caches'" in seen["why"]["kv_cache_bytes"]
    assert seen["weights_bytes"] == 100


def test_no_model_runner_at_all_still_answers() -> None:
    worker = FakeWorker()
    del worker.model_runner
    seen = worker.k3perf_memory()
    assert (seen["weights_bytes"], seen["kv_cache_bytes"]) == (None, None)
    assert seen["resident_bytes"] > 0


def test_an_empty_cache_is_absent_not_zero() -> None:
    assert FakeWorker(kv_caches=[]).k3perf_memory()["kv_cache_bytes"] is None


def test_what_a_cpu_does_not_offer_is_absent() -> None:
    seen = FakeWorker().k3perf_memory()
    assert {
        "peak_allocated_bytes",
        "graph_pool_bytes",
        "device_used_bytes",
        "non_torch_bytes",
        "peak_activation_bytes",
    } <= set(seen["absent"])
    assert all(seen[name] is None for name in seen["absent"])


def test_the_answer_is_json_and_becomes_a_record() -> None:
    seen = FakeWorker().k3perf_memory()
    assert set(MEMORY_FIELDS) <= set(seen)
    record = rank_memory(json.loads(json.dumps(seen)))
    assert (record.rank, record.weights_bytes, record.kv_cache_bytes) == (3, 100, 64)
    assert set(record.absent) == set(seen["absent"])


def test_a_draft_model_counts_too() -> None:
    worker = FakeWorker()
    worker.model_runner.drafter = FakeRunner(FakeModel([FakeTensor(11)]), [])  # type: ignore[attr-defined]
    assert worker.k3perf_memory()["weights_bytes"] == 111


def test_the_resident_peak_is_restarted() -> None:
    held = bytearray(b"\x01") * (64 << 20)
    del held
    before = FakeWorker().k3perf_memory()
    assert "peak_resident_bytes" in FakeWorker().k3perf_reset_peaks()["reset"]
    after = FakeWorker().k3perf_memory()
    assert before["peak_resident_bytes"] - after["peak_resident_bytes"] > 32 << 20


def test_held_weights_and_host_pages_are_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "k3perf_probe.holding._tensor", lambda _, size_bytes: FakeTensor(size_bytes, width=1)
    )
    worker = FakeWorker()
    worker.k3perf_hold_bytes("weights", "1000")
    assert worker.k3perf_memory()["weights_bytes"] == 1100
    worker.k3perf_hold_bytes("device", 500)
    assert worker.k3perf_memory()["weights_bytes"] == 1100
    before = worker.k3perf_memory()["resident_bytes"]
    answer = worker.k3perf_hold_bytes("host", 48 << 20)
    assert worker.k3perf_memory()["resident_bytes"] - before > 40 << 20
    assert answer["held"] == {"weights": 1000, "device": 500, "host": 48 << 20}
    assert worker.k3perf_hold_bytes("weights", 0)["held"]["weights"] == 0
    assert worker.k3perf_memory()["weights_bytes"] == 100


def test_memory_can_be_held_on_one_rank_alone() -> None:
    worker = FakeWorker()
    assert worker.k3perf_hold_bytes("host", 100, "2")["held"]["host"] == 0
    assert worker.k3perf_hold_bytes("host", 100, "3")["held"]["host"] == 100
    assert worker.k3perf_hold_bytes("host", 0, 2)["held"]["host"] == 100
    assert worker.k3perf_hold_bytes("host", 0, 3)["held"]["host"] == 0


@pytest.mark.parametrize(
    ("kind", "size_bytes", "message"),
    [("gpu", 1, "kind 'gpu' is unknown"), ("host", -1, "size_bytes is -1")],
)
def test_bad_holds_are_refused(kind: str, size_bytes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FakeWorker().k3perf_hold_bytes(kind, size_bytes)


def test_identity_never_raises_and_names_this_python() -> None:
    seen = FakeWorker().k3perf_identity()
    assert seen["python_version"]
    assert seen["host"] == os.uname().nodename
    assert seen["device_names"]
    json.dumps(seen)


def test_chosen_backends_are_read_from_the_layers() -> None:
    class Chosen:
        def __init__(self) -> None:
            self.unquantized_backend = "triton"
            self.other = "x"

    class SomeMoEMethod(Chosen):
        pass

    class Backend:
        @staticmethod
        def get_name() -> str:
            return "FLASHMLA"

    model = FakeModel([])
    model.children = {
        "attn": FakeModule(get_attn_backend=lambda: Backend, kda_prefill_backend="flashkda"),
        "experts": FakeModule(quant_method=SomeMoEMethod()),
        "odd": FakeModule(get_attn_backend=lambda: 1 / 0, quant_method=Chosen()),
    }
    seen = FakeWorker(model).k3perf_identity()["backends"]
    assert seen == {
        "attention": "FLASHMLA",
        "kda_prefill": "flashkda",
        "linear": "Chosen(unquantized_backend=triton)",
        "moe": "SomeMoEMethod(unquantized_backend=triton)",
    }


def test_a_worker_without_a_model_has_no_backends_and_no_error() -> None:
    worker = FakeWorker()
    del worker.model_runner
    assert worker.k3perf_identity()["backends"] == {}
