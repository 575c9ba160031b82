"""The tables people read: golden text, and that nothing absent is shown as a number."""

from dataclasses import replace

from k3perf.gate.outcome import Outcome
from k3perf.gate.verdict import CellVerdict, ConfigDifference, MetricVerdict, SuiteVerdict
from k3perf.report.table import cell_table, change_text, suite_summary, value_text
from k3perf.samples import InvalidReason

SLOW = MetricVerdict(
    metric="tpot_mean_ms",
    unit="ms",
    outcome=Outcome.REGRESSED,
    baseline_value=44.0,
    now_value=50.6,
    loss_ratio=0.15,
    loss_lower_bound_ratio=0.11,
    loss_upper_bound_ratio=0.19,
    tolerance_ratio=0.1,
    tolerance_absolute=None,
    relevant=True,
    significant=True,
    smallest_detectable_loss_ratio=0.062,
    session_count=1,
    round_count=6,
    alpha=0.0005,
    reason="15.0 % slower, tolerance 10.0 %",
)
WEIGHTS = replace(
    SLOW,
    metric="weights_bytes",
    unit="bytes",
    outcome=Outcome.PASS,
    baseline_value=float(1 << 20),
    now_value=float(1 << 20),
    loss_ratio=None,
    loss_lower_bound_ratio=None,
    loss_upper_bound_ratio=None,
    tolerance_ratio=None,
    tolerance_absolute=0.0,
    smallest_detectable_loss_ratio=None,
    reason="",
)
CELL = CellVerdict("cpu-hybrid", "fp8_kv", "chat", "reference", (SLOW, WEIGHTS))


def test_cell_table_golden(repository):
    expected = (repository / "tests" / "golden" / "cell_table.txt").read_text()
    assert cell_table(CELL) + "\n" == expected


def test_what_is_equal_is_neither_better_nor_worse():
    assert change_text(replace(WEIGHTS, loss_ratio=0.0)) == change_text(WEIGHTS) == "="
    assert change_text(replace(WEIGHTS, loss_ratio=1e-6, now_value=float((1 << 20) + 1))) == "worse 0.0%"


def test_absent_values_are_dashes_not_zeros():
    assert value_text(None, "bytes") == "-"
    assert value_text(10290.4, "tokens/s") == "10,290 tokens/s"
    assert value_text(12.4901, "ms") == "12.49 ms"
    row = cell_table(replace(CELL, metrics=(replace(WEIGHTS, now_value=None, outcome=Outcome.INVALID),)))
    assert " 0" not in row.splitlines()[3]


def test_drift_is_told_as_was_and_is():
    text = cell_table(replace(CELL, metrics=(), differences=(ConfigDifference("cache_config.block_size", 640, 1280, "hybrid page"),)))
    assert "cache_config.block_size: was 640, is 1280 (forced by hybrid page)" in text
    assert "CONFIG_DRIFT" in text


def test_one_cause_of_many_cells_is_told_once_at_the_end():
    reason = InvalidReason("engine_died", "engine ended in stage load; root cause: boom")
    cells = tuple(replace(CELL, metrics=(), workload=name, invalid_reasons=(reason,)) for name in ("chat", "burst", "trace"))
    text = suite_summary(SuiteVerdict(cells, 0.01, 6))
    names = "cpu-hybrid-fp8_kv-chat, cpu-hybrid-fp8_kv-burst, cpu-hybrid-fp8_kv-trace"
    assert f"INVALID: {names} (3 cells, one cause)" in text
    assert text.count("engine ended in stage load; root cause: boom") == 1
    assert "outcome: INVALID" in text
    assert "1.0%" in text
