"""Whole runs of a target of two data-parallel engines: the server answers for the first
alone, and the second's memory is judged all the same.
"""

import json

import pytest
import yaml
from tests.plugin.sites import TARGET, Site
from tests.plugin.test_scaling_runs import TOLERANCES, notes_of

from k3perf.errors import ExitStatus

TWICE = {
    **TARGET,
    "name": "twice",
    "configs": ["default"],
    "measurement": {**TARGET["measurement"], "mode": "baseline"},
    "hardware": {"kind": "cpu", "hardware_class": "any-cpu", "device_count": 2},
    "parallelism": {"data": 2},
}
WEIGHTS_BYTES = 1 << 20


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, repository, forks) -> Site:
    """Recorded with equal ranks, and accepted."""
    site = Site(tmp_path_factory.mktemp("site"), repository, forks)
    folder = site.root / "perf_tests" / "targets"
    (folder / "tiny.yaml").unlink()
    (folder / "twice.yaml").write_text(yaml.safe_dump(TWICE))
    (site.root / "perf_tests" / "tolerances.yaml").write_text(yaml.safe_dump(TOLERANCES))
    site.record()
    return site


def weights_bytes_of(site: Site, folder: str) -> set[float]:
    (cell,) = json.loads((site.root / folder / "measurements.json").read_text())["cells"]
    return {session["values"]["weights_bytes"]["value"] for session in cell["sessions"]}


def test_equal_ranks_pass_and_both_are_told(recorded):
    recorded.behave(call_log=str(recorded.root / "calls"))
    run = recorded.pytest("--k3-results", "equal")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert notes_of(recorded.root / "equal", "twice")[-1].startswith(
        "memory of 2 ranks: equal in weights_bytes, kv_cache_bytes"
    )
    assert "k3perf_memory" in (recorded.root / "calls").read_text()
    assert [path.name for path in recorded.temporary.rglob("answers-*")] == []


def test_more_memory_on_the_second_engine_alone_fails_the_cell(recorded):
    recorded.behave(rank_step_bytes=4096)
    run = recorded.pytest("--k3-results", "worse")
    assert run.returncode == ExitStatus.REGRESSED, run.stdout + run.stderr
    assert "FAILED perf_tests/test_memory.py" in run.stdout
    assert weights_bytes_of(recorded, "worse") == {WEIGHTS_BYTES + 4096}
    assert (
        "worst weights_bytes 1.0 MiB on rank 1 (spread 4.0 KiB, 0.39%)"
        in notes_of(recorded.root / "worse", "twice")[-1]
    )


def test_an_engine_that_cannot_be_read_is_not_compared_with_two(recorded):
    recorded.behave(rank_step_bytes=4096, absent_engines=[1])
    run = recorded.pytest("--k3-results", "alone")
    assert run.returncode == ExitStatus.NO_BASELINE, run.stdout + run.stderr
    assert "the worst of 1 rank was measured, the worst of 2 ranks is in the baseline" in " ".join(
        run.stdout.split()
    )
    told = "memory of 1 of 2 ranks: the other ranks' readings are missing and are not judged"
    assert notes_of(recorded.root / "alone", "twice")[-1] == told
    assert f"  note: {told}" in run.stdout
