from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from k3perf.cli.memory_command import register
from k3perf.errors import ConfigFileError, ExitStatus, UsageError
from tests.processes import PATIENCE_S
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


@pytest.mark.parametrize(
    ("target", "config", "settings", "note"),
    [
        (
            "h200-k3",
            "fp8_kv",
            (),
            "h200-k3 refuses this config: K3's FP8 KV cache needs",
        ),  # of the hardware class and the model's family
        (
            "h200-k2",
            "prefix_match_unit_128",
            (),
            "h200-k2 refuses this config: with one kind of KV cache",
        ),  # of the target
        (
            "h200-k3",
            "block_size_64",
            (),
            "block_size_64 on h200-k3 resolves to the same engine as default: ",
        ),
        (
            "h200-k3",
            "default",
            ("kv-cache-dtype=fp8",),
            "h200-k3 refuses this config: K3's FP8 KV cache needs",
        ),
        ("h200-k3", "fp8_kv", ("kv-cache-dtype=auto",), ""),
        (
            "h200-k3",
            "block_size_64",
            ("max-num-seqs=8",),
            "",
        ),  # the other config was declared equal to it without the setting
        ("h200-k3", "default", (), ""),
        ("h200-k2", "fp8_kv", (), ""),
    ],
)
def test_what_the_target_does_not_serve_is_noted(
    target: str,
    config: str,
    settings: tuple[str, ...],
    note: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["--suite", str(SUITE), "--target", target, "--config", config]
    for setting in settings:
        words += ["--set", setting]
    run(*words)
    told = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "refuses" in line or "same engine" in line
    ]
    run(*words, "--json")
    noted = [
        line
        for line in json.loads(capsys.readouterr().out)["notes"]
        if "refuses" in line or "same engine" in line
    ]
    assert told == [f"note: {line}" for line in noted]
    assert len(told) == bool(note)
    assert all(line.startswith(note) for line in noted)


@pytest.mark.parametrize(
    ("below", "told"),
    [("9.0.0", "note: vLLM before 9.0.0 refuses this config: K3's FP8 KV cache"), ("0.33.0", "")],
)
def test_a_refusal_of_some_releases_names_them(
    below: str, told: str, suite_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is nobody's concern where the target takes none of them: h200-k3 begins with
    0.33.0.
    """
    path = suite_copy / "targets" / "refusals" / "hopper-k3-fp8-kv.yaml"
    path.write_text(path.read_text().replace('minimum_vllm: "0.27.0"', f'below_vllm: "{below}"'))
    run("--suite", str(suite_copy), "--target", "h200-k3", "--config", "fp8_kv")
    said = capsys.readouterr().out
    assert told in said
    assert ("refuses" in said) == bool(told)
    # the plan's own notes stay
    assert "bytes next to weights and cache are estimated" in said


def test_a_config_file_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "kimi-k3" / "config.json")
    assert (
        run(
            "--model-config",
            model,
            "--tensor",
            "8",
            "--set",
            "kv-cache-dtype=fp8",
            "--set",
            "block_size=64",
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "1536 tokens (64 requested)" in out
    assert "KV tokens               unknown" in out


def test_what_does_not_fit_is_no_regression(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "kimi-k3" / "config.json")
    status = run("--model-config", model, "--tensor", "8", "--device-memory-bytes", "150754820096")
    assert status == ExitStatus.INVALID
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
        "import sys, argparse; from k3perf.cli.memory_command import register; p ="
        " argparse.ArgumentParser(); register(p.add_subparsers());a = p.parse_args(['memory',"
        f" 'plan', '--model-config', {model!r}, '--tensor', '8', '--json']);"
        " a.run(a);print(sorted({'torch', 'numpy', 'scipy', 'pydantic'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stderr.strip() == "[]"
    assert json.loads(done.stdout)["block_size_tokens"] == 768


def test_only_the_asked_commands_module_is_imported() -> None:
    from k3perf.cli.main import COMMAND_MODULES, modules_for

    assert modules_for(["memory", "plan"]) == ("memory",)
    assert modules_for(["mock-server"]) == ("mock_server",)
    assert modules_for(["--help"]) == modules_for([]) == modules_for(["nothing"]) == COMMAND_MODULES
