"""What compilers left on disk since a moment: new files below the folders in which they
keep compiled kernels.

A compile that no log line shows (DeepGEMM, torch.compile, FlashInfer, a kernel library
of tomorrow) leaves a file. Asked inside the engine's worker, whose environment says
where the folders are, and on its own host. Writes nothing. Standard library only.

Files are dated by the file system. A file server with another time than the host can
hide one.
"""

from __future__ import annotations

import getpass
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from k3perf_probe.answers import rank_of

DEADLINE_S = 5.0  # a walk over a slow network file system is given up, and says so
SHOWN_FILES = 8
_SLACK_NS = 20_000_000  # the kernel stamps files with the time of its last tick
_SKEW_LIMIT_NS = 500_000_000

# Any variable of such a name holds a folder of compiled kernels: libraries that are not
# listed below are found by it.
_CACHE_VARIABLE = re.compile(
    r"(?=.*CACHE)\w*(?:JIT|COMPIL|KERNEL|DSL|TRITON|INDUCTOR|TUNE|GEMM|DG|FFI|TILELANG)\w*_(?:DIR|PATH|ROOT)"
)
# Written without a compile: locks and logs of a look-up, and Python's own byte code.
_NO_KERNEL = re.compile(r".*\.(?:lock|log|pyc)|\.lock|usage_stats\.json")
_NO_KERNEL_FOLDERS = frozenset({"__pycache__", "locks", "modelinfos", "assets", "startup_plan"})


def new_files(worker: Any, since_ns: int, sent_ns: int) -> dict[str, Any]:
    """Files that this rank's compilers made since ``since_ns`` (wall clock of the
    harness, which sent the question at ``sent_ns``).

    ``new`` holds at most SHOWN_FILES paths, ``new_count`` how many folders hold a new
    file (a compile leaves several files in one). ``problem``: why a folder could not be
    looked at, empty when all were.
    """
    now_ns = time.time_ns()
    if abs(now_ns - sent_ns) > _SKEW_LIMIT_NS:  # another host with another clock
        since_ns += now_ns - sent_ns
    end_s = time.monotonic() + DEADLINE_S
    found: list[str] = []
    problems: list[str] = []
    folders = cache_folders(worker)
    for folder in folders:
        try:
            found += _newer(folder, since_ns - _SLACK_NS, end_s)
        except OSError as error:
            problems.append(f"{folder}: {error.strerror or error}")
    new_folders = {str(Path(path).parent) for path in found}
    return {
        "rank": rank_of(worker),
        "folders": folders,
        "new": sorted(found)[:SHOWN_FILES],
        "new_folders": sorted(new_folders)[:SHOWN_FILES],
        "new_count": len(new_folders),
        "problem": "; ".join(problems),
    }


def cache_folders(worker: Any = None) -> list[str]:
    """Every folder that exists and may get compiled kernels, none inside another."""
    found = {Path(path).expanduser().resolve() for path in _candidates(worker) if path}
    existing = {path for path in found if path.is_dir()}
    return sorted(str(path) for path in existing if not existing.intersection(path.parents))


def _candidates(worker: Any) -> Iterator[str]:
    value = os.environ.get
    home, temporary = str(Path("~").expanduser()), tempfile.gettempdir()
    cache = value("XDG_CACHE_HOME") or f"{home}/.cache"
    user = _user()
    yield (
        value("VLLM_CACHE_ROOT") or f"{cache}/vllm"
    )  # with torch.compile's graphs, DeepGEMM's kernels and FlashInfer's tuning
    yield value("VLLM_FLASHINFER_AUTOTUNE_CACHE_DIR") or ""
    yield value("TRITON_CACHE_DIR") or f"{value('TRITON_HOME') or home}/.triton/cache"
    yield value("TORCHINDUCTOR_CACHE_DIR") or f"{temporary}/torchinductor_{user}"
    yield value("TORCH_EXTENSIONS_DIR") or f"{cache}/torch_extensions"
    yield value("PYTORCH_KERNEL_CACHE_PATH") or f"{cache}/torch/kernels"
    yield value("DG_JIT_CACHE_DIR") or f"{home}/.deep_gemm"
    yield f"{value('FLASHINFER_WORKSPACE_BASE') or home}/.cache/flashinfer"
    yield value("TRTLLM_DG_CACHE_DIR") or f"{home}/.tensorrt_llm"
    yield value("TILELANG_CACHE_DIR") or f"{home}/.tilelang/cache"
    yield value("CUTE_DSL_CACHE_DIR") or f"{temporary}/{user}/cutlass_python_cache"
    yield value("QUACK_CACHE_DIR") or f"{temporary}/{user}/quack_cache"
    yield value("TVM_FFI_CACHE_DIR") or f"{home}/.cache/tvm-ffi"
    yield value("CUDA_CACHE_PATH") or f"{home}/.nv/ComputeCache"
    yield value("AITER_JIT_DIR") or f"{home}/.aiter"
    yield value("AMD_COMGR_CACHE_DIR") or f"{cache}/comgr"
    for name, path in list(os.environ.items()):
        if _CACHE_VARIABLE.fullmatch(name) and Path(path).expanduser().is_absolute():
            yield path
    yield from _said_by_the_libraries(worker)


def _said_by_the_libraries(worker: Any) -> Iterator[str]:
    """Where a loaded library itself says that it keeps its kernels; one that is not
    loaded or says nothing is omitted.
    """
    for module, names in (
        ("triton.knobs", ("cache.dir",)),
        ("flashinfer.jit.env", ("FLASHINFER_WORKSPACE_DIR", "FLASHINFER_JIT_DIR")),
        ("tilelang.env", ("TILELANG_CACHE_DIR", "env.TILELANG_CACHE_DIR")),
    ):
        for name in names:
            yield _attribute(sys.modules.get(module), name)
    yield _attribute(worker, "vllm_config.compilation_config.cache_dir")


def _attribute(owner: Any, dotted: str) -> str:
    with suppress(Exception):  # whatever an unknown release answers
        for name in dotted.split("."):
            owner = getattr(owner, name)
        return str(owner) if isinstance(owner, str | os.PathLike) else ""
    return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ModuleNotFoundError):
        return f"uid_{os.getuid()}"


def _newer(folder: str, since_ns: int, end_s: float) -> Iterator[str]:
    """Files made or renamed since. A folder whose own time is older got no file, so its
    files are not asked one by one.
    """
    waiting = [folder]
    while waiting:
        if time.monotonic() > end_s:
            raise OSError(f"not fully read in {DEADLINE_S:g} s")
        place = waiting.pop()
        with suppress(
            FileNotFoundError, NotADirectoryError
        ):  # a compiler's temporary folder, gone meanwhile
            changed = Path(place).stat().st_mtime_ns >= since_ns
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in _NO_KERNEL_FOLDERS:
                            waiting.append(entry.path)
                    elif changed and not _NO_KERNEL.fullmatch(entry.name):
                        with suppress(FileNotFoundError):
                            if entry.stat(follow_symlinks=False).st_ctime_ns >= since_ns:
                                yield entry.path
