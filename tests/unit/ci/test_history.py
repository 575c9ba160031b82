"""The nightly history: values, series, slides, page and issue."""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar

import pytest

from k3perf.ci.history import HistoryEntry, entries_of, series_of, slides, unmeasured
from k3perf.ci.history_page import issue, page
from k3perf.cli.history_command import register
from k3perf.errors import ConfigFileError, ExitStatus
from k3perf.records.measurement import (
    CellMeasurement,
    MeasurementFile,
    MetricValue,
    RoundMetrics,
    SessionMetrics,
)
from k3perf.records.samples import Arm, InvalidReason
from k3perf.store.measurements import write_measurement_file

from .test_escaping import HOSTILE, rendered
from .verdicts import plan


def night(
    index: int, value: float | None, metric: str = "tpot_mean_ms", **changes: str
) -> HistoryEntry:
    fixed = {
        "vllm_version": "0.33.0",
        "hardware_class": "h200",
        "target": "alpha",
        "config": "tuned",
        "workload": "chat",
        "plan_digest": "d",
    }
    run = {
        "run_id": f"run-{index}",
        "commit": f"c{index:039d}",
        "created_at_utc": f"2026-01-01T00:{index // 60:02d}:{index % 60:02d}Z",
    }
    return HistoryEntry(**(fixed | run | changes), metric=metric, value=value, session_count=3)


def stepped(
    count: int, step_at: int, loss: float, seed: int = 1, metric: str = "tpot_mean_ms"
) -> list[HistoryEntry]:
    dice = random.Random(seed)
    return [
        night(
            index,
            28.0 * (1 + (loss if index >= step_at else 0)) * (1 + dice.gauss(0, 0.01)),
            metric,
        )
        for index in range(count)
    ]


def rounds(*values: float | None, bad: tuple[int, ...] = ()) -> tuple[RoundMetrics, ...]:
    reason = (InvalidReason("throttled", "clocks fell"),)
    return tuple(
        RoundMetrics(
            index, None, {"tpot_mean_ms": MetricValue(value, 1)}, reason if index in bad else ()
        )
        for index, value in enumerate(values)
    )


def session(
    name: str, measured: tuple[RoundMetrics, ...], arm: Arm = Arm.CANDIDATE, invalid: bool = False
) -> SessionMetrics:
    reasons = (InvalidReason("died", "engine died"),) if invalid else ()
    return SessionMetrics(
        name, arm, None, measured, {"weights_bytes": MetricValue(100.0, 1)}, {}, reasons
    )


def measurement(*sessions: SessionMetrics) -> CellMeasurement:
    return CellMeasurement("alpha", "tuned", "chat", "baseline", "h200", "digest", sessions)


def entries(*cells: CellMeasurement) -> dict[str, HistoryEntry]:
    found = entries_of(cells, run_id="r", commit="c", created_at_utc="t", vllm_version="v")
    return {entry.metric: entry for entry in found}


def test_a_nights_value_is_the_median_session_of_median_valid_rounds() -> None:
    found = entries(
        measurement(
            session("s1", rounds(1.0, 2.0, 9.0)),
            session("s2", rounds(2.5, 100.0, 100.0, bad=(1, 2))),
            session("s3", rounds(None, 3.0)),
            session("bad", rounds(1000.0), invalid=True),
            session("reference", rounds(500.0), arm=Arm.REFERENCE),
        )
    )
    assert found["tpot_mean_ms"].value == 2.5
    assert found["tpot_mean_ms"].session_count == 3
    assert found["weights_bytes"].value == 100.0


def test_a_night_without_a_valid_session_is_no_number() -> None:
    found = entries(measurement(session("bad", rounds(1.0), invalid=True)))
    assert found["tpot_mean_ms"].value is None
    assert found["tpot_mean_ms"].session_count == 0


def test_series_keep_apart_what_cannot_be_compared_and_count_a_run_once() -> None:
    found = series_of(
        [
            night(2, 2.0),
            night(1, 1.0),
            night(1, 99.0),
            night(3, None),
            night(4, 4.0, plan_digest="other"),
            night(5, 5.0, hardware_class="b200"),
        ]
    )
    assert [series.values for series in found] == [(1.0, 2.0), (4.0,), (5.0,)]
    assert found[0].missing_nights == 1


def test_a_step_for_the_worse_is_found_where_it_began() -> None:
    (slide,) = slides(series_of(stepped(40, 30, 0.04)))
    assert slide.first.run_id in {"run-29", "run-30", "run-31"}
    assert slide.loss_ratio == pytest.approx(0.04, abs=0.01)
    assert slide.nights_since >= 9


def test_direction_decides_what_is_worse() -> None:
    assert slides(series_of(stepped(40, 30, -0.04))) == ()
    assert slides(series_of(stepped(40, 30, 0.04, metric="output_tokens_per_s"))) == ()
    (slide,) = slides(series_of(stepped(40, 30, -0.04, metric="output_tokens_per_s")))
    assert slide.loss_ratio == pytest.approx(0.04, abs=0.01)


def test_a_bad_night_alone_is_no_slide() -> None:
    history = stepped(30, 99, 0.0)
    history[-1] = night(29, 60.0)
    assert slides(series_of(history)) == ()


def test_a_recovered_loss_is_no_slide_any_more() -> None:
    history = stepped(20, 99, 0.0) + [night(20 + entry, 31.0 + 0.01 * entry) for entry in range(10)]
    history += [night(30 + entry, 28.0 + 0.01 * entry) for entry in range(10)]
    assert slides(series_of(history)) == ()


def test_exact_metrics_and_short_series() -> None:
    grown = [night(index, 100.0 if index < 20 else 101.0, "weights_bytes") for index in range(30)]
    assert slides(series_of(grown))[0].loss_ratio == pytest.approx(0.01)
    assert slides(series_of(grown[:7])) == ()
    assert slides(series_of([night(index, 5.0) for index in range(30)])) == ()
    from_zero = [night(index, 0.0 if index < 20 else 1.0, "weights_bytes") for index in range(30)]
    (slide,) = slides(series_of(from_zero))
    assert (slide.before_value, slide.after_value, slide.loss_ratio) == (0.0, 1.0, None)


def test_page_and_issue_escape_what_they_show() -> None:
    evil = [
        HistoryEntry(
            **{
                **night(index, 28.0 * (1.2 if index > 20 else 1.0) + index * 0.001).model_dump(),
                "config": text[:100],
                "vllm_version": text[:100],
            }
        )
        for text in HOSTILE
        for index in range(30)
    ]
    all_series = series_of(evil)
    found = slides(all_series)
    assert len(found) == len(HOSTILE)

    class Tags(HTMLParser):
        seen: ClassVar[set[str]] = set()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.seen.add(tag)

    html = page(all_series, found)
    Tags().feed(html)
    assert Tags.seen == {
        "html",
        "meta",
        "title",
        "style",
        "h1",
        "p",
        "table",
        "tr",
        "th",
        "td",
        "svg",
        "polyline",
        "line",
    }
    assert html.count('class="slide"') == len(HOSTILE)
    assert rendered(issue(found)).tags == {"p", "table", "thead", "tbody", "tr", "th", "td", "code"}


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers())
    parsed = parser.parse_args(["history", *arguments])
    return int(parsed.run(parsed))


def test_commands_append_once_and_tell_a_slide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = tmp_path / "deep" / "history.jsonl"
    for index in range(24):
        value = 28.0 if index < 16 else 30.0
        cell = measurement(session("s", rounds(value + 0.01 * (index % 3))))
        write_measurement_file(
            tmp_path / f"night-{index}" / "measurements.json",
            MeasurementFile(
                run_id=f"run-{index}",
                commit="c",
                created_at_utc=f"2026-01-{index + 1:02d}T00:00:00Z",
                identity={"vllm": "0.33.0"},
                cells=(cell,),
            ),
        )
        assert run("append", str(tmp_path / f"night-{index}"), "--history", str(history)) == 0
    lines = history.read_text().splitlines()
    assert len(lines) == 48
    assert (
        run("append", str(tmp_path / "night-3" / "measurements.json"), "--history", str(history))
        == 0
    )
    assert history.read_text().splitlines() == lines
    capsys.readouterr()
    output, text = tmp_path / "output", tmp_path / "issue.md"
    assert (
        run(
            "changes",
            "--history",
            str(history),
            "--json",
            "--github-output",
            str(output),
            "--issue",
            str(text),
            "--suite",
            str(tmp_path / "no-suite"),
        )
        == 0
    )
    (slide,) = json.loads(capsys.readouterr().out)
    assert (slide["metric"], slide["first_run_id"]) == ("tpot_mean_ms", "run-16")
    assert output.read_text() == "slides=true\n"
    assert "+7.1 %" in text.read_text()
    assert (
        run("page", "--history", str(history), "--output", str(tmp_path / "site" / "index.html"))
        == 0
    )
    assert "tpot_mean_ms" in (tmp_path / "site" / "index.html").read_text()
    short = tmp_path / "short.jsonl"
    short.write_text("".join(f"{line}\n" for line in lines[:8]))
    assert run("changes", "--history", str(short)) == 0
    assert "no confirmed slide in 2 series, the longest of 4 nights" in capsys.readouterr().out


@pytest.mark.parametrize("command", [("changes",), ("page", "--output", "page.html")])
def test_nothing_is_said_of_a_history_that_is_not_there(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigFileError, match="file not found"):
        run(*command, "--history", str(tmp_path / "none.jsonl"))


def test_a_folder_without_measurements_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("append", str(tmp_path), "--history", str(tmp_path / "history.jsonl")) == 0
    assert "0 entries of 0 measurements.json added" in capsys.readouterr().out


@pytest.mark.parametrize("line", ["{", "{}", "[]", '{"schema_version": 2}', ""])
def test_a_broken_history_names_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(night(1, 1.0).model_dump_json() + "\n" + line + "\n")
    with pytest.raises(ConfigFileError, match="line 2"):
        run("changes", "--history", str(path))


def test_planned_cells_without_a_valid_session_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, broken = session("a", rounds(1.0)), session("b", rounds(1.0), invalid=True)
    assert unmeasured(["alpha-tuned-chat"], [measurement(broken, good)]) == ()
    assert unmeasured(["alpha-tuned-chat", "alpha-lost-chat"], [measurement(good)]) == (
        "alpha-lost-chat",
    )
    reference_alone = session("c", rounds(1.0), arm=Arm.REFERENCE)
    ended_badly = replace(
        measurement(good),
        invalid_reasons=(InvalidReason("recording_short", "1 of 2 sessions are valid"),),
    )
    for cell in (measurement(broken), measurement(reference_alone), ended_badly):
        assert unmeasured(["alpha-tuned-chat"], [cell]) == ("alpha-tuned-chat",)
    (tmp_path / "plan.json").write_text(
        plan("alpha-tuned-chat", "alpha-lost-chat").model_dump_json()
    )
    write_measurement_file(
        tmp_path / "night" / "measurements.json",
        MeasurementFile(
            run_id="r",
            commit="c",
            created_at_utc="t",
            identity={},
            cells=(measurement(good),),
        ),
    )
    assert (
        run("unmeasured", str(tmp_path / "night"), "--plan", str(tmp_path / "plan.json"))
        == ExitStatus.INVALID
    )
    assert "alpha-lost-chat: no valid session" in capsys.readouterr().out


def test_many_slides_are_cut_and_say_so() -> None:
    many = [
        HistoryEntry(
            **{
                **night(index, (20.0 if index < 10 else 30.0) + index * 0.01).model_dump(),
                "config": f"c{config}",
            }
        )
        for config in range(52)
        for index in range(20)
    ]
    text = issue(slides(series_of(many), false_alarm_budget=0.4))
    assert text.count("| `alpha` ") == 50
    assert "and 2 more." in text
