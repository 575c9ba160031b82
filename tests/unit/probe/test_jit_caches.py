"""What compilers leave on disk: found below every folder that the worker's environment
names, dated, and nothing else.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from k3perf_probe import jit_caches
from tests.unit.probe.fakes import FakeWorker

FOLDERS = {
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "TILELANG_CACHE_DIR": "tilelang",
    "CUTE_DSL_CACHE_DIR": "cute",
    "QUACK_CACHE_DIR": "quack",
    "TVM_FFI_CACHE_DIR": "ffi",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "B12X_COMPILE_CACHE_DIR": "tomorrow",  # of a library that nobody listed
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with every cache folder, each with an old kernel."""
    for name in list(os.environ):
        if "CACHE" in name or name in {"TRITON_HOME", "FLASHINFER_WORKSPACE_BASE"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(jit_caches.tempfile, "gettempdir", lambda: str(tmp_path / "tmp"))
    for name, folder in FOLDERS.items():
        monkeypatch.setenv(name, str(tmp_path / folder))
        kernel(tmp_path / folder / "old" / "kernel.cubin")
    time.sleep(0.05)  # older than the slack for the kernel's clock
    return tmp_path


def kernel(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"cubin")
    return path


def new(since_ns: int, worker: object = None) -> dict[str, object]:
    return jit_caches.new_files(worker or FakeWorker(), since_ns, time.time_ns())


def test_nothing_new_is_nothing(home: Path) -> None:
    answer = new(time.time_ns())
    assert (answer["new"], answer["new_count"], answer["problem"], answer["rank"]) == ([], 0, "", 3)
    assert set(answer["folders"]) == {str(home / folder) for folder in FOLDERS.values()}  # type: ignore[call-overload]


@pytest.mark.parametrize("folder", FOLDERS.values())
def test_a_new_kernel_in_any_folder_is_found(home: Path, folder: str) -> None:
    since_ns = time.time_ns()
    made = kernel(home / folder / "a" / "b" / "kernel.cubin")
    kernel(made.with_name("kernel.json"))
    answer = new(since_ns)
    assert answer["new_folders"] == [str(made.parent)]
    assert answer["new_count"] == 1  # one compile leaves several files


def test_an_old_kernel_beside_a_new_one_is_not_named(home: Path) -> None:
    since_ns = time.time_ns()
    made = kernel(home / "triton" / "old" / "other.cubin")
    assert new(since_ns)["new"] == [str(made)]


def test_two_compiles_are_two(home: Path) -> None:
    since_ns = time.time_ns()
    kernel(home / "triton" / "x" / "k.cubin")
    kernel(home / "triton" / "y" / "k.cubin")
    assert new(since_ns)["new_count"] == 2


@pytest.mark.parametrize(
    "default",
    [
        ".triton/cache",
        ".cache/vllm",
        ".deep_gemm",
        ".cache/flashinfer",
        ".tilelang/cache",
        ".cache/tvm-ffi",
        ".nv/ComputeCache",
        ".aiter",
    ],
)
def test_where_no_variable_says_otherwise_the_libraries_own_places_are_looked_at(
    home: Path, default: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in FOLDERS:
        monkeypatch.delenv(name)
    since_ns = time.time_ns()
    kernel(home / default / "new" / "kernel.so")
    assert new(since_ns)["new_folders"] == [str(home / default / "new")]


def test_a_kernel_written_aside_and_renamed_counts(home: Path) -> None:
    """As Triton and DeepGEMM do; the time of the content may be older than the window."""
    aside = kernel(home / "tmp" / "k.cubin")
    time.sleep(0.05)
    since_ns = time.time_ns()
    aside.rename(home / "triton" / "k.cubin")
    assert new(since_ns)["new"] == [str(home / "triton" / "k.cubin")]


def test_what_a_look_up_leaves_is_no_kernel(home: Path) -> None:
    since_ns = time.time_ns()
    for name in (
        "a.lock",
        ".lock",
        "flashinfer_jit.log",
        "x.pyc",
        "locks/k",
        "__pycache__/k.so",
        "usage_stats.json",
    ):
        kernel(home / "triton" / name)
    assert new(since_ns)["new_count"] == 0


def test_a_lookup_that_reads_changes_nothing(home: Path) -> None:
    since_ns = time.time_ns()
    (home / "triton" / "old" / "kernel.cubin").read_bytes()
    assert new(since_ns)["new_count"] == 0


def test_a_folder_that_is_not_there_is_empty(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(home / "nowhere"))
    assert new(time.time_ns())["problem"] == ""


def test_a_folder_that_cannot_be_read_is_a_problem(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def refusing(place: str) -> object:
        if "deep_gemm" in str(place):
            raise PermissionError(13, "Permission denied")
        return scan(place)

    monkeypatch.setattr(jit_caches.os, "scandir", refusing)
    since_ns = time.time_ns()
    kernel(home / "triton" / "new" / "k.cubin")
    answer = new(since_ns)
    assert answer["problem"] == f"{home / 'deep_gemm'}: Permission denied"
    assert answer["new_count"] == 1  # the others are looked at all the same


def test_a_walk_that_takes_too_long_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit_caches, "DEADLINE_S", -1.0)
    assert "not fully read" in str(new(time.time_ns())["problem"])


def test_the_clock_of_another_host_is_allowed_for(home: Path) -> None:
    """The harness's clock is an hour behind: since and sent are both in its time."""
    hour_ns = 3_600_000_000_000
    since_ns = time.time_ns()
    time.sleep(0.05)
    kernel(home / "triton" / "new" / "k.cubin")
    answer = jit_caches.new_files(FakeWorker(), since_ns - hour_ns, time.time_ns() - hour_ns)
    assert answer["new_count"] == 1


def test_a_folder_inside_another_is_walked_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DG_JIT_CACHE_DIR", str(home / "vllm" / "old"))
    assert str(home / "vllm" / "old") not in jit_caches.cache_folders()
    assert str(home / "vllm") in jit_caches.cache_folders()


def test_the_engine_s_own_cache_directory_is_looked_at(home: Path) -> None:
    (home / "elsewhere").mkdir()
    worker = FakeWorker()
    worker.vllm_config.compilation_config = SimpleNamespace(cache_dir=str(home / "elsewhere"))  # type: ignore[attr-defined]
    assert str(home / "elsewhere") in jit_caches.cache_folders(worker)


def test_the_extension_leaves_its_answer_and_takes_numbers_as_text(home: Path) -> None:
    answer = FakeWorker().k3perf_new_compiled_files(
        str(time.time_ns()), str(time.time_ns()), str(home)
    )
    assert json.loads((home / "3.json").read_text()) == answer
    assert answer["rank"] == 3
