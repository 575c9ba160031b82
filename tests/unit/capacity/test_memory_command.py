from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from k3perf.cli.memory import register
from k3perf.errors import ConfigFileError, UsageError
from tests.unit.capacity.proxies import MODELS

SUITE = MODELS.parent


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    parsed = parser.parse_args(["memory", "plan", *arguments])
    return int(parsed.run(parsed))


def test_a_declared_target_and_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--suite", str(SUITE), "--target", "h200-k3", "--config", "default", "--json") == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen["block_size_tokens"] == 768
    assert seen["fits"] is True


def test_a_config_file_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "kimi-k3" / "config.json")
    assert run("--model-config", model, "--tensor", "8", "--set", "kv-cache-dtype=fp8", "--set", "block_size=64") == 0
    out = capsys.readouterr().out
    assert "1536 tokens (64 asked for)" in out
    assert "KV tokens               unknown" in out


def test_what_does_not_fit_ends_with_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "kimi-k3" / "config.json")
    status = run("--model-config", model, "--tensor", "8", "--device-memory-bytes", "150754820096")
    assert status == 1
    assert "no, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --config and --target, or --model-config"),
        (("--model-config", "MODEL", "--set", "fp8"), "is not KEY=VALUE"),
        (("--target", "nowhere", "--config", "default", "--suite", str(SUITE)), "nowhere"),
        (("--target", "h200-k3", "--config", "nothing", "--suite", str(SUITE)), "nothing"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: tuple[str, ...], message: str) -> None:
    model = str(MODELS / "kimi-k3" / "config.json")
    with pytest.raises(UsageError, match=message):
        run(*(model if argument == "MODEL" else argument for argument in arguments))


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_broken_config_file_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ConfigFileError, match=r"config\.json"):
        run("--model-config", str(path))


def test_the_plan_needs_neither_torch_nor_numpy_nor_pydantic() -> None:
    model = str(MODELS / "kimi-k3" / "config.json")
    code = (
        "import sys, argparse; from k3perf.cli.memory import register; p = argparse.ArgumentParser(); register(p.add_subparsers());"
        f"a = p.parse_args(['memory', 'plan', '--model-config', {model!r}, '--tensor', '8', '--json']); a.run(a);"
        "print(sorted({'torch', 'numpy', 'scipy', 'pydantic'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["block_size_tokens"] == 768


def test_only_the_asked_commands_module_is_imported() -> None:
    from k3perf.cli.main import COMMAND_MODULES, modules_for

    assert modules_for(["memory", "plan"]) == ("memory",)
    assert modules_for(["mock-server"]) == ("mock_server",)
    assert modules_for(["--help"]) == modules_for([]) == modules_for(["nothing"]) == COMMAND_MODULES
