"""``baselines/waivers.yaml`` to waivers. A missing file means none; a bad one is an error with file, key and value."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import yaml
from pydantic import ValidationError

from k3perf.errors import ConfigFileError
from k3perf.gate.baseline import Waiver
from k3perf.store.files import read_text

NEXT_STEP = "Each entry of the list has target, config, workload, metric, owner, build, reason and expires_on (YYYY-MM-DD, quoted or not)."


class _WordLoader(yaml.SafeLoader):
    """Numbers and days stay the text that was written: 0.30 as a number is 0.3, another release."""


_WordLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("float", "int", "timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_waivers(path: Path) -> tuple[Waiver, ...]:
    """All waivers of the file, expired ones too: the gate says that they expired."""
    text = read_text(path, NEXT_STEP)
    if text is None:
        return ()
    try:
        data = yaml.load(text, Loader=_WordLoader)  # noqa: S506 (a SafeLoader subclass)
    except yaml.YAMLError as error:
        raise ConfigFileError(path, "", None, f"not YAML: {error}", NEXT_STEP) from None
    entries = [] if data is None else data
    if not isinstance(entries, list):
        raise ConfigFileError(path, "", None, "not a list of waivers", NEXT_STEP)
    return tuple(_waiver(path, index, entry) for index, entry in enumerate(entries))


def _waiver(path: Path, index: int, entry: object) -> Waiver:
    try:
        waiver = Waiver.model_validate(entry)
        date.fromisoformat(waiver.expires_on)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in (index, *first["loc"]))
        value = first["input"] if isinstance(first["input"], str | int | float | bool) else None
        raise ConfigFileError(path, key, value, first["msg"], NEXT_STEP) from None
    except ValueError:
        raise ConfigFileError(path, f"{index}.expires_on", waiver.expires_on, "there is no such day", NEXT_STEP) from None
    return waiver
