"""The fault matrix and the validity rules as tables for docs/supervision.md and
docs/validity.md. ``python tests/faults/table.py`` rewrites them there.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from k3perf.metrics.validity import ROUND_RULES, SESSION_RULES
from tests.faults.matrix import FAULTS, Fault

DOCS = Path(__file__).parents[2] / "docs"
DOCUMENT = DOCS / "supervision.md"
RULES_DOCUMENT = DOCS / "validity.md"
BEGIN = "<!-- fault table: written by tests/faults/table.py -->\n"
END = "<!-- end of the fault table -->\n"
RULES_BEGIN = "<!-- rule table: written by tests/faults/table.py -->\n"
RULES_END = "<!-- end of the rule table -->\n"


def _status(fault: Fault) -> str:
    return "none (killed)" if fault.exit_status is None else str(int(fault.exit_status))


def render() -> str:
    """All rows, in the matrix's order."""
    lines = [
        "| fault | strikes at | how it is injected | comes to | exit status |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {fault.name} | {fault.stage} | {fault.injection} | {fault.result} | {_status(fault)} |"
        for fault in FAULTS
    ]
    return f"{len(FAULTS)} faults.\n\n" + "\n".join(lines) + "\n"


def render_rules() -> str:
    """Every round rule with its default limit, then the session's."""
    lines = [
        "| rule | limit by default | the round is INVALID because | required |",
        "| --- | --- | --- | --- |",
    ]
    for rule in ROUND_RULES:
        limit = "off" if rule.limit is None else f"{rule.bound} {rule.limit:g} {rule.unit}".strip()
        lines.append(f"| {rule.name} | {limit} | {rule.text} | {'yes' if rule.requires else ''} |")
    lines.append("")
    lines.append(
        "For a session: "
        + ", ".join(f"{name} {limit:g}" for name, limit in SESSION_RULES.items())
        + " (the spread is judged by the gate, metric by metric)."
    )
    return "\n".join(lines) + "\n"


def _replaced(text: str, begin: str, end: str, table: str) -> str:
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{table}\n{end}{tail}"


def with_table(text: str) -> str:
    """docs/supervision.md with its table replaced."""
    return _replaced(text, BEGIN, END, render())


def with_rules(text: str) -> str:
    """docs/validity.md with its table replaced."""
    return _replaced(text, RULES_BEGIN, RULES_END, render_rules())


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text()))
    RULES_DOCUMENT.write_text(with_rules(RULES_DOCUMENT.read_text()))
