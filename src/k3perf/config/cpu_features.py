"""The instruction sets that a CPU engine can use here: those of the CPU, less what the
environment switches off.

``ONEDNN_MAX_CPU_ISA`` (or its older name ``DNNL_MAX_CPU_ISA``) caps oneDNN,
``ATEN_CPU_CAPABILITY`` caps PyTorch's own kernels. vLLM's attention kernels obey
neither: they ask the CPU. So a target's need is compared with what is left under the
caps, and a refusal of the attention kernels with what the CPU has.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ONEDNN_CAPS: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
ATEN_CAP: Final = "ATEN_CPU_CAPABILITY"

SHOWN_FEATURES: Final = ("avx2", "avx512f", "avx512_bf16", "amx_tile")
"""Those that decide what a CPU engine can do, from the oldest to the newest."""

_NO_AVX512: Final = ("avx512",)
_NO_AMX: Final = ("amx",)
_NO_BF16: Final = ("avx512_bf16", "avx512_fp16", *_NO_AMX)
_SWITCHED_OFF_BY_ONEDNN: Final[dict[str, tuple[str, ...]]] = {
    "sse41": ("avx", *_NO_AMX),
    "avx": ("avx2", *_NO_AVX512, *_NO_AMX),
    "avx2": (*_NO_AVX512, *_NO_AMX),
    "avx2_vnni": (*_NO_AVX512, *_NO_AMX),
    "avx2_vnni_2": (*_NO_AVX512, *_NO_AMX),
    "avx512_core": ("avx512_vnni", *_NO_BF16),
    "avx512_core_vnni": _NO_BF16,
    "avx512_core_bf16": ("avx512_fp16", *_NO_AMX),
    "avx512_core_fp16": _NO_AMX,
    "avx10_1_512": _NO_AMX,
    "avx10_2_512": _NO_AMX,
}
"""Beginnings of /proc/cpuinfo's names, by the value of the cap. oneDNN ignores a value
that it does not know, and the case of letters.
"""

_SWITCHED_OFF_BY_ATEN: Final = {"default": ("avx", *_NO_AMX), "avx2": (*_NO_AVX512, *_NO_AMX)}


def switched_off_by(feature: str, environment: Mapping[str, str]) -> str:
    """The setting that keeps ``feature`` (a name of /proc/cpuinfo) from being used, as
    ``NAME=VALUE``; empty when none does.
    """
    onednn = next((name for name in ONEDNN_CAPS if environment.get(name)), "")
    caps = [(onednn, _SWITCHED_OFF_BY_ONEDNN.get(environment.get(onednn, "").lower(), ()))]
    caps.append((ATEN_CAP, _SWITCHED_OFF_BY_ATEN.get(environment.get(ATEN_CAP, ""), ())))
    return next(
        (f"{name}={environment[name]}" for name, off in caps if feature.startswith(off or "-")), ""
    )


def usable(flags: Iterable[str], environment: Mapping[str, str]) -> frozenset[str]:
    """Those of the CPU's ``flags`` that no cap switches off."""
    return frozenset(flag for flag in flags if not switched_off_by(flag, environment))


def lacking(needed: Iterable[str], flags: frozenset[str], environment: Mapping[str, str]) -> str:
    """Which of the ``needed`` instruction sets are missing, and why; empty when all can
    be used.
    """
    wanted = tuple(needed)
    absent = [feature for feature in wanted if feature not in flags]
    off = {feature: switched_off_by(feature, environment) for feature in wanted if feature in flags}
    parts = [f"this CPU lacks {', '.join(absent)}"] if absent else []
    parts += [f"{setting} switches {feature} off" for feature, setting in off.items() if setting]
    return "; ".join(parts)
