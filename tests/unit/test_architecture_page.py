"""Every dotted name that the architecture page gives resolves to code, so that the page
cannot name classes that are gone.
"""

import importlib
import re

import pytest


def names(repository):
    text = (repository / "docs" / "architecture.md").read_text()
    found = re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_]+)(?:\(|`)", text)
    packages = {path.name for path in (repository / "src" / "k3perf").iterdir() if path.is_dir()}
    return sorted(
        {
            name
            for name in found
            if name.split(".")[0] in packages
            and not re.search(r"\.(json|jsonl|py|md|yaml|toml)$", name)
        }
    )


def resolve(dotted):
    parts = ["k3perf", *dotted.split(".")]
    for cut in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            thing = getattr(thing, part)
        return thing
    raise AssertionError(dotted)


def test_the_page_names_code(repository):
    found = names(repository)
    assert len(found) > 10
    for name in found:
        try:
            resolve(name)
        except AttributeError as error:
            pytest.fail(f"docs/architecture.md names {name}: {error}")
