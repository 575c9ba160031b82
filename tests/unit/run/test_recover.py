"""The commit that a recovered recording gets: of the text given and the one recorded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from k3perf.config.suite import load_suite
from k3perf.errors import UsageError
from k3perf.records.samples import Arm
from k3perf.run import recover as module
from k3perf.store.results import RunResults

FULL = "9bf9beb" + "1" * 33


def recovered(
    monkeypatch: pytest.MonkeyPatch, path: Path, recorded: dict[str, str], given: str
) -> str:
    """What ``recover`` writes as the commit of one usable session."""
    written: dict[str, Any] = {}
    session = SimpleNamespace(
        arm=Arm.CANDIDATE,
        pair_id=None,
        target="t",
        config="c",
        workload="w",
        plan_digest="p",
        started_at_utc="",
        identity=None,
    )
    results = RunResults(path, "r", sessions={"s": session}, experiment=recorded)  # type: ignore[dict-item]
    results.ended_sessions.add("s")
    monkeypatch.setattr(module, "read_results", lambda _: results)
    monkeypatch.setattr(module, "_usable", lambda *_: True)
    monkeypatch.setattr(module, "_measurement", lambda *_: None)
    monkeypatch.setattr(module, "versions", lambda _: {})
    monkeypatch.setattr(
        module, "write_measurement_file", lambda _, file: written.update(commit=file.commit)
    )
    module.recover(
        path, path, load_suite(Path(__file__).resolve().parents[3] / "perf_tests"), commit=given
    )
    return str(written["commit"])


@pytest.mark.parametrize(
    ("recorded", "given", "written"),
    [
        ({"commit": FULL}, FULL[:7], FULL),
        ({"commit": FULL[:7]}, FULL, FULL),
        ({"commit": f"{FULL}-dirty"}, f"{FULL[:7]}-dirty", f"{FULL}-dirty"),
        ({"commit": ""}, FULL[:7], FULL[:7]),
        ({"commit": "unknown"}, FULL, FULL),
        ({}, FULL, FULL),
        ({"commit": "unknown"}, "unknown", "unknown"),
    ],
)
def test_the_longer_hash_of_one_commit_is_written(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    recorded: dict[str, str],
    given: str,
    written: str,
) -> None:
    assert recovered(monkeypatch, tmp_path, recorded, given) == written


@pytest.mark.parametrize(
    ("recorded", "given", "said"),
    [
        (FULL, FULL[:6], f"was measured at {FULL}. Give that, or at least seven digits"),
        (FULL, FULL[:1], "was measured at"),
        (FULL, f"{FULL}-dirty", "was measured at"),
        (f"{FULL}-dirty", FULL[:7], "was measured at"),
        (FULL, "unknown", "was measured at"),
        (FULL, "", "--commit is empty"),
    ],
)
def test_another_commit_and_a_text_too_short_to_name_one_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recorded: str, given: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        recovered(monkeypatch, tmp_path, {"commit": recorded}, given)
