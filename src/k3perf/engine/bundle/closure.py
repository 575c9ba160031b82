"""Requirements and a host's packages to the set of wheels that must be carried. Pure:
wheels come through the ``fetch`` that is handed in.

pip cannot resolve this: it evaluates markers with its own Python, not with the host's.
A breadth-first walk without backtracking: what the host has is kept whatever its
version (the host's torch must not be replaced), and a version that some requirement
does not allow is reported, not repaired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from k3perf.engine.bundle.host import HostInventory


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel file with the requirements its metadata states."""

    path: Path
    name: str
    version: str
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """A package that is not carried although something asks for it; ``pattern`` is a
    shell pattern of normalised names.
    """

    pattern: str
    reason: str


@dataclass
class Closure:
    """``carried`` by normalised name; ``kept`` are host packages that satisfied a
    requirement by name; the rest says what was not done.
    """

    carried: dict[str, Wheel] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)


Fetch = Callable[[tuple[Requirement, ...]], tuple[Wheel, ...]]
"""Downloads one wheel for each requirement, without dependencies, in any order."""


def missing_packages(
    roots: Iterable[str], host: HostInventory, fetch: Fetch, leave_out: tuple[LeaveOut, ...] = ()
) -> Closure:
    """Everything that ``roots`` need and ``host`` lacks. The roots themselves are
    always carried, even when the host has them.
    """
    closure = Closure()
    wanted: dict[str, Requirement] = {
        canonicalize_name(root.name): root for root in map(Requirement, roots)
    }
    extras_done: dict[str, set[str]] = {}
    while wanted:
        fetched = {wheel.name: wheel for wheel in fetch(tuple(wanted.values()))}
        closure.carried.update(fetched)
        pending = list(wanted.items())
        wanted = {}
        for name, requirement in pending:
            for needed in _requirements(
                closure.carried[name], requirement.extras, host, extras_done
            ):
                _consider(
                    needed, closure, wanted, host, leave_out, asked_by=name, extras_done=extras_done
                )
    return closure


def _requirements(
    wheel: Wheel, extras: set[str], host: HostInventory, done: dict[str, set[str]]
) -> list[Requirement]:
    """The wheel's requirements on the host, for extras not followed before."""
    seen = done.get(wheel.name)
    fresh = set(extras) - (seen or set())
    done[wheel.name] = (seen or set()) | set(extras)
    variants = [*sorted(fresh), *([""] if seen is None else [])]
    found = []
    for text in wheel.requires:
        requirement = Requirement(text)
        if requirement.marker is None:
            if seen is None:
                found.append(requirement)
        elif any(
            requirement.marker.evaluate({**host.markers, "extra": extra}) for extra in variants
        ):
            found.append(requirement)
    return found


def _consider(
    needed: Requirement,
    closure: Closure,
    wanted: dict[str, Requirement],
    host: HostInventory,
    leave_out: tuple[LeaveOut, ...],
    *,
    asked_by: str,
    extras_done: dict[str, set[str]],
) -> None:
    name = canonicalize_name(needed.name)
    if name in closure.carried:
        _report_conflict(closure, needed, closure.carried[name].version, asked_by, "carried")
        if needed.extras - extras_done.get(name, set()):
            for more in _requirements(closure.carried[name], needed.extras, host, extras_done):
                _consider(
                    more, closure, wanted, host, leave_out, asked_by=name, extras_done=extras_done
                )
    elif name in host.installed:
        closure.kept[name] = host.installed[name]
        _report_conflict(closure, needed, host.installed[name], asked_by, "installed on the host")
    elif (reason := _left_out(name, leave_out)) is not None:
        closure.left_out[name] = reason
    elif name in wanted:
        wanted[name].specifier &= needed.specifier
        wanted[name].extras |= needed.extras
    else:
        wanted[name] = needed


def _report_conflict(
    closure: Closure, needed: Requirement, version: str, asked_by: str, where: str
) -> None:
    if not needed.specifier.contains(version, prereleases=True):
        closure.conflicts.append(
            f"{asked_by} requires {needed.name}{needed.specifier}, {version} is {where}"
        )


def _left_out(name: str, leave_out: tuple[LeaveOut, ...]) -> str | None:
    return next((entry.reason for entry in leave_out if fnmatch(name, entry.pattern)), None)
