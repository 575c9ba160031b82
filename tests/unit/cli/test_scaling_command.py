"""``k3perf scaling`` on the declared suite, with baselines of the one-GPU target and of
one that spreads over two.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from tests.unit.gate.conftest import Build

from k3perf.cli.main import build_parser
from k3perf.errors import ConfigFileError, UnknownNameError, UsageError
from k3perf.store.baselines import write_baseline

REPOSITORY = Path(__file__).resolve().parents[3]


def run(*arguments: str, suite: Path = REPOSITORY / "perf_tests") -> int:
    parsed = build_parser(("scaling",)).parse_args(["scaling", "--suite", str(suite), *arguments])
    return int(parsed.run(parsed))


def commit(
    root: Path, target: str, config: str, workload: str, level: float, plan_digest: str = "plan-1"
) -> Path:
    build = Build()
    hardware_class = "h200" if target == "h200-k3" else "h200-x2"
    cell = build.cell(
        build.sessions(level, 6),
        target=target,
        config=config,
        workload=workload,
        plan_digest=plan_digest,
        hardware_class=hardware_class,
    )
    return write_baseline(root, build.baseline(cell))


@pytest.fixture
def baselines(tmp_path: Path) -> Path:
    root = tmp_path / "baselines"
    commit(root, "h200-k3", "default", "serve_1k", 1000.0)
    commit(root, "h200-k3", "prefix_caching_on", "serve_1k", 1000.0, "plan-2")
    commit(root, "h200-k3-tp2", "default", "serve_1k", 1600.0)
    commit(root, "h200-k3-tp2", "prefix_caching_on", "serve_1k", 1600.0)
    commit(root, "h200-k3-tp2", "seqs_down", "serve_1k", 1500.0)
    return root


def test_one_row_a_cell_and_a_reason_for_each_without_an_efficiency(
    baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--target", "h200-k3-tp2", "--baselines", str(baselines)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:5] == ["target", "config", "workload", "devices", "tokens/s"]
    rows = {tuple(line.split()[1:3]): line.split()[3:] for line in lines[1 : lines.index("")]}
    assert rows[("default", "serve_1k")] == ["2", "1,598.4", "h200-k3", "1", "999.0", "80.0%"]
    assert rows[("prefix_caching_on", "serve_1k")] == ["2", "1,602.4", "h200-k3", "1", "-", "-"]
    assert rows[("default", "single_stream")] == ["2", "-", "h200-k3", "1", "-", "-"]
    told = dict(line.split(": ", 1) for line in lines[lines.index("") + 1 :])
    assert told["h200-k3-tp2-default-serve_1k"].startswith("scaling efficiency 80.0%: ")
    assert (
        "other requests (plan digest plan-1 here, plan-2 there)"
        in told["h200-k3-tp2-prefix_caching_on-serve_1k"]
    )
    assert (
        "baselines/h200-k3/seqs_down.json does not exist" in told["h200-k3-tp2-seqs_down-serve_1k"]
    )
    assert (
        "no baseline of h200-k3-tp2/batched_tokens_16k has the workload serve_1k"
        in told["h200-k3-tp2-batched_tokens_16k-serve_1k"]
    )
    assert len(rows) == len(told) == 8
    assert (
        len({line.index(" h200-k3 ") for line in lines[1 : lines.index("")]}) == 1
    )  # words to the left of their column
    assert {len(line) for line in lines[: lines.index("")]} == {
        len(lines[0])
    }  # figures to the right
    assert (
        run("--target", "h200-k3-tp2", "--target", "h200-k3-tp2", "--baselines", str(baselines))
        == 0
    )
    assert capsys.readouterr().out.splitlines() == lines  # asked for twice, told once


def test_json_holds_every_target_that_names_a_base(
    baselines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--json", "--baselines", str(baselines)) == 0
    readings = json.loads(capsys.readouterr().out)
    assert {reading["target"] for reading in readings} == {
        "h200-k3-tp2",
        "h200-k3-ep2",
        "h200-k3-dp2",
        "h200-k3-small-tp2",
    }
    (found,) = [reading for reading in readings if reading["efficiency_ratio"] is not None]
    assert found["efficiency_ratio"] == pytest.approx(0.8, abs=1e-3)
    assert (found["target"], found["config"], found["workload"], found["base"]) == (
        "h200-k3-tp2",
        "default",
        "serve_1k",
        "h200-k3",
    )
    assert all(reading["missing"] for reading in readings if reading is not found)


def test_a_workload_on_request_is_shown_where_it_was_recorded(
    baselines: Path, suite_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("h200-k3", "h200-k3-tp2"):
        path = suite_copy / "targets" / f"{name}.yaml"
        path.write_text(
            yaml.safe_dump(
                {**yaml.safe_load(path.read_text()), "workloads_on_request": ["prefix_767"]}
            )
        )
        commit(baselines, name, "batched_tokens_16k", "prefix_767", 1000.0)
    assert run("--target", "h200-k3-tp2", "--baselines", str(baselines), suite=suite_copy) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if " prefix_767 " in line]
    assert [(row[1], row[-1]) for row in rows] == [("batched_tokens_16k", "50.0%")]


def test_no_target_names_a_base(
    baselines: Path, suite_copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (suite_copy / "targets").glob("*.yaml"):
        path.write_text(
            "".join(
                line
                for line in path.read_text().splitlines(keepends=True)
                if not line.startswith("scaling_base:")
            )
        )
    assert run("--baselines", str(baselines), suite=suite_copy) == 0
    assert capsys.readouterr().out == "no target names a scaling_base\n"
    with pytest.raises(UsageError, match=r"names no scaling_base to compare with. No target does"):
        run("--target", "h200-k3-tp2", "--baselines", str(baselines), suite=suite_copy)


def test_bad_input_is_one_message(baselines: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown target 'h200'"):
        run("--target", "h200", "--baselines", str(baselines))
    with pytest.raises(
        UsageError, match=r"--target h200-k3: its file names no scaling_base .* h200-k3-tp2"
    ):
        run("--target", "h200-k3", "--baselines", str(baselines))
    with pytest.raises(UsageError, match=r"nowhere: not found. Give the directory"):
        run("--baselines", str(tmp_path / "nowhere"))
    damaged = baselines / "h200-k3" / "default.json"
    damaged.write_text(damaged.read_text().replace('"value": 1', '"value": 2', 1))
    with pytest.raises(ConfigFileError, match="was edited by hand"):
        run("--baselines", str(baselines))
