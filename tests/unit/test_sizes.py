"""Size limits of the sources: short modules and short functions."""

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src"
MODULE_LINES = 400
FUNCTION_LINES = 60


def too_long(path: Path) -> list[str]:
    """What reaches a limit in one file. A function counts with its docstring, without
    its decorators.
    """
    text = path.read_text()
    count = len(text.splitlines())
    found = [f"{path.name}: {count} lines"] if count >= MODULE_LINES else []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length >= FUNCTION_LINES:
                found.append(f"{path.name}:{node.lineno} {node.name}: {length} lines")
    return found


def test_modules_and_functions_stay_short():
    paths = sorted(SOURCES.rglob("*.py"))
    assert len(paths) > 300, "the sources were not found"
    assert [line for path in paths for line in too_long(path)] == []


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("a = 1\n" * 399, []),
        ("a = 1\n" * 400, ["one.py: 400 lines"]),
        ("def f():\n" + "    a = 1\n" * 58, []),
        ("def f():\n" + "    a = 1\n" * 59, ["one.py:1 f: 60 lines"]),
        (
            "class C:\n    async def f(self):\n" + "        a = 1\n" * 59,
            ["one.py:2 f: 60 lines"],
        ),
    ],
)
def test_a_limit_is_seen(tmp_path, text, reported):
    path = tmp_path / "one.py"
    path.write_text(text)
    assert too_long(path) == reported
