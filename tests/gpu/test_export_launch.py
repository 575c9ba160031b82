"""``k3perf export CONFIG --target T --launch KIND`` writes a folder that a cluster can use as it is."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import yaml

from k3perf.cli.export import register
from k3perf.errors import UsageError

SUITE = Path(__file__).parents[2] / "perf_tests"


def export(*words: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    arguments = parser.parse_args(["export", *words, "--suite", str(SUITE)])
    return int(arguments.run(arguments))


def test_slurm_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "job"
    assert export("prefix_match_unit_128", "--target", "b200-k3", "--launch", "slurm", "--output", str(folder)) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "host.sh", "serve.sbatch"]
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


def test_a_printed_stand_in_can_be_served_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("K3PERF_CACHE", str(tmp_path))
    assert export("default", "--target", "h200-k2") == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert Path(printed["model"]).parent == tmp_path / "models"
    assert (Path(printed["model"]) / "tokenizer.json").is_file()


def test_refused_config_is_not_exported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="FP8 prefill queries"):
        export("fp8_kv", "--target", "h200-k3-whole", "--launch", "kubernetes", "--output", str(tmp_path / "job"))
    assert not (tmp_path / "job").exists()


def test_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is a file"):
        export("default", "--target", "b200-k3", "--launch", "slurm", "--output", str(tmp_path / "file"))
