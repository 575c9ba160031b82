"""Parallelism -> what one rank holds: layers of its stage, heads, experts. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from k3perf.errors import UsageError


class Parallelism(Protocol):
    """Ranks of one engine, as ``config.models.Parallelism`` declares them."""

    @property
    def tensor(self) -> int:
        """Ranks that share every layer."""

    @property
    def pipeline(self) -> int:
        """Stages that split the layers."""

    @property
    def data(self) -> int:
        """Replicas of the attention layers."""

    @property
    def expert(self) -> bool:
        """Whole experts are spread over tensor x data ranks instead of slices of every
        expert.
        """


@dataclass(frozen=True, slots=True)
class Ranks:
    """A literal ``Parallelism``."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False


def stage_layers(layer_count: int, stages: int) -> tuple[range, ...]:
    """Layer indices of every pipeline stage.

    Left-over layers go to the stages before the last, from the back (vLLM
    ``distributed/utils.py``, ``get_pp_indices``).
    """
    if stages > layer_count:
        raise UsageError(f"pipeline {stages} is more than the model's {layer_count} layers.")
    sizes = [layer_count // stages] * stages
    for offset in range(2, layer_count % stages + 2):
        sizes[-offset] += 1
    starts = [sum(sizes[:index]) for index in range(stages)]
    return tuple(range(start, start + size) for start, size in zip(starts, sizes, strict=True))


def split(total: int, ranks: int, what: str) -> int:
    """An even share; UsageError when vLLM would refuse it as uneven."""
    if total % ranks:
        raise UsageError(
            f"{what} {total} cannot be split over {ranks} ranks; choose a parallelism that"
            " divides it."
        )
    return total // ranks


def kv_heads(total: int, tensor: int) -> int:
    """KV heads of one rank: split while there are enough, replicated beyond (vLLM
    ``ModelConfig.get_num_kv_heads``).
    """
    return max(1, total // tensor)
