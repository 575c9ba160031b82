"""Whole runs of a target of two devices: its efficiency and its ranks are told by the
run, its files and what is made of them.
"""

import json
from pathlib import Path

import pytest
import yaml
from tests.plugin.sites import TARGET, Site

from k3perf.errors import ExitStatus

ONE = {
    **TARGET,
    "name": "one",
    "configs": ["default"],
    "measurement": {**TARGET["measurement"], "mode": "baseline"},
}
TWO = {
    **ONE,
    "name": "two",
    "hardware": {"kind": "cpu", "hardware_class": "any-cpu", "device_count": 2},
    "parallelism": {"tensor": 2},
    "scaling_base": "one",
}
# a busy machine must neither fail a recording's acceptance nor the judging run: what is
# tested is what they tell
TOLERANCES = {
    "schema_version": 1,
    "defaults": {"output_tokens_per_s": {"loss_ratio": 0.9}, "weights_bytes": {"loss_absolute": 0}},
}
BOTH = ("--k3-target", "one", "--k3-target", "two")
RANKS = (
    "memory of 2 ranks: equal in kv_cache_bytes, resident_bytes, peak_resident_bytes; worst"
    " weights_bytes 1.0 MiB on rank 1 (spread 4.0 KiB, 0.39%)"
)


def declare(site: Site) -> Site:
    folder = site.root / "perf_tests" / "targets"
    (folder / "tiny.yaml").unlink()
    for target in (ONE, TWO):
        (folder / f"{target['name']}.yaml").write_text(yaml.safe_dump(target))
    (site.root / "perf_tests" / "tolerances.yaml").write_text(yaml.safe_dump(TOLERANCES))
    site.behave(rank_step_bytes=4096)
    return site


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, repository, forks) -> Site:
    """Both targets recorded in one run and accepted."""
    site = declare(Site(tmp_path_factory.mktemp("site"), repository, forks))
    run = site.pytest(*BOTH, "--k3-record", "--k3-results", "recorded", "-q")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    (site.root / "recorded.txt").write_text(run.stdout)
    proposed = site.k3perf("baseline", "propose", "recorded/measurements.json")
    assert proposed.returncode == ExitStatus.OK, proposed.stdout + proposed.stderr
    (site.root / "proposed.txt").write_text(proposed.stdout)
    accepted = site.k3perf(
        "baseline", "accept", "--by", "tester", "--reason", "first recording of the stand-in"
    )
    assert accepted.returncode == ExitStatus.OK, accepted.stdout + accepted.stderr
    return site


def notes_of(folder: Path, target: str) -> list[str]:
    cells = json.loads((folder / "verdict.json").read_text())["cells"]
    return next(cell["notes"] for cell in cells if cell["target"] == target)


def rates(site: Site, target: str) -> list[float]:
    """Tokens a second of every recorded round."""
    baseline = json.loads((site.root / "baselines" / target / "default.json").read_text())
    (workload,) = baseline["workloads"]
    sessions = [
        session
        for metric in workload["metrics"]
        if metric["metric"] == "output_tokens_per_s"
        for session in metric["sessions"]
    ]
    return [value for session in sessions for value in session["round_values"]]


def test_a_recording_tells_that_the_base_has_nothing_yet(recorded):
    said = (recorded.root / "recorded.txt").read_text()
    missing = (
        "no scaling efficiency against one: baselines/one/default.json does not exist; record it"
        " with `pytest perf_tests -k default --k3-target one"
    )
    assert f"note: {missing}" in said
    assert f"note: {RANKS}" in said
    assert [
        note
        for note in notes_of(recorded.root / "recorded", "one")
        if "scaling" in note or "ranks" in note
    ] == []
    assert f"  quick: {missing}" in (recorded.root / "proposed.txt").read_text()


def test_a_judging_run_tells_the_efficiency_in_its_summary_its_verdict_and_the_comment(recorded):
    run = recorded.pytest("--k3-target", "two", "--k3-results", "judged")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    scaling, ranks = notes_of(recorded.root / "judged", "two")[-2:]
    assert scaling.startswith("scaling efficiency ")
    assert " tokens/s on 2 devices against 2 x " in scaling
    assert scaling.endswith(
        " tokens/s on 1 device of one (baselines/one/default.json: 3 sessions, vLLM 0.32.0,"
        " accepted " + accepted_on(recorded) + ")"
    )
    # the stand-in is as fast on "two devices" as on one
    assert float(scaling.split()[2].rstrip("%:")) == pytest.approx(50, abs=25)
    assert ranks == RANKS
    assert f"  note: {scaling}" in run.stdout
    assert f"  note: {ranks}" in run.stdout
    comment = recorded.k3perf("ci", "comment", "judged/verdict.json")
    assert "scaling efficiency" in comment.stdout
    resumed = recorded.pytest("--k3-target", "two", "--k3-results", "judged", "--k3-resume")
    assert resumed.returncode == ExitStatus.OK, resumed.stdout + resumed.stderr
    assert f"  note: {scaling}" in resumed.stdout
    assert f"  note: {ranks}" in resumed.stdout


def accepted_on(site: Site) -> str:
    return json.loads((site.root / "baselines" / "one" / "default.json").read_text())["acceptance"][
        "accepted_at_utc"
    ][:10]


def test_the_committed_baselines_tell_it_without_a_run(recorded):
    shown = recorded.k3perf("scaling", "--json")
    assert shown.returncode == ExitStatus.OK, shown.stderr
    (reading,) = json.loads(shown.stdout)
    one, two = (rates(recorded, target) for target in ("one", "two"))
    assert min(one) <= reading["base_tokens_per_s"] <= max(one)
    assert min(two) <= reading["tokens_per_s"] <= max(two)
    assert reading["efficiency_ratio"] == pytest.approx(
        reading["tokens_per_s"] / (2 * reading["base_tokens_per_s"])
    )
    table = recorded.k3perf("scaling").stdout
    assert f"{reading['efficiency_ratio']:.1%}" in table


def test_a_damaged_base_is_a_usage_error_before_anything_starts(recorded):
    path = recorded.root / "baselines" / "one" / "default.json"
    whole = path.read_text()
    path.write_text(whole[: len(whole) // 2])
    try:
        run = recorded.pytest("--k3-target", "two", "--k3-results", "damaged")
    finally:
        path.write_text(whole)
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert "baselines/one/default.json at 'line " in run.stdout + run.stderr
    assert "is not valid JSON, or was cut short" in run.stdout + run.stderr
    assert not (recorded.root / "damaged").exists()
