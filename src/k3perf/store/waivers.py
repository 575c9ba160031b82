"""``baselines/waivers.yaml`` to waivers. A missing file means none; a bad one is an
error with file, key and value.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from k3perf.documents import DocumentProblem, Misfit, read_text, validated, yaml_of
from k3perf.errors import ConfigFileError
from k3perf.records.baseline import Waiver

NEXT_STEP = (
    "Each entry of the list has target, config, workload, metric, owner, build, reason and"
    " expires_on (YYYY-MM-DD, quoted or not)."
)


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """All waivers of the file, expired ones too: the gate says that they expired."""
    text = read_text(path, NEXT_STEP)
    if text is None:
        return ()
    try:
        data = yaml_of(text, words=True)
    except DocumentProblem as problem:
        raise problem.at(path, NEXT_STEP) from None
    entries = [] if data is None else data
    if not isinstance(entries, list):
        raise ConfigFileError(path, "", None, "not a list of waivers", NEXT_STEP)
    return tuple(_waiver(path, index, entry) for index, entry in enumerate(entries))


def _waiver(path: Path, index: int, entry: object) -> Waiver:
    try:
        waiver = validated(Waiver, entry)
        date.fromisoformat(waiver.expires_on)
    except Misfit as misfit:
        misfit.place = ".".join((str(index), *misfit.location))
        raise misfit.at(path, NEXT_STEP) from None
    except ValueError:
        raise ConfigFileError(
            path, f"{index}.expires_on", waiver.expires_on, "there is no such day", NEXT_STEP
        ) from None
    return waiver
