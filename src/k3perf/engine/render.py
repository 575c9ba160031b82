"""A cell's engine arguments to the file and command that start it: what the suite tests
is what production deploys.

Pure: nothing is started here. The native ``--config`` file holds every vLLM argument;
only what belongs to the measurement (port, name, the probe's worker extension) is added
on the command line by ``measured_launch``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from k3perf.config import log_environment
from k3perf.config.arguments import native_value
from k3perf.config.models import TargetSpec
from k3perf.engine.launch import SERVER_MODULE, EngineLaunch

PROBE_EXTENSION: Final = "k3perf_probe.worker_extension.ProbeExtension"
FORCED_DECODE: Final = "k3perf_probe.forced_decode:ForcedDecode"
"""What lets the quality pass decode along given tokens."""

# What keeps a measured server quiet and reproducible; none of it changes how a request
# is computed.
MEASUREMENT_ENVIRONMENT: Final = {
    # server-info and RPC routes; the server listens on loopback only
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True, slots=True)
class Deployment:
    """What production runs: the native configuration file, the command that uses it and
    the environment the hardware forces.
    """

    config_file_text: str
    command: tuple[str, ...]
    environment: dict[str, str]


def native_config(engine_arguments: dict[str, Any], model: str) -> str:
    """The text of vLLM's own ``--config`` YAML file: one key per argument, dashes as on
    the command line, nested mappings as they are.
    """
    rendered: dict[str, Any] = {"model": model}
    rendered.update(
        {
            name.replace("_", "-"): native_value(name, value)
            for name, value in sorted(engine_arguments.items())
        }
    )
    return yaml.safe_dump(rendered, sort_keys=False, default_flow_style=False)


def deployment(
    target: TargetSpec,
    engine_arguments: dict[str, Any],
    model: str,
    *,
    config_path: str = "config.yaml",
) -> Deployment:
    """What ``k3perf export`` prints; ``model`` is a checkpoint name or a directory.

    The file of a target without weights (a stand-in) says so: vLLM could not start from
    its directory otherwise.
    """
    command = ["python", "-m", SERVER_MODULE, "--config", config_path]
    if target.model.trust_remote_code:
        command.append("--trust-remote-code")
    own = (
        {**engine_arguments, "load_format": "dummy"}
        if target.model.weights == "dummy"
        else engine_arguments
    )
    return Deployment(native_config(own, model), tuple(command), dict(target.environment))


def measured_launch(
    target: TargetSpec,
    engine_arguments: dict[str, Any],
    *,
    model: str,
    engine_python: Path,
    python_path: str,
    cache_directory: Path,
    verbose_monitor: bool = False,
) -> EngineLaunch:
    """The launch of a measured engine: the deployment plus port, served name, probe and
    the form of its log.

    ``python_path`` becomes the engine's PYTHONPATH and must hold ``k3perf_probe``;
    ``cache_directory`` keeps compile caches between sessions, so that warm starts are
    warm by choice. ``verbose_monitor``: this vLLM has ``jit_monitor_verbose``
    (``engine.jit_monitor.can_be_verbose``), without which its JIT monitor reports each
    kernel once.
    """
    deployed = deployment(target, engine_arguments, model, config_path="{config_file}")
    argv = [str(engine_python), *deployed.command[1:], "--host", "127.0.0.1", "--port", "{port}"]
    argv += ["--served-model-name", target.name, "--worker-extension-cls", PROBE_EXTENSION]
    argv += ["--jit-monitor-verbose"] if verbose_monitor else []
    argv += _forced_decode(target, engine_arguments)
    environment: dict[str, str | None] = {
        **MEASUREMENT_ENVIRONMENT,
        "VLLM_CACHE_ROOT": str(cache_directory / "vllm"),
        **({"HF_HUB_OFFLINE": "1"} if target.model.directory is not None else {}),
        **deployed.environment,
        **log_environment.FIXED,
        "PYTHONPATH": python_path,
    }
    return EngineLaunch(
        argv=tuple(argv),
        environment=environment,
        config_file_text=deployed.config_file_text,
        model_name=target.name,
        server_cpus=target.pinning.server_cpus,
        deadlines=target.stage_deadlines,
    )


def _forced_decode(target: TargetSpec, engine_arguments: dict[str, Any]) -> list[str]:
    """Only where answers are compared. vLLM refuses such a class together with
    speculative decoding.
    """
    if target.quality is None or engine_arguments.get("speculative_config"):
        return []
    return ["--logits-processors", FORCED_DECODE]
