"""The generated pages and schemas are current, and the schemas describe the files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripts import reference_pages

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS: dict[str, tuple[str, Any]] = reference_pages.DOCUMENTS
FILES = {
    name: sorted(REPOSITORY.glob(pattern))
    for name, (pattern, _) in DOCUMENTS.items()
    if list(REPOSITORY.glob(pattern))
}


def is_valid(name: str, *paths: Path) -> str:
    """What check-jsonschema says against the files; empty when it takes them."""
    program = Path(sys.executable).with_name("check-jsonschema")
    schema = REPOSITORY / "docs" / "schemas" / f"{name}.json"
    done = subprocess.run(
        [program, "--schemafile", schema, *paths], capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def keys(value: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        for key, entry in value.get("properties", {}).items():
            yield f"{place}.{key}", entry
        for key, entry in value.items():
            yield from keys(entry, f"{place}.{key}")


def test_every_generated_file_is_current() -> None:
    generated: dict[Path, str] = reference_pages.generated(REPOSITORY)
    old = [
        path.relative_to(REPOSITORY).as_posix()
        for path, text in generated.items()
        if not path.is_file() or path.read_text() != text
    ]
    assert not old, f"run scripts/make-docs: {old}"
    assert {path for path in generated if path.suffix == ".json"} == set(
        (REPOSITORY / "docs" / "schemas").iterdir()
    )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_key_has_a_description(name: str) -> None:
    found = list(keys(reference_pages.schema(name)))
    assert len(found) >= 3
    assert not [place for place, entry in found if len(entry.get("description", "")) < 8]


@pytest.mark.parametrize("name", FILES)
def test_committed_files_fit_their_schema(name: str) -> None:
    assert not is_valid(name, *FILES[name])


@pytest.mark.parametrize("name", FILES)
def test_committed_files_name_their_schema(name: str) -> None:
    schema = REPOSITORY / "docs" / "schemas" / f"{name}.json"
    for path in FILES[name]:
        if path.suffix == ".yaml":
            line = f"# yaml-language-server: $schema={os.path.relpath(schema, path.parent)}"
            assert path.read_text().startswith(f"{line}\n"), path


def test_every_committed_yaml_file_has_a_schema() -> None:
    known = {path for paths in FILES.values() for path in paths}
    for place in ("perf_tests", "baselines"):
        assert set((REPOSITORY / place).rglob("*.y*ml")) <= known


def test_a_schema_refuses_a_wrong_file(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    text = (REPOSITORY / "perf_tests" / "workloads" / "chat.yaml").read_text()
    path.write_text(text.replace("requests:", "request:"))
    assert "'request' was unexpected" in is_valid("workload", path)


def test_the_schema_of_waivers_takes_what_the_reader_takes(tmp_path: Path) -> None:
    path = tmp_path / "waivers.yaml"
    path.write_text(
        "- {target: a, config: b, workload: c, metric: d, owner: e, build: 0.32,\n"
        "   reason: known upstream, expires_on: 2027-01-31}\n"
    )
    assert not is_valid("waivers", path)
    path.write_text("- {target: a}\n")
    assert "'config' is a required property" in is_valid("waivers", path)
