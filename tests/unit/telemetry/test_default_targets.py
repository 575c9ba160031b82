"""Which targets a run measures when none is named, by what the processor can do;
refusals name the missing instruction set.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from k3perf.config.load_yaml import load_document
from k3perf.config.models import TargetSpec
from k3perf.config.suite import Suite, load_suite
from k3perf.errors import ConfigFileError, UsageError
from k3perf.pytest_plugin.selection import Selection, nothing_selected, select
from k3perf.telemetry.default_targets import default_targets
from k3perf.telemetry.hardware import DetectedHardware

REPOSITORY = Path(__file__).resolve().parents[3]
CAPS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
ZEN_4 = {"avx2", "avx512f", "avx512_bf16"}
ICE_LAKE = {"avx2", "avx512f"}
HASWELL = {"avx2"}


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(REPOSITORY / "perf_tests")


@pytest.fixture(autouse=True)
def no_caps(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CAPS:
        monkeypatch.delenv(name, raising=False)


def machine(flags: set[str], *devices: str) -> DetectedHardware:
    return DetectedHardware(devices, tuple(150 << 30 for _ in devices), None, frozenset(flags))


def selected(suite: Suite, flags: set[str], *asked: str, collect_only: bool = False) -> Selection:
    return select(suite, machine(flags), asked, collect_only=collect_only, cells_file=None)


def configs(selection: Selection) -> set[str]:
    return {f"{cell.target.name}-{cell.config.name}" for cell in selection.cells}


@pytest.mark.parametrize(
    ("flags", "caps", "target", "reason"),
    [
        (ZEN_4, {}, "cpu-hybrid", ""),
        (ZEN_4 | {"amx_tile"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "cpu-hybrid", ""),
        (
            ICE_LAKE,
            {},
            "cpu-gqa",
            "cpu-gqa instead of cpu-hybrid: this CPU lacks avx512_bf16",
        ),
        (HASWELL, {}, "cpu-gqa", "cpu-gqa instead of cpu-hybrid: this CPU lacks avx512_bf16"),
        (
            ZEN_4,
            {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
            "cpu-gqa",
            "cpu-gqa instead of cpu-hybrid: ONEDNN_MAX_CPU_ISA=AVX2 switches avx512_bf16 off",
        ),
        (
            ZEN_4,
            {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
            "cpu-gqa",
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE switches avx512_bf16 off",
        ),
    ],
)
def test_the_default_target_is_one_that_this_processor_can_run(
    suite: Suite,
    monkeypatch: pytest.MonkeyPatch,
    flags: set[str],
    caps: dict[str, str],
    target: str,
    reason: str,
) -> None:
    for name, value in caps.items():
        monkeypatch.setenv(name, value)
    chosen = default_targets(suite, machine(flags))
    assert chosen.names == (target,)
    assert chosen.reason.endswith(reason)
    assert bool(chosen.reason) is bool(reason)
    assert f"{target}-fp8_kv" in configs(selected(suite, flags)) or "avx512f" not in flags


def test_the_stand_in_is_only_measured_instead_of_the_other(suite: Suite) -> None:
    assert (
        default_targets(suite, machine(ZEN_4)).skipped["cpu-gqa"]
        == "only measured when named with --k3-target"
    )
    assert (
        default_targets(suite, machine(ICE_LAKE)).skipped["cpu-hybrid"]
        == "this CPU lacks avx512_bf16"
    )


def test_a_target_that_was_asked_for_names_the_missing_instructions(suite: Suite) -> None:
    with pytest.raises(UsageError, match="--k3-target cpu-hybrid: this CPU lacks avx512_bf16"):
        selected(suite, ICE_LAKE, "cpu-hybrid")
    assert "cpu-hybrid-fp8_kv" in configs(
        selected(suite, HASWELL, "cpu-hybrid", collect_only=True)
    )  # to list it needs no hardware


def test_without_avx512_there_is_no_fp8_cache_and_everything_else(suite: Suite) -> None:
    selection = selected(suite, HASWELL)
    declared = {f"cpu-gqa-{name}" for name in suite.target("cpu-gqa").configs}
    declared -= {"cpu-gqa-block_size_128"}  # the default's own block size, so it is not a cell
    assert configs(selection) == declared - {"cpu-gqa-fp8_kv"}
    (left,) = selection.refused_here
    assert (left.target, left.config) == ("cpu-gqa", "fp8_kv")
    assert left.reason.endswith("this CPU lacks avx512f")
    assert left in selection.left_out
    assert configs(selected(suite, ICE_LAKE)) == declared


def test_a_cap_takes_no_fp8_cache_away(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's attention kernels ask the processor, not oneDNN."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert "cpu-gqa-fp8_kv" in configs(selected(suite, ZEN_4))


def test_a_selection_that_the_processor_empties_says_so(suite: Suite) -> None:
    text = nothing_selected(selected(suite, HASWELL), "fp8_kv")
    assert text.startswith(
        "-k 'fp8_kv' selects no cell on this machine. Its CPU cannot serve:\n  cpu-gqa-fp8_kv: "
    )
    assert "Measured here: default, " in text
    assert "block_size_32" in text
    assert nothing_selected(selected(suite, ZEN_4), "nonsense") == ""


def test_a_machine_for_no_target_says_what_each_default_lacks(suite: Suite) -> None:
    text = nothing_selected(selected(suite, {"sse4_1"}), "")
    assert "  cpu-hybrid: this CPU lacks avx512_bf16\n" in text
    assert "  cpu-gqa: this CPU lacks avx2\n" in text
    assert "h200" not in text  # never measured by default, so no reason


def test_a_cells_file_with_a_refused_cell_is_a_usage_error(suite: Suite, tmp_path: Path) -> None:
    (tmp_path / "cells.json").write_text('["cpu-gqa-fp8_kv-chat"]')
    with pytest.raises(
        ConfigFileError, match=r"this target does not take the config: .*this CPU lacks avx512f"
    ):
        select(suite, machine(HASWELL), (), collect_only=False, cells_file=tmp_path / "cells.json")


@pytest.mark.parametrize(
    ("features", "name"), [(HASWELL, "cpu-avx2"), (ICE_LAKE, "cpu-avx512"), (ZEN_4, "cpu-avx512")]
)
def test_numbers_are_of_the_processors_class(suite: Suite, features: set[str], name: str) -> None:
    assert suite.target("cpu-gqa").hardware.class_with(features) == name
    assert suite.target("cpu-hybrid").hardware.class_with(features) == "cpu-avx512"


def test_an_exchange_for_no_target_is_refused(suite_copy: Path) -> None:
    path = suite_copy / "targets" / "cpu-gqa.yaml"
    path.write_text(
        path.read_text().replace("default_instead_of: cpu-hybrid", "default_instead_of: cpu-hibrid")
    )
    assert load_document(TargetSpec, path).default_instead_of == "cpu-hibrid"
    with pytest.raises(
        ConfigFileError,
        match=(
            r"cpu-gqa.yaml at 'default_instead_of': no target has this name \(value: 'cpu-hibrid'\)"
        ),
    ):
        load_suite(suite_copy)
