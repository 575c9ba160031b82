"""The chart libraries in the package are those of the listed versions."""

import hashlib
import json
from importlib.resources import files

FOLDER = files("k3perf.report").joinpath("vendor")


def test_each_library_has_its_digest_and_licence() -> None:
    versions = json.loads(FOLDER.joinpath("versions.json").read_text())
    assert set(versions) == {"vega", "vega-lite", "vega-interpreter"}
    for name, entry in versions.items():
        data = FOLDER.joinpath(entry["file"]).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry["sha256"]
        assert "Redistribution and use" in FOLDER.joinpath(f"{name}.LICENSE.txt").read_text()
        assert b"</script" not in data.lower()
        assert b"<!--" not in data


def test_libraries_have_the_size_that_the_page_states() -> None:
    sizes = {entry.name: len(entry.read_bytes()) for entry in FOLDER.iterdir()}
    assert sum(size for name, size in sizes.items() if name.endswith(".js")) < 800_000
