"""Nights on main at the suite's real size: 120 cells, recorded noise, the real gate and
the real commands. Only engines and clocks are simulated (``night_site``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from k3perf.cli.main import main
from k3perf.errors import ExitStatus
from k3perf.records.baseline import Baseline
from k3perf.records.plan_file import PlanDocument
from k3perf.store.baselines import read_baseline, write_baseline
from k3perf.store.nights import night_files, read_nights

from .night_site import UNTAUGHT, NightSite, commit_of

DAYS = ("2026-12-01", "2026-12-02", "2026-12-03", "2026-12-04")
MINUTES = "55"
PLANTED = "beta-tuned_7-chat"


@dataclass
class Night:
    day: str
    plan: PlanDocument
    simulated_s: float
    keep_status: int
    issue: str
    body: str
    output: str
    before: dict[str, int]
    after: dict[str, int]

    @property
    def priced_s(self) -> float:
        return 60 * sum(shard.minutes for shard in self.plan.shards)

    @property
    def cells(self) -> set[str]:
        return {entry.cell for entry in self.plan.cells}


def counts(site: NightSite) -> dict[str, int]:
    """Sessions of the first gated metric, by target and config."""
    found = {}
    for path in sorted(site.baselines.glob("*/*.json")):
        data = json.loads(path.read_bytes())
        entries = [entry for part in data["workloads"] for entry in part["metrics"]]
        found[f"{path.parent.name}/{path.stem}"] = sum(
            len(entry["sessions"]) for entry in entries if entry["metric"] == "tpot_mean_ms"
        )
    return found


def one_night(site: NightSite, day: str, capsys: pytest.CaptureFixture[str]) -> Night:
    work = site.root / day
    work.mkdir()
    plan_file, issue, body = work / "plan.json", work / "issue.md", work / "refresh.md"
    nights = ["--nights", str(site.nights)]
    assert main(["night", "plan", *nights, "--shards", "2", "--shard-minutes", MINUTES,
                 "--hardware-classes", "h200", "--output", str(plan_file)]) == 0  # fmt: skip
    plan = PlanDocument.model_validate_json(plan_file.read_text())
    simulated_s = site.measure(plan, day, work / "artifacts")
    verdict = str(work / "verdict.json")
    main(["merge", "--plan", str(plan_file), "--output", verdict, str(work / "artifacts")])
    status = main(["night", "keep", *nights, str(work / "artifacts"), "--plan", str(plan_file),
                   "--verdict", verdict])  # fmt: skip
    assert main(["night", "issue", *nights, "--output", str(issue)]) == 0
    before = counts(site)
    assert main(["night", "refresh", *nights, "--body", str(body)]) == 0
    return Night(day, plan, simulated_s, status, issue.read_text() if issue.exists() else "",
                 body.read_text(), capsys.readouterr().out, before, counts(site))  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NightSite]:
    site = NightSite(tmp_path_factory.mktemp("nights"))
    with contextlib.chdir(site.root):
        yield site


@pytest.fixture(scope="module")
def nights(site: NightSite) -> dict[str, Night]:
    return {}


def tpot(baseline: Baseline | None, workload: str) -> list[float]:
    assert baseline is not None
    part = baseline.workload(workload)
    assert part is not None
    entry = next(entry for entry in part.metrics if entry.metric == "tpot_mean_ms")
    return [session.value for session in entry.sessions]


def test_four_nights(
    site: NightSite,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_RUN_ID", raising=False)
    assert len(site.suite.cells()) == 120
    first = one_night(site, DAYS[0], capsys)
    grows(site, first)
    second = one_night(site, DAYS[1], capsys)
    comes_round(site, first, second)
    target, config, workload = PLANTED.rsplit("-", 2)
    kept = read_baseline(site.baselines, target, config)
    site.losses[PLANTED] = 0.09
    site.dead_shards = {"h200-1"}
    nights = [one_night(site, day, capsys) for day in DAYS[2:]]
    planted_is_red(site, nights, kept)
    one_dead_shard_blocks_nothing(site, nights)
    price_holds([second, *nights])
    bodies_fit([first, second, *nights])
    site.losses.clear()
    site.dead_shards = set()
    mended = one_night(site, "2026-12-05", capsys)
    assert PLANTED in mended.cells, "a red cell comes first"
    assert mended.issue == "", "the issue is closed when the cell is green again"
    assert len(tpot(read_baseline(site.baselines, target, config), workload)) > 9


def grows(site: NightSite, night: Night) -> None:
    """Sessions are added to those of three hosts, cell by cell."""
    assert night.keep_status == 0
    assert 60 < len(night.cells) < 120
    assert night.issue == ""
    grown = [name for name in night.before if night.after[name] > night.before[name]]
    assert len(grown) > 25
    for name in night.before:
        assert night.after[name] >= night.before[name] >= 18
    baseline = read_baseline(site.baselines, *grown[0].split("/"))
    assert baseline is not None
    assert baseline.acceptance.accepted_by == "nightly refresh"
    days = {one.day for part in baseline.workloads for e in part.metrics for one in e.sessions}
    assert len(days) == 4, "batches are kept apart"
    assert all(f"{name}/{UNTAUGHT}" not in night.after for name in site.suite.targets)
    assert "2 of 4 sessions recorded" in night.output


def comes_round(site: NightSite, first: Night, second: Night) -> None:
    """What had no room comes next; in two nights every cell had its turn."""
    assert first.cells | second.cells == {cell.cell_id for cell in site.suite.cells()}
    assert {f"{n}/{UNTAUGHT}" for n in site.suite.targets} & second.after.keys(), (
        "two nights of two sessions make a first baseline"
    )


def planted_is_red(site: NightSite, nights: list[Night], kept: Baseline | None) -> None:
    target, config, workload = PLANTED.rsplit("-", 2)
    now = read_baseline(site.baselines, target, config)
    assert tpot(now, workload) == tpot(kept, workload), "no session of the loss is in a baseline"
    last = nights[-1]
    assert "<!-- k3perf-main -->" in last.issue
    assert f"`{target}` `{config}` `{workload}`" in last.issue
    assert "REGRESSED" in last.issue
    assert commit_of(DAYS[1])[:12] in last.issue or commit_of(DAYS[0])[:12] in last.issue
    assert f"`{target}/{config}`" in last.body
    verdict = json.loads((site.root / last.day / "verdict.json").read_text())
    red = [c for c in verdict["cells"] if c["outcome"] == "REGRESSED"]
    assert [(c["target"], c["config"], c["workload"]) for c in red] == [(target, config, workload)]


def one_dead_shard_blocks_nothing(site: NightSite, nights: list[Night]) -> None:
    for night in nights:
        assert night.keep_status == ExitStatus.INVALID, "lost cells are not silent"
        grown = [name for name in night.before if night.after[name] > night.before[name]]
        assert len(grown) > 10
    assert len(night_files(site.nights)) == len(DAYS)


def price_holds(nights: list[Night]) -> None:
    """From the second night on: the first one has the recorded costs alone."""
    for night in nights:
        shards = {shard.shard: shard for shard in night.plan.shards}
        times = Path(night.day, "artifacts").glob("*/wall_seconds.json")
        told = [json.loads(path.read_text()) for path in times]
        priced_s = 60 * sum(shards[one["shard"]].minutes for one in told)
        assert night.simulated_s == pytest.approx(priced_s, rel=0.10), night.day
        assert all(one["seconds"] <= 60 * float(MINUTES) * 1.1 for one in told)


def bodies_fit(nights: list[Night]) -> None:
    for night in nights:
        assert len(night.body) <= 60_000
        assert "sessions" in night.body


def test_the_nights_are_small_and_each_is_one_file(site: NightSite) -> None:
    files = night_files(site.nights)
    assert len({path.name for path in files}) == len(files) > 3
    assert max(path.stat().st_size for path in files) < 200_000
    assert len(read_nights(site.nights, last_count=2)) == 2


def test_a_damaged_night_is_named(site: NightSite, capsys: pytest.CaptureFixture[str]) -> None:
    path = night_files(site.nights)[0]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    status = main(["night", "issue", "--nights", str(site.nights)])
    path.write_bytes(whole)
    assert status == ExitStatus.USAGE
    assert path.name in capsys.readouterr().err


def test_the_window_drops_whole_batches_only_when_full(site: NightSite) -> None:
    name = next(iter(site.suite.targets))
    before = read_baseline(site.baselines, name, "tuned_3")
    assert before is not None
    status = main(["night", "refresh", "--nights", str(site.nights),
                   "--window-sessions", "4", "--window-batches", "2"])  # fmt: skip
    after = read_baseline(site.baselines, name, "tuned_3")
    write_baseline(site.baselines, before)
    assert status == 0
    assert after is not None
    assert all(len(tpot(after, part.workload)) >= 4 for part in after.workloads)
