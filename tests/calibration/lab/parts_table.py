"""What ``parts_trial`` measured, as tables: ``python -m tests.calibration.lab.parts_table
DIR``. Each figure is a difference on common draws: the gate without the part, less the
gate as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from tests.calibration.lab.parts_trial import COUNTED
from tests.calibration.lab.selftest import LOSSES

CLEAN, HALF, LOST = range(len(LOSSES))
LEVEL: Final = 0.05
"""Of all tests of one part, divided by the number of its sources (Bonferroni)."""


class Difference(NamedTuple):
    """One source without one part. ``more_red`` and ``less_red``: runs that are red only
    without it, and only with it. ``caught``, ``invalid``: shares of the metrics.
    ``rounds``: measured rounds as a ratio. ``caught_error``: standard error.
    """

    source: str
    runs: int
    red: tuple[int, int]
    more_red: tuple[int, int]
    less_red: tuple[int, int]
    caught: float
    caught_error: float
    invalid: float
    rounds: tuple[float, float]
    base_red: tuple[int, int]

    def p_more_red(self, at: int) -> float:
        """McNemar's exact test, one-sided, of clean runs (0) or those at half (1)."""
        changed = self.more_red[at] + self.less_red[at]
        if not changed:
            return 1.0
        return float(binomtest(self.more_red[at], changed, alternative="greater").pvalue)


Runs = NDArray[np.float64]
"""Runs x losses x ``COUNTED``."""


def _column(runs: Runs, loss: int, name: str) -> NDArray[np.float64]:
    column: NDArray[np.float64] = runs[:, loss, COUNTED.index(name)]
    return column


def difference(source: str, metrics: int, usual: Runs, off: Runs) -> Difference:
    """``usual`` and ``off``: the same runs with and without the part."""
    red, more, less, was = [], [], [], []
    for at in (CLEAN, HALF):
        before, now = _column(usual, at, "red") > 0, _column(off, at, "red") > 0
        red.append(int(now.sum()))
        was.append(int(before.sum()))
        more.append(int((now & ~before).sum()))
        less.append(int((before & ~now).sum()))
    caught = (_column(off, LOST, "regressed") - _column(usual, LOST, "regressed")) / metrics
    invalid = _column(off, CLEAN, "invalid") - _column(usual, CLEAN, "invalid")
    spent = [
        float(_column(off, at, "rounds").sum() / _column(usual, at, "rounds").sum())
        for at in (CLEAN, LOST)
    ]
    return Difference(
        source,
        len(usual),
        (red[0], red[1]),
        (more[0], more[1]),
        (less[0], less[1]),
        float(caught.mean()),
        float(caught.std(ddof=1) / np.sqrt(len(caught))),
        float(invalid.mean() / metrics),
        (spent[0], spent[1]),
        (was[0], was[1]),
    )


def differences(folder: Path) -> dict[str, list[Difference]]:
    """By part, every source."""
    found: dict[str, list[Difference]] = {}
    for path in sorted(folder.glob("*.json")):
        known = json.loads(path.read_text())
        made = {part: np.array(runs, dtype=np.float64) for part, runs in known["parts"].items()}
        usual = made.pop("")
        for part, off in made.items():
            found.setdefault(part, []).append(
                difference(known["source"], known["metrics"], usual, off)
            )
    return found


def rows(folder: Path) -> Iterator[str]:
    """A row for each part: sums over the sources, and the source that changed most."""
    for part, every in differences(folder).items():
        runs = sum(one.runs for one in every)
        cells = [f"{part} ({runs} runs)"]
        for at in (0, 1):
            worst = max(every, key=lambda one: one.more_red[at] - one.less_red[at])
            text = (
                f"{sum(one.base_red[at] for one in every)} -> {sum(one.red[at] for one in every)}"
            )
            if worst.more_red[at] > worst.less_red[at]:
                significant = worst.p_more_red(at) < LEVEL / len(every)
                text += (
                    f"; {worst.base_red[at]} -> {worst.red[at]} of {worst.runs}, {worst.source}"
                    f"{' *' if significant else ''}"
                )
            cells.append(text)
        ordered = sorted(every, key=lambda one: one.caught)
        cells += [
            f"{100 * one.caught:+.1f} ({100 * one.caught_error:.1f}), {one.source}"
            for one in (ordered[0], ordered[-1])
        ]
        noisier = max(every, key=lambda one: one.invalid)
        cells.append(f"{100 * noisier.invalid:+.1f}, {noisier.source}")
        for at in (0, 1):
            spent = [one.rounds[at] for one in every]
            cells.append(f"{np.mean(spent):.2f} ({min(spent):.2f} to {max(spent):.2f})")
        yield f"| {' | '.join(cells)} |"


HEAD: Final = (
    "| part that is off | clean runs red | red at half | caught at 1.5: worst (SE) | best (SE) |"
    " INVALID, clean | rounds, clean | rounds, lost |"
)

if __name__ == "__main__":
    print(HEAD)
    print("| --- " * HEAD.count(" | ") + "| --- |")
    for row in rows(Path(sys.argv[1])):
        print(row)
