"""The tables people read: golden text, and that nothing absent is shown as a number."""

from dataclasses import replace

import pytest

from k3perf.metrics.resolved import ABSENT
from k3perf.records.outcome import Outcome
from k3perf.records.samples import EngineFailure, InvalidReason
from k3perf.records.verdict import CellVerdict, ConfigDifference, MetricVerdict, SuiteVerdict
from k3perf.report.siblings import sibling_notes
from k3perf.report.table import cell_table, change_text, failure_text, suite_summary, value_text

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
    assert (
        change_text(replace(WEIGHTS, loss_ratio=1e-6, now_value=float((1 << 20) + 1)))
        == "worse 0.0%"
    )


def test_absent_values_are_dashes_not_zeros():
    assert value_text(None, "bytes") == "-"
    assert value_text(10290.4, "tokens/s") == "10,290 tokens/s"
    assert value_text(12.4901, "ms") == "12.49 ms"
    row = cell_table(
        replace(CELL, metrics=(replace(WEIGHTS, now_value=None, outcome=Outcome.INVALID),))
    )
    assert " 0" not in row.splitlines()[3]


def test_drift_is_told_as_was_and_is():
    text = cell_table(
        replace(
            CELL,
            metrics=(),
            differences=(ConfigDifference("cache_config.block_size", 640, 1280, "hybrid page"),),
        )
    )
    assert (
        "cache_config.block_size (--block-size): was 640, is 1280 (forced by hybrid page)" in text
    )
    assert "CONFIG_DRIFT" in text


def test_one_cause_of_many_cells_is_told_once_at_the_end():
    reason = InvalidReason("engine_died", "engine ended in stage load; root cause: boom")
    cells = tuple(
        replace(CELL, metrics=(), workload=name, invalid_reasons=(reason,))
        for name in ("chat", "burst", "trace")
    )
    text = suite_summary(SuiteVerdict(cells, 0.01, 6))
    names = "cpu-hybrid-fp8_kv-chat, cpu-hybrid-fp8_kv-burst, cpu-hybrid-fp8_kv-trace"
    assert f"INVALID: {names} (3 cells, one cause)" in text
    assert text.count("engine ended in stage load; root cause: boom") == 1
    assert "outcome: INVALID" in text
    assert "1.0%" in text


def test_a_narrow_terminal_gets_lines_instead_of_a_table_that_wraps():
    text = cell_table(CELL, width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert "tpot_mean_ms: REGRESSED, worse 15.0% (-19.0% .. -11.0%)" in text
    assert "baseline 44 ms, now 50.6 ms, tolerance 10.0%, MDE 6.2%" in text
    assert "weights_bytes: PASS, no change" in text
    assert "MDE" in cell_table(CELL, width=120).splitlines()[2]


def died(pid: int, workload: str, cause: str = "RuntimeError: boom") -> CellVerdict:
    failure = EngineFailure(
        f"engine died in service: process {pid} ended",
        cause,
        f"/run/{pid}/engine.log",
        ("INFO a", f"ERROR {cause}"),
    )
    reason = InvalidReason(
        "engine_died", f"{failure.message}; root cause: {cause}", failure=failure
    )
    return replace(CELL, metrics=(), workload=workload, invalid_reasons=(reason,))


def test_engines_that_died_of_one_cause_are_one_block_with_cause_lines_and_log():
    text = suite_summary(
        SuiteVerdict(
            (died(1, "chat"), died(2, "burst"), died(3, "trace", "OSError: disk")), 0.01, 6
        )
    )
    first, second, _ = text.split("\n\n")
    assert first.splitlines() == [
        "INVALID: cpu-hybrid-fp8_kv-chat, cpu-hybrid-fp8_kv-burst (2 cells, one cause)",
        "  engine died in service: process 1 ended [engine_died]",
        "  cause: RuntimeError: boom",
        "  last lines of its log:",
        "    | INFO a",
        "    | ERROR RuntimeError: boom",
        "  log: /run/1/engine.log",
    ]
    assert second.startswith("INVALID: cpu-hybrid-fp8_kv-trace\n")
    assert "cause: OSError: disk" in second


def test_a_death_without_a_cause_says_so():
    assert "cause: unknown, its log contains no error" in suite_summary(
        SuiteVerdict((died(1, "chat", ""),), 0.01, 6)
    )


def test_a_cause_of_several_lines_is_shown_whole():
    text = suite_summary(
        SuiteVerdict(
            (died(1, "chat", "ValidationError: 1 error\nblock_size\n  Input should be 16"),),
            0.01,
            6,
        )
    )
    assert "  cause: ValidationError: 1 error\n    block_size\n      Input should be 16\n" in text


AB = replace(
    CELL,
    mode="ab",
    differences=(
        ConfigDifference("a.gone", 1, ABSENT),
        ConfigDifference("b.new", ABSENT, 2),
        ConfigDifference("c.new", ABSENT, None),
        ConfigDifference("z.changed", 16, 32),
    ),
)


def test_ab_names_the_arms_and_folds_keys_of_one_arm_alone():
    text = suite_summary(SuiteVerdict((AB,), 0.01, 6))
    heading = text.splitlines()[2]
    assert heading.split()[:3] == ["metric", "base", "candidate"]
    changed, one_sided = [line for line in text.splitlines() if "differs from the base" in line]
    assert changed.endswith("z.changed: base 16, candidate 32")
    assert "2 only in the candidate and 1 only in the base; verdict.json names them" in one_sided
    assert "CONFIG_DRIFT" not in text
    assert "drift" not in text
    assert "base 44 ms, candidate 50.6 ms" in cell_table(AB, width=80)
    failed = failure_text(AB)
    assert "base 44 ms, candidate 50.6 ms" in failed
    assert "z.changed" not in failed


def test_a_loss_does_not_hide_a_drift():
    change = ConfigDifference("version.vllm", "0.31.0", "0.32.0")
    both = replace(CELL, differences=(change,))
    text = suite_summary(SuiteVerdict((both, CELL), 0.01, 6))
    assert "fp8_kv · chat   REGRESSED and CONFIG_DRIFT   (reference mode)" in text
    assert "outcome: REGRESSED and CONFIG_DRIFT - 2 cells" in text
    assert "(1 REGRESSED and CONFIG_DRIFT, 1 REGRESSED)" in text
    assert "A loss beyond the tolerance is proven." in text
    assert "The engine's settings differ from the approved ones." in text
    assert failure_text(both).startswith("REGRESSED and CONFIG_DRIFT: ")


def test_values_that_changed_in_several_cells_are_shown_once():
    change = ConfigDifference("cache_config.block_size", 640, 1280)
    cells = tuple(replace(CELL, workload=name, differences=(change,)) for name in ("chat", "burst"))
    text = suite_summary(SuiteVerdict(cells, 0.01, 6))
    assert text.count("cache_config.block_size (--block-size): was 640, is 1280") == 1
    assert "cache_config.block_size (--block-size): was 640, is 1280 (2 cells)" in text


def test_a_failing_test_says_what_failed_and_the_next_of_its_cell_refers_to_it():
    text = failure_text(CELL)
    assert text.splitlines()[0] == "REGRESSED: cpu-hybrid-fp8_kv-chat"
    assert (
        "tpot_mean_ms: REGRESSED, worse 15.0% (-19.0% .. -11.0%), tolerance 10.0%, baseline 44 ms,"
        " now 50.6 ms" in text
    )
    assert "weights_bytes" not in text
    lost = died(1, "chat")
    assert "cause: RuntimeError: boom" in failure_text(lost)
    assert "engine.log" not in failure_text(lost)
    assert failure_text(lost, "test_a[x]") == "INVALID: cpu-hybrid-fp8_kv-chat, see test_a[x] above"
    assert "see" not in failure_text(CELL, "test_a[x]").partition("\n")[0]


def moved(config, loss, metric="tpot_mean_ms", **changes):
    judged = replace(SLOW, metric=metric, loss_ratio=loss, outcome=Outcome.PASS)
    return replace(CELL, config=config, metrics=(judged,), **changes)


def test_a_cell_alone_in_its_direction_is_noted():
    far, others = moved("fp8_kv", 0.23), [moved(name, -0.04) for name in ("default", "graphs_off")]
    text = suite_summary(SuiteVerdict((far, *others), 0.01, 6))
    assert (
        "note: tpot_mean_ms of cpu-hybrid-fp8_kv-chat is 23.0% worse, while the 2 other cells on"
        " this engine moved the other way (median 4.0% better)" in text
    )
    (gain,) = sibling_notes([moved("fp8_kv", -0.2), moved("default", 0.05)])
    assert "is 20.0% better, while the other cell on this engine" in gain
    assert "(median 5.0% worse)" in gain


@pytest.mark.parametrize(
    "others",
    [
        [],
        [moved("default", -0.01)],  # a tenth of the tolerance is noise
        [moved("default", -0.04), moved("graphs_off", -0.04), moved("eager", 0.06)],
        [moved("default", -0.04, target="cpu-gqa")],
        [moved("default", -0.04, metric="ttft_mean_ms")],
        [moved("default", 0.2)],
    ],
)
def test_a_cell_that_is_not_alone_is_not_noted(others):
    assert sibling_notes([moved("fp8_kv", 0.23), *others]) == []
    assert sibling_notes([moved("fp8_kv", 0.09), moved("default", -0.04)]) == []
