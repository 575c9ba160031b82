"""CSV, Parquet, JUnit and Prometheus text of a run, read back by their own parsers."""

from __future__ import annotations

import csv
import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from k3perf.cli.main import main
from tests.report_page.made_runs import HOSTILE, made_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_run(tmp_path_factory.mktemp("run"), cell_count=3, hostile=True)


def test_rounds_and_samples_are_the_files(folder: Path, tmp_path: Path) -> None:
    rounds, samples = tmp_path / "rounds.csv", tmp_path / "samples.csv"
    assert (
        main(["report", str(folder), "--rounds-csv", str(rounds), "--samples-csv", str(samples)])
        == 0
    )
    assert not (folder / "report.html").exists()
    measured = json.loads((folder / "measurements.json").read_text())
    wanted = [
        (session["session_id"][-11:], one["round_index"], metric, value["value"])
        for cell in measured["cells"]
        for session in cell["sessions"]
        for one in session["rounds"]
        for metric, value in one["values"].items()
    ]
    rows = list(csv.DictReader(io.StringIO(rounds.read_text())))
    read = [
        (
            row["session"][-11:],
            int(row["round"]),
            row["metric"],
            float(row["value"]) if row["value"] else None,
        )
        for row in rows
    ]
    assert read == wanted
    assert {row["valid"] for row in rows if row["round"] == "2"} == {"False"}
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(list(csv.DictReader(io.StringIO(samples.read_text())))) == sum(
        line["kind"] == "sample" for line in lines
    )


def test_a_formula_in_a_name_is_text(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "run", cell_count=1)
    verdict = json.loads((folder / "verdict.json").read_text())
    verdict["run_id"] = "=HYPERLINK(1)"
    (folder / "verdict.json").write_text(json.dumps(verdict))
    main(["report", str(folder), "--rounds-csv", str(tmp_path / "rounds.csv")])
    row = next(csv.DictReader(io.StringIO((tmp_path / "rounds.csv").read_text())))
    assert row["run"] == "'=HYPERLINK(1)"


def test_junit_has_a_case_for_each_judged_metric(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--junit", str(tmp_path / "junit.xml")]) == 0
    suites = ET.parse(tmp_path / "junit.xml").getroot().findall("testsuite")  # noqa: S314
    verdict = json.loads((folder / "verdict.json").read_text())
    assert len(suites) == 3
    for suite, cell in zip(suites, verdict["cells"], strict=True):
        cases = suite.findall("testcase")
        assert [case.get("name") for case in cases] == [one["metric"] for one in cell["metrics"]]
        for case, metric in zip(cases, cell["metrics"], strict=True):
            known = {
                one.get("name"): one.get("value") for one in case.findall("properties/property")
            }
            assert float(known["loss_ratio"] or "nan") == metric["loss_ratio"]
            assert (case.find("failure") is not None) == (metric["outcome"] == "REGRESSED")
    failure = suites[0].find("testcase/failure")
    assert failure is not None
    assert "cause 1: Decode steps take longer" in (failure.text or "")


def test_prometheus_text_has_every_judged_value(folder: Path, tmp_path: Path) -> None:
    assert main(["report", str(folder), "--prometheus", str(tmp_path / "k3perf.prom")]) == 0
    lines = (tmp_path / "k3perf.prom").read_text().splitlines()
    samples = [line for line in lines if not line.startswith("#")]
    pattern = re.compile(r'^k3perf_[a-z_]+\{([a-z]+="(?:[^"\\\n]|\\.)*",?)+\} -?[0-9.e+-]+$')
    assert all(pattern.match(line) for line in samples)
    assert sum(line.startswith("k3perf_value{") for line in samples) == 9
    assert HOSTILE.replace("\u202e", " ").replace('"', '\\"')[:20] in samples[0]


def test_parquet_holds_the_same_rows(folder: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    assert main(["report", str(folder), "--rounds-parquet", str(tmp_path / "rounds.parquet")]) == 0
    table = parquet.read_table(tmp_path / "rounds.parquet").to_pylist()
    measured = json.loads((folder / "measurements.json").read_text())
    first = measured["cells"][0]["sessions"][0]["rounds"][0]["values"]
    assert {row["metric"]: row["value"] for row in table[: len(first)]} == {
        name: value["value"] for name, value in first.items()
    }


def test_parquet_without_its_library_names_the_next_step(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    assert main(["report", str(folder), "--rounds-parquet", str(tmp_path / "r.parquet")]) == 4
    assert "--rounds-csv" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("nothing", "not found"),
        ("empty", "has no verdict.json"),
        ("interrupted", "k3perf recover"),
        ("damaged verdict", "verdict.json"),
        ("damaged samples", "results.jsonl"),
        ("no directory to write to", "choose another --html"),
        ("history", "--history history.jsonl"),
        ("history of results", "only for `k3perf report history`"),
    ],
)
def test_bad_input_is_one_message_and_status_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: str, said: str
) -> None:
    folder = made_run(tmp_path / "run", cell_count=1)
    words = ["report", str(folder)]
    if spoil == "nothing":
        words = ["report", str(tmp_path / "absent")]
    elif spoil == "empty":
        (tmp_path / "empty").mkdir()
        words = ["report", str(tmp_path / "empty")]
    elif spoil == "interrupted":
        (folder / "verdict.json").unlink()
    elif spoil == "damaged verdict":
        (folder / "verdict.json").write_text('{"schema_version": 1')
    elif spoil == "damaged samples":
        lines = (folder / "results.jsonl").read_text().splitlines()
        (folder / "results.jsonl").write_text("\n".join([*lines[:3], "{}", *lines[4:], ""]))
    elif spoil == "no directory to write to":
        (tmp_path / "file").write_text("")
        words += ["--html", str(tmp_path / "file" / "report.html")]
    elif spoil == "history":
        words = ["report", "history"]
    else:
        words += ["--history", "history.jsonl"]
    assert main(words) == 4
    output = capsys.readouterr()
    assert said in output.err
    assert output.out == ""
    assert not (folder / "report.html").exists()


def test_one_page_for_the_shards_of_a_run(tmp_path: Path) -> None:
    for shard in ("one", "two"):
        made_run(tmp_path / "shards" / shard, cell_count=1)
    (tmp_path / "shards" / "two" / "measurements.json").unlink()
    (tmp_path / "shards" / "two" / "results.jsonl").unlink()
    output = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "shards"), "--html", str(output)]) == 0
    text = output.read_text()
    assert text.count('<details class="cell"') == 2
    assert "two/ measurements.json is missing" in text
    assert 'data-source="one/verdict.json#/cells/0/metrics/0/now_value"' in text
