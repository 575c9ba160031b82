"""Arguments of the field in a suite's files: refused in words with file, key, value and
next step, or rendered for vLLM as it takes them.

The table of the engine's own Python is asked for only where the shipped one objects,
once for each installed vLLM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.fork_of_vllm import Fork

from k3perf.cli.main import main
from k3perf.config.arguments import covered, shipped_table
from k3perf.config.owned_arguments import PARALLELISM, owned_table
from k3perf.config.suite import load_suite
from k3perf.engine.render import deployment
from k3perf.errors import ConfigFileError, ExitStatus, UsageError
from k3perf.run.argument_table import (
    _stamp_of,
    read_table,
    require_known_arguments,
    table_of_engine,
)

CASES = yaml.safe_load((Path(__file__).parent / "arguments_of_the_field.yaml").read_text())
TARGET = "b300-k3"  # parallelism: {tensor: 8} on 8 devices
ROUTES = [(case, place) for case in CASES for place in case["places"]]
REFUSED = [(case, place) for case, place in ROUTES if "refused" in case]
ACCEPTED = [(case, place) for case, place in ROUTES if "accepted" in case]
KEY = {"target": "engine_arguments", "config": "change"}


def ids(routes: list[tuple[dict[str, Any], str]]) -> list[str]:
    return [f"{case['id']}-{place}" for case, place in routes]


def write(suite: Path, place: str, given: dict[str, Any]) -> Path:
    """Put ``given`` into the target's arguments, or make it the one change of fp8_kv."""
    path = (
        suite
        / ("targets" if place == "target" else "configs")
        / f"{TARGET if place == 'target' else 'fp8_kv'}.yaml"
    )
    data = yaml.safe_load(path.read_text())
    data[KEY[place]] = {**data[KEY[place]], **given} if place == "target" else given
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("K3PERF_ENGINE_PYTHON", raising=False)
    monkeypatch.delenv("K3PERF_CACHE", raising=False)
    forget()
    yield
    forget()


def forget() -> None:
    read_table.cache_clear()
    _stamp_of.cache_clear()


@pytest.mark.parametrize(("case", "place"), REFUSED, ids=ids(REFUSED))
def test_refused_with_file_key_value_and_next_step(
    case: dict[str, Any], place: str, suite_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(suite_copy, place, case["given"])
    ((name, value),) = case["given"].items()
    assert (
        main(["export", "default", "--target", TARGET, "--suite", str(suite_copy)])
        == ExitStatus.USAGE
        == 4
    )
    told = capsys.readouterr().err
    assert told.startswith(f"k3perf: {path} at '{KEY[place]}.{name}': ")
    assert f"(value: {value!r})" in told
    assert [words for words in case["refused"] if words not in told] == []


@pytest.mark.parametrize(("case", "place"), ACCEPTED, ids=ids(ACCEPTED))
def test_accepted_rendered_and_exported(
    case: dict[str, Any], place: str, suite_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(suite_copy, place, case["given"])
    config = "default" if place == "target" else "fp8_kv"
    suite = load_suite(suite_copy)
    arguments = suite.engine_arguments(suite.target(TARGET), suite.config(config))
    native = yaml.safe_load(deployment(suite.target(TARGET), arguments, "m").config_file_text)
    assert {name: native[name] for name in case["accepted"]} == case["accepted"]
    folder = suite_copy.parent / "exported"
    for words in ([], ["--launch", "single", "--output", str(folder)]):
        assert (
            main(["export", config, "--target", TARGET, "--suite", str(suite_copy), *words])
            == ExitStatus.OK
        )
    out = capsys.readouterr().out
    printed = yaml.safe_load(out.split("# start with:")[0])
    launched = yaml.safe_load((folder / "config.yaml").read_text())
    for exported in (printed, launched):
        assert {name: exported[name] for name in case["accepted"]} == case["accepted"]


def test_a_config_may_set_context_parallelism_where_the_ranks_fit(suite_copy: Path) -> None:
    config = yaml.safe_load((suite_copy / "configs" / "fp8_kv.yaml").read_text())
    config |= {"name": "shared_cache", "change": {"decode_context_parallel_size": 8}}
    (suite_copy / "configs" / "shared_cache.yaml").write_text(yaml.safe_dump(config))
    path = suite_copy / "targets" / f"{TARGET}.yaml"
    data = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**data, "configs": [*data["configs"], "shared_cache"]}))
    suite = load_suite(suite_copy)
    arguments = suite.engine_arguments(suite.target(TARGET), suite.config("shared_cache"))
    assert (arguments["tensor_parallel_size"], arguments["decode_context_parallel_size"]) == (8, 8)


def test_a_config_whose_context_parallelism_does_not_fit_a_target(suite_copy: Path) -> None:
    write(suite_copy, "config", {"decode_context_parallel_size": 16})
    with pytest.raises(
        ConfigFileError,
        match=r"sets decode_context_parallel_size 16, which does not fit .*Use one of: 1",
    ) as caught:
        load_suite(suite_copy)
    assert (caught.value.key, caught.value.value) == ("configs", "fp8_kv")


@pytest.mark.parametrize(
    ("parallelism", "devices", "ranks"),
    [
        ({"tensor": 4, "prefill_context": 2}, 8, 8),
        ({"tensor": 8, "prefill_context": 2}, 8, 16),
        ({"tensor": 8, "data": 2}, 8, 16),
    ],
)
def test_every_size_of_parallelism_is_counted_against_the_devices(
    suite_copy: Path, parallelism: dict[str, int], devices: int, ranks: int
) -> None:
    path = suite_copy / "targets" / f"{TARGET}.yaml"
    data = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**data, "parallelism": parallelism}))
    if devices == ranks:
        suite = load_suite(suite_copy)
        arguments = suite.engine_arguments(suite.target(TARGET), suite.config("default"))
        assert (arguments["tensor_parallel_size"], arguments["prefill_context_parallel_size"]) == (
            4,
            2,
        )
        return
    with pytest.raises(
        ConfigFileError, match=rf"is {devices}, but parallelism makes {ranks} ranks"
    ) as caught:
        load_suite(suite_copy)
    assert caught.value.key == "hardware.device_count"


def test_decode_context_sizes_with_prefill_context_are_those_of_vllm(suite_copy: Path) -> None:
    path = suite_copy / "targets" / f"{TARGET}.yaml"
    data = yaml.safe_load(path.read_text())
    data["parallelism"] = {"tensor": 4, "prefill_context": 2}
    data["engine_arguments"]["decode_context_parallel_size"] = 4
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(
        ConfigFileError, match=r"tensor 4 x .* x prefill context 2\).*Use one of: 1, 2, 8\."
    ):
        load_suite(suite_copy)


def test_a_known_refusal_may_name_what_parallelism_decides(suite_copy: Path) -> None:
    path = suite_copy / "targets" / f"{TARGET}.yaml"
    data = yaml.safe_load(path.read_text())
    data["refusals"] = [
        {
            "when": {"tensor_parallel_size": 8, "kv_cache_dtype": "fp8"},
            "reason": "for the test's sake",
        }
    ]
    path.write_text(yaml.safe_dump(data))
    suite = load_suite(suite_copy)
    assert suite.refusal(suite.target(TARGET), suite.config("fp8_kv")) == "for the test's sake"


def test_the_table_knows_every_argument_that_is_owned() -> None:
    unknown = {*owned_table(), *PARALLELISM} - shipped_table().arguments.keys()
    assert unknown == {"model_tag"}  # the positional argument


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("tensor-parallel-size=4", "Use --tensor instead"),
        ("kv-cache-dtyp=fp8", "Did you mean 'kv_cache_dtype'?"),
        ("max_num_batched_tokens=64K", "the plan needs the size itself"),
    ],
)
def test_a_memory_plan_leaves_no_setting_out_in_silence(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["memory", "plan", "--config", "default", "--target", TARGET, "--set", words])
        == ExitStatus.USAGE
    )
    assert told in capsys.readouterr().err


def test_a_memory_plan_reads_no_target_that_a_run_would_refuse(
    suite_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(suite_copy, "target", {"tensor_parallel_size": 4})
    assert (
        main(
            [
                "memory",
                "plan",
                "--config",
                "default",
                "--target",
                TARGET,
                "--suite",
                str(suite_copy),
            ]
        )
        == ExitStatus.USAGE
    )
    assert f"{path} at 'engine_arguments.tensor_parallel_size'" in capsys.readouterr().err


@pytest.fixture
def fork(tmp_path: Path) -> Fork:
    return Fork(tmp_path / "fork", "0.34.0+fork")


@pytest.mark.parametrize("module", ["launchers", "openai"])
def test_a_forks_own_argument_is_accepted_and_asked_for_once(
    module: str, tmp_path: Path, suite_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fork = Fork(tmp_path / "fork", "0.34.0+fork", module)
    write(suite_copy, "target", {"fork_speed": 3, "fork_layers": ["a", "b"], "fork_turbo": True})
    write(suite_copy, "config", {"kv_cache_dtype": "nvfp4_fork"})
    monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(fork.python))
    for _ in range(3):
        forget()
        suite = load_suite(suite_copy, engine_table=table_of_engine(None, suite_copy.parent))
        arguments = suite.engine_arguments(suite.target(TARGET), suite.config("fp8_kv"))
        assert (arguments["fork_speed"], arguments["kv_cache_dtype"]) == (3, "nvfp4_fork")
    assert fork.listings == 1
    os.utime(fork.module, ns=(1, 2**62))
    forget()
    load_suite(suite_copy, engine_table=table_of_engine(None, suite_copy.parent))
    assert fork.listings == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"fork_sped": 3}, "unknown vLLM argument (value: 3). Did you mean 'fork_speed'?"),
        ({"fork_velocity": 3}, "is another name of fork_speed"),
        ({"fork_turbo": "on"}, "is a flag"),
        ({"kv_cache_dtype": "fp9"}, "Use one of: auto, fp8, nvfp4_fork."),
    ],
)
def test_the_message_names_the_engines_table_where_it_was_used(
    fork: Fork,
    suite_copy: Path,
    given: dict[str, Any],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(fork.python))
    write(suite_copy, "target", given)
    assert (
        main(["export", "default", "--target", TARGET, "--suite", str(suite_copy)])
        == ExitStatus.USAGE
    )
    message = capsys.readouterr().err
    assert told in message
    assert f"Checked against vLLM 0.34.0+fork of {fork.python}." in message


def test_no_engine_is_asked_where_nothing_is_to_be_asked(
    fork: Fork, suite_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(fork.python))
    load_suite(suite_copy, engine_table=table_of_engine(None, suite_copy.parent))
    assert fork.listings == 0
    assert not (suite_copy.parent / ".k3perf").exists()


@pytest.mark.parametrize("engine", ["none", "without vllm", "broken", "missing"])
def test_without_a_table_of_the_engine_the_shipped_one_decides_and_says_so(
    engine: str,
    fork: Fork,
    tmp_path: Path,
    suite_copy: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    why = ""
    if engine == "without vllm":
        bare = tmp_path / "bare"
        bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        bare.chmod(0o755)
        monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(bare))
        why = f", since {bare} has no vLLM."
    elif engine == "broken":
        fork.module.write_text(
            "raise ImportError('libnuma.so.1: cannot open shared object file')\n"
        )
        monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(fork.python))
        why = f", since {fork.python} could not list vLLM's arguments: "
    elif engine == "missing":
        monkeypatch.setenv("K3PERF_ENGINE_PYTHON", str(tmp_path / "nowhere"))
    write(suite_copy, "target", {"fork_speed": 3})
    assert (
        main(["export", "default", "--target", TARGET, "--suite", str(suite_copy)])
        == ExitStatus.USAGE
    )
    message = capsys.readouterr().err
    assert "Checked against the table that k3perf ships (vLLM 0.32.0 and 0.33.0)" in message
    assert why in message
    assert engine != "broken" or "libnuma.so.1" in message
    assert "K3PERF_ENGINE_PYTHON or --k3-engine-python" in message


def test_a_run_asks_an_engine_that_the_shipped_table_does_not_speak_of(
    fork: Fork, tmp_path: Path
) -> None:
    require_known_arguments(
        "t-c", {"fork_speed": 3, "max_num_seqs": 8}, fork.python, tmp_path / "cache"
    )
    with pytest.raises(
        UsageError,
        match=r"t-c: max_num_batched_tokens 8192: unknown vLLM argument.* vLLM 0\.34\.0\+fork of ",
    ) as caught:
        require_known_arguments(
            "t-c", {"max_num_batched_tokens": 8192}, fork.python, tmp_path / "cache"
        )
    assert caught.value.exit_status is ExitStatus.USAGE
    assert fork.listings == 1
    require_known_arguments(
        "t-c", {"max_num_batched_tokens": 8192}, tmp_path / "nowhere", tmp_path / "cache"
    )


def test_a_run_asks_no_engine_of_a_release_that_the_shipped_table_has(tmp_path: Path) -> None:
    known = Fork(tmp_path / "known", "0.32.0+cpu")
    require_known_arguments(
        "t-c", {"max_num_seqs": 8, "tool_call_parser": "kimi_k2"}, known.python, tmp_path / "cache"
    )
    assert known.listings == 0
    with pytest.raises(UsageError, match="monokernel"):  # listed for 0.33.0 alone
        require_known_arguments("t-c", {"monokernel": True}, known.python, tmp_path / "cache")
    assert known.listings == 1


@pytest.mark.parametrize(
    ("release", "known"),
    [
        ("0.32.0", True),
        ("0.32.0+cpu", True),
        ("0.33.0+cu130", True),
        ("0.33.0+fork.3", False),
        ("0.34.0", False),
    ],
)
def test_a_fork_of_a_known_release_is_not_covered(release: str, known: bool) -> None:
    assert covered(["max_num_seqs"], release) is known


def test_a_damaged_cache_is_made_new(fork: Fork, tmp_path: Path) -> None:
    assert not isinstance(read_table(fork.python, tmp_path), str)
    (kept,) = (tmp_path / "arguments").iterdir()
    for damage in ("{", "[]", '{"arguments": []}'):
        forget()
        kept.write_text(damage)
        table = read_table(fork.python, tmp_path)
        assert not isinstance(table, str)
        assert "fork_speed" in table.arguments
    assert fork.listings == 4
