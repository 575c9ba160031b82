"""What is needed to start one engine process tree, complete and frozen.

Data only: ``engine.render`` makes it, ``engine.supervisor`` runs it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from k3perf.config.models import StageDeadlines

SERVER_MODULE: Final = "vllm.entrypoints.openai.api_server"
CONFIG_FILE_PLACEHOLDER: Final = "{config_file}"
PORT_PLACEHOLDER: Final = "{port}"


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """One engine, ready to start.

    ``argv`` may hold ``{config_file}`` and ``{port}``; the supervisor writes
    ``config_file_text`` (vLLM's native ``--config`` YAML) into the engine's work
    directory, reserves a port and fills both in. ``environment`` is laid over the
    harness's own environment; a value of None removes a variable. ``server_cpus`` pins
    API server and EngineCore after the start.
    """

    argv: tuple[str, ...]
    model_name: str
    config_file_text: str = ""
    environment: dict[str, str | None] = field(default_factory=dict)
    host: str = "127.0.0.1"
    server_cpus: tuple[int, ...] = ()
    deadlines: StageDeadlines = field(default_factory=StageDeadlines)
    port_attempts: int = 3

    def rendered_argv(self, *, config_file: str, port: int) -> tuple[str, ...]:
        """``argv`` with both placeholders filled in."""
        return tuple(
            part.replace(CONFIG_FILE_PLACEHOLDER, config_file).replace(PORT_PLACEHOLDER, str(port))
            for part in self.argv
        )
