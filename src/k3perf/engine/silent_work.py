"""Work of an engine that starts without a line in its log: compilers among its
processes, cache folders that grow.

FlashInfer builds kernels with ninja and nvcc for ten minutes and says nothing. Weights
come over a network into the hub's cache. That is progress. A compiler that uses no
CPU time is not, and an old cache is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from k3perf.engine.process_tree import is_compiler, name_of, read_row

# Variable, folder below it, and the folder where the variable is not set (below the
# home).
_CACHES: Final = (
    ("VLLM_CACHE_ROOT", "", ".cache/vllm"),
    ("TORCHINDUCTOR_CACHE_DIR", "", ""),
    ("TRITON_CACHE_DIR", "", ""),
    ("TRITON_HOME", ".triton/cache", ".triton/cache"),
    ("TORCH_EXTENSIONS_DIR", "", ".cache/torch_extensions"),
    ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", ".cache/flashinfer"),
    ("DG_JIT_CACHE_DIR", "", ".deep_gemm"),
    ("TILELANG_CACHE_DIR", "", ".tilelang/cache"),
    ("CUDA_CACHE_PATH", "", ".nv/ComputeCache"),
    ("AITER_JIT_DIR", "", ".aiter"),
    ("AMD_COMGR_CACHE_DIR", "", ".cache/comgr"),
    ("HF_HOME", "", ".cache/huggingface"),
    ("MODELSCOPE_CACHE", "", ".cache/modelscope"),
)
_COMPILE_WORKER: Final = b"compile_worker"  # torch.compile's own, a Python process
_LONGEST_WALK_S: Final = 1.0
_SLACK_NS: Final = 20_000_000  # the kernel stamps files with the time of its last tick
_BUSY_S: Final = 0.05
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def cache_folders(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Folders in which an engine with this environment keeps what it compiles and
    downloads. They need not exist.
    """
    home = Path(environment.get("HOME") or Path("~").expanduser())
    found = []
    for variable, below, default in _CACHES:
        given = environment.get(variable)
        if given:
            found.append(Path(given).expanduser() / below)
        elif default:
            found.append(home / default)
    return tuple(dict.fromkeys(found))


class SilentWork:
    """Compares what it sees with what it saw at the last call.

    ``pids`` are the engine's processes, ``folders`` may not exist yet. Made when the
    engine starts: only files that are younger count. A look reads the process list and
    walks the folders (milliseconds to a second), so call it only while the log is
    silent.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], folders: Iterable[Path]) -> None:
        self._pids = pids
        self._folders = tuple(folders)
        self._since_ns = time.time_ns() - _SLACK_NS
        self._compilers: dict[int, float] | None = None
        self._files: dict[Path, tuple[int, int]] = {}

    def seen(self) -> str:
        """What got on since the last call, in words. Empty at the first call."""
        return self._compiler_worked() or self._folder_grew()

    def _compiler_worked(self) -> str:
        """A new compiler, or one that used CPU time. Both looks are needed: a
        pool of idle compile workers is not progress.
        """
        before, now = self._compilers, dict(_compilers(self._pids()))
        if before is None:
            self._compilers = now
            return ""
        for pid, used_s in now.items():
            if pid not in before or used_s - before[pid] >= _BUSY_S:
                self._compilers = now
                return f"compiler {name_of(pid) or 'process'} (pid {pid}) is at work"
        # kept where nothing was seen, so that little by little adds up
        self._compilers = {pid: before[pid] for pid in now}
        return ""

    def _folder_grew(self) -> str:
        """A folder with more or larger new files than at the last look."""
        grown = ""
        for folder in self._folders:
            now = _new_files(folder, self._since_ns)
            if now is None:
                continue
            before = self._files.get(folder)
            self._files[folder] = now
            if before is not None and (now[0] > before[0] or now[1] > before[1]):
                grown = f"{folder} grows"
        return grown


def _compiles(pid: int) -> bool:
    """By its name, which the kernel cuts after 15 characters, or by its command."""
    if is_compiler(name_of(pid)):
        return True
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    program = Path(command.split(b"\0", 1)[0].decode(errors="replace")).name
    return is_compiler(program) or _COMPILE_WORKER in command


def _compilers(pids: Iterable[int]) -> Iterator[tuple[int, float]]:
    """Pids of compilers with CPU seconds, those of ended children included."""
    for pid in pids:
        with suppress(OSError, ValueError):
            if _compiles(pid):
                row = read_row(pid)
                if row is not None:
                    yield pid, (row.own_ticks + row.children_ticks) / _TICKS_PER_S


def _new_files(folder: Path, since_ns: int) -> tuple[int, int] | None:
    """Number and bytes of the files below the folder that were made or written since.
    None where it is too large to be walked in a second.

    A folder whose own time is older got no new file, so its files are not asked one by
    one.
    """
    count = size_bytes = 0
    end_s = time.monotonic() + _LONGEST_WALK_S
    waiting = [str(folder)]
    while waiting:
        if time.monotonic() > end_s:
            return None
        place = waiting.pop()
        with suppress(OSError):
            changed = Path(place).stat().st_mtime_ns >= since_ns
            with os.scandir(place) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif (
                        changed
                        and (found := entry.stat(follow_symlinks=False)).st_ctime_ns >= since_ns
                    ):
                        count += 1
                        size_bytes += found.st_size
    return count, size_bytes
