"""The matrix itself: complete, unique, injected, and printed in the documentation."""

from __future__ import annotations

from pathlib import Path

from k3perf.errors import ExitStatus
from k3perf.records.outcome import EXIT_STATUS
from tests.faults.matrix import FAULTS, Kind
from tests.faults.table import (
    BEGIN,
    DOCUMENT,
    RULES_BEGIN,
    RULES_DOCUMENT,
    with_rules,
    with_table,
)


def test_at_least_forty_faults_each_with_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 40


def test_no_fault_is_a_pass_or_a_regression() -> None:
    for fault in FAULTS:
        if fault.outcome is not None:
            assert fault.exit_status is EXIT_STATUS[fault.outcome] is ExitStatus.INVALID, fault.name


def test_every_fault_is_named_in_a_test_module_or_made_from_its_row() -> None:
    texts = {
        path.name: path.read_text()
        for path in Path(__file__).parent.glob("test_*.py")
        if path.name != "test_matrix.py"
    }
    everything = "\n".join(texts.values())
    # these modules parametrise over all rows of their kind
    by_row = {Kind.START, Kind.STOP, Kind.HARNESS, Kind.ROUND}
    missing = {
        fault.name
        for fault in FAULTS
        if fault.kind not in by_row and f'"{fault.name}"' not in everything
    }
    # the suite's rows with flags and its interrupts are parametrised too; the rest have
    # tests of their own names
    missing -= {
        fault.name
        for fault in FAULTS
        if fault.kind is Kind.SUITE and (fault.flags or fault.exit_status is ExitStatus.INTERRUPTED)
    }
    by_hand = {
        "stale_lock",
        "reused_pid_in_lock",
        "memory_given_back_late",
        "killed_in_a_line",
        "killed_in_a_replacement",
    }
    assert missing <= by_hand


def test_the_documentation_shows_the_matrix_as_it_is() -> None:
    text = DOCUMENT.read_text()
    assert BEGIN in text
    assert with_table(text) == text, "run: python tests/faults/table.py"


def test_the_documentation_shows_the_rules_as_they_are() -> None:
    text = RULES_DOCUMENT.read_text()
    assert RULES_BEGIN in text
    assert with_rules(text) == text, "run: python tests/faults/table.py"
