"""Known refusals: what each one meets, on which releases, and that it is a
configuration error before anything is started.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from k3perf.cli.main import main
from k3perf.config.models import KnownRefusal, Refusal
from k3perf.config.refusals import applying, in_range, matches, range_text
from k3perf.config.suite import Suite, load_suite
from k3perf.errors import ConfigFileError, ExitStatus, UsageError
from k3perf.pytest_plugin.selection import select
from k3perf.run.readiness import require_accepted
from k3perf.telemetry.hardware import DetectedHardware

H200 = DetectedHardware(("NVIDIA H200",), (150_754_820_096,), "580.1", frozenset())


def refusal(**changes: Any) -> Refusal:
    return Refusal.model_validate(
        {"when": {"kv_cache_dtype": "fp8"}, "reason": "for the test's sake", **changes}
    )


@pytest.fixture
def suite(repository: Path) -> Suite:
    return load_suite(repository / "perf_tests")


@pytest.fixture
def mla_suite(suite_copy: Path) -> Suite:
    """The shipped suite with a CPU target that serves the MLA proxy."""
    target = yaml.safe_load((suite_copy / "targets" / "cpu-gqa.yaml").read_text())
    target.update(name="cpu-mla", model={"directory": "models/h200-k2", "weights": "dummy"})
    target["configs"] = [
        "default",
        "block_size_16",
        "block_size_32",
        "block_size_128",
        "fp8_kv",
        "chunked_prefill_off",
    ]
    (suite_copy / "targets" / "cpu-mla.yaml").write_text(yaml.safe_dump(target))
    return load_suite(suite_copy)


@pytest.mark.parametrize(
    ("wanted", "value", "meets"),
    [
        ("fp8", "fp8", True),
        ("fp8", "auto", False),
        ("fp8", None, False),
        ({"one_of": ["fp8", "fp8_e4m3"]}, "fp8_e4m3", True),
        ({"one_of": ["fp8", "fp8_e4m3"]}, "auto", False),
        ({"other_than": 16}, 32, True),
        ({"other_than": 16}, 16, False),
        ({"other_than": 16}, None, False),
    ],
)
def test_what_a_refusal_means(wanted: Any, value: Any, meets: bool) -> None:
    name = "kv_cache_dtype"
    assert matches(refusal(when={name: wanted}), {} if value is None else {name: value}) is meets


def test_every_named_argument_must_match() -> None:
    both = refusal(when={"kv_cache_dtype": "fp8", "max_num_seqs": 8})
    assert matches(both, {"kv_cache_dtype": "fp8", "max_num_seqs": 8})
    assert not matches(both, {"kv_cache_dtype": "fp8", "max_num_seqs": 9})


@pytest.mark.parametrize(
    ("minimum", "below", "release", "lowest", "applies"),
    [
        ("", "", None, "", True),
        # every release that the target takes refuses it
        ("0.27.0", "", None, "0.33.0", True),
        ("0.27.0", "", None, "", None),  # an older one might not
        # a newer one does not: the engine will tell
        ("0.27.0", "0.34.0", None, "0.33.0", None),
        ("0.27.0", "0.34.0", None, "0.34.0", False),
        ("0.27.0", "0.34.0", "0.33.1", "", True),
        ("0.27.0", "0.34.0", "0.34.0", "", False),
        ("0.27.0", "0.34.0", "0.26.9", "", False),
        ("0.27.0", "", "0.27.0+cpu", "", True),
        ("", "0.34.0", "0.34.0rc1", "", True),  # a candidate comes before its release
        ("", "0.34.0", "no release", "", None),
    ],
)
def test_the_range_of_releases(
    suite: Suite, minimum: str, below: str, release: str | None, lowest: str, applies: bool | None
) -> None:
    target = suite.target("h200-k3")
    target = target.model_copy(
        update={"hardware": target.hardware.model_copy(update={"minimum_vllm": lowest})}
    )
    assert in_range(refusal(minimum_vllm=minimum, below_vllm=below), release, target) is applies


def test_a_range_in_words() -> None:
    assert range_text(refusal()) == "every vLLM release"
    assert range_text(refusal(minimum_vllm="0.27.0")) == "vLLM 0.27.0 and later"
    assert range_text(refusal(below_vllm="0.34.0")) == "vLLM before 0.34.0"
    assert (
        range_text(refusal(minimum_vllm="0.27.0", below_vllm="0.34.0"))
        == "vLLM from 0.27.0 to before 0.34.0"
    )


def test_every_shipped_refusal_names_class_range_or_reason(suite: Suite) -> None:
    assert len(suite.known_refusals) >= 5
    for known in suite.known_refusals:
        assert known.hardware_classes
        assert known.source
        met = [
            target.name
            for target in suite.targets.values()
            if any(target.hardware.hardware_class.startswith(c) for c in known.hardware_classes)
        ]
        assert met, f"{known.name} names no class of a declared target"


@pytest.mark.parametrize("target", ["h200-k3", "h200-k3-small", "h200-k3-tp2", "h200-k3-whole"])
def test_fp8_kv_for_k3_on_hopper_is_a_configuration_error(suite: Suite, target: str) -> None:
    reason = suite.refusal(suite.target(target), suite.config("fp8_kv"))
    assert "FP8 prefill queries" in reason
    assert suite.refusal(suite.target(target), suite.config("default")) == ""


def test_fp8_kv_is_taken_by_k2_on_hopper_and_by_k3_on_blackwell(suite: Suite) -> None:
    for target in ("h200-k2", "b300-k3"):
        assert "FP8 prefill queries" not in suite.refusal(
            suite.target(target), suite.config("fp8_kv")
        )


def test_block_sizes_on_the_cpu_mla_path(mla_suite: Suite) -> None:
    reasons = {left.config: left.reason for left in mla_suite.left_out(("cpu-mla",))}
    assert {name for name, reason in reasons.items() if "blocks of 16 tokens" in reason} == {
        "block_size_32",
        "block_size_128",
    }
    assert "dtype only" in reasons["fp8_kv"]
    assert {cell.config.name for cell in mla_suite.cells(("cpu-mla",))} == {
        "default",
        "block_size_16",
        "chunked_prefill_off",
    }


def test_the_same_block_size_is_taken_without_mla(mla_suite: Suite) -> None:
    assert mla_suite.refusal(mla_suite.target("cpu-gqa"), mla_suite.config("block_size_32")) == ""


def test_a_refused_config_is_not_exported(
    mla_suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(
        ["export", "block_size_32", "--target", "cpu-mla", "--suite", str(mla_suite.root)]
    )
    assert status == ExitStatus.USAGE
    assert "blocks of 16 tokens" in capsys.readouterr().err


def test_a_refused_cell_that_is_asked_for_by_name(suite: Suite, tmp_path: Path) -> None:
    wanted = tmp_path / "cells.json"
    wanted.write_text(json.dumps(["h200-k3-fp8_kv-serve_1k"]))
    with pytest.raises(ConfigFileError, match="FP8 prefill queries"):
        select(suite, H200, ("h200-k3",), collect_only=False, cells_file=wanted)


def engine_with(release: str, folder: Path) -> Path:
    """An engine Python that answers for an environment with this release, and would be
    noticed if it were started for more.
    """
    python = folder / f"python-{release}"
    python.write_text(
        f'#!/bin/sh\n[ "$1" = -c ] && echo vllm {release} || touch "{folder}/started"\n'
    )
    python.chmod(0o755)
    return python


def test_a_release_in_the_range_is_a_configuration_error(suite_copy: Path, tmp_path: Path) -> None:
    known = {
        "schema_version": 1,
        "name": "gqa-fp8",
        "hardware_classes": ["cpu-avx2"],
        "when": {"kv_cache_dtype": "fp8"},
        "below_vllm": "0.33.0",
        "reason": "for the test's sake",
        "provenance": {"kind": "issue", "source": "tests", "date": "2026-11-29"},
    }
    (suite_copy / "targets" / "refusals" / "gqa-fp8.yaml").write_text(yaml.safe_dump(known))
    suite = load_suite(suite_copy)
    target, config = suite.target("cpu-gqa"), suite.config("fp8_kv")
    # only the engine can tell, so the cell is collected
    assert suite.refusal(target, config) == ""
    with pytest.raises(
        UsageError,
        match=(
            r"'fp8' is refused by vLLM before 0\.33\.0, the engine has 0\.32\.0: for the test's"
            r" sake"
        ),
    ) as caught:
        require_accepted(suite, target, config, engine_with("0.32.0", tmp_path))
    assert caught.value.exit_status is ExitStatus.USAGE
    require_accepted(suite, target, config, engine_with("0.33.0", tmp_path))
    require_accepted(suite, target, suite.config("default"), engine_with("0.32.0", tmp_path))
    require_accepted(suite, target, config, tmp_path / "nowhere")
    assert not (tmp_path / "started").exists()


def test_an_engine_older_than_the_target_needs(suite: Suite, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"h200-k3 needs vLLM 0\.33\.0 or later, the engine has 0\.32\.0"
    ):
        require_accepted(
            suite, suite.target("h200-k3"), suite.config("default"), engine_with("0.32.0", tmp_path)
        )


@pytest.mark.parametrize(
    ("changes", "needle"),
    [
        ({"when": {"kv_cache_dtype": {"one_of": ["fp9"]}}}, "not among vLLM's choices"),
        ({"when": {"block_sise": {"other_than": 16}}}, "unknown vLLM argument"),
        ({"below_vllm": "soon"}, "below_vllm"),
        ({"hardware_classes": []}, "hardware_classes"),
    ],
)
def test_a_refusal_that_cannot_be_used(
    suite_copy: Path, changes: dict[str, Any], needle: str
) -> None:
    path = suite_copy / "targets" / "refusals" / "cpu-mla-block-size.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    with pytest.raises(ConfigFileError, match=needle) as caught:
        load_suite(suite_copy)
    assert caught.value.path == path


def test_a_suite_without_known_refusals(suite_copy: Path) -> None:
    for path in (suite_copy / "targets" / "refusals").iterdir():
        path.unlink()
    (suite_copy / "targets" / "refusals").rmdir()
    suite = load_suite(suite_copy)
    assert suite.known_refusals == ()
    assert suite.refusal(suite.target("h200-k3"), suite.config("fp8_kv")) == ""


def test_a_class_means_its_sizes_and_no_other_class(suite: Suite) -> None:
    known = KnownRefusal.model_validate(
        {
            "schema_version": 1,
            "name": "x",
            "hardware_classes": ["h200"],
            "when": {"max_num_seqs": 1},
            "reason": "for the test's sake",
            "provenance": {"kind": "issue", "source": "tests", "date": "2026-11-29"},
        }
    )
    hit = {
        target.name
        for target in suite.targets.values()
        if known in applying((known,), target, "any")
    }
    assert hit == {name for name in suite.targets if name.startswith("h200-")}
