"""Found rates on disk: what is stored comes back, and what a workload's share refers to
is never a rate of something else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tests.unit.workload.specs import small_spec

from k3perf.config.models import TargetSpec
from k3perf.config.workload_spec import ServiceLevel
from k3perf.errors import ConfigFileError, UsageError
from k3perf.store.found_rates import (
    StoredRate,
    found_rate_per_s,
    found_rates_path,
    read_found_rates,
    store_found_rate,
)
from k3perf.workload.request_plan import expand, work_digest

LEVEL = {"ttft_ms": 500, "tpot_ms": 50}
SHARE = small_spec(arrival={"kind": "poisson", "found_rate_share_ratio": 0.5}, service_level=LEVEL)
TARGET = TargetSpec.model_validate(
    {
        "schema_version": 1,
        "name": "alpha",
        "description": "made for a test",
        "hardware": {"kind": "cpu", "hardware_class": "any-cpu"},
        "model": {"directory": "models/alpha"},
        "workloads": ["small"],
        "measurement": {"mode": "reference"},
        "provenance": {"kind": "experiment", "source": "tests", "date": "2026-11-29"},
    }
)


def rate(**changes) -> StoredRate:
    fields = {
        "workload": "small",
        "rate_per_s": 8.0,
        "failed_rate_per_s": 8.4,
        "service_level": ServiceLevel(**LEVEL),
        "attainment_ratio": 0.95,
        "work_digest": work_digest(SHARE),
        "hardware_class": "any-cpu",
        "config": "default",
        "vllm_version": "0.32.0",
        "trial_count": 9,
        "trial_duration_s": 20.0,
        "found_at_utc": "2026-11-29T12:00:00Z",
        "found_by": "tester",
    }
    return StoredRate.model_validate(fields | changes)


def test_a_stored_rate_comes_back_and_decides_the_plan(tmp_path):
    path = store_found_rate(tmp_path, "alpha", rate())
    assert read_found_rates(tmp_path, "alpha").rates == (rate(),)
    assert path.read_text().startswith("#")
    found = found_rate_per_s(tmp_path, TARGET, SHARE)
    assert found == 8
    direct = small_spec(arrival={"kind": "poisson", "rate_per_s": 4.0}, service_level=LEVEL)
    assert (
        expand(SHARE, vocabulary_size=64, found_rate_per_s=found).digest
        == expand(direct, vocabulary_size=64).digest
    )


def test_a_new_rate_replaces_that_of_its_workload_alone(tmp_path):
    store_found_rate(tmp_path, "alpha", rate())
    store_found_rate(tmp_path, "alpha", rate(workload="other", rate_per_s=3.0))
    store_found_rate(tmp_path, "alpha", rate(rate_per_s=9.0, failed_rate_per_s=None, config=None))
    stored = read_found_rates(tmp_path, "alpha")
    assert [(entry.workload, entry.rate_per_s) for entry in stored.rates] == [
        ("other", 3),
        ("small", 9),
    ]
    assert read_found_rates(tmp_path, "beta").rates == ()


def test_a_workload_with_a_rate_of_its_own_needs_none(tmp_path):
    found_rates_path(tmp_path, "alpha").parent.mkdir()
    found_rates_path(tmp_path, "alpha").write_text("broken: [")
    assert (
        found_rate_per_s(
            tmp_path, TARGET, small_spec(arrival={"kind": "poisson", "rate_per_s": 4.0})
        )
        is None
    )
    assert found_rate_per_s(tmp_path, TARGET, small_spec()) is None


def test_a_missing_rate_names_the_command(tmp_path):
    store_found_rate(tmp_path, "alpha", rate(workload="other"))
    with pytest.raises(UsageError, match="k3perf load find-rate --target alpha --workload small"):
        found_rate_per_s(tmp_path, TARGET, SHARE)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"work_digest": "0" * 64}, "work_digest"),
        ({"service_level": {"ttft_ms": 500, "tpot_ms": 51}}, "service_level"),
        ({"hardware_class": "other-cpu"}, "hardware_class"),
    ],
)
def test_a_rate_of_something_else_is_refused_with_the_command(tmp_path, changes, key):
    store_found_rate(tmp_path, "alpha", rate(**changes))
    with pytest.raises(
        ConfigFileError, match="k3perf load find-rate --target alpha --workload small"
    ) as caught:
        found_rate_per_s(tmp_path, TARGET, SHARE)
    assert caught.value.key == f"rates.small.{key}"


def test_the_digest_is_that_of_the_work_alone():
    base = work_digest(SHARE)
    for same in (
        {"seed": 8},
        {"requests": 99},
        {"arrival": {"kind": "constant", "rate_per_s": 1}},
        {"description": "another text"},
    ):
        assert work_digest(small_spec(**same)) == base
    for other in (
        {"output_tokens": {"kind": "fixed", "tokens": 9}},
        {"sampling": {"sequences": 2}},
        {"conversation": {"turns": 2}},
    ):
        assert work_digest(small_spec(**other)) != base


@pytest.mark.parametrize(
    ("damage", "needle"),
    [
        (lambda data: data.update(target="beta"), "another target"),
        (lambda data: data["rates"][0].update(rate_per_s=-1), "rates.0.rate_per_s"),
        (lambda data: data["rates"][0].pop("found_by"), "found_by"),
        (lambda data: data["rates"][0].update(rate_per_m=1), "unknown key"),
        (lambda data: data.update(schema_version=2), "schema_version"),
    ],
)
def test_a_file_that_was_damaged_is_one_message(tmp_path, damage, needle):
    path: Path = store_found_rate(tmp_path, "alpha", rate())
    data = yaml.safe_load(path.read_text())
    damage(data)
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(ConfigFileError, match=needle) as caught:
        found_rate_per_s(tmp_path, TARGET, SHARE)
    assert str(path) in str(caught.value)
