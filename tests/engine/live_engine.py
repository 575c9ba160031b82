"""One real engine at a time for the tests of this folder: started from the declared
suite with a few arguments changed, ended by the next.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from k3perf.config.suite import load_suite
from k3perf.engine.jit_monitor import can_be_verbose
from k3perf.engine.model_directory import materialise
from k3perf.engine.render import measured_launch
from k3perf.engine.running import Engine
from k3perf.engine.supervisor import start_engine
from k3perf.run.engine_environment import engine_python_path
from k3perf.telemetry.server import ServerProbe

CONTEXT_TOKENS = 4096


@dataclass(frozen=True)
class Live:
    """A running engine: its probe, the arguments it was started with and a way to send
    a prompt.
    """

    engine: Engine
    probe: ServerProbe
    target: str
    arguments: dict[str, Any]

    def complete(self, prompt: list[int], tokens: int, *, sequences: int = 1) -> dict[str, Any]:
        """One completion, not streamed."""
        body = {
            "model": self.target,
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "n": sequences,
        }
        body["temperature"] = 0 if sequences == 1 else 1.0
        address = urlsplit(self.engine.base_url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=120)
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        finally:
            connection.close()
        assert response.status == http.client.OK, answer
        return answer


StartLive = Callable[..., Live]


@pytest.fixture(scope="session")
def start_live(
    pytestconfig: pytest.Config, engine_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StartLive]:
    """``start_live(target, **arguments)``: a live engine of a CPU target; the running
    one if it has these arguments, else a new one.

    ``again=True`` starts anew in any case.
    """
    work = tmp_path_factory.mktemp("engines")
    suite = load_suite(Path(pytestconfig.rootpath) / "perf_tests")
    running: list[Live] = []

    def start(target: str, *, again: bool = False, config: str = "default", **changed: Any) -> Live:
        spec = suite.target(target)
        arguments = {
            **suite.engine_arguments(spec, suite.config("default")),
            "max_model_len": CONTEXT_TOKENS,
            **suite.engine_arguments(spec, suite.config(config)),
            **changed,
        }
        if (
            running
            and not again
            and (running[0].target, running[0].arguments) == (target, arguments)
        ):
            return running[0]
        while running:
            running.pop().engine.stop()
        directory = spec.model.directory_for(config)
        assert directory is not None
        launch = measured_launch(
            spec,
            arguments,
            model=str(materialise(suite.root / directory, work / "models")),
            engine_python=engine_python,
            python_path=engine_python_path(work),
            cache_directory=work,
            verbose_monitor=can_be_verbose(engine_python),
        )
        engine = start_engine(launch, work_directory=work / f"{target}-{len(list(work.iterdir()))}")
        running.append(Live(engine, ServerProbe(engine.base_url, timeout_s=60), target, arguments))
        return running[0]

    yield start
    while running:
        running.pop().engine.stop()
