"""The history page and the comparison of configs."""

from __future__ import annotations

import json
import random
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from k3perf.ci.history import HistoryEntry, series_of, slides
from k3perf.ci.history_report import (
    HistoryContext,
    detectable_ratio,
    history_report,
    spread_ratio,
)
from k3perf.cli.main import main
from k3perf.records.baseline import Waiver
from tests.report_page.made_runs import HOSTILE
from tests.report_page.reading import page_of


def entries(name: str = "default", nights: int = 30) -> list[HistoryEntry]:
    dice = random.Random(5)
    found = []
    for night in range(nights):
        day = datetime(2026, 10, 1) + timedelta(days=night)  # noqa: DTZ001
        late = night >= 20
        for metric, level in (("tpot_mean_ms", 12.5), ("itl_p99_ms", 150.0)):
            worse = 1.08 if late and metric == "tpot_mean_ms" else 1.0
            found.append(
                HistoryEntry(
                    run_id=f"run-{night}",
                    commit=f"{night:040x}",
                    created_at_utc=day.strftime("%Y-%m-%dT%H:%M:%SZ"),
                    vllm_version="0.33.0" if late else "0.32.0",
                    hardware_class="h200",
                    target="h200-k3",
                    config=name,
                    workload="serve_1k",
                    plan_digest="d",
                    metric=metric,
                    value=level * worse * dice.gauss(1, 0.005),
                    session_count=2,
                    engine_minutes=2.0,
                )
            )
    return found


def write_history(path: Path, found: list[HistoryEntry]) -> Path:
    path.write_text("".join(entry.model_dump_json() + "\n" for entry in found))
    return path


def test_a_change_has_its_cause_candidates_and_gated_metrics_come_first(tmp_path: Path) -> None:
    history = write_history(tmp_path / "history.jsonl", entries())
    output = tmp_path / "history.html"
    words = ["report", "history", "--history", str(history), "--html", str(output)]
    assert main(words) == 0
    page = page_of(output.read_text())
    text = output.read_text()
    assert "vLLM 0.32.0 to 0.33.0" in text
    assert f"commits {19:040x}"[:20] in text
    blocks = [page.blocks["series-0"], page.blocks["series-1"]]
    assert [block["nights"][0]["value"] > 100 for block in blocks] == [False, True]
    assert blocks[0]["changes"][0]["at"].startswith("2026-10-21")
    band = blocks[0]["band"][0]
    assert band["high"] == pytest.approx(1.04 * band["middle"])  # the target's tolerance
    assert blocks[1]["band"] == []
    assert "<dd>60</dd>" in text


def test_every_point_is_the_history_lines(tmp_path: Path) -> None:
    found = entries(nights=12)
    context = HistoryContext({}, (), lambda *_: None, date(2026, 12, 1))
    page = page_of(history_report(series_of(found), (), context))
    drawn = sorted(
        (night["run"], night["value"])
        for block in page.blocks
        if block.startswith("series")
        for night in page.blocks[block]["nights"]
    )
    assert drawn == sorted((entry.run_id, entry.value) for entry in found)


def test_waivers_show_their_end(tmp_path: Path) -> None:
    waiver = Waiver(
        target="h200-k3",
        config="default",
        workload="serve_1k",
        metric="tpot_mean_ms",
        owner="team",
        build="0.33",
        reason=f"known {HOSTILE}",
        expires_on="2026-11-01",
    )
    series = series_of(entries())
    for today, expired in ((date(2026, 10, 31), False), (date(2026, 11, 1), True)):
        context = HistoryContext({}, (waiver,), lambda *_: None, today)
        text = history_report(series, slides(series), context)
        assert ("2026-11-01 (expired)" in text) == expired
        assert ('<span class="chip inconclusive">waived</span>' in text) == (not expired)
        assert "<img" not in text


def test_spread_ignores_a_change_of_level() -> None:
    dice = random.Random(1)
    steady = [100 * dice.gauss(1, 0.01) for _ in range(14)]
    moved = [*steady[:7], *(value * 1.0 + 10 for value in steady[7:])]
    assert spread_ratio(steady) == pytest.approx(0.01, rel=0.6)
    assert (spread_ratio(moved) or 0) < 4 * (spread_ratio(steady) or 1)
    assert spread_ratio([1.0, 2.0, 3.0]) is None
    assert detectable_ratio(None) is None
    assert detectable_ratio(0.01) == pytest.approx(0.01 * 3.971 * (1 / 4 + 1 / 14) ** 0.5)


def test_history_in_the_browser(tmp_path: Path, visit: Any) -> None:
    history = write_history(tmp_path / "history.jsonl", [*entries(), *entries("fp8_weights")])
    output = tmp_path / "history.html"
    main(["report", "history", "--history", str(history), "--html", str(output)])
    opened = visit(output)
    opened.page.wait_for_selector("[data-drawn]")
    opened.page.fill("#filter", "fp8_weights tpot")
    assert opened.page.locator("details.row:not([hidden])").count() == 1
    opened.page.hover("[data-chart=history] .mark-symbol path >> visible=true >> nth=0")
    opened.page.wait_for_selector(".tip:not([hidden])", state="attached")
    assert opened.problems == []


def compared(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["compare", *words]) == 0
    return capsys.readouterr().out


def test_compare_is_of_the_committed_baselines(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    rows = json.loads(compared(capsys, "--target", "h200-k3", "--format", "json"))
    fp8 = next(row for row in rows if row["config"] == "fp8_weights")
    assert fp8["parent"] == "default"
    capacity = next(one for one in fp8["differences"] if one["metric"] == "kv_capacity_tokens")
    values = {}
    for config in ("default", "fp8_weights"):
        stored = json.loads((repository / f"baselines/h200-k3/{config}.json").read_text())
        entry = next(one for one in stored["exact"] if one["metric"] == "kv_capacity_tokens")
        values[config] = min(one["value"] for one in entry["sessions"])
    assert capacity["gain_ratio"] == pytest.approx(values["fp8_weights"] / values["default"] - 1)
    assert capacity["lower_ratio"] is None
    tpot = next(one for one in fp8["differences"] if one["metric"] == "tpot_mean_ms")
    assert tpot["lower_ratio"] < tpot["gain_ratio"] < tpot["upper_ratio"]
    fronts = {row["config"]: row["on_front"] for row in rows}
    assert fronts["prefix_match_unit_128"] == []
    text = compared(capsys, "--target", "h200-k3")
    assert text.startswith("largest proven gains:\n")
    assert len(text.split("\n\n")[0].splitlines()) <= 11
    assert "Pareto set of h200-k3 serve_1k" in text
    markdown = compared(capsys, "--target", "h200-k3", "--format", "markdown")
    assert "| `h200-k3` | `fp8_weights` |" in markdown


def test_a_combination_stands_against_the_product_of_its_parts(
    repository: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    rows = json.loads(compared(capsys, "--target", "cpu-hybrid", "--format", "json"))
    by_name = {row["config"]: row for row in rows}
    for one in by_name["throughput_combo"]["combined"]:
        wanted = 1.0
        for part in ("seqs_up", "batched_tokens_up"):
            wanted *= 1 + next(
                other["gain_ratio"]
                for other in by_name[part]["differences"]
                if (other["metric"], other["workload"]) == (one["metric"], one["workload"])
            )
        assert one["parts_ratio"] == pytest.approx(wanted - 1)
    assert by_name["throughput_combo"]["combined"]


def test_compare_page_and_bad_input(
    repository: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(repository)
    output = tmp_path / "compare.html"
    compared(capsys, "--target", "h200-k3", "--html", str(output))
    page = page_of(output.read_text())
    assert len(page.numbers) > 40
    assert "<script src" not in output.read_text()
    assert main(["compare", "--target", "b300-k3"]) == 4
    assert "no baseline in" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["compare", "--baselines", str(tmp_path / "empty")]) == 4
    assert "holds no baseline" in capsys.readouterr().err
