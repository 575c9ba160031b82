"""A hook of mkdocs: links of a page to files outside `docs/` become links to the
repository. A link to a file that is not there ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

REPOSITORY = "https://github.com/k3perf/k3perf/blob/main/"
ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+|schemas[^)#\s]*)(?P<anchor>#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the page's links. Raises FileNotFoundError."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def rewritten(match: re.Match[str]) -> str:
        path = (folder / match["path"]).resolve()
        if not path.exists():
            raise FileNotFoundError(f"docs/{page.file.src_uri} links to {match['path']}: not found")
        if path.is_relative_to(ROOT / "docs") and "schemas" not in path.parts:
            return match[0]
        return f"]({REPOSITORY}{path.relative_to(ROOT)}{match['anchor'] or ''})"

    return _LINK.sub(rewritten, markdown)
