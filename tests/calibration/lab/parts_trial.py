"""The gate's parts on trial. ``python -m tests.calibration.lab.parts_trial DIR SECONDS
RUNS [NAME...]`` judges every source with and without each part, on the same draws, and
keeps a file per source in DIR. It goes on where it ended before. NAMEs are sources and
parts; give a DIR the same ones each time. ``parts_table`` reads the
files.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from k3perf.records.outcome import Outcome, join
from tests.calibration.lab.noisy import outcomes_of
from tests.calibration.lab.parts import WITHOUT, without
from tests.calibration.lab.replay import Replayed, Setting, quick_runs
from tests.calibration.lab.selftest import LOSSES
from tests.calibration.lab.trial_sources import trial_sources

COUNTED: Final = ("red", "suspect_run", "invalid_run", "regressed", "green", "invalid", "rounds")
"""Per run and loss: the run's outcome, then metrics by outcome, and rounds measured."""
STEP: Final = 8
SEED: Final = 41
GREEN: Final = (Outcome.PASS, Outcome.IMPROVED, Outcome.INCONCLUSIVE)


def counted(run: Sequence[Replayed]) -> list[int]:
    """One run at one loss, as ``COUNTED`` says."""
    whole = join(outcomes_of(run))
    metrics = [one for cell in run for one in cell.outcomes]
    return [
        *(whole is one for one in (Outcome.REGRESSED, Outcome.SUSPECT, Outcome.INVALID)),
        metrics.count(Outcome.REGRESSED),
        sum(one in GREEN for one in metrics),
        metrics.count(Outcome.INVALID),
        sum(cell.round_count for cell in run),
    ]


def judged(
    setting: Setting,
    part: str,
    runs: range,
    seed: int = SEED,
    losses: Sequence[float] = LOSSES,
) -> list[list[list[int]]]:
    """Runs x losses x ``COUNTED``. A run's draw depends on seed and number alone."""
    with without(part):
        return [
            [counted(found) for found in quick_runs(setting, losses, np.random.default_rng(key))]
            for key in ([seed, number] for number in runs)
        ]


def main(folder: Path, seconds: float, runs: int, names: Sequence[str]) -> None:
    """Add ``STEP`` runs to the source that has the fewest, until the time is over or
    all have ``runs``.
    """
    until = time.monotonic() + seconds
    every = trial_sources()
    sources = {name: every[name] for name in every if name in names} or every
    parts = [part for part in WITHOUT if part in names] or list(WITHOUT)
    paths = {name: folder / f"{re.sub('[^a-z0-9]+', '-', name)}.json" for name in sources}
    had = {
        name: len(json.loads(path.read_text())["parts"][""]) if path.is_file() else 0
        for name, path in paths.items()
    }
    settings: dict[str, Setting] = {}
    while time.monotonic() < until and min(had.values()) < runs:
        name = min(had, key=lambda one: had[one])
        setting = settings[name] = settings.get(name) or sources[name]()
        path, cells = paths[name], len(setting.sources) * setting.repeats
        known = json.loads(path.read_text()) if path.is_file() else {"parts": {}}
        known |= {"source": name, "cells": cells, "metrics": cells * len(setting.tolerances)}
        for part in ("", *parts):
            found = known["parts"].setdefault(part, [])
            found += judged(setting, part, range(len(found), had[name] + STEP))
        path.write_text(json.dumps(known))
        had[name] += STEP
    print(f"every source has {min(had.values())} runs", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
