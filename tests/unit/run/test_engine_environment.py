"""The engine's Python: found, or one message that says what is wrong with the path and
what to do.
"""

import pytest

from k3perf.errors import UsageError
from k3perf.run.engine_environment import find_engine_python, note_engine_python


@pytest.mark.parametrize("problem", ["does not exist", "is a directory", "is not executable"])
def test_an_engine_python_that_cannot_run(tmp_path, monkeypatch, problem):
    path = tmp_path / "python"
    if problem == "is a directory":
        path.mkdir()
    elif problem == "is not executable":
        path.write_text("#!/bin/sh\n")
    with pytest.raises(
        UsageError, match=f"the engine Python {path} {problem}. Name a Python"
    ) as caught:
        find_engine_python(str(path), tmp_path)
    assert "--k3-engine-python" in str(caught.value)
    monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(path))
    with pytest.raises(UsageError, match=problem):
        find_engine_python(None, tmp_path)


def test_what_init_noted_comes_after_the_environment_and_before_the_path(tmp_path, monkeypatch):
    monkeypatch.delenv("K3PERF_ENGINE_PYTHON", raising=False)
    pythons = {}
    for name in ("own", "noted", "path"):
        folder = tmp_path / name / "bin"
        folder.mkdir(parents=True)
        for program in ("python", "vllm"):
            (folder / program).write_text("#!/bin/sh\n")
            (folder / program).chmod(0o755)
        pythons[name] = folder / "python"
    root = tmp_path / "repository"
    root.mkdir()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="does not exist"):
        find_engine_python(None, root)
    monkeypatch.setenv("PATH", str(pythons["path"].parent))
    assert find_engine_python(None, root) == pythons["path"]
    note_engine_python(pythons["noted"], root)
    assert find_engine_python(None, root) == pythons["noted"]
    (root / ".venv-engine").symlink_to(pythons["own"].parent.parent)
    assert find_engine_python(None, root) == root / ".venv-engine" / "bin" / "python"
    assert find_engine_python(str(pythons["path"]), root) == pythons["path"]
