"""The engine's Python: found, or one message that says what is wrong with the path and
what to do.
"""

import pytest

from k3perf.errors import UsageError
from k3perf.run.engine_environment import find_engine_python


@pytest.mark.parametrize("problem", ["does not exist", "is a directory", "is not executable"])
def test_an_engine_python_that_cannot_run(tmp_path, monkeypatch, problem):
    path = tmp_path / "python"
    if problem == "is a directory":
        path.mkdir()
    elif problem == "is not executable":
        path.write_text("#!/bin/sh\n")
    with pytest.raises(
        UsageError, match=f"the engine Python {path} {problem}. Run scripts/perf once"
    ) as caught:
        find_engine_python(str(path), tmp_path)
    assert "--k3-engine-python" in str(caught.value)
    monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(path))
    with pytest.raises(UsageError, match=problem):
        find_engine_python(None, tmp_path)
