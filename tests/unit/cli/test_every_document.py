"""Every kind of document, damaged in every way, given to the commands that read it: one
message and a documented status, or an answer.

``test_every_command`` has what no document survives (cut short, UTF-16, nested without
end). Here a good document has one value changed.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tests.unit.cli import workplace

from k3perf.errors import K3PerfError
from k3perf.records.baseline import digest_of
from k3perf.store.baselines import parse_baseline

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
    items = (
        data.items()
        if isinstance(data, dict)
        else list(enumerate(data))[:1]
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        yield from places(value, (*at, key))


def changed(data: Any, at: Place, value: Any) -> Any:
    fresh = copy.deepcopy(data)
    holder = fresh
    for key in at[:-1]:
        holder = holder[key]
    holder[at[-1]] = value
    return fresh


def variants(document: Document, path: Path) -> Iterator[tuple[str, str]]:
    """The document's text with one value replaced or left out, and what was done."""
    lines = path.read_text().splitlines()
    texts = (
        list(
            {json.loads(line).get("kind", ""): number for number, line in enumerate(lines)}.values()
        )
        if document.lines
        else [0]
    )
    for number in texts:
        data = json.loads(lines[number]) if document.lines else read(path)
        for at in places(data):
            for value in ODD_VALUES:
                text = written(path, document.stamp(changed(data, at, value)))
                if document.lines:
                    text = "\n".join([*lines[:number], text, *lines[number + 1 :]]) + "\n"
                yield f"line {number + 1}, {'.'.join(map(str, at))} = {value!r}", text
