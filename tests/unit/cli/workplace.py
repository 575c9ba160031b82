"""A folder in which every command of ``k3perf`` has something to work on, and what can
be wrong with a file or an argument.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.plugin.made_results import write_results
from tests.plugin.sites import TARGET, Site
from tests.unit.ci.verdicts import cell, invalid, metric, regressed, verdict
from tests.unit.tune.simulated_engine import SimulatedEngine, plan

from k3perf.ci.history import HistoryEntry
from k3perf.cli.main import main
from k3perf.records.night import NightFile
from k3perf.store.nights import write_night
from k3perf.store.tuning_journal import TuningJournal, write_result
from k3perf.tune.strategy import RunNames, Tuning

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def finished_tuning(directory: Path) -> None:
    """A finished run of ``k3perf tune`` with a proposal, on the simulated engine."""
    fingerprint = {"commit": COMMIT, "plan": "0" * 64, "hardware_class": "any-cpu"}
    with TuningJournal(directory, run_id="tune-20261130-1", fingerprint=fingerprint) as journal:
        names = RunNames(journal.run_id, "tiny", "default", "quick", fingerprint)
        source = journal.source(SimulatedEngine(1))
        write_result(directory, Tuning(plan(), source, names).run())


def build(root: Path, repository: Path) -> None:
    """Fill ``root``: a git repository with a suite, a baseline and a waiting proposal,
    and a good file of each kind.
    """
    Site(root, repository)
    suite = root / "perf_tests"
    (suite / "targets" / "two.yaml").write_text(
        yaml.safe_dump(
            {
                **TARGET,
                "name": "two",
                "hardware": {"kind": "nvidia", "hardware_class": "h200"},
                "measured_by_default": False,
            }
        )
    )
    git(root, "init", "--quiet", "--initial-branch", "main")
    (root / ".gitignore").write_text("/tmp\n/other\n")
    write_results(root / "run" / "results.jsonl", suite, sessions=3, experiment={"commit": COMMIT})
    for outcome, entries in (
        ("pass", (cell("one", metric()),)),
        ("regressed", (cell("one", regressed()),)),
        ("invalid", (invalid("one"),)),
    ):
        (root / f"{outcome}.json").write_text(json.dumps(verdict(*entries).dump()))
    entries = [history_entry(night) for night in range(12)]
    (root / "history.jsonl").write_text(
        "".join(entry.model_dump_json() + "\n" for entry in entries)
    )
    write_night(root / "kept", NightFile.model_validate(one_night()))
    (root / "requirements.txt").write_text("vllm==0.32.0\n")
    (root / "cpu.md").write_text(
        "<!-- selftest:begin (written by k3perf gate selftest --write) -->\nold\n<!-- selftest:end"
        " -->\n"
    )
    (root / "log.jsonl").write_text(
        '{"timestamp": 1.5, "prompt_tokens": 8, "completion_tokens": 4}\n'
    )
    finished_tuning(root / "tuned")
    (root / "recordings").mkdir()
    markers = {"python_version": "3.12", "platform_machine": "x86_64"}
    (root / "host.json").write_text(
        json.dumps(
            {"schema_version": 1, "markers": markers, "libc": ["glibc", "2.35"], "installed": {}}
        )
    )
    (root / "bundle").mkdir()
    (root / "bundle" / "SHA256SUMS").write_text("")
    (root / "costs.json").write_text('{"session_s": {"tiny-fp8_kv-quick": 60.0}}')
    with contextlib.chdir(root):
        assert main(["recover", "run", "--commit", COMMIT]) == 0
        shutil.copy("run/measurements.json", "recordings/one.json")
        shutil.copytree("run", "judged")
        shutil.copy("regressed.json", "judged/verdict.json")
        assert main(["baseline", "propose", "run"]) == 0
        assert (
            main(["baseline", "accept", "--reason", "first numbers of this target", "--by", "ann"])
            == 0
        )
        assert main(["baseline", "propose", "run"]) == 0
        assert main(["plan", "--output", "plan.json"]) == 0
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "base")


def git(root: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words],
        cwd=root,
        check=True,
        capture_output=True,
    )


def history_entry(night: int) -> HistoryEntry:
    return HistoryEntry(
        run_id=f"n{night}",
        commit=COMMIT,
        created_at_utc=f"2026-01-{night + 1:02}T00:00:00Z",
        vllm_version="0.32.0",
        hardware_class="any-cpu",
        target="tiny",
        config="fp8_kv",
        workload="quick",
        plan_digest="plan",
        metric="tpot_mean_ms",
        value=20.0 + night % 3,
        session_count=3,
    )


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read and write everything, so it must not be root for whom a file is
    closed.
    """
    if os.geteuid() != 0:
        yield
        return
    late = ("encodings.idna", "colorsys", "mmap", "rich.progress", "k3perf.load.processes")
    for name in late:
        importlib.import_module(name)  # while the libraries can be read: some load late
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "broken": b'{"schema_version": 1',
    "another_kind": b'["a"]',
    "a_word": b"word",
    "keys_unknown": b'{"nosuch": 1}',
    "deep_list": b"[" * 100_000,
    "deep_mapping": b'{"a":' * 100_000,
    "huge_integer": b'{"schema_version": ' + b"1" * 5000 + b"}",
    "large_integer": b'{"schema_version": ' + b"1" * 400 + b"}",
    "not_finite": b'{"schema_version": NaN}',
    "infinite": b'{"schema_version": 1e999}',
    "key_twice": b'{"schema_version": 1, "schema_version": 1}',
    "utf16": '{"schema_version": 1}'.encode("utf-16"),
    "zero_bytes": b"\0" * 64,
    "not_text": bytes(range(256)),
    "half_a_character": b'{"schema_version": "\\ud800"}',
}
"""What a file may hold instead of a document."""


def bad_inputs(place: Path) -> dict[str, Path]:
    """A path for everything that an input file can be instead of one."""
    place.mkdir(exist_ok=True)
    found = {"missing": place / "none", "a_folder": place}
    for name, content in DAMAGED.items():
        found[name] = place / name
        found[name].write_bytes(content)
    found["under_a_file"] = place / "empty" / "x"
    found["itself"] = place / "itself"
    if not found["itself"].is_symlink():
        found["itself"].symlink_to("itself")
    found["closed"] = place / "closed"
    found["closed"].write_text("{}")
    found["closed"].chmod(0)
    return found


def bad_folders(place: Path) -> dict[str, Path]:
    """The same for an input folder."""
    place.mkdir(exist_ok=True)
    (place / "file").write_text("")
    (place / "closed").mkdir(exist_ok=True)
    (place / "closed").chmod(0)
    (place / "hollow").mkdir(exist_ok=True)
    return {
        "missing": place / "none",
        "a_file": place / "file",
        "closed": place / "closed",
        "hollow": place / "hollow",
    }


def bad_outputs(place: Path) -> dict[str, Path]:
    """The same for a file or folder that is to be written."""
    place.mkdir(exist_ok=True)
    (place / "file").write_text("")
    (place / "closed").mkdir(exist_ok=True)
    (place / "closed").chmod(0o555)
    return {
        "a_folder": place,
        "under_a_file": place / "file" / "x",
        "in_a_closed_folder": place / "closed" / "x",
    }


def one_night() -> dict[str, object]:
    """A night with one red cell."""
    finding = {
        "metric": "tpot_mean_ms", "unit": "ms", "outcome": "REGRESSED", "before": 20.0,
        "now": 23.0, "loss_ratio": 0.15, "certain": True,
    }  # fmt: skip
    cell = {
        "target": "tiny", "config": "fp8_kv", "workload": "quick", "hardware_class": "any-cpu",
        "plan_digest": "sha256:0", "outcome": "REGRESSED", "session_count": 2,
        "values": {"tpot_mean_ms": {"value": 23.0, "sessions": 2}}, "findings": [finding],
    }  # fmt: skip
    return {
        "run_id": "r1", "commit": COMMIT, "created_at_utc": "2026-11-01T01:00:00Z",
        "versions": {"vllm": "0.32.0"}, "cells": [cell],
    }  # fmt: skip
