"""Red runs with and without a part of the gate, at one loss, on common draws:
``python -m tests.calibration.lab.red_runs PART LOSS RUNS SOURCE...`` prints a table.
One loss takes a third of the time of ``parts_trial``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from scipy.stats import binomtest

from tests.calibration.lab.parts_trial import COUNTED, judged
from tests.calibration.lab.selftest import rate
from tests.calibration.lab.trial_sources import trial_sources


def red_rows(part: str, loss: float, runs: int, names: Sequence[str]) -> Iterator[str]:
    """Source, red runs with and without the part, and McNemar's exact p of more without
    it (one-sided).
    """
    sources = trial_sources()
    red = COUNTED.index("red")
    for name in names:
        setting = sources[name]()
        usual, off = (
            [run[0][red] for run in judged(setting, one, range(runs), losses=(loss,))]
            for one in ("", part)
        )
        more = sum(now > was for now, was in zip(off, usual, strict=True))
        less = sum(was > now for now, was in zip(off, usual, strict=True))
        p = (
            float(binomtest(more, more + less, alternative="greater").pvalue)
            if more + less
            else 1.0
        )
        yield (
            f"| {part} | {name} | {loss:g} | {rate(sum(usual), runs)} | {rate(sum(off), runs)} |"
            f" {p:.2g} |"
        )


if __name__ == "__main__":
    for row in red_rows(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]):
        print(row, flush=True)
