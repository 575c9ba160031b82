"""Every reader of a document, with everything that a file can be instead of one: one
error of the suite that names the file.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3perf.cli.ci_command import read_plan, read_verdict
from k3perf.cli.history_command import read_history
from k3perf.cli.memory_command import read_model_config
from k3perf.config.load_yaml import load_document, read_yaml
from k3perf.config.models import ConfigSpec, KnownRefusal, TargetSpec
from k3perf.config.tolerances import load_tolerances
from k3perf.config.workload_spec import WorkloadSpec
from k3perf.documents import LARGEST_DEPTH, DocumentProblem, json_of, read_json, yaml_of
from k3perf.engine.bundle.host import read_inventory
from k3perf.engine.bundle.make import read_recipe
from k3perf.engine.model_directory import materialise
from k3perf.errors import ConfigFileError, UsageError
from k3perf.store.baselines import read_baseline_file, read_proposals, read_waivers
from k3perf.store.found_rates import read_found_rates
from k3perf.store.measurements import read_measurement_file
from k3perf.store.results import read_results
from tests.unit.cli import workplace


@dataclass(frozen=True)
class Reader:
    """``read`` a file; ``good``: where the workplace has one that it takes.
    ``lies_at``: the name that it must have, in a folder.

    ``takes``: what is no damage here, with the reason in its name.
    """

    read: Callable[[Path], Any]
    good: str
    lies_at: str = ""
    takes: frozenset[str] = frozenset()
    ending: bytes = b""


MISSING_IS_NONE = frozenset({"missing"})
READERS = {
    "config": Reader(
        lambda path: load_document(ConfigSpec, path), "perf_tests/configs/fp8_kv.yaml"
    ),
    "target": Reader(lambda path: load_document(TargetSpec, path), "perf_tests/targets/tiny.yaml"),
    "workload": Reader(
        lambda path: load_document(WorkloadSpec, path), "perf_tests/workloads/quick.yaml"
    ),
    "refusal": Reader(lambda path: load_document(KnownRefusal, path), "refusal.yaml"),
    "tolerances": Reader(load_tolerances, "perf_tests/tolerances.yaml"),
    "waivers": Reader(read_waivers, "waivers.yaml", takes=MISSING_IS_NONE | {"empty"}),
    "found rates": Reader(
        lambda path: read_found_rates(path.parents[1], "tiny"),
        "found_rates.yaml",
        "tiny/found_rates.yaml",
        MISSING_IS_NONE,
    ),
    "recipe": Reader(read_recipe, "recipe.yaml"),
    "baseline": Reader(read_baseline_file, "baselines/tiny/fp8_kv.json", takes=MISSING_IS_NONE),
    "proposal": Reader(
        lambda path: read_proposals(path.parents[1]),
        ".k3perf/proposals/tiny/fp8_kv.json",
        "tiny/fp8_kv.json",
        MISSING_IS_NONE,
    ),
    "measurements": Reader(read_measurement_file, "run/measurements.json"),
    "results": Reader(
        read_results, "run/results.jsonl", ending=b"\n"
    ),  # a line without its end is one that was being written
    "plan": Reader(read_plan, "plan.json"),
    "verdict": Reader(read_verdict, "pass.json"),
    "history": Reader(read_history, "history.jsonl", takes=MISSING_IS_NONE | {"empty", "a_folder"}),
    "inventory": Reader(read_inventory, "host.json"),
    "model config": Reader(
        read_model_config,
        "perf_tests/models/tiny/config.json",
        takes=frozenset({"keys_unknown", "not_finite", "infinite"}),
    ),
    "served model": Reader(
        lambda path: materialise(path.parent, path.parents[1] / "cache"),
        "perf_tests/models/tiny/config.json",
        "model/config.json",
        frozenset(),
    ),
}
"""Cells, costs, requirements and runner records are read by commands and the plugin
alone: test_every_command, test_every_option.
"""


@pytest.fixture(scope="module")
def place(repository: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k3perf-readers-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        workplace.build(root, repository)
        provenance = {"kind": "issue", "source": "tests", "date": "2026-11-29"}
        refusal = {
            "schema_version": 1,
            "name": "fp8",
            "hardware_classes": ["h200"],
            "when": {"kv_cache_dtype": "fp8"},
            "reason": "made for a test",
        }
        (root / "refusal.yaml").write_text(yaml.safe_dump({**refusal, "provenance": provenance}))
        waiver = {
            "target": "tiny",
            "config": "fp8_kv",
            "workload": "quick",
            "metric": "weights_bytes",
            "owner": "ann",
            "build": "0.32",
        }
        (root / "waivers.yaml").write_text(
            yaml.safe_dump([{**waiver, "reason": "looked into", "expires_on": "2999-01-01"}])
        )
        (root / "found_rates.yaml").write_text(
            yaml.safe_dump({"schema_version": 1, "target": "tiny", "rates": []})
        )
        (root / "recipe.yaml").write_text(
            yaml.safe_dump({"leave_out": {"ray*": "not used"}, "strip": [], "keep": []})
        )
        yield root


def put(path: Path, source: Path) -> None:
    """``source`` at ``path``, whatever it is; nothing where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        path.symlink_to(path.name)
    elif source.is_dir():
        path.mkdir()
    elif source.exists():
        mode = stat.S_IMODE(source.stat().st_mode)
        source.chmod(mode | stat.S_IRUSR)  # not every user may read a closed file
        shutil.copyfile(source, path)
        for one in (source, path):
            one.chmod(mode)


@pytest.mark.parametrize("name", READERS)
def test_damage_is_one_error_that_names_the_file(
    name: str, place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reader = READERS[name]
    wrong = workplace.bad_inputs(place / f"wrong {name}")
    found = []
    for damage, source in wrong.items():
        if reader.ending and source.is_file() and damage != "closed":
            source.write_bytes(source.read_bytes() + reader.ending)
        with tempfile.TemporaryDirectory(prefix="k3perf-reader-") as folder:
            Path(folder).chmod(0o777)
            path = source if not reader.lies_at else Path(folder) / reader.lies_at
            if reader.lies_at and damage == "under_a_file":
                continue
            if reader.lies_at:
                put(path, source)
            said = said_by(reader, path, closed=damage == "closed")
        if damage in reader.takes:
            continue
        if path.name not in said:
            found.append(f"{damage}: {said}")
    assert not found, "\n".join(found)


def said_by(reader: Reader, path: Path, *, closed: bool = False) -> str:
    """The error's message; empty where the file was taken. Any other exception is the
    test's failure.
    """
    try:
        if closed:
            with workplace.as_nobody():
                reader.read(path)
        else:
            reader.read(path)
    except UsageError as error:
        message = str(error)
        assert len(message) < 1500, "the message, and not the file"
        return message
    return ""


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("ending", ["mark", "windows"])
def test_what_another_system_writes_is_read(
    name: str, ending: str, place: Path, tmp_path: Path
) -> None:
    reader = READERS[name]
    good = (place / reader.good).read_bytes()
    path = tmp_path / (reader.lies_at or "file")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\xef\xbb\xbf" + good if ending == "mark" else good.replace(b"\n", b"\r\n"))
    assert said_by(reader, path) == ""
    path.write_bytes(good)
    assert said_by(reader, path) == ""


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + level)}: &{chr(98 + level)} [{', '.join(['*' + chr(97 + level)] * 10)}]\n"
    for level in range(9)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"{'[' * (LARGEST_DEPTH + 1)}{']' * (LARGEST_DEPTH + 1)}", "nested more than"),
        (f"a: {'[' * 500}{']' * 500}", "nested more than"),
        ("a: &a [*a]", "nested more than"),
        (BOMB, "expands to more than"),
        ("a: .inf", "not finite: inf"),
        ("a: [1, {b: .nan}]", "not finite: nan"),
        (f"a: {'1' * 5000}", "is not valid YAML"),
        (f"a: {'1' * 100}", "more than 64 bits"),
        ("a: 1\na: 2", "key 'a' is written twice"),
        ("a: !!int x", "is not valid YAML"),
        ("a: !!bool x", "is not valid YAML"),
        ("a: !!timestamp x", "is not valid YAML"),
        ("a: !!timestamp 2001-01-01", "of the kind date"),
        ("a: !!set {x, y}", "of the kind set"),
        ("a: !!binary aGVsbG8=", "of the kind bytes"),
        ("? [1]\n: 2", "is not valid YAML"),
        ("a: 1\n---\nb: 2", "is not valid YAML"),
        ("a: *b", "is not valid YAML"),
    ],
)
def test_yaml_that_is_not_plain_data(text: str, problem: str) -> None:
    with pytest.raises(DocumentProblem, match=problem):
        yaml_of(text)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[" * 5000 + "]" * 5000, "nested more than"),
        ("[" * 70 + "]" * 70, "nested more than"),
        ('{"a": NaN}', "not finite"),
        ('{"a": [-Infinity]}', "not finite"),
        ('{"a": 1e999}', "not finite"),
        ('{"a": %s}' % ("9" * 5000), "more than 64 bits"),
        ('{"a": -%s}' % ("9" * 30), "more than 64 bits"),
        ('{"secret": 1, "secret": 2}', "a key is written twice"),
        ('{"a": "\\ud800"}', "half a character"),
        ("", "is empty"),
        ("{", "is not valid JSON"),
    ],
)
def test_json_that_is_not_plain_data(text: str, kind: str) -> None:
    with pytest.raises(DocumentProblem) as caught:
        json_of(text)
    assert kind in caught.value.kind
    assert "secret" not in caught.value.kind, "a stranger's text is not quoted"


def test_what_is_plain_is_taken() -> None:
    deepest = "[" * (LARGEST_DEPTH - 1) + "]" * (LARGEST_DEPTH - 1)
    assert json_of(f'{{"a": {deepest}, "b": {2**64}, "c": "\\ud83d\\ude00"}}')["b"] == 2**64
    assert yaml_of("a: &x {b: 1}\nc: *x\nd: 2026-11-29\n") == {
        "a": {"b": 1},
        "c": {"b": 1},
        "d": "2026-11-29",
    }
    assert yaml_of("a: 0.30", words=True) == {"a": "0.30"}
    assert yaml_of("") is None
    assert json_of('{"time_step_limit": [0.0, Infinity]}', finite=False)["time_step_limit"][
        1
    ] == float("inf")


def test_the_place_of_a_number_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a:\n  b: [1, .inf]\n")
    with pytest.raises(
        ConfigFileError, match=r"a\.yaml at 'a\.b\.1': holds a number that is not finite"
    ):
        read_yaml(path)
    path.write_text("{\n\n1: 2")
    with pytest.raises(ConfigFileError, match="at 'line 3'"):
        read_json(path, "Correct it.")


def test_a_file_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k3perf.documents.LARGEST_DOCUMENT_BYTES", 1 << 20)
    with pytest.raises(ConfigFileError, match="larger than 1 MiB"):
        read_json(Path("/dev/zero"), "Give another.")
