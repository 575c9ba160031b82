"""A page read as a browser's parser reads it: elements, numbers and data blocks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class Number:
    value: str
    source: str
    text: str = ""


@dataclass
class Page(HTMLParser):
    """``numbers``: every ``data`` element, also in what is opened later. ``bare``: text of
    number cells outside of them."""

    numbers: list[Number] = field(default_factory=list)
    blocks: dict[str, Any] = field(default_factory=dict)
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._number: Number | None = None
        self._block = ""
        self._text = ""
        self._in_cell = False
        self._later = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag == "data":
            self._number = Number(found["value"] or "", found["data-source"] or "")
        if tag == "script" and found.get("type") == "application/json":
            self._block, self._text = found["id"] or "", ""
        if tag == "script" and found.get("type") == "text/html":
            self._later, self._text = True, ""
        if tag == "td":
            self._in_cell = "n" in (found.get("class") or "").split()

    def handle_endtag(self, tag: str) -> None:
        if tag == "data" and self._number is not None:
            self.numbers.append(self._number)
            self._number = None
        if tag == "script" and self._block:
            self.blocks[self._block] = json.loads(self._text)
            self._block = ""
        if tag == "script" and self._later:
            self._later = False
            inside = page_of(self._text)
            self.numbers += inside.numbers
            self.bare += inside.bare
        if tag == "td":
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._number is not None:
            self._number.text += data
        elif self._block or self._later:
            self._text += data
        elif self._in_cell:
            self.bare.append(data)


def page_of(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    return page
