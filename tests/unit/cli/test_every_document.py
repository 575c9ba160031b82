"""Every kind of document, damaged in every way, given to the commands that read it: one
message and a documented status, or an answer.

``test_every_command`` has what no document survives (cut short, UTF-16, nested without
end). Here a good document has one value changed.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.cli import workplace
from tests.unit.cli.test_every_command import accident, contents, no_network, restore

from k3perf.cli.main import main
from k3perf.errors import K3PerfError
from k3perf.records.baseline import digest_of
from k3perf.store.baselines import parse_baseline

MAY_END_WITH = frozenset({0, 4, 10, 11})  # 11: a verdict that names a missing baseline
ODD_VALUES: tuple[Any, ...] = (None, -1, 0, 1e308, True, "", "nosuch", [], {"a": 1})
Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A file of the workplace and the commands that read it. ``lines``: one JSON
    document on each line.
    """

    path: str
    commands: tuple[str, ...]
    lines: bool = False
    stamp: Callable[[Any], Any] = lambda data: data


def stamped(data: Any) -> Any:
    """A baseline with the digest of its content, where it has one: the digest is not
    what keeps wrong numbers out.
    """
    with contextlib.suppress(K3PerfError, ValueError):
        data["digest"] = digest_of(parse_baseline(Path("x"), json.dumps(data)))
    return data


def stamped_proposal(data: Any) -> Any:
    return (
        {**data, "baseline": stamped(data["baseline"])}
        if isinstance(data.get("baseline"), dict)
        else data
    )


DOCUMENTS = {
    "baseline": Document(
        "baselines/tiny/fp8_kv.json", ("baseline show", "baseline propose run"), stamp=stamped
    ),
    "proposal": Document(
        ".k3perf/proposals/tiny/fp8_kv.json",
        ("baseline accept --reason 'the same once more'",),
        stamp=stamped_proposal,
    ),
    "measurements": Document(
        "run/measurements.json",
        ("baseline propose run", "history append run --history other/history.jsonl"),
    ),
    "results": Document(
        "run/results.jsonl",
        (
            f"recover run --commit {workplace.COMMIT}",
            "plan --record-costs run --costs other/costs.json",
        ),
        lines=True,
    ),
    "recording": Document(
        "recordings/one.json", ("gate selftest --runs 1 --recorded-only --recorded recordings",)
    ),
    "verdict": Document(
        "pass.json",
        (
            "merge pass.json --plan plan.json",
            "ci comment pass.json",
            "ci annotations pass.json",
            "ci retry pass.json --plan plan.json",
        ),
    ),
    "plan": Document(
        "plan.json",
        (
            "merge pass.json --plan plan.json",
            "ci summary pass.json --plan plan.json",
            "history unmeasured run --plan plan.json",
        ),
    ),
    "history": Document(
        "history.jsonl",
        (
            "history changes --history history.jsonl",
            "history page --history history.jsonl --output other/page",
        ),
        lines=True,
    ),
    "costs": Document("costs.json", ("plan --costs costs.json --budget-minutes 1",)),
    "inventory": Document(
        "host.json", ("bundle make --inventory host.json --output other/bundle --requirement vllm",)
    ),
    "model": Document(
        "perf_tests/models/tiny/config.json",
        ("memory plan --config fp8_kv --target tiny", "export fp8_kv --target tiny", "plan"),
    ),
    "config": Document(
        "perf_tests/configs/fp8_kv.yaml",
        ("plan", "export fp8_kv --target tiny", "memory plan --config fp8_kv --target tiny"),
    ),
    "target": Document(
        "perf_tests/targets/tiny.yaml",
        ("plan", "export fp8_kv --target tiny", "doctor --target tiny"),
    ),
    "workload": Document(
        "perf_tests/workloads/quick.yaml", ("plan", "recover run --commit " + workplace.COMMIT)
    ),
    "tolerances": Document("perf_tests/tolerances.yaml", ("plan", "baseline show")),
}


MODELS = ("cpu-hybrid", "h200-k3", "kimi-k3")
DOCUMENTS |= {
    name: Document(
        f"models/{name}.json",
        (f"memory plan --model-config models/{name}.json --device-memory-bytes 150754820096",),
    )
    for name in MODELS
}


def read(path: Path) -> Any:
    return (
        yaml.safe_load(path.read_text()) if path.suffix == ".yaml" else json.loads(path.read_text())
    )


def written(path: Path, data: Any) -> str:
    return yaml.safe_dump(data) if path.suffix == ".yaml" else json.dumps(data)


def places(data: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in the data that a value stands at, containers too; of a list the
    first entry stands for all.
    """
    if at:
        yield at
    items: Any = ()
    if isinstance(data, dict):
        alike = len(data) > 2 and all(isinstance(value, dict) for value in data.values())
        items = list(data.items())[: 2 if alike else None]
    elif isinstance(data, list):
        items = list(enumerate(data))[:1]
    for key, value in items:
        yield from places(value, (*at, key))


def changed(data: Any, at: Place, value: Any) -> Any:
    fresh = copy.deepcopy(data)
    holder = fresh
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    return fresh


def variants(document: Document, path: Path, each: int) -> Iterator[tuple[str, str]]:
    """The document's text with one value replaced by ``each`` of the odd values in
    turn, and what was done.
    """
    lines = path.read_text().splitlines()
    kinds = (
        {json.loads(line).get("kind", ""): number for number, line in enumerate(lines)}
        if document.lines
        else {"": 0}
    )
    for number in kinds.values():
        data = json.loads(lines[number]) if document.lines else read(path)
        for turn, at in enumerate(places(data)):
            for step in range(each):
                value = ODD_VALUES[(turn + 4 * step) % len(ODD_VALUES)]
                text = written(path, document.stamp(changed(data, at, value)))
                if document.lines:
                    text = "\n".join([*lines[:number], text, *lines[number + 1 :]]) + "\n"
                yield f"line {number + 1}, {'.'.join(map(str, at))} = {value!r}", text


@pytest.fixture(scope="module")
def place(repository: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="k3perf-documents-") as folder:
        workplace.build(Path(folder), repository)
        (Path(folder) / "other").mkdir()
        (Path(folder) / "models").mkdir()
        for name in MODELS:
            shutil.copy(
                repository / "perf_tests" / "models" / name / "config.json",
                Path(folder) / "models" / f"{name}.json",
            )
        yield Path(folder)


@pytest.mark.parametrize(
    ("name", "line"),
    [(name, line) for name, document in DOCUMENTS.items() for line in document.commands],
)
def test_one_changed_value_is_refused_in_words_or_taken(
    name: str,
    line: str,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = DOCUMENTS[name]
    path = place / document.path
    before = contents(place)
    monkeypatch.chdir(place)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr("k3perf.engine.bundle.make.PipFetcher", no_network)
    first = line == document.commands[0]
    found = []
    for what, text in list(variants(document, path, 2 if first else 1)):
        path.write_text(text)
        try:
            status = main(shlex.split(line))
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capsys.readouterr()
        problem = accident(status, said.err or said.out, MAY_END_WITH)
        found += [f"{what}: {problem}: status {status}: {said.err[-500:]}"] if problem else []
        restore(place, before)
    assert not found, "\n".join(found)
