"""Every number of a report equals the result file's: the page is walked element by element
and compared with what the files hold, by arithmetic that shares no code with the page."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from k3perf.run.report_file import write_run_report
from tests.report_page.made_runs import made_run
from tests.report_page.reading import Number, Page, page_of

SCALES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "%": 0.01, "x": 1}
POINTER = re.compile(r"verdict\.json#(/\S+)$")
MEDIAN = re.compile(r"median of measurements\.json#/cells/(\d+) (\w+) (\w+)$")
OVER = re.compile(r"loss over tolerance of verdict\.json#(/\S+)$")


@pytest.fixture(scope="module", params=["reference", "baseline"])
def walked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = made_run(tmp_path_factory.mktemp("run"), cell_count=4, mode=request.param)
    write_run_report([folder], folder / "report.html", None)
    files = {
        name: json.loads((folder / name).read_text())
        for name in ("verdict.json", "measurements.json")
    }
    return page_of((folder / "report.html").read_text()), files, folder


def at(document: Any, pointer: str) -> Any:
    for part in pointer.strip("/").split("/"):
        document = document[int(part)] if isinstance(document, list) else document[part]
    return document


def arm_median(cell: Any, arm: str, metric: str) -> float | None:
    values = []
    for session in cell["sessions"]:
        if session["arm"] != arm or session["invalid_reasons"]:
            continue
        rounds = [
            one["values"][metric]["value"]
            for one in session["rounds"]
            if not one["invalid_reasons"]
            and metric in one["values"]
            and one["values"][metric]["value"] is not None
        ]
        single = session["values"].get(metric)
        if rounds:
            values.append(median(rounds))
        elif single and single["value"] is not None:
            values.append(single["value"])
    return median(values) if values else None


def expected(number: Number, files: Any) -> float | None:
    if found := POINTER.match(number.source):
        return at(files["verdict.json"], found[1])
    if found := MEDIAN.match(number.source):
        return arm_median(files["measurements.json"]["cells"][int(found[1])], found[2], found[3])
    found = OVER.match(number.source)
    assert found, number.source
    metric = at(files["verdict.json"], found[1])
    if not metric["tolerance_ratio"]:
        return None
    return metric["loss_ratio"] / metric["tolerance_ratio"]


def shown_value(text: str) -> tuple[float, float]:
    """The value that a text says, and half of its last digit."""
    found = re.match(r"^([+-]?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*(\S*)", text)
    assert found, text
    digits = found[1].replace(",", "")
    scale = SCALES.get(found[2], 1)
    places = len(digits.partition(".")[2].partition("e")[0])
    return float(digits) * scale, 0.5 * 10.0**-places * scale


def test_every_number_is_the_files(walked: tuple[Page, Any, Path]) -> None:
    page, files, _ = walked
    assert len(page.numbers) > 150
    for number in page.numbers:
        wanted = expected(number, files)
        if wanted is None:
            assert (number.value, number.text) == ("", "-"), number
            continue
        assert float(number.value) == wanted, number
        said, half = shown_value(number.text)
        assert math.isclose(said, wanted, rel_tol=6e-4, abs_tol=half * 1.001), number


def test_no_number_stands_in_a_table_without_its_source(walked: tuple[Page, Any, Path]) -> None:
    page, _, _ = walked
    assert [text for text in page.bare if re.search(r"\d", text)] == []


def test_every_judged_number_is_on_the_page(walked: tuple[Page, Any, Path]) -> None:
    page, files, _ = walked
    sources = {number.source for number in page.numbers}
    for place, cell in enumerate(files["verdict.json"]["cells"]):
        for index, metric in enumerate(cell["metrics"]):
            for name in ("baseline_value", "now_value", "loss_ratio"):
                assert f"verdict.json#/cells/{place}/metrics/{index}/{name}" in sources, metric


def test_the_charts_points_are_the_files_rounds(walked: tuple[Page, Any, Path]) -> None:
    page, files, _ = walked
    checked = 0
    for place, cell in enumerate(files["measurements.json"]["cells"]):
        values = {
            (session["session_id"], one["round_index"], metric): value["value"]
            for session in cell["sessions"]
            for one in session["rounds"]
            for metric, value in one["values"].items()
        }
        excluded = {
            (session["session_id"], one["round_index"])
            for session in cell["sessions"]
            for one in session["rounds"]
            if one["invalid_reasons"]
        }
        partner = {
            session["session_id"]: session["session_id"].replace("candidate", "reference")
            for session in cell["sessions"]
        }
        for series in page.blocks[f"cell-data-{place}"]["series"]:
            metric = series["label"].partition(",")[0]
            for session, index, value, reason in series["points"]:
                name = series["sessions"][session]["id"]
                wanted = values[name, index, metric]
                if series["unit"] == "ratio":
                    wanted /= values[partner[name], index, metric]
                assert value == wanted
                assert (reason >= 0) == ((name, index) in excluded)
                checked += 1
    assert checked > 100


def test_distributions_are_those_of_the_samples(walked: tuple[Page, Any, Path]) -> None:
    page, files, folder = walked
    ttft_ms: dict[tuple[str, str], list[float]] = {}
    sessions, excluded = {}, set()
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "session":
            sessions[line["content"]["session_id"]] = line["content"]
        if line["kind"] == "round" and line["content"]["round"]["invalid_reasons"]:
            excluded.add((line["content"]["session_id"], line["content"]["round"]["round_index"]))
    for line in lines:
        content = line["content"]
        if line["kind"] == "sample" and (
            (content["session_id"], content["round_index"]) not in excluded
        ):
            session = sessions[content["session_id"]]
            sample = content["sample"]
            ttft_ms.setdefault((session["config"], session["arm"]), []).append(
                (sample["chunks"][0]["at_ns"] - sample["sent_ns"]) / 1e6
            )
    for place, cell in enumerate(files["measurements.json"]["cells"]):
        curves = [one for one in page.blocks[f"cell-data-{place}"]["ecdf"] if one["kind"] == "TTFT"]
        assert curves
        for curve in curves:
            values = sorted(ttft_ms[cell["config"], curve["arm"]])
            assert curve["n"] == len(values)
            assert curve["p50"] == pytest.approx(median(values), rel=1e-9)
            for ms, share in curve["points"]:
                assert share == pytest.approx(sum(one <= ms for one in values) / len(values))


def test_memory_is_that_of_the_sessions(walked: tuple[Page, Any, Path]) -> None:
    page, files, _ = walked
    rows = page.blocks["cell-data-0"]["memory"]
    cell = files["measurements.json"]["cells"][0]
    for row in rows:
        if row["part"] == "weights":
            assert row["bytes"] == arm_median(cell, row["arm"], "weights_bytes")
    assert {row["part"] for row in rows} >= {"weights", "KV cache", "peak activations"}


def test_a_changed_file_is_noticed(walked: tuple[Page, Any, Path]) -> None:
    """The walk itself: it must see a number that differs in its last digit."""
    page, files, _ = walked
    changed = json.loads(json.dumps(files))
    metric = changed["verdict.json"]["cells"][0]["metrics"][0]
    metric["now_value"] = math.nextafter(metric["now_value"], 9.0)
    assert any(
        number.value and float(number.value) != expected(number, changed) for number in page.numbers
    )
