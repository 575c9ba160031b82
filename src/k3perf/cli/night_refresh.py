"""``k3perf night refresh``: the kept nights into the baselines, one (target, config) at
a time. One that cannot grow does not hold up the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from k3perf.baselines.accept import (
    accepted,
    changes,
    objections,
    strictest_policy,
    with_proposed,
)
from k3perf.baselines.extend import Extension, Window, extended, first_baseline
from k3perf.ci.night_report import RefreshedBaseline, refresh_text
from k3perf.cli.baseline_lines import target_baselines
from k3perf.cli.output import write_text
from k3perf.cli.shared_options import baselines_of, suite_of
from k3perf.config.suite import Suite
from k3perf.errors import ExitStatus, K3PerfError
from k3perf.gate.policy import Policy
from k3perf.records.baseline import Acceptance, Baseline
from k3perf.records.night import NightFile

BOT = "nightly refresh"
LOOK_BACK_NIGHTS = 60


def run_refresh(arguments: argparse.Namespace) -> int:
    """Write the grown baselines, and the pull request's text. Status 0 also where none
    grows: the text says why.
    """
    from k3perf.store.baselines import write_baseline
    from k3perf.store.nights import read_nights

    suite, root = suite_of(arguments), baselines_of(arguments)
    nights = read_nights(arguments.nights, last_count=LOOK_BACK_NIGHTS)
    window = Window(arguments.window_sessions, arguments.window_batches)
    refreshed: list[RefreshedBaseline] = []
    for target, configs in _measured(suite, nights).items():
        for one, baseline in _refreshed_target(suite, root, nights, target, configs, window):
            refreshed.append(one)
            if baseline is not None:
                write_baseline(root, baseline)
    stated = (
        f"a workload keeps {window.session_count} sessions of {window.batch_count} hosts or days"
        " at least; older batches are removed whole"
    )
    run_id = nights[-1].run_id if nights else "none"
    text = refresh_text(refreshed, run_id=run_id, window=stated)
    if arguments.body:
        write_text(arguments.body, text)
    for one in refreshed:
        what = f"{one.old_count} to {one.new_count} sessions" if one.rows else "stays as it is"
        print(f"{one.name}: {what}{''.join(f'; {note}' for note in one.notes)}")
    grown_count = sum(bool(one.rows) for one in refreshed)
    print(f"{grown_count} of {len(refreshed)} baselines grow")
    return ExitStatus.OK


def _measured(suite: Suite, nights: Sequence[NightFile]) -> dict[str, list[str]]:
    """By target, the configs of the suite that a night measured."""
    known = {(cell.target, cell.config) for night in nights for cell in night.cells}
    found: dict[str, list[str]] = {}
    for key in dict.fromkeys((cell.target.name, cell.config.name) for cell in suite.cells()):
        if key in known:
            found.setdefault(key[0], []).append(key[1])
    return found


def _refreshed_target(
    suite: Suite,
    root: Path,
    nights: Sequence[NightFile],
    target: str,
    configs: Sequence[str],
    window: Window,
) -> list[tuple[RefreshedBaseline, Baseline | None]]:
    """Each config of a target, with its baseline where it grows. The noise of all of
    them together decides at once where nothing stands against any, else each is judged
    alone.
    """
    committed = target_baselines(root, target, ())
    previous = {one.config: one for one in committed}
    policy = strictest_policy(suite, target, committed)
    grown: dict[str, Extension] = {}
    for config in configs:
        try:
            grown[config] = _grown(previous.get(config), nights, (target, config), window, policy)
        except K3PerfError as error:  # one broken config must not hold up the others
            grown[config] = Extension(target, config, None, 0, 0, (str(error),))
    proposed = [one.baseline for one in grown.values() if one.baseline is not None]
    against = _against(suite, target, committed, proposed, previous)
    if any(against.values()):
        against = {
            one.config: _against(suite, target, committed, [one], previous)[one.config]
            for one in proposed
        }
    return [
        _told(one, previous.get(config), against.get(config, ()), policy)
        for config, one in grown.items()
    ]


def _against(
    suite: Suite,
    target: str,
    committed: Sequence[Baseline],
    proposed: Sequence[Baseline],
    previous: Mapping[str, Baseline],
) -> dict[str, tuple[str, ...]]:
    """What stands against each proposal, by the noise with all of them."""
    if not proposed:
        return {}
    strict = strictest_policy(suite, target, with_proposed(committed, proposed, target))
    step = "a person must accept it"
    return {
        one.config: objections(one, previous.get(one.config), strict, new_anchor=False, step=step)
        for one in proposed
    }


def _told(
    found: Extension, previous: Baseline | None, against: tuple[str, ...], policy: Policy
) -> tuple[RefreshedBaseline, Baseline | None]:
    name = f"{found.target}/{found.config}"
    old_count = 0 if previous is None else _count(previous)
    notes = (*found.notes, *against)
    if found.baseline is None or against:
        return RefreshedBaseline(name, (), old_count, old_count, 0, 0, notes), None
    baseline = accepted(
        found.baseline, by=BOT, reason=found.baseline.acceptance.reason, at=datetime.now(UTC)
    )
    rows = changes(baseline, previous, policy.known_tolerances)
    counts = old_count, _count(baseline), found.added_count, found.dropped_count
    return RefreshedBaseline(name, rows, *counts, notes), baseline


def _grown(
    previous: Baseline | None,
    nights: Sequence[NightFile],
    key: tuple[str, str],
    window: Window,
    policy: Policy,
) -> Extension:
    target, config = key
    used = [n for n in nights if any((c.target, c.config) == key for c in n.cells)]
    first, last = used[0], used[-1]
    acceptance = Acceptance(
        accepted_by=BOT,
        reason=f"sessions of judged nights {first.day} to {last.day}, run {last.run_id}",
        accepted_at_utc="(pending)",
        commit=last.commit,
        run_ids=tuple(dict.fromkeys(night.run_id for night in used)),
    )
    if previous is None:
        return first_baseline(nights, target, config, policy, acceptance=acceptance)
    return extended(previous, nights, policy, window=window, acceptance=acceptance)


def _count(baseline: Baseline) -> int:
    """Sessions of all workloads."""
    entries = [*baseline.exact, *(e for part in baseline.workloads for e in part.metrics)]
    return len({one.session_id for entry in entries for one in entry.sessions})
