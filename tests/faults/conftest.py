"""Fixtures of the fault tests."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.bench import Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A clean bench; whatever a failing test leaves is ended by pid afterwards."""
    temporary = Path(tempfile.mkdtemp(prefix="k3b-"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    made = Bench(f"fake-{uuid.uuid4().hex[:10]}", tmp_path, temporary)
    yield made
    shutil.rmtree(temporary, ignore_errors=True)
    for pid in made.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def wait_for() -> Callable[[Callable[[], object], float], None]:
    """Poll a condition until it holds; fail with its name otherwise."""

    def wait(condition: Callable[[], object], within_s: float = 20.0) -> None:
        end_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end_s, f"{condition} did not come true within {within_s} s"
            time.sleep(0.02)

    return wait
