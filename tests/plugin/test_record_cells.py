"""``scripts/record-cells`` against the stand-in engine: cells in turn, within its
minutes, on two devices side by side; and ``--k3-record-within``.
"""

import json
import runpy
import subprocess
import sys
from types import SimpleNamespace

import pytest
from tests.processes import PATIENCE_S

from k3perf.config.suite import load_suite
from k3perf.errors import ExitStatus
from k3perf.run.recording_time import RecordingTime
from k3perf.store.results import read_results

CELLS = ("tiny-default-quick", "tiny-fp8_kv-quick")


@pytest.fixture
def record_cells(site, repository):
    """`scripts/record-cells ...` for the site's suite."""

    def run(*arguments):
        command = [sys.executable, str(repository / "scripts" / "record-cells"), *arguments]
        command += ["--suite", str(site.root / "perf_tests"), "--harness-python", sys.executable]
        return subprocess.run(
            [*command, "--quiet-wait", "0"],
            cwd=site.root,
            env=site.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run


def order_of(results):
    """Configs in the order in which their sessions were measured, the reference arm's
    left out.
    """
    sessions = [one for one in results.sessions.values() if one.arm == "candidate"]
    return [one.config for one in sorted(sessions, key=lambda one: one.rounds[0].start_ns)]


def test_cells_are_recorded_in_turn_on_two_devices(site, record_cells):
    """Each recording has the devices of its own lock: on one device the second would be
    refused.
    """
    (site.root / "setup.sh").write_text(
        'export TMPDIR="$TMPDIR/$CUDA_VISIBLE_DEVICES"; mkdir -p "$TMPDIR"\n'
    )
    run = record_cells(
        "--minutes", "5", "--sessions", "2", "--results", "out", "--same-cells",
        "--device", "0", "--device", "1", "--setup", str(site.root / "setup.sh"), *CELLS,
    )  # fmt: skip
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    for index in ("0", "1"):
        folder = site.root / "out" / index
        measured = json.loads((folder / "measurements.json").read_text())
        assert {f"tiny-{cell['config']}-quick" for cell in measured["cells"]} == set(CELLS)
        order = order_of(read_results(folder / "results.jsonl"))
        assert order == ["default", "fp8_kv", "default", "fp8_kv"]
        assert f"recording {index} on {index}: pytest exited with 0" in run.stdout
    assert run.stdout.count("  tiny-fp8_kv-quick: 2 valid sessions") == 2
    assert "next: k3perf baseline propose out/0/measurements.json" in run.stdout
    files = [f"out/{index}/measurements.json" for index in ("0", "1")]
    proposed = site.k3perf("baseline", "propose", *files)
    assert "tiny" in proposed.stdout, proposed.stderr
    assert site.engines_left() == []


def test_cells_are_dealt_out_over_devices(repository, tmp_path):
    path = str(repository / "scripts" / "record-cells")
    script = runpy.run_path(path, run_name="record_cells")
    cells = ["a-b-c", "d-e-f", "g-h-i"]
    given = ["--minutes", "5", "--results", str(tmp_path / "out"), *cells]
    devices = ["--device", "0", "--device", "1"]
    dealt = script["lanes_of"](script["arguments_of"]([*devices, *given]))
    assert [lane.cells for lane in dealt] == [["a-b-c", "g-h-i"], ["d-e-f"]]
    same = script["lanes_of"](script["arguments_of"]([*devices, "--same-cells", *given]))
    assert [lane.cells for lane in same] == [cells, cells]
    (alone,) = script["lanes_of"](script["arguments_of"](given))
    assert (alone.devices, alone.cells) == ("", cells)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--minutes", "5", "tiny-nothing-quick"), "no collected cell has this id"),
        (("--minutes", "5", "huge-default-quick"), "its target is not declared. Targets: tiny."),
        (("--minutes", "0", *CELLS), "--minutes 0: give at least 1"),
        (("--minutes", "5", CELLS[0], CELLS[0]), "name each cell once"),
        (("--minutes", "5", "--setup", "none.sh", *CELLS), "--setup none.sh: no such file"),
        (("--minutes", "5", "--device", "0", "--device", "0,1", *CELLS), "cannot share a device"),
        (("--minutes", "5", "--device", "0", "--device", "1", CELLS[0]), "add --same-cells"),
    ],
)
def test_wrong_use_starts_nothing(site, record_cells, arguments, message):
    run = record_cells("--results", "out", *arguments)
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(site.root.glob("out/*/results.jsonl"))


def test_a_setup_file_gives_the_environment(site, record_cells):
    (site.root / "setup.sh").write_text(f"export K3PERF_ENGINE_PYTHON={site.root}/nowhere\n")
    run = record_cells(
        "--results", "out", "--minutes", "2", "--setup", str(site.root / "setup.sh"), *CELLS
    )
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    log = (site.root / "out" / "0" / "log.txt").read_text()
    assert f"the engine Python {site.root}/nowhere does not exist" in log


def test_a_recording_stops_before_its_limit_and_keeps_what_it_has(site):
    """The costs say that a session of fp8_kv takes longer than the limit."""
    costs = {"tiny-default-quick": 0.1, "tiny-fp8_kv-quick": 500.0}
    starts = {"tiny/default": 0.1, "tiny/fp8_kv": 0.1}
    written = {"schema_version": 1, "engine_start_s": starts, "session_s": costs}
    (site.root / "perf_tests" / "costs.json").write_text(json.dumps(written))
    run = site.pytest("--k3-record", "--k3-record-within", "0.1", "--k3-results", "out")
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    assert "no session fitted into 0.1 min (--k3-record-within)" in run.stdout
    assert "no further session fits into 0.1 min (--k3-record-within)" in run.stdout
    cells = json.loads((site.root / "out" / "measurements.json").read_text())["cells"]
    counts = {cell["config"]: len(cell["sessions"]) for cell in cells}
    assert counts["default"] >= 2
    assert counts["fp8_kv"] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--k3-record-within", "5"), "--k3-record-within limits a recording: add --k3-record"),
        (("--k3-record", "--k3-record-within", "0"), "give minutes above 0"),
        (("--k3-record", "--k3-record-within", "x"), "give minutes, 0 or more"),
    ],
)
def test_a_wrong_limit_is_a_usage_error(site, words, message):
    run = site.pytest(*words)
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert message in run.stderr


def test_a_session_fits_if_one_as_long_as_the_last_would_end_in_time(repository):
    suite = load_suite(repository / "perf_tests")
    one, other = suite.cells(("h200-k3-small",))[:2]
    now_s = 0.0
    settings = SimpleNamespace(suite=suite, record_within_minutes=2.0)
    limit = RecordingTime(settings, clock=lambda: now_s)
    assert limit.fits(one), "nothing is known of it: it is tried"
    limit.took(one, 50.0)
    now_s = 60.0
    assert limit.fits(one)
    assert limit.fits(other), "as long as the longest so far"
    now_s = 66.0
    assert not limit.fits(one)
    assert limit.fitting([one, other]) == ()
    free = RecordingTime(SimpleNamespace(suite=suite, record_within_minutes=None))
    free.took(one, 1e9)
    assert free.fits(one)
