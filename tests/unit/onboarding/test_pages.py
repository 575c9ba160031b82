"""The commands that the pages show are commands that exist, and the site's tree names
every page.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import yaml

from k3perf.cli.main import build_parser
from k3perf.errors import UsageError, explain
from k3perf.pytest_plugin.options import FLAGS, REPEATED, VALUES

REPOSITORY = Path(__file__).resolve().parents[3]
PAGES = ("tutorial.md", "running-server.md", "upgrade.md")


def shown(page: str, program: str) -> list[str]:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    indented = re.findall(rf"^    ({program} .*)$", text, re.MULTILINE)
    inline = re.findall(rf"`({program} [^`]*)`", text)
    return [line for line in (*indented, *inline) if "..." not in line]


@pytest.mark.parametrize("page", PAGES)
def test_every_shown_command_is_taken_by_the_parser(page: str) -> None:
    lines = shown(page, "k3perf")
    assert lines
    for line in lines:
        words = shlex.split(line)[1:]
        if len(words) > 1:
            build_parser().parse_args(words)


@pytest.mark.parametrize("page", PAGES)
def test_every_shown_option_of_pytest_exists(page: str) -> None:
    known = {*FLAGS, *VALUES, *REPEATED}
    for line in shown(page, "pytest"):
        options = {word.partition("=")[0] for word in shlex.split(line) if word.startswith("--k3")}
        assert options <= known, line


def test_the_site_has_every_page_once() -> None:
    tree = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    listed = leaves(tree)
    pages = {
        str(path.relative_to(REPOSITORY / "docs")) for path in (REPOSITORY / "docs").rglob("*.md")
    }
    assert sorted(listed) == sorted(pages)


def leaves(node: object) -> list[str]:
    if isinstance(node, str):
        return [node]
    parts = node.values() if isinstance(node, dict) else node
    return [leaf for part in parts for leaf in leaves(part)]  # type: ignore[union-attr]


def test_a_message_names_no_page_that_is_not_here(tmp_path, monkeypatch) -> None:
    error = UsageError("write it so (docs/configs.md)")
    monkeypatch.chdir(REPOSITORY)
    assert explain(error)[0] == "write it so (docs/configs.md)"
    monkeypatch.chdir(tmp_path)
    address = "https://github.com/k3perf/k3perf/blob/main/docs/configs.md"
    assert explain(error)[0] == f"write it so ({address})"
