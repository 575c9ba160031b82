"""A small pytest run around one engine: what a harness fault strikes. Copied into a
test's directory as a conftest; reads spec.json there.

Writes each stage it hears to ``stages`` and ``serving`` when its test runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from k3perf.config.models import StageDeadlines
from k3perf.engine import signals
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.lock import device_lock
from k3perf.engine.running import Engine
from k3perf.engine.supervisor import start_engine

HERE = Path(__file__).parent


def note(text: str) -> None:
    with (HERE / "stages").open("a") as handle:
        handle.write(text + "\n")


def pytest_configure() -> None:
    signals.install()


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    spec = json.loads((HERE / "spec.json").read_text())
    launch = EngineLaunch(
        argv=tuple(spec["argv"]),
        model_name=spec["model_name"],
        config_file_text="model: fake\n",
        environment=spec.get("environment", {}),
        deadlines=StageDeadlines(**spec.get("deadlines", {})),
    )
    with device_lock("fake", directory=HERE / "locks"):
        note("import")
        with start_engine(launch, work_directory=HERE / "work", on_stage=note) as started:
            yield started


def serve(engine: Engine) -> None:
    note("serving")
    while engine.alive():
        time.sleep(0.05)
