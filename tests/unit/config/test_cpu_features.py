"""Which instruction sets a CPU engine can use: the processor's, less what
ONEDNN_MAX_CPU_ISA and ATEN_CPU_CAPABILITY switch off.
"""

from __future__ import annotations

import pytest

from k3perf.config.cpu_features import lacking, usable

SAPPHIRE_RAPIDS = frozenset(
    {
        "sse4_1",
        "avx",
        "avx2",
        "avx512f",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_bf16",
    }
)
ICE_LAKE = frozenset({"sse4_1", "avx", "avx2", "avx512f", "avx512_vnni"})
HASWELL = frozenset({"sse4_1", "avx", "avx2"})


@pytest.mark.parametrize(
    ("environment", "left"),
    [
        (
            {},
            {
                "avx",
                "avx2",
                "avx512f",
                "avx512_vnni",
                "avx512_bf16",
                "avx512_fp16",
                "amx_tile",
                "amx_bf16",
            },
        ),
        (
            {"ONEDNN_MAX_CPU_ISA": "ALL"},
            {
                "avx",
                "avx2",
                "avx512f",
                "avx512_vnni",
                "avx512_bf16",
                "avx512_fp16",
                "amx_tile",
                "amx_bf16",
            },
        ),
        (
            {"ONEDNN_MAX_CPU_ISA": "no such"},
            {
                "avx",
                "avx2",
                "avx512f",
                "avx512_vnni",
                "avx512_bf16",
                "avx512_fp16",
                "amx_tile",
                "amx_bf16",
            },
        ),
        (
            {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"},
            {"avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"},
        ),
        (
            {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"},
            {"avx", "avx2", "avx512f", "avx512_vnni", "avx512_bf16"},
        ),
        ({"ONEDNN_MAX_CPU_ISA": "avx512_core_vnni"}, {"avx", "avx2", "avx512f", "avx512_vnni"}),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}, {"avx", "avx2", "avx512f"}),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"avx", "avx2"}),
        ({"ONEDNN_MAX_CPU_ISA": "AVX"}, {"avx"}),
        ({"ONEDNN_MAX_CPU_ISA": "SSE41"}, set()),
        ({"DNNL_MAX_CPU_ISA": "AVX2"}, {"avx", "avx2"}),
        (
            {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "DNNL_MAX_CPU_ISA": "AVX2"},
            {"avx", "avx2", "avx512f"},
        ),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, {"avx", "avx2"}),
        ({"ATEN_CPU_CAPABILITY": "default"}, set()),
        (
            {"ATEN_CPU_CAPABILITY": "AVX2"},
            {
                "avx",
                "avx2",
                "avx512f",
                "avx512_vnni",
                "avx512_bf16",
                "avx512_fp16",
                "amx_tile",
                "amx_bf16",
            },
        ),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx2"}, {"avx", "avx2"}),
    ],
    ids=lambda value: (
        " ".join(f"{name}={text}" for name, text in value.items())
        if isinstance(value, dict)
        else ""
    ),
)
def test_caps_switch_off_what_is_above_them(environment: dict[str, str], left: set[str]) -> None:
    assert usable(SAPPHIRE_RAPIDS, environment) == {"sse4_1", *left}


@pytest.mark.parametrize(
    ("flags", "environment", "told"),
    [
        (SAPPHIRE_RAPIDS, {}, ""),
        (ICE_LAKE, {}, "this CPU lacks avx512_bf16"),
        (HASWELL, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "this CPU lacks avx512_bf16"),
        (
            SAPPHIRE_RAPIDS,
            {"ONEDNN_MAX_CPU_ISA": "AVX2"},
            "ONEDNN_MAX_CPU_ISA=AVX2 switches avx512_bf16 off",
        ),
        (
            SAPPHIRE_RAPIDS,
            {"ATEN_CPU_CAPABILITY": "avx2"},
            "ATEN_CPU_CAPABILITY=avx2 switches avx512_bf16 off",
        ),
    ],
)
def test_what_is_missing_is_named_with_its_cause(
    flags: frozenset[str], environment: dict[str, str], told: str
) -> None:
    assert lacking(("avx2", "avx512_bf16"), flags, environment) == told
