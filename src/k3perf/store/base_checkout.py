"""The declared suite of another git ref, for ``ab`` mode: exported into the cache,
loaded like any suite.
"""

from __future__ import annotations

import io
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from k3perf.config.arguments import EngineTable
from k3perf.config.suite import Suite, load_suite
from k3perf.errors import UsageError
from k3perf.store.repository import Repository
from k3perf.unpack import extract


def base_suite(
    root: Path, ref: str, cache_directory: Path, engine_table: EngineTable | None = None
) -> Suite:
    """``perf_tests`` of the repository at ``root`` as it is at ``ref``. Raises
    UsageError when the ref or the folder does not exist there.
    """
    commit = base_commit(root, ref)
    place = cache_directory / "bases" / commit
    archive = None
    if not (place / "perf_tests").is_dir():
        with _refused_as_base(ref):
            archive = Repository(root).archive(commit, "perf_tests")
    if archive is not None:
        _unpack(archive, place, ref)
    return load_suite(place / "perf_tests", engine_table=engine_table)


def base_commit(root: Path, ref: str) -> str:
    """The commit of ``ref`` in the repository at ``root``. Raises UsageError."""
    with _refused_as_base(ref):
        return Repository(root).commit(ref)


@contextmanager
def _refused_as_base(ref: str) -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"--k3-ab-base {ref!r} is neither a virtual environment (no bin/python in it) nor a git"
            f" ref with perf_tests here: {error}"
        ) from None


def _unpack(archive: bytes, place: Path, ref: str) -> None:
    """Whole or not at all."""
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            extract(tar, scratch)
        scratch.rename(place)
    except (OSError, tarfile.TarError) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise UsageError(
            f"--k3-ab-base {ref!r}: perf_tests of {place.name[:12]} cannot be written to {place}:"
            f" {error}"
        ) from None
