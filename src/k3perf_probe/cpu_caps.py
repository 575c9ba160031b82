"""Keeps vLLM from AMX where oneDNN is capped below it.

vLLM asks the CPU alone whether it has AMX tiles. The kernel lets a process use
them only once it has asked for them, and oneDNN is what asks. Capped below AMX
(``ONEDNN_MAX_CPU_ISA``) it never does, and vLLM's first AMX kernel ends the worker with
SIGILL.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

CAPS: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
BELOW_AMX: Final = frozenset(
    {
        "sse41",
        "avx",
        "avx2",
        "avx2_vnni",
        "avx2_vnni_2",
        "avx512_core",
        "avx512_core_vnni",
        "avx512_core_bf16",
        "avx512_core_fp16",
        "avx10_1_512",
        "avx10_2_512",
    }
)


QUESTIONS: Final = ("_is_amx_tile_supported", "_is_amx_fp16_supported")
"""Functions of ``torch.cpu`` that vLLM calls."""


def honour_caps(environment: Mapping[str, str], cpu: object | None = None) -> bool:
    """Answer no to vLLM's questions about AMX in this process if oneDNN is capped below
    it; says whether it is.

    ``cpu``: the module that vLLM asks, ``torch.cpu`` unless a test gives another.
    """
    cap = next((environment[name] for name in CAPS if environment.get(name)), "")
    if cap.lower() not in BELOW_AMX:
        return False
    module = cpu or import_module("torch.cpu")
    for name in QUESTIONS:
        setattr(module, name, lambda: False)
    return True
