"""Renew the chart libraries in ``src/k3perf/report/vendor``: ``python -m
scripts.vendor_charts``.

Downloads the packages below with npm, which checks their digests, and copies the
minified builds with their licences. ``versions.json`` holds version and SHA-256 of each
copied file, which ``tests/report_page/test_vendor.py`` compares.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent.parent / "src" / "k3perf" / "report" / "vendor"
PACKAGES: Final = {
    "vega": ("6.4.0", "build/vega.min.js"),
    "vega-lite": ("6.4.3", "build/vega-lite.min.js"),
    "vega-interpreter": ("2.3.2", "build/vega-interpreter.js"),
}


def main() -> None:
    """Download, check and copy every package."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    versions = {}
    for name, (version, member) in PACKAGES.items():
        archive = _archive(name, version)
        text = _member(archive, member)
        text = _as_script(text) if name == "vega-interpreter" else _without_map(text)
        file = FOLDER / f"{name}.min.js"
        file.write_text(text, encoding="utf-8")
        (FOLDER / f"{name}.LICENSE.txt").write_text(_licence(archive), encoding="utf-8")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        versions[name] = {"version": version, "file": file.name, "sha256": digest}
    (FOLDER / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")


def _archive(name: str, version: str) -> bytes:
    """npm compares the package with the digest that its registry lists."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{name}@{version}", "--pack-destination", folder]
        subprocess.run(command, check=True, capture_output=True)
        return next(Path(folder).glob("*.tgz")).read_bytes()


def _member(archive: bytes, name: str) -> str:
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        stream = package.extractfile(f"package/{name}")
        if stream is None:
            raise SystemExit(f"{name} is missing from the package")
        return stream.read().decode("utf-8")


def _licence(archive: bytes) -> str:
    """Of the package, or of the project's other packages where one ships without."""
    try:
        return _member(archive, "LICENSE")
    except KeyError:
        return _member(_archive("vega", PACKAGES["vega"][0]), "LICENSE")


def _without_map(text: str) -> str:
    return "\n".join(
        line for line in text.splitlines() if not line.startswith("//# sourceMappingURL")
    )


def _as_script(module: str) -> str:
    """The interpreter comes as a module. ``vega`` has the functions it imports."""
    body = [
        line
        for line in _without_map(module).splitlines()
        if not line.startswith(("import ", "export "))
    ]
    return "\n".join(
        [
            "(function () {",
            "const { ascending, isString, DisallowedObjectProperties } = vega;",
            *body,
            "globalThis.vegaInterpreter = { expressionInterpreter: expression };",
            "})();",
        ]
    )


if __name__ == "__main__":
    main()
