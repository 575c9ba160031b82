"""Files of another git ref, exported into the cache: the declared suite for ``ab``
mode, and what judges a change.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from k3perf.config.arguments import EngineTable
from k3perf.config.suite import Suite, load_suite
from k3perf.errors import UsageError, shortened
from k3perf.store.repository import Repository
from k3perf.unpack import extract

SUITE_FOLDER: Final = "perf_tests"
BASELINES_FOLDER: Final = "baselines"


@dataclass(frozen=True, slots=True)
class Judge:
    """What a change is judged by: the base's declarations and its directory of
    baselines and waivers. ``name`` says which base, for messages.
    """

    name: str
    suite: Suite
    baselines_directory: Path


def judge_from(
    root: Path,
    given: str,
    cache_directory: Path,
    engine_table: EngineTable | None = None,
    *,
    option: str = "--k3-judge-from",
) -> Judge:
    """The judge in a directory that holds ``perf_tests`` and ``baselines``, or at a git
    ref of the repository at ``root``. ``option``: for messages. Raises UsageError.
    """
    if not given:  # an unset variable of a workflow must not make the change its own judge
        raise UsageError(f"{option} is empty. Name a directory or a git ref.")
    if os.path.isdir(os.path.join(given, SUITE_FOLDER)):  # noqa: PTH112, PTH118 - of any length
        place, name = Path(given).resolve(), given
    else:
        place, commit = _exported_judge(root, given, cache_directory, option)
        name = commit[:12] if commit.startswith(given) else f"{given} ({commit[:12]})"
    return Judge(
        name,
        load_suite(place / SUITE_FOLDER, engine_table=engine_table),
        place / BASELINES_FOLDER,
    )


def _exported_judge(root: Path, ref: str, cache_directory: Path, option: str) -> tuple[Path, str]:
    said = f"{option} {shortened(ref)!r}"
    try:
        repository = Repository(root)
        commit = repository.commit(ref)
        place = cache_directory / "judges" / commit
        if not place.is_dir():
            folders = repository.folders(commit, SUITE_FOLDER, BASELINES_FOLDER)
            if SUITE_FOLDER not in folders:
                raise UsageError(f"{commit[:12]} has no {SUITE_FOLDER}. Name another commit.")
            _unpack(repository.archive(commit, *folders), place, said)
    except UsageError as error:
        raise UsageError(
            f"{said} is neither a directory with {SUITE_FOLDER} nor a git ref with {SUITE_FOLDER}"
            f" here: {error}"
        ) from None
    return place, commit


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
        _unpack(archive, place, f"--k3-ab-base {ref!r}")
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


def _unpack(archive: bytes, place: Path, said: str) -> None:
    """Whole or not at all. ``said``: the option, for a message."""
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=place.parent))
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            extract(tar, scratch)
        scratch.rename(place)
    except (OSError, tarfile.TarError) as error:
        shutil.rmtree(scratch, ignore_errors=True)
        raise UsageError(
            f"{said}: perf_tests of {place.name[:12]} cannot be written to {place}: {error}"
        ) from None
