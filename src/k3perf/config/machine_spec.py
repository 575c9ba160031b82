"""The machine of a target: hardware, ranks and the launcher."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, Literal

from pydantic import Field

from k3perf.config.declared import (
    CpuFeature,
    Declared,
    Name,
    PositiveFloat,
    Release,
)


class Hardware(Declared):
    """The hardware class that a target runs on. The class is part of every baseline's
    key.
    """

    kind: Literal["cpu", "nvidia", "amd"]
    """Kind of device that serves."""
    hardware_class: Name
    """Name of the class. Only numbers of one class are compared."""
    device_count: int = Field(ge=1, default=1)
    """Devices of all hosts together. On accelerators the product of `parallelism`."""
    device_name: str = ""
    """Part of each device's name as the driver reports it. Empty: any."""
    device_memory_bytes: int | None = Field(default=None, gt=0)
    """Memory of each device in bytes. Other sizes of the same device are refused."""
    power_limit_w: PositiveFloat | None = None
    """Power limit of each device in watts, to 2 %. A device under another limit is
    refused before anything starts.
    """
    host_count: int = Field(ge=1, default=1)
    """Hosts that share the devices evenly."""
    minimum_driver: str = ""
    """Oldest driver release that may be used. Empty: any."""
    minimum_vllm: Release = ""
    """Oldest vLLM release that can serve this target. Empty: any."""
    cpu_features: tuple[CpuFeature, ...] = ()
    """Instruction sets that the engine needs, by their names in /proc/cpuinfo."""
    cpu_classes: dict[Name, tuple[CpuFeature, ...]] = Field(default_factory=dict)
    """Classes of CPUs that can do more, each with the instruction sets that make
    it. The first that fits replaces `hardware_class`.
    """

    def class_with(self, cpu_features: Container[str]) -> str:
        """The class of a machine on which these instruction sets can be used."""
        fitting = (
            name
            for name, needed in self.cpu_classes.items()
            if all(feature in cpu_features for feature in needed)
        )
        return next(fitting, self.hardware_class)


class Parallelism(Declared):
    """Ranks of one engine. Their number is the product of all sizes.

    On accelerators it must be ``hardware.device_count``. Only these keys declare ranks.
    vLLM's arguments for them follow from here and are refused elsewhere.
    """

    tensor: int = Field(ge=1, default=1)
    """Tensor-parallel size."""
    pipeline: int = Field(ge=1, default=1)
    """Pipeline-parallel size."""
    data: int = Field(ge=1, default=1)
    """Data-parallel size."""
    prefill_context: int = Field(ge=1, default=1)
    """Prefill-context-parallel size."""
    expert: bool = False
    """Spread experts over the ranks instead of splitting each of them."""

    @property
    def rank_count(self) -> int:
        """Ranks of all hosts together."""
        return self.tensor * self.pipeline * self.data * self.prefill_context

    @property
    def text(self) -> str:
        """``tensor 8 x pipeline 2 x data 1``, with prefill context only where there is
        some.
        """
        own = f"tensor {self.tensor} x pipeline {self.pipeline} x data {self.data}"
        return (
            own if self.prefill_context == 1 else f"{own} x prefill context {self.prefill_context}"
        )


class Launch(Declared):
    """How the engine's processes are started."""

    kind: Literal["single", "multi_node", "ray", "slurm", "kubernetes", "server"] = "single"
    """This host, vLLM's multi-node start, Ray, Slurm, Kubernetes, a running server."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What this start needs beyond the engine's arguments (docs/multi-host.md)."""
