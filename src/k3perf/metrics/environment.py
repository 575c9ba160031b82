"""The environment of a session: the machine's part. Recorded and reported, never
locked. Pure.

The lock (``metrics.resolved``) holds what a change can decide. Machines differ in
Python, driver, distribution, kernel and CPU, and their runs must still be comparable.
So these are kept with each session and in the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

ENVIRONMENT: Final[dict[str, str]] = {
    "python": "the interpreter comes with the machine's distribution, down to its patch release",
    "driver": (
        "the device's driver belongs to the host; containers and engine environments use what is"
        " there"
    ),
    "distribution": "the C library and the system libraries belong to the host or its image",
    "kernel": "the host's kernel schedules the engine's processes; an image cannot bring its own",
    "processor": ("the host's CPU; targets of another hardware class have separate baselines"),
}
"""Name of each value of the environment and why it is not locked."""

FORMERLY_LOCKED: Final[dict[str, str]] = {"version.python": "python", "version.driver": "driver"}
"""Keys of the resolved configuration in older files, and the environment's name for
each.
"""

UNKNOWN: Final = "unknown"

Environment = Mapping[str, str]


def read_environment(
    server_info: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]]
) -> dict[str, str]:
    """The environment of an engine, from the identity of each rank.

    A value that cannot be read is omitted. Ranks on hosts that differ give both values,
    in the order of ranks. Python and driver fall back to the server's account.
    """
    system = server_info.get("system_env") or {}
    fallback = {
        "python": str(system.get("python_version") or "").split(" ", 1)[0],
        "driver": _known(system.get("nvidia_driver_version")),
    }
    found = {}
    for name in ENVIRONMENT:
        values = [_known(rank.get(f"{name}_version") or rank.get(name)) for rank in ranks]
        known = list(dict.fromkeys(value for value in values if value)) or [fallback.get(name, "")]
        if known[0]:
            found[name] = ", ".join(known)
    return found


def _known(value: object) -> str:
    return "" if value in (None, "None", "") else str(value).strip()


def without_environment(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """A resolved configuration without the keys that count as environment today (older
    files).
    """
    return {key: value for key, value in resolved.items() if key not in FORMERLY_LOCKED}


def environment_of(recorded: Environment, resolved: Mapping[str, Any]) -> dict[str, str]:
    """A session's environment. Older recordings have it in their resolved
    configuration.
    """
    if recorded:
        return dict(recorded)
    return {
        name: str(resolved[key])
        for key, name in FORMERLY_LOCKED.items()
        if resolved.get(key) is not None
    }


def environment_changes(
    recorded: Iterable[Environment], seen: Iterable[Environment]
) -> tuple[str, ...]:
    """``python 3.11.7 -> 3.11.2`` for each value that was seen now and never recorded.

    A value without a record cannot differ. A recorded value that cannot be read now is
    ``unknown``.
    """
    before, now = list(recorded), list(seen)
    changes = []
    for name in ENVIRONMENT:
        was = {environment[name] for environment in before if name in environment}
        new = {environment.get(name, UNKNOWN) for environment in now} - was
        if was and new:
            changes.append(f"{name} {' or '.join(sorted(was))} -> {' and '.join(sorted(new))}")
    return tuple(changes)


def environment_text(environment: Environment) -> str:
    """One line: ``python 3.11.7, kernel 6.1.0``, or ``not recorded``."""
    return (
        ", ".join(f"{name} {environment[name]}" for name in ENVIRONMENT if name in environment)
        or "not recorded"
    )
