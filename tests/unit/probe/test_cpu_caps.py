"""A worker whose oneDNN is capped below AMX tells vLLM that there is no AMX; any other
worker is left alone.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from k3perf.config.cpu_features import switched_off_by
from k3perf_probe.cpu_caps import BELOW_AMX, honour_caps


def amx_processor() -> SimpleNamespace:
    return SimpleNamespace(
        _is_amx_tile_supported=lambda: True,
        _is_amx_fp16_supported=lambda: True,
        _is_avx512_supported=lambda: True,
    )


@pytest.mark.parametrize(
    "environment", [{"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"DNNL_MAX_CPU_ISA": "avx512_core_bf16"}]
)
def test_a_cap_below_amx_hides_amx_and_nothing_else(environment: dict[str, str]) -> None:
    cpu = amx_processor()
    assert honour_caps(environment, cpu)
    assert (
        cpu._is_amx_tile_supported(),
        cpu._is_amx_fp16_supported(),
        cpu._is_avx512_supported(),
    ) == (False, False, True)


@pytest.mark.parametrize(
    "value", ["", "ALL", "DEFAULT", "AVX512_CORE_AMX", "AVX10_1_512_AMX_FP16", "no such set"]
)
def test_without_a_cap_below_amx_nothing_changes(value: str) -> None:
    cpu = amx_processor()
    assert not honour_caps({"ONEDNN_MAX_CPU_ISA": value}, cpu)
    assert cpu._is_amx_tile_supported()


def test_the_harness_knows_the_same_caps() -> None:
    """The probe cannot import the harness, so the list is written twice."""
    names = {
        *BELOW_AMX,
        "avx512_core_amx",
        "avx512_core_amx_fp16",
        "avx10_1_512_amx",
        "avx10_2_512_amx_2",
        "all",
        "default",
    }
    assert {
        name for name in names if switched_off_by("amx_tile", {"ONEDNN_MAX_CPU_ISA": name})
    } == BELOW_AMX
