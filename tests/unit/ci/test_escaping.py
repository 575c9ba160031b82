"""Hostile text and numbers: rendered by a Markdown parser, they come out as the text
they were.
"""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from k3perf.report.escaping import (
    code,
    command_data,
    command_property,
    number,
    percent,
    prose,
    visible,
)

HOSTILE = [
    "plain",
    "a|b|c",
    "</td><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](https://example.invalid)",
    "![i](https://example.invalid/x.png)",
    "**bold** _em_ `code` ~~gone~~",
    "@maintainer please merge",
    "fixes #1 and GH-2 and org/repo#3",
    "www.example.invalid https://example.invalid",
    "line\nbreak\r\n\n# heading",
    "<!-- k3perf-report -->",
    "&lt;b&gt; &#64;user",
    "\u202eright to left\u202c",
    "zero\u200bwidth\x00nul\x1b[31mred",
    "`` ` ``` ",
    "\\`*\\|",
    "-->",
    "${{ github.token }} $(id)",
    "::set-output name=x::y",
]


class Elements(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(markdown: str) -> Elements:
    found = Elements()
    found.feed(
        MarkdownIt("commonmark", {"html": True, "linkify": False})
        .enable(["table", "strikethrough"])
        .render(markdown)
    )
    return found


@pytest.mark.parametrize("text", HOSTILE)
def test_prose_in_a_table_stays_one_cell_of_text(text: str) -> None:
    found = rendered(f"| a | b |\n| --- | --- |\n| {prose(text)} | end |\n")
    assert found.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    assert visible(text.replace("\u200b", " "), 300) in found.text.replace("\u200b", "")
    assert "end" in found.text


@pytest.mark.parametrize("text", HOSTILE)
def test_names_stay_in_one_code_element(text: str) -> None:
    found = rendered(f"| a | b |\n| --- | --- |\n| {code(text)} | end |\n")
    assert found.tags == {"table", "thead", "tbody", "tr", "th", "td", "code"}
    assert visible(text, 80) in found.text


@given(st.text(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_text_renders_without_markup(text: str) -> None:
    found = rendered(f"| a |\n| --- |\n| x{prose(text)} |\n")
    assert found.tags <= {"table", "thead", "tbody", "tr", "th", "td"}
    assert re.search(r"@\w|#\d|://|www\.", found.text) is None


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_commands_stay_one_line_and_properties_one_property(text: str) -> None:
    assert "\n" not in command_data(text)
    assert "\r" not in command_data(text)
    assert not set(command_property(text)) & {":", ",", "\n", "\r"}


def test_visible_text_is_bounded_and_bare() -> None:
    assert visible("x" * 1000, 10) == "x" * 9 + "…"
    assert visible("a\u202eb\x07c\n\n d", 80) == "a b c d"
    assert visible("\ud800", 5) == ""


def test_plain_names_read_plainly() -> None:
    assert code("fp8_kv") == "`fp8_kv`"
    assert code("0.33.0") == "`0.33.0`"
    assert html.unescape(code("a`b")) == "<code>a`b</code>"


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, "ms", "-"),
        (28.04, "ms", "28.04 ms"),
        (3378.0, "tokens/s", "3,378 tokens/s"),
        (55152766304.0, "bytes", "51.4 GiB (55,152,766,304)"),
        (512.0, "bytes", "512 B"),
        (-1.0, "", "-1"),
        (1e308, "bytes", "1.000e+308"),
        (-1e300, "ms", "-1.000e+300"),
        (5e-324, "ms", "4.941e-324 ms"),
        (1.0, "<b>", "1 &#60;b&#62;"),
    ],
)
def test_numbers(value: float | None, unit: str, shown: str) -> None:
    assert number(value, unit) == shown


def test_percent() -> None:
    assert percent(None) == "-"
    assert percent(0.0532) == "+5.3 %"
    assert percent(-0.01) == "-1.0 %"
    assert percent(1e300) == "+1.0e+302 %"
