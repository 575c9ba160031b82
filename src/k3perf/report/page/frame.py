"""The frame of every HTML page of k3perf: one file without any request. Pure but for
the package's own files.

The page's policy allows the scripts in it by their digests and no address at all.
Vega's expressions are interpreted, so that no text is ever run as a script. Data is
JSON in which no tag can end or begin.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from k3perf import __version__
from k3perf.report.page.chart_specs import chart_config, chart_specs

LIBRARIES: Final = ("vega.min.js", "vega-lite.min.js", "vega-interpreter.min.js")
_ESCAPED: Final = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def html_page(
    template: str, context: Mapping[str, Any], data: Mapping[str, Any], *, charts: bool
) -> str:
    """Render ``template`` of this package. ``data``: by the id of its script element.
    ``charts`` False leaves the chart libraries out, where there is nothing to draw.
    """
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    folder = files(__package__).joinpath("templates")
    trusted = Markup  # of this package's files, and of JSON without "<"
    texts = {
        entry.name: entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".j2")
    }
    libraries = [_library(name) for name in LIBRARIES] if charts else []
    script = folder.joinpath("page.js").read_text(encoding="utf-8")
    blocks = {"chart-specs": chart_specs(), "chart-config": chart_config()} if charts else {}
    environment = Environment(
        autoescape=True,
        loader=DictLoader(texts),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        **context,
        policy=_policy([*libraries, script]),
        style=trusted(folder.joinpath("page.css").read_text(encoding="utf-8")),
        # run by the page's script when it draws the first chart
        libraries=[trusted(library) for library in libraries],
        script=trusted(script),
        data={name: trusted(json_text(value)) for name, value in {**blocks, **data}.items()},
        version=__version__,
    )


def json_text(value: object) -> str:
    """JSON that can stand in a script element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    for character, escape in _ESCAPED.items():
        text = text.replace(character, escape)
    # lone surrogates have no UTF-8 form
    return text.encode("utf-8", "replace").decode("utf-8")


def _library(name: str) -> str:
    folder = files("k3perf.report").joinpath("vendor")
    return folder.joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: list[str]) -> str:
    digests = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
