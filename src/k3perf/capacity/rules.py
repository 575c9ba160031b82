"""What vLLM does on a platform that decides memory: block sizes, kept copies, state
blocks. The values of each platform are in ``platforms.yaml``.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from k3perf.documents import yaml_of
from k3perf.errors import UnknownNameError, UsageError

DTYPE_BYTES: Final[dict[str, int]] = {
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}


@dataclass(frozen=True, slots=True)
class ReserveRules:
    """Constants of what a GPU rank holds beside weights and cache (``reserve.py``), the
    same for every model.

    ``live_hidden_states``: hidden states of the largest step that are alive at the peak
    of the profile run. ``graph_base_bytes`` and ``graph_layer_bytes`` (a captured graph
    and layer): what vLLM sets aside for CUDA graphs. ``library_bytes``: kernels,
    handles and buffers that are there after the profile run and were not before the
    load.
    """

    live_hidden_states: int
    graph_base_bytes: int
    graph_layer_bytes: int
    library_bytes: int


@dataclass(frozen=True, slots=True)
class PlatformRules:
    """One platform's choices.

    ``default_block_tokens``: block size when none is asked for;
    ``latent_block_tokens``: the same for latent attention, forced where
    ``latent_block_forced``; ``quantised_latent_block_tokens``: with an FP8 cache;
    ``kernel_block_tokens``: the attention kernel's smallest block.
    ``latent_hybrid_alignment_tokens``: what a hybrid's latent block is a multiple of.
    ``kda_checkpoint_blocks``: state blocks that a KDA prefill adds per sequence with
    prefix caching. ``packs_vocabulary``: embedding and output head are kept in a
    second, packed copy. ``fused_kda_buffers``: KDA layers keep width-major copies for
    the fused decode kernel. ``withheld_bytes``: memory of a device that its runtime
    does not offer. ``reserve``: what else a rank holds; None where the cache is not
    what is left over. ``measured``: the row was compared with an engine on such a
    device.
    """

    name: str
    default_block_tokens: int
    kernel_block_tokens: int
    latent_block_tokens: int
    latent_block_forced: bool
    quantised_latent_block_tokens: int
    latent_hybrid_alignment_tokens: int
    kda_checkpoint_blocks: int
    packs_vocabulary: bool
    fused_kda_buffers: bool
    withheld_bytes: int
    reserve: ReserveRules | None
    measured: bool


# Attention backends that a configuration can ask for by name, with their kernel's block
# size.
BACKEND_BLOCK_TOKENS: Final[dict[str, int]] = {
    "FLASHMLA": 64,
    "CUTLASS_MLA": 128,
    "FLASHINFER_MLA": 32,
    "FLASH_ATTN_MLA": 16,
    "TRITON_MLA": 16,
    "FLASH_ATTN": 16,
}


PLATFORMS: Final = ("cpu", "nvidia", "amd")


def platform_rules(name: str) -> PlatformRules:
    """The rules of a platform. Raises UnknownNameError for one that has none."""
    table = yaml_of(files("k3perf.capacity").joinpath("platforms.yaml").read_text("utf-8"))
    if name not in table:
        raise UnknownNameError("platform", name, PLATFORMS)
    row = table[name]
    reserve = row.pop("reserve")
    return PlatformRules(name=name, reserve=reserve and ReserveRules(**reserve), **row)


def dtype_bytes(name: str) -> int:
    """Bytes of one element of a dtype name as vLLM spells it."""
    try:
        return DTYPE_BYTES[name.removeprefix("torch.")]
    except KeyError:
        raise UsageError(
            f"dtype {name!r} is not covered by the memory plan. Covered: {', '.join(DTYPE_BYTES)}."
        ) from None
