"""Arguments of vLLM that a suite's files cannot give, with reason and next step.

The number of ranks is declared by `parallelism` alone. The other arguments are in
``owned_arguments.yaml``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from k3perf.documents import yaml_of


class Owned(NamedTuple):
    """Why an argument is refused: a problem after the argument's name, and a next
    step.
    """

    problem: str
    next_step: str


@cache
def owned_table() -> dict[str, Owned]:
    """Every argument of ``owned_arguments.yaml``."""
    text = files("k3perf.config").joinpath("owned_arguments.yaml").read_text("utf-8")
    return {
        name: Owned(entry["problem"], entry["next_step"])
        for entry in yaml_of(text)
        for name in entry["arguments"]
    }


PARALLELISM: Final[dict[str, str]] = {
    "tensor_parallel_size": "tensor",
    "pipeline_parallel_size": "pipeline",
    "data_parallel_size": "data",
    "prefill_context_parallel_size": "prefill_context",
    "enable_expert_parallel": "expert",
}
"""Arguments that follow from `parallelism`, with the key that declares each."""


def owned(name: str, value: Any, *, in_config: bool) -> Owned | None:
    """Why a target's `engine_arguments` or a config's `change` cannot hold ``name``
    (None: it can).
    """
    key = PARALLELISM.get(name)
    if key is None:
        return owned_table().get(name)
    decides = "how experts are spread over the ranks" if key == "expert" else "the number of ranks"
    shown = str(value).lower() if isinstance(value, bool) else value
    declared = f"parallelism: {{{key}: {shown}}}"
    step = (
        f"declare a target for these ranks, with {declared}" if in_config else f"declare {declared}"
    )
    return Owned(
        f"decides {decides}, which only a target's parallelism sets",
        f"Remove it and {step}.",
    )
