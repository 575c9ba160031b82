from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from k3perf.metrics.environment import (
    ENVIRONMENT,
    FORMERLY_LOCKED,
    environment_changes,
    environment_of,
    environment_text,
    read_environment,
    without_environment,
)
from k3perf.metrics.resolved import CHOSEN, LOCKED_VERSIONS, SECTIONS, TOP_LEVEL, resolved_config

REPOSITORY = Path(__file__).resolve().parents[3]
INFO: dict[str, Any] = json.loads(
    (Path(__file__).parent / "server_info_0_32_0_cpu.json").read_text(encoding="utf-8")
)
BASELINES = sorted((REPOSITORY / "baselines").glob("*/*.json"))


def reason_of(key: str) -> str:
    """Why a key is part of the lock. Empty for an undeclared key."""
    section, _, rest = key.partition(".")
    if section in ("env", "backend"):  # whole sections, their reasons are in resolved_config
        return section
    if section == "version":
        return LOCKED_VERSIONS.get(rest, "")
    if section in CHOSEN:
        return CHOSEN[section].get(rest.partition(".")[0], "")
    return SECTIONS.get(section) or TOP_LEVEL.get(section, "")


def test_the_machines_part_is_not_in_the_lock() -> None:
    here = {
        "python_version": "3.11.2",
        "driver_version": "580.1",
        "distribution": "Debian 12",
        "kernel": "6.1",
        "processor": "EPYC",
    }
    assert resolved_config(INFO, here) == resolved_config(INFO, {})
    assert not FORMERLY_LOCKED.keys() & resolved_config(INFO, here).keys()
    assert {
        key.removeprefix("version.")
        for key in resolved_config(INFO, here)
        if key.startswith("version.")
    } == set(LOCKED_VERSIONS)


@pytest.mark.parametrize("name", LOCKED_VERSIONS)
def test_each_locked_version_has_its_reason_and_changes_the_lock(name: str) -> None:
    assert len(reason_of(f"version.{name}").split()) >= 4
    changed = resolved_config(INFO, {f"{name}_version": "99.9"})
    assert changed != resolved_config(INFO, {})
    assert changed[f"version.{name}"] == "99.9"


@pytest.mark.parametrize(
    "path", BASELINES, ids=[f"{path.parent.name}/{path.stem}" for path in BASELINES]
)
def test_every_key_that_any_baseline_locks_has_a_reason(path: Path) -> None:
    keys = [
        *without_environment(json.loads(path.read_text())["resolved_config"]),
        *resolved_config(INFO),
    ]
    assert [key for key in keys if not reason_of(key)] == []


def test_a_key_that_nothing_declares_has_no_reason() -> None:
    assert [
        reason_of(key)
        for key in ("version.python", "version.driver", "model_config.model", "host.kernel")
    ] == [""] * 4


def test_the_ranks_own_readings_come_first_and_the_server_fills_in() -> None:
    assert read_environment(INFO, [{"rank": 0}]) == {
        "python": "3.11.7"
    }  # the server calls the driver "None"
    rank = {
        "python_version": "3.12.3",
        "driver_version": None,
        "distribution": "Ubuntu 24.04",
        "kernel": "6.8.0",
        "processor": "Xeon",
    }
    assert read_environment(INFO, [rank]) == {
        "python": "3.12.3",
        "distribution": "Ubuntu 24.04",
        "kernel": "6.8.0",
        "processor": "Xeon",
    }
    on_gpu = {"system_env": {"nvidia_driver_version": "570.1"}}
    assert read_environment(on_gpu, [{"rank": 0}]) == {"driver": "570.1"}
    assert read_environment(
        on_gpu,
        [{"driver_version": "580.1"}, {"driver_version": "580.2"}, {"driver_version": "580.1"}],
    ) == {"driver": "580.1, 580.2"}
    assert read_environment({}, []) == {}


def test_an_older_recordings_environment_is_taken_from_its_configuration() -> None:
    old = {"version.python": "3.11.7", "version.driver": None, "version.vllm": "0.32.0"}
    assert environment_of({}, old) == {"python": "3.11.7"}
    assert environment_of({"python": "3.13.1"}, old) == {"python": "3.13.1"}
    assert without_environment(old) == {"version.vllm": "0.32.0"}


@pytest.mark.parametrize(
    ("recorded", "seen", "changes"),
    [
        ([{"python": "3.11.7"}], [{"python": "3.11.7", "kernel": "6.1"}], ()),
        ([{"python": "3.11.7"}], [{"python": "3.11.2"}], ("python 3.11.7 -> 3.11.2",)),
        ([{"python": "3.11.7"}, {"python": "3.12.3"}], [{"python": "3.12.3"}], ()),
        (
            [{"python": "3.11.7"}, {"python": "3.12.3"}],
            [{"python": "3.11.2"}],
            ("python 3.11.7 or 3.12.3 -> 3.11.2",),
        ),
        (
            [{"python": "3.11.7"}],
            [{"python": "3.11.2"}, {"python": "3.11.0"}],
            ("python 3.11.7 -> 3.11.0 and 3.11.2",),
        ),
        (
            [{"driver": "580.1", "kernel": "6.1"}],
            [{"kernel": "6.8"}],
            ("driver 580.1 -> unknown", "kernel 6.1 -> 6.8"),
        ),
        ([], [{"python": "3.11.2"}], ()),
        ([{}], [{"python": "3.11.2"}], ()),
    ],
)
def test_changes_are_told_value_by_value(
    recorded: list[dict[str, str]], seen: list[dict[str, str]], changes: tuple[str, ...]
) -> None:
    assert environment_changes(recorded, seen) == changes


def test_each_value_says_why_it_is_not_locked() -> None:
    assert all(len(reason.split()) >= 4 for reason in ENVIRONMENT.values())
    assert environment_text({"kernel": "6.1", "python": "3.11.7"}) == "python 3.11.7, kernel 6.1"
    assert environment_text({}) == "not recorded"
