"""``k3perf export CONFIG --target T --launch KIND`` writes a folder that a cluster can
use as it is.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from k3perf.cli.export_command import register
from k3perf.engine.launchers import LAUNCH_KINDS
from k3perf.errors import ConfigFileError, UsageError
from k3perf.run.engine_environment import cache_directory

SUITE = Path(__file__).parents[2] / "perf_tests"


def export(*words: str, suite: Path = SUITE) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    arguments = parser.parse_args(["export", *words, "--suite", str(suite)])
    return int(arguments.run(arguments))


def test_slurm_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "job"
    assert (
        export(
            "prefix_match_unit_128",
            "--target",
            "b200-k3",
            "--launch",
            "slurm",
            "--output",
            str(folder),
        )
        == 0
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yaml",
        "host.sh",
        "serve.sbatch",
    ]
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["prefix-match-unit"] == 128
    assert config["pipeline-parallel-size"] == 2
    assert os.access(folder / "host.sh", os.X_OK)
    assert not os.access(folder / "config.yaml", os.X_OK)
    assert capsys.readouterr().out.count("wrote ") == 3


def test_a_stand_in_is_written_beside_as_a_model_that_can_be_served(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    assert export("default", "--target", "h200-k2", "--launch", "ray", "--output", str(folder)) == 0
    model = Path(yaml.safe_load((folder / "config.yaml").read_text())["model"])
    assert model.parent == folder / "model"
    assert {"config.json", "tokenizer.json"} <= {path.name for path in model.iterdir()}


def test_a_printed_stand_in_can_be_served_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("K3PERF_CACHE", str(tmp_path))
    assert export("default", "--target", "h200-k2") == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert Path(printed["model"]).parent == tmp_path / "models"
    assert (Path(printed["model"]) / "tokenizer.json").is_file()


def test_refused_config_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FP8 prefill queries"):
        export(
            "fp8_kv",
            "--target",
            "h200-k3-whole",
            "--launch",
            "kubernetes",
            "--output",
            str(tmp_path / "job"),
        )
    assert not (tmp_path / "job").exists()


def test_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        export(
            "default",
            "--target",
            "b200-k3",
            "--launch",
            "slurm",
            "--output",
            str(tmp_path / "file"),
        )


def printed_config(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    config = yaml.safe_load(capsys.readouterr().out)
    assert isinstance(config, dict)
    return config


@pytest.mark.parametrize("target", ["h200-k2", "b300-k3"])
def test_a_given_model_is_served_with_its_own_weights(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        export(
            "default",
            "--target",
            target,
            "--model",
            "/srv/m",
            "--launch",
            "ray",
            "--output",
            str(tmp_path / "job"),
        )
        == 0
    )
    assert "must lie" not in capsys.readouterr().out
    assert export("default", "--target", target, "--model", "/srv/m") == 0
    printed, launched = capsys.readouterr().out, (tmp_path / "job" / "config.yaml").read_text()
    assert (
        ("--trust-remote-code" in printed)
        == ("trust-remote-code: true" in launched)
        == (target == "b300-k3")
    )  # the target's own word
    for config in map(yaml.safe_load, (launched, printed)):
        assert config["model"] == "/srv/m"
        assert "load-format" not in config
    assert not (tmp_path / "job" / "model").exists()


def test_a_stand_in_is_told_to_have_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("K3PERF_CACHE", str(tmp_path / "cache"))
    assert export("fp8_kv", "--target", "h200-k2") == 0
    printed = printed_config(capsys)
    assert (
        export(
            "fp8_kv", "--target", "h200-k2", "--launch", "single", "--output", str(tmp_path / "job")
        )
        == 0
    )
    launched = yaml.safe_load((tmp_path / "job" / "config.yaml").read_text())
    assert printed["load-format"] == "dummy"
    assert export("fp8_kv", "--target", "h200-k2") == 0
    assert (
        capsys.readouterr()
        .out.splitlines()[-1]
        .startswith("# h200-k2 serves a model with dummy weights; give --model")
    )
    assert {**printed, "model": ""} == {**launched, "model": ""}


def test_where_the_target_says_its_hosts_have_the_model_nothing_is_written(
    suite_copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = suite_copy / "targets" / "h200-k2.yaml"
    path.write_text(path.read_text() + "launch: {kind: single, options: {model: /models/k2}}\n")
    words = (
        "default",
        "--target",
        "h200-k2",
        "--launch",
        "single",
        "--output",
        str(tmp_path / "job"),
    )
    for given, model in (((), "/models/k2"), (("--model", "/srv/m"), "/srv/m")):
        assert export(*words, *given, suite=suite_copy) == 0
        assert "must lie" not in capsys.readouterr().out
        assert yaml.safe_load((tmp_path / "job" / "config.yaml").read_text())["model"] == model
    assert not (tmp_path / "job" / "model").exists()


@pytest.mark.parametrize("kind", LAUNCH_KINDS)
def test_a_stand_ins_place_is_one_plain_path_and_is_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export("default", "--target", "h200-k2", "--launch", kind, "--output", "../job") == 0
    model = yaml.safe_load((tmp_path / "job" / "config.yaml").read_text())["model"]
    assert Path(model).parent == tmp_path / "job" / "model"
    told = capsys.readouterr().out.splitlines()[-1]
    needed = (
        "every pod needs {} mounted"
        if kind == "kubernetes"
        else "{} must lie at this same path on every host"
    )
    assert told.startswith(needed.format(model))
    assert told.endswith("or give --model")


def test_the_default_folder_changes_no_selection_of_cells(
    suite_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = suite_copy.parent
    (checkout / ".gitignore").write_bytes((SUITE.parent / ".gitignore").read_bytes())
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    assert export("default", "--target", "h200-k2", "--launch", "single", suite=suite_copy) == 0
    folder = checkout / ".k3perf" / "exports" / "h200-k2-default-single"
    assert f"wrote {folder / 'serve.sh'}\n" in capsys.readouterr().out
    untracked = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"],
        cwd=checkout,
        check=True,
        capture_output=True,
        text=True,
    )
    assert not [
        name
        for name in untracked.stdout.splitlines()
        if not name.startswith(("perf_tests/", ".gitignore"))
    ]


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """As under ``ulimit -f``: a file that grows beyond it is an OSError, as on a full
    disk.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("words", "step"), [((), "K3PERF_CACHE"), (("--launch", "single"), "--output")]
)
def test_a_stand_in_that_does_not_fit_is_one_clear_error(
    words: tuple[str, ...], step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("K3PERF_CACHE", str(tmp_path / "job" / "cache"))
    output = ("--output", str(tmp_path / "job")) if words else ()
    with (
        files_of_at_most(4096),
        pytest.raises(ConfigFileError, match=rf"cannot be written: .*{step}.*--model"),
    ):
        export("default", "--target", "h200-k2", *words, *output)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_unwritable_output_names_its_option(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"/proc/x/model: cannot be written: .*--output") as told:
        export("default", "--target", "h200-k2", "--launch", "single", "--output", "/proc/x")
    assert "cache" not in str(told.value)
    with pytest.raises(UsageError, match=r"/proc/x/config\.yaml cannot be written.*--output"):
        export("default", "--target", "b300-k3", "--launch", "single", "--output", "/proc/x")
    with pytest.raises(UsageError, match=r"/proc/x cannot be written.*choose another --output"):
        export("default", "--target", "b300-k3", "--output", "/proc/x")


def test_half_a_launch_file_does_not_stay(tmp_path: Path) -> None:
    with files_of_at_most(64), pytest.raises(UsageError, match=r"config\.yaml cannot be written"):
        export(
            "default",
            "--target",
            "b300-k3",
            "--launch",
            "single",
            "--output",
            str(tmp_path / "job"),
        )
    assert not list((tmp_path / "job").iterdir())


def test_an_empty_cache_variable_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K3PERF_CACHE", "")
    assert cache_directory(tmp_path / "state") == tmp_path / "state" / "cache"
    monkeypatch.setenv("K3PERF_CACHE", "own")
    assert cache_directory(tmp_path / "state") == tmp_path / "own"
