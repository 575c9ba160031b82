"""Whole runs of ``k3perf tune``, ``tune accept`` and ``sweep`` on the stand-in engine, whose
pace follows its arguments.
"""

import contextlib
import gc
import io
import json
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from tests.plugin.sites import TARGET, TOLERANCES, Site
from tests.plugin.stand_in import own_clock

from k3perf.cli.main import build_parser, main
from k3perf.cli.tuning_options import tuning_settings
from k3perf.config.suite import load_suite
from k3perf.engine import process_tree, supervisor
from k3perf.engine.lock import device_lock
from k3perf.errors import ExitStatus
from k3perf.run import live
from k3perf.run.progress import Progress
from k3perf.run.tuning_sessions import TuningJudge, TuningSessions
from k3perf.store.tuning_journal import read_readings, read_result

SEQS = {
    "section": "scheduler_config",
    "default": 16,
    "pace": {"4": 1.6, "16": 1.0, "32": 0.8, "64": 0.8},
    "no_memory": ["64"],
}
BLOCKS = {"section": "cache_config", "default": 16, "forced": 768}
TUNE = [
    "tune",
    "--target",
    "tiny",
    "--workload",
    "quick",
    "--steps",
    "kv,scheduler",
    "--only",
    "max_num_seqs",
    "--only",
    "block_size",
    "--values",
    "max_num_seqs=4,16,32,64",
    "--values",
    "block_size=16,32",
    "--rounds",
    "3",
    "--results",
    "tuned",
]


class Command:
    """Runs commands in this process, on the stand-in's own clock."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        for name, value in site.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(tempfile, "tempdir", str(site.temporary))  # where locks are
        monkeypatch.chdir(site.root)
        for module, name in (
            (live, "run_round"),
            (supervisor, "_POLL_S"),
            (process_tree, "_ORDERLY_POLL_S"),
        ):
            monkeypatch.setattr(module, name, getattr(module, name))
        option = SimpleNamespace(collectonly=False)
        own_clock.pytest_runtestloop(SimpleNamespace(config=SimpleNamespace(option=option)))

    def __call__(self, *words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main(list(words))
            except SystemExit as ended:
                status = int(ended.code or 0)
        return status, out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield monkeypatch
    gc.unfreeze()


@pytest.fixture(scope="module")
def command(tmp_path_factory, repository, forks, patch) -> Command:
    site = Site(tmp_path_factory.mktemp("site"), repository, forks)
    measurement = {**TARGET["measurement"], "mode": "baseline"}
    target = {
        **TARGET,
        "configs": ["default"],
        "measurement": measurement,
        "engine_arguments": {"max_num_seqs": 16},
    }
    suite = site.root / "perf_tests"
    (suite / "targets" / "tiny.yaml").write_text(
        yaml.safe_dump(target, default_flow_style=None, sort_keys=False)
    )
    # the stand-in's capacity is not its arguments': only times are judged here
    defaults = {"output_tokens_per_s": {"loss_ratio": 0.1}, "tpot_mean_ms": {"loss_ratio": 0.1}}
    (suite / "tolerances.yaml").write_text(yaml.safe_dump({**TOLERANCES, "defaults": defaults}))
    site.behave(tuned={"max-num-seqs": SEQS, "block-size": BLOCKS})
    return Command(site, patch)


@pytest.fixture(scope="module")
def tuned(command) -> tuple[Path, str, str]:
    status, out, err = command(*TUNE)
    assert status == ExitStatus.OK, out + err
    assert command.site.engines_left() == []
    return command.site.root / "tuned", out, err


def test_the_true_gain_is_proposed_on_fresh_sessions(tuned):
    directory, out, _ = tuned
    result = read_result(directory)
    assert result.proposal == {"max_num_seqs": 32}
    assert result.gain.low_ratio < 0.25 < result.gain.high_ratio
    assert "proposal: max_num_seqs=32" in out
    assert "confirm max_num_seqs" in {one.trial.stage for one in read_readings(directory)}


def test_what_has_no_memory_is_neither_slow_nor_retried(tuned):
    directory, out, _ = tuned
    found = [one for one in read_readings(directory) if one.trial.change == {"max_num_seqs": 64}]
    assert [one.fate for one in found] == ["no_memory"]
    assert "out of memory" in out


def test_an_engine_that_is_known_costs_its_start_only(tuned):
    directory, out, _ = tuned
    found = [one for one in read_readings(directory) if one.trial.change == {"block_size": 32}]
    assert [(one.fate, one.same_as, one.round_count) for one in found] == [
        ("same_engine", "base", 0)
    ]
    assert "the engine resolves to that of base" in out


def test_effective_values_are_read_back(tuned):
    readings = read_readings(tuned[0])
    slow = next(one for one in readings if one.trial.change == {"max_num_seqs": 4})
    assert slow.effective == {"scheduler_config.max_num_seqs": "16 -> 4"}


def test_the_cost_is_said_first(tuned):
    assert "sessions of about" in tuned[2].splitlines()[0]


def test_the_same_command_again_measures_nothing(command, tuned):
    before = (tuned[0] / "tuning.jsonl").read_bytes()
    status, out, err = command(*TUNE)
    assert status == ExitStatus.OK
    assert out == tuned[1]
    assert (tuned[0] / "tuning.jsonl").read_bytes() == before
    assert "from the journal" in err


def test_a_device_in_use_ends_the_run_and_leaves_it_resumable(command, tuned):
    """Nothing is kept of it: the same command measures when the device is free."""
    words = [word if word != "tuned" else "locked" for word in TUNE]
    with device_lock("cpu"):
        status, _, err = command(*words)
    assert status == ExitStatus.INVALID
    assert "in use by another suite" in err
    assert read_readings(command.site.root / "locked") == ()


def test_other_rounds_are_another_run(command, tuned):
    words = [word if word != "3" else "4" for word in TUNE]
    status, _, err = command(*words)
    assert status == ExitStatus.USAGE
    assert "measured with rounds '3', this run has '4'" in err


def test_the_gate_calls_a_slow_point_regressed(command, tuned):
    """The sessions of a block as pairs, through the gate that judges a pull request."""
    settings = tuning_settings(build_parser().parse_args(TUNE), "tune")
    sessions = TuningSessions(settings, "tiny", "default", "quick", Progress(), rounds=3)
    readings = read_readings(tuned[0])
    judge = TuningJudge(sessions, 3)
    slow = judge(readings, {"max_num_seqs": 4}, {})
    assert set(slow) == {"output_tokens_per_s", "tpot_mean_ms"}
    assert judge(readings, {"max_num_seqs": 32}, {}) == ()
    sessions.close()


def test_accepting_an_unproposed_point_needs_a_reason(command, tuned):
    status, _, err = command("tune", "accept", "tuned", "max_num_seqs=4")
    assert status == ExitStatus.USAGE
    assert "the run does not propose max_num_seqs=4" in err
    status, _, err = command("tune", "accept", "tuned", "max_num_seqs=5")
    assert status == ExitStatus.USAGE
    assert "was not measured" in err


def test_accept_refuses_a_bad_name_and_writes_nothing(command, tuned):
    configs = command.site.root / "perf_tests" / "configs"
    before = sorted(configs.iterdir())
    status, _, err = command("tune", "accept", "tuned", "best", "--name", "No Name")
    assert status == ExitStatus.USAGE
    assert "small letters" in err
    assert sorted(configs.iterdir()) == before


def test_accept_writes_a_config_that_the_suite_measures(command, tuned):
    """Last of the runs on ``tuned``, since it changes the suite."""
    status, out, err = command("tune", "accept", "tuned", "best")
    assert status == ExitStatus.OK, err
    suite = command.site.root / "perf_tests"
    config = yaml.safe_load((suite / "configs" / "max_num_seqs_32.yaml").read_text())
    assert (config["extends"], config["change"]) == ("default", {"max_num_seqs": 32})
    assert "on fresh sessions" in config["why"]
    assert read_result(tuned[0]).run_id in config["provenance"]["source"]
    target = yaml.safe_load((suite / "targets" / "tiny.yaml").read_text())
    assert target["configs"] == ["default", "max_num_seqs_32"]
    assert (tuned[0] / "max_num_seqs_32-measurements.json").is_file()
    assert "tiny/max_num_seqs_32 -> " in out
    cells = [cell.cell_id for cell in load_suite(suite).cells(("tiny",))]
    assert cells == ["tiny-default-quick", "tiny-max_num_seqs_32-quick"]
    again = command("tune", "accept", "tuned", "best")
    assert again[0] == ExitStatus.OK
    assert f"wrote {suite / 'configs'}" not in again[1]


def test_a_sweep_measures_a_grid_and_chooses_nothing(command):
    words = (
        "sweep --target tiny --workload quick --set max_num_seqs=4,16 --blocks 2 --rounds 3"
        " --results swept"
    )
    status, out, err = command(*words.split())
    assert status == ExitStatus.OK, out + err
    assert "a sweep proposes nothing" in out
    result = read_result(command.site.root / "swept")
    (finding,) = result.parameters
    assert [one.outcome for one in finding.values] == ["parent", "worse"]
    assert finding.values[1].effects["output_tokens_per_s"].ratio == pytest.approx(
        1 / 1.6 - 1, abs=0.05
    )


def test_a_ladder_shows_throughput_and_latency(command):
    words = "sweep --target tiny --workload quick --concurrency 1,2,4 --blocks 2 --output l.json"
    status, out, err = command(*words.split())
    assert status == ExitStatus.OK, out + err
    steps = json.loads((command.site.root / "l.json").read_text())["steps"]
    assert [one["concurrency"] for one in steps] == [1, 2, 4, 4, 2, 1]
    assert all(one["ttft_p99_ms"] >= one["ttft_p50_ms"] > 0 for one in steps)
    assert "saturation: " in out
    assert command.site.engines_left() == []


def test_a_base_that_never_starts_is_invalid(command):
    command.site.behave(tuned={"max-num-seqs": {**SEQS, "no_memory": ["16"]}, "block-size": BLOCKS})
    words = [word if word != "tuned" else "never" for word in TUNE]
    status, out, err = command(*words)
    assert status == ExitStatus.INVALID, out + err
    assert "no session of tiny-default-quick is valid" in err
