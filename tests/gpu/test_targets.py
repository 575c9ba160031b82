"""The declared GPU targets hang together: contexts hold the workloads, ranks fill the
devices, forced blocks and weights are the planned ones.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3perf.capacity.memory_plan import MemoryPlan, plan_memory
from k3perf.capacity.rules import platform_rules
from k3perf.config.models import TargetSpec
from k3perf.config.suite import Cell, Suite, load_suite
from k3perf.config.workload_spec import FixedLength, TraceReplay
from k3perf.engine.launchers import render_launch

REPOSITORY = Path(__file__).parents[2]
SUITE = load_suite(REPOSITORY / "perf_tests")
GPU = [name for name, target in SUITE.targets.items() if target.hardware.kind != "cpu"]
CELLS = SUITE.cells(tuple(GPU))
# read from running engines, vLLM 0.33.0 on H200s
SEEN_WEIGHTS_BYTES = {
    "h200-k3": 55_152_766_304,
    "h200-k3-small": 9_982_996_768,
    "h200-k2-small": 11_072_456_192,
    "h200-k3-small-tp2": 6_627_575_952,
}
SEEN_BLOCK_TOKENS = {
    "h200-k3": 768,
    "h200-k3-small": 768,
    "h200-k2-small": 16,
    "h200-k3-small-tp2": 384,
}


def planned(target: TargetSpec, arguments: dict[str, Any]) -> MemoryPlan:
    directory = target.model.directory or "models/kimi-k3"
    return plan_memory(
        json.loads((SUITE.root / directory / "config.json").read_text()),
        arguments,
        parallelism=target.parallelism,
        device_memory_bytes=target.hardware.device_memory_bytes,
        rules=platform_rules(target.hardware.kind),
        environment=target.environment,
    )


def arguments_of(suite: Suite, target: str, config: str) -> dict[str, Any]:
    return suite.engine_arguments(suite.target(target), suite.config(config))


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.cell_id)
def test_the_context_holds_the_workload(cell: Cell) -> None:
    prompt, output, arrival = (
        cell.workload.prompt_tokens,
        cell.workload.output_tokens,
        cell.workload.arrival,
    )
    if isinstance(arrival, TraceReplay):
        assert arrival.longest_request_tokens is not None
        assert arrival.longest_request_tokens <= cell.engine_arguments["max_model_len"]
        return
    assert isinstance(prompt, FixedLength)
    assert isinstance(output, FixedLength)
    assert prompt.tokens + output.tokens <= cell.engine_arguments["max_model_len"]
    if cell.workload.prefix is not None:
        assert cell.workload.prefix.shared_tokens < prompt.tokens


@pytest.mark.parametrize("name", GPU)
def test_ranks_fill_the_devices_and_the_launch_renders(name: str) -> None:
    target = SUITE.target(name)
    files = render_launch(target.launch.kind, arguments_of(SUITE, name, "default"), target)
    assert "config.yaml" in files


@pytest.mark.parametrize("name", GPU)
def test_every_reference_config_fits_the_device(name: str) -> None:
    plan = planned(SUITE.target(name), arguments_of(SUITE, name, "default"))
    assert plan.fits, plan.notes


@pytest.mark.parametrize(
    ("name", "config"),
    [(name, group.configs) for name in GPU for group in SUITE.target(name).equivalences],
)
def test_configs_called_equal_plan_the_same_engine(name: str, config: tuple[str, ...]) -> None:
    target = SUITE.target(name)
    plans = [planned(target, arguments_of(SUITE, name, member)) for member in config]
    first = plans[0]
    for plan in plans[1:]:
        assert plan.block_size_tokens == first.block_size_tokens
        assert (plan.weights_bytes, plan.kv_tokens, plan.page_bytes) == (
            first.weights_bytes,
            first.kv_tokens,
            first.page_bytes,
        )


@pytest.mark.parametrize(("name", "weights_bytes"), SEEN_WEIGHTS_BYTES.items())
def test_planned_weights_are_the_seen_ones(name: str, weights_bytes: int) -> None:
    plan = planned(SUITE.target(name), arguments_of(SUITE, name, "default"))
    assert plan.weights_bytes == pytest.approx(weights_bytes, rel=0.01)
    assert plan.block_size_tokens == SEEN_BLOCK_TOKENS[name]


def test_a_block_size_that_equivalence_names_is_the_planned_one() -> None:
    checked = 0
    for name in GPU:
        for group in SUITE.target(name).equivalences:
            words = group.reason.split()
            if "blocks" in words:
                tokens = int(words[words.index("blocks") + 2])
                assert (
                    planned(
                        SUITE.target(name), arguments_of(SUITE, name, "default")
                    ).block_size_tokens
                    == tokens
                )
                checked += 1
    assert checked >= 4


def test_fp8_kv_is_refused_for_k3_on_hopper_and_taken_by_k2() -> None:
    reasons = {entry.config: entry.reason for entry in SUITE.left_out(("h200-k3",))}
    assert "FP8 prefill queries" in reasons["fp8_kv"]
    assert "same engine as default" in reasons["block_size_64"]
    assert any(cell.config.name == "fp8_kv" for cell in SUITE.cells(("h200-k2",)))
    hopper_k3 = [
        name
        for name in GPU
        if name.startswith("h200-k3") and "fp8_kv" in SUITE.target(name).configs
    ]
    assert "h200-k3-whole" in hopper_k3
    for name in hopper_k3:
        assert not any(cell.config.name == "fp8_kv" for cell in SUITE.cells((name,)))


def test_transfer_record_names_declared_targets_only() -> None:
    rows = [
        line
        for line in (REPOSITORY / "docs" / "proxy-transfer.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    for row in rows:
        proxy, whole = (cell.strip().strip("`") for cell in row.split("|")[1:3])
        assert proxy in SUITE.targets
        assert whole in SUITE.targets
