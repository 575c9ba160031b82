"""``k3perf quality``: the trade table, sample sizes, and tasks through a stand-in for
lm_eval that leaves files of the same form.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from k3perf.cli.main import main
from k3perf.errors import ExitStatus
from k3perf.records.measurement import CellMeasurement, MeasurementFile, MetricValue, SessionMetrics
from k3perf.records.samples import Arm
from k3perf.report.trade_table import trade_rows
from k3perf.store.measurements import write_measurement_file


def session_of(arm=Arm.CANDIDATE, resolved=None, **values):
    return SessionMetrics(
        f"{arm}-1",
        arm,
        None,
        (),
        {name: MetricValue(value, 1) for name, value in values.items()},
        resolved or {},
    )


def cell(config, *sessions):
    return CellMeasurement(
        target="t",
        config=config,
        workload="chat",
        mode="baseline",
        hardware_class="cpu",
        plan_digest="d",
        sessions=sessions,
    )


CELLS = (
    cell("default", session_of(quality_kl_mean_nats=0.0, weights_bytes=100.0)),
    cell(
        "fp8_kv",
        session_of(
            resolved={"cache_config.cache_dtype": "fp8"},
            quality_kl_mean_nats=0.0019,
            quality_top1_ratio=0.976,
            weights_bytes=100.0,
        ),
    ),
    cell("plain", session_of(weights_bytes=100.0)),
)


def write(tmp_path, cells=CELLS) -> str:
    path = tmp_path / "measurements.json"
    file = MeasurementFile(run_id="r", commit="c", created_at_utc="", identity={}, cells=cells)
    write_measurement_file(path, file)
    return str(path)


def test_the_trade_of_every_config_that_compared_answers(tmp_path, capsys):
    assert main(["quality", "trade", write(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "0.0019" in text
    assert "97.60%" in text
    assert "fp8_kv" in text
    assert "plain" not in text


def test_invalid_sessions_and_missing_values_are_dashes_not_zeros():
    from k3perf.records.samples import InvalidReason

    broken = replace(CELLS[1].sessions[0], invalid_reasons=(InvalidReason("x", "x"),))
    assert trade_rows([replace(CELLS[1], sessions=(broken,))]) == ()
    (row,) = trade_rows([CELLS[0]])
    assert row.values["output_tokens_per_s"] is None


def test_a_run_without_answers_has_no_trade(tmp_path, capsys):
    assert main(["quality", "trade", write(tmp_path, CELLS[2:])]) == ExitStatus.USAGE
    assert "no cell compared answers" in capsys.readouterr().err


def test_sample_size(capsys):
    given = ["quality", "sample-size", "--score", "0.76", "--loss", "0.02"]
    assert main([*given, "--discordant", "0.05"]) == 0
    text = capsys.readouterr().out
    assert "unpaired: 14," in text
    assert "paired: 1," in text
    assert main([*given, "--alpha", "2"]) == ExitStatus.USAGE
    assert "alpha is 2" in capsys.readouterr().err


FAKE = """#!/bin/sh
# stands in for `python -m lm_eval`: the URL's port decides how many answers are right
out=""; right=100
while [ $# -gt 0 ]; do
  case "$1" in
    --output_path) out="$2"; shift;;
    --model_args) case "$2" in *:9002*) right=60;; *:9003*) exit 3;; esac; shift;;
  esac
  shift
done
mkdir -p "$out/m"
i=0
while [ $i -lt 100 ]; do
  s=0; [ $i -lt $right ] && s=1
  echo "{\\"doc_id\\": $i, \\"exact_match\\": $s.0}"
  i=$((i+1))
done > "$out/m/samples_gsm8k_2026-12-01.jsonl"
"""


@pytest.fixture
def python(tmp_path) -> Path:
    path = tmp_path / "python"
    path.write_text(FAKE)
    path.chmod(0o755)
    return path


def tasks(tmp_path, python, port, *more) -> list[str]:
    return [
        *("quality", "tasks", "--server", f"http://127.0.0.1:{port}", "--model", "m"),
        *("--tasks", "gsm8k", "--python", str(python), "--output", str(tmp_path / "out"), *more),
    ]


def test_equal_servers_pass_and_a_loss_is_proven(tmp_path, python, capsys):
    reference = ("--reference-server", "http://127.0.0.1:9001")
    assert main(tasks(tmp_path, python, 9001, *reference)) == 0
    assert "0 lost, 0 won" in capsys.readouterr().out
    assert main(tasks(tmp_path, python, 9002, *reference)) == ExitStatus.REGRESSED
    text = capsys.readouterr().out
    assert "gsm8k: 60.00%, reference 100.00%, 100 questions; 40 lost, 0 won" in text


def test_a_gain_is_no_loss(tmp_path, python, capsys):
    assert main(tasks(tmp_path, python, 9001, "--reference-server", "http://127.0.0.1:9002")) == 0
    assert "40 won" in capsys.readouterr().out


def test_an_approved_score_says_what_the_questions_can_detect(tmp_path, python, capsys):
    assert main(tasks(tmp_path, python, 9002, "--reference-score", "0.62")) == 0
    text = capsys.readouterr().out
    assert "a loss of 2.00% needs" in text
    assert "these detect" in text
    assert main(tasks(tmp_path, python, 9002, "--reference-score", "0.9")) == ExitStatus.REGRESSED


def test_wrong_use_and_a_failing_harness(tmp_path, python, capsys):
    assert main(tasks(tmp_path, python, 9001)) == ExitStatus.USAGE
    assert "nothing to compare with" in capsys.readouterr().err
    missing = tmp_path / "nowhere"
    given = tasks(tmp_path, missing, 9001, "--reference-score", "0.9")
    assert main(given) == ExitStatus.USAGE
    assert "not found" in capsys.readouterr().err
    given = tasks(tmp_path, python, 9003, "--reference-score", "0.9")
    assert main(given) == ExitStatus.INVALID
    assert "lm_eval failed" in capsys.readouterr().err


def test_an_answer_without_a_score_is_not_a_wrong_answer(tmp_path):
    from k3perf.errors import MeasurementInvalid
    from k3perf.run.quality_tasks import read_answers

    (tmp_path / "samples_t_1.jsonl").write_text(json.dumps({"doc_id": 1, "bleu": 0.3}) + "\n")
    with pytest.raises(MeasurementInvalid, match="no score of 0 or 1"):
        read_answers(tmp_path, "t")
    assert read_answers(tmp_path, "other") == {}


def test_one_filter_of_several_counts(tmp_path):
    from k3perf.run.quality_tasks import read_answers

    lines = [
        {"doc_id": doc, "filter": name, "exact_match": score}
        for doc in (1, 2)
        for name, score in (("strict-match", 1.0), ("flexible-extract", 0.0))
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "samples_t_1.jsonl").write_text(text)
    assert read_answers(tmp_path, "t") == {"1": True, "2": True}
