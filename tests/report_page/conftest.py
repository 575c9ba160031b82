"""A headless Chromium: Debian's, driven by Playwright. Tests that need it are skipped with
the reason where one of them is missing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Visit:
    """An opened page, and what went wrong while it was open."""

    page: Any
    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install -e .[browser]"
    )
    if CHROMIUM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with playwright.sync_playwright() as tool:
        opened = tool.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    contexts = []

    def open_file(path: Path, **options: Any) -> Visit:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        found = Visit(context.new_page())
        found.page.on(
            "console",
            lambda message: (
                found.problems.append(message.text)
                if message.type in ("error", "warning")
                else None
            ),
        )
        found.page.on("pageerror", lambda error: found.problems.append(str(error)))
        found.page.on("dialog", lambda dialog: found.problems.append(f"dialog {dialog.message}"))
        found.page.on("request", lambda request: found.requests.append(request.url))
        found.page.goto(f"file://{path}")
        found.page.wait_for_selector("html[data-ready]")
        return found

    yield open_file
    for context in contexts:
        context.close()
