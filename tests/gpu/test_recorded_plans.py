"""The memory plan of every cell that was recorded on a GPU, against what its workers
read there.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

import pytest

from k3perf.capacity.memory_plan import MemoryPlan, plan_memory
from k3perf.capacity.rules import platform_rules
from k3perf.config.suite import load_suite
from k3perf.errors import UsageError

REPOSITORY = Path(__file__).parents[2]
SUITE = load_suite(REPOSITORY / "perf_tests")
NEEDED = {"h200-k3", "h200-k3-small", "h200-k2"}
"""The proxies that the promise was made for; whatever else was recorded is held to the
same bounds.
"""

NOT_PLANNED = {"fp8_weights"}

# What was recorded as h200-k2 before the name was given to a larger slice.
SUPERSEDED = "superseded"


RECORDED_MODELS = {
    "h200-k2": "549b6a331eb6eb4b515f897fd868416cb4c34b1fa52f2c5cd090d7e752cb9510",
    "h200-k2-small": "904f5c9d3bbb1f303eb1ca5cd7194563b6804948d91159e660daa4b01d96ab05",
    "h200-k3": "e70d9d2ef6a75ad94d8e3fc67bf83263e57c4f1c659e58b2467ef9dc912f2b24",
    "h200-k3-mxfp4": "8c9ea652b5e99a0e978488c2858deafa9451bc3f456c6f4af6440a39bf0148b5",
    "h200-k3-small": "69daa51d8fc17ea2a1a0752109bb2a72d7656118ae5d020305ecd62352f2c4a9",
}
"""SHA-256 of each model's config.json on the commits of its recordings. Neither these
nor a baseline say which model was served.
"""


def target_now(recorded: str, folder: str) -> str:
    return "h200-k2-small" if recorded == "h200-k2" and folder == SUPERSEDED else recorded


@cache
def readings() -> dict[tuple[str, str], list[tuple[float, float, float, int]]]:
    """By target and config, of every session: bytes of weights and of KV cache a rank,
    KV tokens, and the block that vLLM settled on.
    """
    found: dict[tuple[str, str], list[tuple[float, float, float, int]]] = {}
    for path in sorted((REPOSITORY / "perf_tests" / "recordings").rglob("h200-*.json")):
        document = json.loads(path.read_text())
        for cell in document["cells"]:
            target = target_now(cell["target"], path.parent.name)
            for session in cell["sessions"]:
                values = {name: entry["value"] for name, entry in session["values"].items()}
                block = session["resolved_config"]["cache_config.effective_attention_block_size"]
                reading = (
                    values["weights_bytes"],
                    values["kv_cache_bytes"],
                    values["kv_capacity_tokens"],
                    block,
                )
                found.setdefault((target, cell["config"]), []).append(reading)
    return found


def plan_of(target_name: str, config_name: str) -> MemoryPlan:
    target = SUITE.target(target_name)
    return plan_memory(
        json.loads((SUITE.root / str(target.model.directory) / "config.json").read_text()),
        SUITE.engine_arguments(target, SUITE.config(config_name)),
        parallelism=target.parallelism,
        device_memory_bytes=target.hardware.device_memory_bytes,
        rules=platform_rules(target.hardware.kind),
        environment=target.environment,
    )


@pytest.mark.parametrize(("model", "digest"), RECORDED_MODELS.items())
def test_the_models_are_those_that_were_recorded(model: str, digest: str) -> None:
    """A smaller model under the same target's name would pass every gate as an
    improvement.
    """
    text = (SUITE.root / "models" / model / "config.json").read_bytes()
    assert hashlib.sha256(text).hexdigest() == digest, (
        f"{model} is another model now: its baselines are void. Record it anew, or give it a new"
        " name."
    )


def test_all_three_proxies_were_recorded() -> None:
    assert {target for target, _ in readings()} >= NEEDED


@pytest.mark.parametrize(
    ("target", "config"), [key for key in readings() if key[1] not in NOT_PLANNED]
)
def test_the_plan_is_what_the_engine_took(target: str, config: str) -> None:
    plan = plan_of(target, config)
    for weights_bytes, kv_bytes, kv_tokens, block_tokens in readings()[target, config]:
        assert plan.weights_bytes == pytest.approx(weights_bytes, rel=0.01)
        assert plan.kv_cache_bytes == pytest.approx(kv_bytes, rel=0.01)
        assert plan.kv_tokens == pytest.approx(kv_tokens, rel=0.02)
        assert plan.block_size_tokens == block_tokens


def test_quantisation_at_load_time_is_refused_and_not_guessed() -> None:
    for config in NOT_PLANNED:
        with pytest.raises(UsageError, match="not covered by the memory plan"):
            plan_of("h200-k3", config)
