from __future__ import annotations

import sys
from types import ModuleType

import pytest

from k3perf_probe.contract import RELIED_ON, Relied, broken, clashes
from k3perf_probe.worker_extension import ProbeExtension

THIS = __name__


class Runner:
    declared: int

    def __init__(self) -> None:
        self.kv_caches: list[int] = []

    def get_model(self) -> None:
        pass


class Worker(Runner):
    k3perf_memory = None


def test_names_on_the_class_assigned_to_self_or_annotated_are_found() -> None:
    assert (
        list(broken((Relied(THIS, "Worker", ("get_model", "kv_caches", "declared"), "x"),))) == []
    )


def test_a_moved_name_is_told_with_what_it_was_for() -> None:
    (problem,) = broken((Relied(THIS, "Runner", ("kv_cache_tensors",), "kv_cache_bytes"),))
    assert problem == f"{THIS}.Runner no longer has 'kv_cache_tensors'; needed for kv_cache_bytes"


@pytest.mark.parametrize(("module", "owner"), [("no_such_module", "X"), (THIS, "NoSuchClass")])
def test_a_moved_class_or_module_is_told(module: str, owner: str) -> None:
    (problem,) = broken((Relied(module, owner, ("x",), "weights_bytes"),))
    assert "cannot be found" in problem
    assert "weights_bytes" in problem


def test_a_clash_of_names_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("fake_worker_module")
    module.Worker = Worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_worker_module", module)
    (problem,) = clashes((("fake_worker_module", "Worker"),))
    assert "'k3perf_memory'" in problem


def test_every_public_name_of_the_extension_is_prefixed() -> None:
    assert [name for name in dir(ProbeExtension) if not name.startswith(("__", "k3perf_"))] == []


def test_every_engine_memory_part_is_in_the_contract() -> None:
    told = " ".join(relied.needed_for for relied in RELIED_ON)
    for part in (
        "weights_bytes",
        "kv_cache_bytes",
        "peak_activation_bytes",
        "graph_pool_bytes",
        "graph_pool_estimate_bytes",
    ):
        assert part in told


def test_the_probe_loads_with_the_standard_library_alone() -> None:
    import subprocess

    code = (
        "import sys; import k3perf_probe.worker_extension, k3perf_probe.contract;"
        " print(sorted({name.partition('.')[0] for name in sys.modules} -"
        " set(sys.stdlib_module_names) - {'k3perf_probe', '__main__', 'sitecustomize',"
        " '__editable___k3perf_0_1_0_finder'}))"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"sys=__import__('sys'); sys.path.insert(0, {_source()!r}); {code}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def _source() -> str:
    from pathlib import Path

    import k3perf_probe

    return str(Path(k3perf_probe.__file__).parent.parent)
