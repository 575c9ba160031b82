"""Reviewed files that could only be judged wrongly, or by nothing, are refused when
they are read: baselines, waivers, tolerances.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3perf.baselines.target_policy import with_noise_of
from k3perf.baselines.waivers import check_waivers
from k3perf.config.gated import check_metric_names
from k3perf.config.models import MeasurementPlan, Tolerance
from k3perf.config.suite import Suite, load_suite
from k3perf.errors import ConfigFileError, UsageError
from k3perf.gate.policy import Policy
from k3perf.store.baselines import parse_baseline, read_baseline_file, read_waivers

COMMITTED = Path(__file__).resolve().parents[3] / "baselines" / "cpu-hybrid" / "fp8_kv.json"


def stamped(data: dict[str, Any]) -> str:
    """The file's text with the digest of its content, as a hand that knows the rule
    would write it.
    """
    content = {key: value for key, value in data.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return json.dumps({**content, "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"})


def entry(data: dict[str, Any], name: str = "output_tokens_per_s") -> dict[str, Any]:
    found: dict[str, Any] = next(
        metric for metric in data["workloads"][0]["metrics"] if metric["metric"] == name
    )
    return found


def first_session(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = entry(data)["sessions"][0]
    return found


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "a metric that does not exist": (
        lambda data: entry(data).update(metric="output_tokens_per_sec"),
        (
            r"workloads\.0\.metrics\.\d+\.metric.*no metric has this name; did you mean"
            r" 'output_tokens_per_s'\?"
        ),
    ),
    "a metric twice": (
        lambda data: data["workloads"][0]["metrics"].append(entry(data)),
        "metric output_tokens_per_s of workload chat appears twice",
    ),
    "a workload twice": (
        lambda data: data["workloads"].append(data["workloads"][0]),
        "workload chat appears twice",
    ),
    "an exact metric twice": (
        lambda data: data["exact"].append(data["exact"][0]),
        "exact metric .* appears twice",
    ),
    "a session twice": (
        lambda data: entry(data)["sessions"].append(first_session(data)),
        "session '.*' of output_tokens_per_s appears twice",
    ),
    "no session": (lambda data: entry(data).update(sessions=[]), "at least 1 item"),
    "a ratio of 0": (
        lambda data: first_session(data).update(value=0.0),
        "holds the value 0; its values are above 0",
    ),
    "a negative ratio": (
        lambda data: first_session(data).update(value=-1.0),
        "holds the value -1; its values are above 0",
    ),
    "a round below 0": (
        lambda data: first_session(data).update(round_values=[1.0, -1.0]),
        "holds the value -1",
    ),
    "an anchor below 0": (lambda data: entry(data).update(anchor_value=-1.0), "holds the value -1"),
    "negative bytes": (
        lambda data: data["exact"][0]["sessions"][0].update(value=-1.0),
        "holds the value -1; its values are 0 or more",
    ),
    "no ranks": (
        lambda data: data["exact"][0]["sessions"][0].update(rank_count=0),
        "greater than or equal to 1",
    ),
}


def test_the_committed_file_is_taken_with_a_digest_made_here(tmp_path: Path) -> None:
    path = tmp_path / "fp8_kv.json"
    path.write_text(stamped(json.loads(COMMITTED.read_text())))
    assert read_baseline_file(path) == read_baseline_file(COMMITTED)


@pytest.mark.parametrize("name", CHANGES)
def test_a_baseline_with_a_fitting_digest_is_refused_for_what_it_holds(
    name: str, tmp_path: Path
) -> None:
    change, message = CHANGES[name]
    data = copy.deepcopy(json.loads(COMMITTED.read_text()))
    change(data)
    path = tmp_path / "fp8_kv.json"
    path.write_text(stamped(data))
    with pytest.raises(ConfigFileError, match=message) as caught:
        read_baseline_file(path)
    assert "digest" not in str(caught.value)


def test_a_recorded_0_has_no_ratio(tmp_path: Path) -> None:
    data = json.loads(COMMITTED.read_text())
    entry(data).update(basis="absolute", unit="tokens/s")
    first_session(data).update(value=0.0)
    baseline = parse_baseline(tmp_path / "x", stamped(data))
    policy = Policy(
        {"output_tokens_per_s": Tolerance(loss_ratio=0.1)},
        MeasurementPlan(mode="baseline"),
        1,
        date(2026, 1, 1),
    )
    with pytest.raises(
        UsageError,
        match=(
            "the baseline of cpu-hybrid/fp8_kv holds a output_tokens_per_s of 0 for workload chat"
        ),
    ):
        with_noise_of(policy, [baseline])
    absolute = Policy(
        {"output_tokens_per_s": Tolerance(loss_absolute=5)},
        MeasurementPlan(mode="baseline"),
        1,
        date(2026, 1, 1),
    )
    with_noise_of(absolute, [baseline])


WAIVER = {
    "target": "cpu-hybrid",
    "config": "fp8_kv",
    "workload": "chat",
    "metric": "output_tokens_per_s",
    "owner": "ann",
    "build": "0.32",
}
WAIVER |= {"reason": "known and looked into", "expires_on": "2026-06-30"}
TODAY = date(2026, 6, 1)


@pytest.fixture(scope="module")
def suite() -> Suite:
    return load_suite(COMMITTED.parents[2] / "perf_tests")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"target": "cpu-hybird"},
            "at '1.target': no target has this name.*Did you mean 'cpu-hybrid'?",
        ),
        ({"config": "fp8-kv"}, "at '1.config': no config has this name.*Did you mean 'fp8_kv'?"),
        ({"workload": "chats"}, "at '1.workload': no workload has this name.*Did you mean 'chat'?"),
        (
            {"metric": "output_token_per_s"},
            "at '1.metric': no metric has this name.*Did you mean 'output_tokens_per_s'?",
        ),
        (
            {"metric": "zzz"},
            "at '1.metric': no metric has this name.*Use one of: output_tokens_per_s",
        ),
        ({"config": "block_size_64"}, "at '1.config': cpu-hybrid does not measure this config"),
        ({"workload": "serve_1k"}, "at '1.workload': cpu-hybrid does not measure this workload"),
        (
            {"metric": "itl_p90_ms"},
            "at '1.metric': this metric has no tolerance in cpu-hybrid-fp8_kv-chat",
        ),
        (
            {"build": "v0.32.0"},
            "at '1.build': not a release name.*Write 0.32.0, without the v",
        ),
        (
            {"expires_on": "2026-08-31"},
            "waivers.yaml at '1.expires_on': a waiver lasts at most 90 days"
            r" \(value: '2026-08-31'\). Write 2026-08-30",
        ),
        ({"expires_on": "9999-12-31"}, "at '1.expires_on': a waiver lasts at most 90 days"),
    ],
)
def test_a_waiver_that_can_never_hold_is_refused(
    change: dict[str, str], message: str, suite: Suite, tmp_path: Path
) -> None:
    path = tmp_path / "waivers.yaml"
    path.write_text(yaml.safe_dump([WAIVER, {**WAIVER, **change}]))
    with pytest.raises(ConfigFileError, match=message.replace("?", r"\?")):
        check_waivers(read_waivers(path), suite, path, today=TODAY)
    last_day = {"workload": "poisson", "expires_on": "2026-08-30"}
    path.write_text(yaml.safe_dump([WAIVER, {**WAIVER, **last_day}]))
    # a workload on request is measured too
    check_waivers(read_waivers(path), suite, path, today=TODAY)


@pytest.mark.parametrize("kind", ["loss_ratio", "loss_absolute"])
def test_a_tolerance_of_0_is_for_exact_metrics(kind: str, suite_copy: Path) -> None:
    path = suite_copy / "tolerances.yaml"
    declared = yaml.safe_load(path.read_text())
    declared["defaults"] = {"tpot_mean_ms": {kind: 0}, "weights_bytes": {"loss_absolute": 0}}
    declared = {"schema_version": 1, "defaults": declared["defaults"]}
    path.write_text(yaml.safe_dump(declared))
    with pytest.raises(
        ConfigFileError,
        match=(
            r"'defaults\.tpot_mean_ms': a tolerance of 0 for a metric that varies.*loss_ratio:"
            r" 0\.05 is 5 %"
        ),
    ):
        check_metric_names(load_suite(suite_copy))
    declared["defaults"]["tpot_mean_ms"] = {"loss_ratio": 0.05}
    path.write_text(yaml.safe_dump(declared))
    check_metric_names(load_suite(suite_copy))
