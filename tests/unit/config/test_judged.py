"""A change's suite under its base's rules: ``k3perf.config.judged``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from k3perf.config.candidates import candidate_reason
from k3perf.config.judged import judged_suite
from k3perf.config.suite import Suite, load_suite


def edited(root: Path, path: str, **changes: Any) -> None:
    file = root / path
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))


def cells(suite: Suite) -> set[str]:
    return {cell.cell_id for cell in suite.cells(("cpu-hybrid",))}


def test_what_judges_is_the_bases_and_what_serves_is_the_changes(
    repository: Path, suite_copy: Path
) -> None:
    base = load_suite(repository / "perf_tests")
    plan = base.target("cpu-hybrid").measurement.model_dump()
    edited(
        suite_copy,
        "targets/cpu-hybrid.yaml",
        measurement={**plan, "maximum_sessions": 9},
        validity={"foreign_cpu_ratio": 100},
        environment={"SERVED": "1"},
        hardware={"kind": "cpu", "hardware_class": "nowhere", "cpu_features": ["amx_tile"]},
        configs=["default", "seqs_up"],
        workloads=["burst"],
        workloads_on_request=["chat"],
        measured_by_default=False,
    )
    edited(suite_copy, "workloads/chat.yaml", service_level={"ttft_ms": 1e6, "tpot_ms": 1e6})
    own = load_suite(suite_copy)
    suite = judged_suite(own, base)
    before, after = base.target("cpu-hybrid"), suite.target("cpu-hybrid")
    assert (after.measurement, after.validity) == (before.measurement, before.validity)
    assert after.measured_by_default is before.measured_by_default
    assert after.hardware.hardware_class == before.hardware.hardware_class
    assert after.hardware.cpu_features == before.hardware.cpu_features
    assert after.environment == {"SERVED": "1"}
    assert after.workloads == ("chat", "burst")
    assert "chat" not in after.workloads_on_request
    assert suite.workload("chat").service_level == base.workload("chat").service_level
    assert "cpu-hybrid-throughput_combo-chat" not in cells(own)
    assert cells(suite) > cells(base)
    assert suite.tolerances == base.tolerances


def test_a_refusal_or_equivalence_of_the_change_hides_no_cell_of_the_base(
    repository: Path, suite_copy: Path
) -> None:
    base = load_suite(repository / "perf_tests")
    group = {"configs": ["default", "seqs_down"], "reason": "made for a test"}
    edited(suite_copy, "targets/cpu-hybrid.yaml", equivalences=[group])
    named = yaml.safe_load((suite_copy / "targets/refusals/cpu-fp8-kv.yaml").read_text())
    hidden = {**named, "name": "hidden", "when": {"max_num_seqs": {"other_than": 0}}}
    hidden |= {"hardware_classes": ["cpu-avx512"], "model_types": []}
    for key in ("without_cpu_features", "minimum_vllm", "below_vllm"):
        hidden.pop(key, None)
    (suite_copy / "targets/refusals/hidden.yaml").write_text(yaml.safe_dump(hidden))
    own = load_suite(suite_copy)
    assert not cells(own)
    assert cells(judged_suite(own, base)) == cells(base)


def test_a_new_config_has_the_tolerances_and_the_cells_of_its_change(
    repository: Path, suite_copy: Path
) -> None:
    base = load_suite(repository / "perf_tests")
    config = yaml.safe_load((suite_copy / "configs/seqs_up.yaml").read_text())
    (suite_copy / "configs/seqs_more.yaml").write_text(
        yaml.safe_dump({**config, "name": "seqs_more"})
    )
    wide = {"output_tokens_per_s": {"loss_ratio": 0.9}}
    measured = base.target("cpu-hybrid").configs
    edited(suite_copy, "targets/cpu-hybrid.yaml", configs=[*measured, "seqs_more"])
    edited(
        suite_copy,
        "tolerances.yaml",
        configs={"cpu-hybrid": {"seqs_more": wide, "seqs_up": wide}},
    )
    suite = judged_suite(load_suite(suite_copy), base)
    assert "cpu-hybrid-seqs_more-chat" in cells(suite)
    rate = {
        name: suite.tolerances.for_cell("cpu-hybrid", name, "chat")["output_tokens_per_s"]
        for name in ("seqs_more", "seqs_up")
    }
    assert rate["seqs_more"].loss_ratio == 0.9
    assert (
        rate["seqs_up"]
        == base.tolerances.for_cell("cpu-hybrid", "seqs_up", "chat")["output_tokens_per_s"]
    )


def test_a_change_makes_no_candidate_of_a_cell_of_the_base(
    repository: Path, suite_copy: Path
) -> None:
    base = load_suite(repository / "perf_tests")
    (suite_copy / "configs" / "new.yaml").write_text(
        (suite_copy / "configs" / "fp8_kv.yaml").read_text().replace("name: fp8_kv", "name: new")
    )
    entry = {"configs": ["fp8_kv", "new"], "reason": "made for a test"}
    edited(
        suite_copy,
        "targets/cpu-hybrid.yaml",
        configs=[*base.target("cpu-hybrid").configs, "new"],
        candidates=[entry],
    )
    target = judged_suite(load_suite(suite_copy), base).target("cpu-hybrid")
    assert not candidate_reason(target, "fp8_kv", "chat")
    assert candidate_reason(target, "new", "chat") == "made for a test"
    assert candidate_reason(target, "fp8_kv", "poisson"), "the base's own listing holds"
