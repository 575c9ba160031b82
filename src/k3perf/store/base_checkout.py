"""The declared suite of another git ref, for ``ab`` mode: exported into the cache, loaded like any suite."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from k3perf.config.suite import Suite, load_suite
from k3perf.errors import UsageError


def base_suite(repository: Path, ref: str, cache_directory: Path) -> Suite:
    """``perf_tests`` as it is at ``ref``. Raises UsageError when the ref or the folder does not exist there."""
    commit = _git(repository, ["rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"], ref).decode().strip()
    place = cache_directory / "bases" / commit
    if not (place / "perf_tests").is_dir():
        archive = _git(repository, ["archive", "--format=tar", commit, "perf_tests"], ref)
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=place.parent))
        try:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(scratch, filter="data")
            scratch.rename(place)  # whole or not at all
        except OSError as error:
            shutil.rmtree(scratch, ignore_errors=True)
            raise UsageError(f"--k3-ab-base {ref!r}: perf_tests of {commit[:12]} cannot be written to {place}: {error}") from None
    return load_suite(place / "perf_tests")


def _git(repository: Path, arguments: list[str], ref: str) -> bytes:
    try:
        run = subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, timeout=60, check=False)  # noqa: S607
    except OSError as error:
        raise UsageError(f"--k3-ab-base {ref!r}: git cannot be run: {error}") from None
    if run.returncode != 0:
        detail = run.stderr.decode(errors="replace").strip()
        raise UsageError(
            f"--k3-ab-base {ref!r} is neither a virtual environment (no bin/python in it) "
            f"nor a git ref with perf_tests here. {detail}".strip()
        )
    return run.stdout
