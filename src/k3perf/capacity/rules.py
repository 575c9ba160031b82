"""What vLLM does on a platform that decides memory, as data: block sizes, kept copies,
state blocks. One row a platform.

Read from vLLM's own sources (0.32.0 for the CPU, 0.33.0 for CUDA); the file is named
beside each value. Nothing here is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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


# Read on an H200 with vLLM 0.33.0 by the probe: peaks of 7.1 hidden states (kimi_k2, 8
# layers) and of 8.0 beside the 6 of residual attention (kimi_linear, 24 layers); 203 to
# 266 MB and 457 MB for 30 graphs; 126 and 266 MB of libraries.
_H200_RESERVE: Final = ReserveRules(
    live_hidden_states=8,
    graph_base_bytes=128_000_000,
    graph_layer_bytes=450_000,
    library_bytes=200_000_000,
)


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


PLATFORMS: Final[tuple[PlatformRules, ...]] = (
    PlatformRules(
        name="cpu",
        default_block_tokens=128,  # platforms/cpu.py, check_and_update_config
        # v1/attention/backends/cpu_attn.py, get_supported_kernel_block_sizes
        kernel_block_tokens=32,
        # v1/attention/backends/mla/cpu_mla.py; platforms/cpu.py overrides what was
        # asked for
        latent_block_tokens=16,
        latent_block_forced=True,
        quantised_latent_block_tokens=16,
        latent_hybrid_alignment_tokens=128,
        kda_checkpoint_blocks=0,
        # layers/utils.py, dispatch_cpu_unquantized_gemm(remove_weight=False) of
        # vocab_parallel_embedding.py
        packs_vocabulary=True,
        fused_kda_buffers=False,
        withheld_bytes=0,
        reserve=None,  # the CPU cache is sized by VLLM_CPU_KVCACHE_SPACE alone
        measured=True,
    ),
    PlatformRules(
        name="nvidia",
        default_block_tokens=16,  # config/cache.py, DEFAULT_BLOCK_SIZE
        kernel_block_tokens=16,  # v1/attention/backends/flash_attn.py
        latent_block_tokens=16,  # v1/attention/backends/mla/flashattn_mla.py
        latent_block_forced=False,
        # v1/attention/backends/mla/flashmla.py serves FP8 latent caches
        quantised_latent_block_tokens=64,
        # platforms/interface.py, _align_hybrid_block_size
        latent_hybrid_alignment_tokens=128,
        kda_checkpoint_blocks=1,  # models/kimi_k3/nvidia/kda.py, get_kv_cache_spec
        packs_vocabulary=False,
        # models/kimi_k3/nvidia/kda.py, decode_conv1d_weight and decode_norm_weight
        fused_kda_buffers=True,
        # an H200: 150,754,820,096 by NVML, 150,109,880,320 by CUDA
        withheld_bytes=644_939_776,
        reserve=_H200_RESERVE,
        measured=True,
    ),
    PlatformRules(
        name="amd",
        default_block_tokens=16,
        kernel_block_tokens=16,
        latent_block_tokens=16,
        latent_block_forced=False,
        quantised_latent_block_tokens=16,
        # platforms/interface.py, shared by all platforms
        latent_hybrid_alignment_tokens=128,
        # models/kimi_k3/amd/kda.py, get_kv_cache_spec with the fused prefill
        kda_checkpoint_blocks=1,
        packs_vocabulary=False,
        # models/kimi_k3/amd/kda.py, decode_conv1d_weight and decode_norm_weight
        fused_kda_buffers=True,
        withheld_bytes=0,
        reserve=_H200_RESERVE,  # none was read on an AMD device
        measured=False,
    ),
)

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


def platform_rules(name: str) -> PlatformRules:
    """The row of a platform; an unknown name is refused rather than planned with
    another platform's rules.
    """
    for row in PLATFORMS:
        if row.name == name:
            return row
    raise UnknownNameError("platform", name, tuple(row.name for row in PLATFORMS))


def dtype_bytes(name: str) -> int:
    """Bytes of one element of a dtype name as vLLM spells it."""
    try:
        return DTYPE_BYTES[name.removeprefix("torch.")]
    except KeyError:
        raise UsageError(
            f"dtype {name!r} is not covered by the memory plan. Covered: {', '.join(DTYPE_BYTES)}."
        ) from None
