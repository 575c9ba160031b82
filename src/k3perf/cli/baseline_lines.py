"""Lines that ``k3perf baseline`` prints below its tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from k3perf.baselines.accept import strictest_policy, with_proposed
from k3perf.baselines.gain import gain_lines
from k3perf.config.suite import Suite
from k3perf.metrics.environment import environment_text
from k3perf.metrics.recorded_environments import recorded_environments
from k3perf.records.baseline import Baseline
from k3perf.store.baselines import Proposal, read_target_baselines


class Refusal(NamedTuple):
    """A proposal that accept would refuse. ``untestable``: its noise cannot test a
    tolerance. ``otherwise``: it lost too much, or is of another hardware class.
    """

    target: str
    config: str
    untestable: bool
    otherwise: bool


def mending(refused: Sequence[Refusal], results: Sequence[str]) -> str:
    """The commands that mend what was refused."""
    again = f"k3perf baseline propose {shlex.join(results)}"
    noisy = [one for one in refused if one.untestable]
    lines = [f"{len(refused)} of the proposals cannot be accepted as they are."]
    for target in dict.fromkeys(one.target for one in noisy):
        names = " or ".join(one.config for one in noisy if one.target == target)
        lines.append(
            f"To record until the tolerances can be tested: pytest perf_tests -k '{names}'"
            f" --k3-target {target} --k3-record, then propose all the results together."
        )
    if noisy:
        lines.append(f"To gate only what this noise can test: {again} --only-testable")
    if any(one.otherwise for one in refused):
        lines.append(f"To start from these numbers: {again} --new-anchor")
    return "\n".join(lines) + "\n"


def scaling_lines(suite: Suite, root: Path, baseline: Baseline) -> list[str]:
    """What the proposed rates are against the target's scaling base, a line a
    workload.
    """
    from k3perf.run.cell_notes import read_scaling_base

    base = read_scaling_base(suite, suite.target(baseline.target), root)
    if base is None:
        return []
    return [
        f"{entry.workload}: {base.of_baseline(baseline, baseline.config, entry.workload).text}"
        for entry in baseline.workloads
    ]


def environment_lines(baseline: Baseline) -> list[str]:
    """A line for each environment that the baseline's sessions were recorded in."""
    return [
        f"{len(part.session_ids)} sessions recorded with {environment_text(part.values)}"
        for part in recorded_environments(baseline)
    ]


def target_baselines(root: Path, target: str, proposed: Iterable[Baseline]) -> tuple[Baseline, ...]:
    """The target's baselines as they will be with those proposed."""
    return with_proposed(read_target_baselines(root, target), proposed, target)


def accepted_gains(
    suite: Suite, root: Path, proposal: Proposal, proposals: Sequence[Proposal]
) -> tuple[str, ...]:
    """What an accepted config gains over its parent, when all ``proposals`` are
    accepted.
    """
    baseline = proposal.baseline
    together = target_baselines(root, baseline.target, [item.baseline for item in proposals])
    policy = strictest_policy(suite, baseline.target, together)
    return gain_lines(suite, baseline, together, policy)
