from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from k3perf.baselines.accept import strictest_policy
from k3perf.baselines.testable import testable
from k3perf.cli import baseline_command as command
from k3perf.config.suite import load_suite
from k3perf.errors import ExitStatus, K3PerfError, UnknownNameError, UsageError
from k3perf.gate.compare import compare
from k3perf.records.measurement import (
    CellMeasurement,
    MeasurementFile,
    MetricValue,
    RoundMetrics,
    SessionMetrics,
)
from k3perf.records.samples import Arm
from k3perf.store.baselines import read_baseline, read_target_baselines
from k3perf.store.measurements import write_measurement_file

SUITE = Path(__file__).resolve().parents[3] / "perf_tests"
LEVELS = (0.002, -0.0015, 0.0005, -0.0025, 0.0015, 0.0)
Run = Callable[..., int]


def cell(config: str, level: float, count: int = 6, spread: float = 1.0) -> CellMeasurement:
    target = load_suite(SUITE).targets["cpu-gqa"]
    sessions = []
    for number in range(count):
        for arm, base in (
            (Arm.CANDIDATE, level * (1 + spread * LEVELS[number % 6])),
            (Arm.REFERENCE, 100.0),
        ):
            rounds = tuple(
                RoundMetrics(
                    index,
                    index,
                    {
                        "output_tokens_per_s": MetricValue(
                            base * (1 + 0.001 * ((index * 7 + (arm is Arm.CANDIDATE)) % 5)), 8
                        ),
                        "ttft_mean_ms": MetricValue(
                            20
                            + 0.01 * ((index * 3 + (arm is Arm.CANDIDATE)) % 7)
                            + 0.01 * number * (arm is Arm.CANDIDATE),
                            8,
                        ),
                    },
                )
                for index in range(10)
            )
            sessions.append(
                SessionMetrics(f"{arm}{number}", arm, f"p{number}", rounds, {}, {"block_size": 16})
            )
    return CellMeasurement(
        "cpu-gqa",
        config,
        "chat",
        "reference",
        target.hardware.hardware_class,
        "plan",
        tuple(sessions),
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    folders = ["--baselines", str(tmp_path / "baselines")]

    def call(action: str, *words: str) -> int:
        waiting = [] if action == "show" else ["--proposals", str(tmp_path / "waiting")]
        suite = [] if "--suite" in words else ["--suite", str(SUITE)]
        arguments = parser.parse_args(["baseline", action, *words, *suite, *folders, *waiting])
        return int(arguments.run(arguments))

    return call


def record(
    folder: Path, *cells: CellMeasurement, commit: str = "c0ffee", injected: str = ""
) -> str:
    write_measurement_file(
        folder / "measurements.json",
        MeasurementFile(
            injected=injected,
            run_id=folder.name,
            commit=commit,
            created_at_utc="2026-01-01T00:00:00Z",
            identity={"vllm": "0.32.0"},
            cells=cells,
        ),
    )
    return str(folder)


def test_only_accept_writes_a_baseline(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    result = record(tmp_path / "r1", cell("default", 100.0), cell("seqs_down", 98.0))
    assert run("propose", result) == 0
    said = capsys.readouterr().out
    assert "output_tokens_per_s" in said
    assert "cannot be accepted" not in said
    assert not (tmp_path / "baselines").exists()
    assert (
        run("accept", "cpu-gqa/default", "--reason", "first numbers of this target", "--by", "ann")
        == 0
    )
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "default")
    assert written is not None
    assert (
        written.acceptance.accepted_by,
        written.acceptance.commit,
        written.acceptance.run_ids,
    ) == ("ann", "c0ffee", ("r1",))
    assert written.anchor_acceptance == written.acceptance
    assert read_baseline(tmp_path / "baselines", "cpu-gqa", "seqs_down") is None
    assert run("accept", "--reason", "the other one too") == 0
    assert read_baseline(tmp_path / "baselines", "cpu-gqa", "seqs_down") is not None
    capsys.readouterr()
    assert run("show", "cpu-gqa/default") == 0
    shown = capsys.readouterr().out
    assert "accepted by ann" in shown
    assert shown.splitlines()[1].split() == [
        "workload",
        "metric",
        "value",
        "anchor",
        "unit",
        "value,",
        "of",
        "sessions",
    ]
    assert [line.split()[-4:] for line in shown.splitlines() if "output_tokens" in line] == [
        ["ratio", "mean", "of", "6"]
    ]


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        # the fuller of the two memories is another session than the one with the fewer
        # tokens
        (
            {0: (7.0, 90.0), 1: (9.0, 90.0)},
            {
                "weights_bytes": ("9", "worst of 6, candidate1; of 1 rank"),
                "kv_capacity_tokens": ("90", "equal in 6"),
            },
        ),
        (
            {2: (9.0, 90.0), 4: (7.0, 80.0)},
            {
                "weights_bytes": ("9", "worst of 6, candidate2; of 1 rank"),
                "kv_capacity_tokens": ("80", "worst of 6, candidate4"),
            },
        ),
    ],
)
def test_worst_values_of_different_sessions_are_told_apart(
    tmp_path: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
    kept: dict[int, tuple[float, float]],
    told: dict[str, tuple[str, str]],
) -> None:
    measured = cell("default", 100.0)
    sessions = []
    for session in measured.sessions:
        weights, tokens = kept.get(int(session.session_id[-1]), (7.0, 90.0))
        values = {
            "weights_bytes": MetricValue(weights, 1),
            "kv_capacity_tokens": MetricValue(tokens, 1),
        }
        sessions.append(replace(session, values=values))
    assert run("propose", record(tmp_path / "r1", replace(measured, sessions=tuple(sessions)))) == 0
    proposed = capsys.readouterr().out
    assert run("accept", "--reason", "first numbers of this target") == 0
    capsys.readouterr()
    assert run("show") == 0
    for table, value_column in ((proposed, 3), (capsys.readouterr().out, 2)):
        for name, (value, whose) in told.items():
            (line,) = [line for line in table.splitlines() if name in line.split()]
            assert line.split()[value_column] == value
            assert line.endswith(f" {whose}"), line


def test_an_untestable_tolerance_is_refused_and_nothing_is_written(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    result = record(tmp_path / "r1", cell("default", 100.0), cell("seqs_down", 98.0, spread=60.0))
    assert run("propose", result) == ExitStatus.USAGE
    said = capsys.readouterr().out
    assert "cannot be accepted" in said
    assert "pytest perf_tests -k 'seqs_down' --k3-target cpu-gqa --k3-record" in said
    assert f"k3perf baseline propose {result} --only-testable" in said
    assert "--new-anchor" not in said
    assert "k3perf baseline accept" not in said
    with pytest.raises(
        UsageError, match=r"nothing was written(.|\n)*seqs_down(.|\n)*To make it testable"
    ):
        run("accept", "--reason", "first numbers of this target")
    assert not (tmp_path / "baselines").exists()


def test_what_the_noise_cannot_test_is_omitted_on_request(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = cell("seqs_down", 98.0, spread=60.0)
    result = record(tmp_path / "r1", cell("default", 100.0), loud)
    assert run("propose", result, "--only-testable") == ExitStatus.OK
    said = capsys.readouterr().out
    assert "not gated: output_tokens_per_s of chat: omitted from the gate" in said
    assert run("accept", "--reason", "lock and memory, and what is quiet enough") == 0
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "seqs_down")
    assert written is not None
    workload = written.workload("chat")
    assert workload is not None
    assert list(workload.not_gated) == ["output_tokens_per_s"]
    policy = strictest_policy(
        load_suite(SUITE), "cpu-gqa", read_target_baselines(tmp_path / "baselines", "cpu-gqa")
    )
    verdict = compare(written, cell("seqs_down", 10.0, spread=60.0), policy)
    assert "output_tokens_per_s" not in [metric.metric for metric in verdict.metrics]
    assert any("output_tokens_per_s: not judged, omitted" in note for note in verdict.notes)
    other = written.model_copy(
        update={"workloads": (workload.model_copy(update={"not_gated": {}}),)}
    )
    judged = compare(other, cell("seqs_down", 10.0, spread=60.0), policy)
    assert "output_tokens_per_s" in [metric.metric for metric in judged.metrics]


def test_a_config_without_a_testable_timing_is_lock_and_memory_only(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    loud = cell("seqs_down", 98.0, spread=60.0)
    workload = "output_tokens_per_s"
    rounds_without = [
        replace(
            session,
            rounds=tuple(
                replace(one, values={workload: one.values[workload]}) for one in session.rounds
            ),
        )
        for session in loud.sessions
    ]
    result = record(tmp_path / "r1", replace(loud, sessions=tuple(rounds_without)))
    assert run("propose", result, "--only-testable") == ExitStatus.OK
    assert "lock and memory only: no timing can be tested" in capsys.readouterr().out


def test_a_loud_config_is_accepted_by_its_own_tolerance_and_its_siblings_keep_theirs(
    tmp_path: Path, suite_copy: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = record(tmp_path / "r1", cell("default", 100.0), cell("seqs_down", 98.0, spread=20.0))
    suite = ("--suite", str(suite_copy))
    run("propose", recorded, *suite)
    with pytest.raises(
        UsageError,
        match=r"seqs_down: output_tokens_per_s of chat: .* which does not test a tolerance of 10.0%",
    ):
        run("accept", "--reason", "first numbers of this target", *suite)
    declare(suite_copy, {"output_tokens_per_s": {"loss_ratio": 0.15}})
    run("propose", recorded, *suite)
    with pytest.raises(UsageError, match=r"which does not test a tolerance of 15.0%"):
        run("accept", "--reason", "first numbers of this target", *suite)
    declare(suite_copy, {"output_tokens_per_s": {"loss_ratio": 0.6}})
    capsys.readouterr()
    run("propose", recorded, *suite)
    assert "cannot be accepted" not in capsys.readouterr().out
    assert run("accept", "--reason", "first numbers of this target", *suite) == 0
    declare(suite_copy, {"output_tokens_per_s": None})
    run("propose", recorded, *suite)
    assert (
        run("accept", "cpu-gqa/seqs_down", "--reason", "reported only, too loud to judge", *suite)
        == 0
    )
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "seqs_down")
    assert written is not None
    assert [entry.metric for entry in written.workloads[0].metrics] == ["ttft_mean_ms"]


def declare(suite: Path, own: dict[str, object]) -> None:
    """What seqs_down of cpu-gqa has of its own."""
    path = suite / "tolerances.yaml"
    path.write_text(
        yaml.safe_dump(
            {**yaml.safe_load(path.read_text()), "configs": {"cpu-gqa": {"seqs_down": own}}}
        )
    )


def test_a_slide_beyond_the_cap_needs_a_reasoned_anchor(tmp_path: Path, run: Run) -> None:
    run("propose", record(tmp_path / "r1", cell("default", 100.0)))
    run("accept", "--reason", "first numbers of this target")
    worse = record(tmp_path / "r2", cell("default", 85.0))
    run("propose", worse)
    with pytest.raises(UsageError, match="since its anchor"):
        run("accept", "--reason", "it just got slower")
    run("propose", worse, "--new-anchor")
    assert run("accept", "--reason", "a fix for correctness costs 15 %, agreed") == 0
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "default")
    assert written is not None
    assert written.anchor_acceptance.reason.startswith("a fix for correctness")


def test_sessions_of_another_processor_take_no_baselines_place_unasked(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run(
        "propose",
        record(tmp_path / "r1", replace(cell("default", 100.0), hardware_class="cpu-avx512")),
    )
    run("accept", "--reason", "first numbers of this target")
    night = record(tmp_path / "r2", cell("default", 100.0))
    run("propose", night)
    told = "the committed baseline is of hardware class cpu-avx512, this one of cpu-avx2"
    assert (
        f"cannot be accepted: {told}; it needs --new-anchor with a reason"
        in capsys.readouterr().out
    )
    with pytest.raises(UsageError, match=f"{told}; propose it with --new-anchor"):
        run("accept", "--reason", "the night's sessions")
    run("propose", night, "--new-anchor")
    assert run("accept", "--reason", "the runners changed") == 0
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "default")
    assert written is not None
    assert written.hardware_class == "cpu-avx2"


def test_an_anchor_keeps_its_own_acceptance(tmp_path: Path, run: Run) -> None:
    run("propose", record(tmp_path / "r1", cell("default", 100.0)))
    run("accept", "--reason", "first numbers of this target")
    run("propose", record(tmp_path / "r2", cell("default", 97.0)))
    run("accept", "--reason", "slightly slower, known")
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "default")
    assert written is not None
    assert (written.acceptance.run_ids, written.anchor_acceptance.run_ids) == (("r2",), ("r1",))


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (("accept", "--reason", "first numbers of this target"), UsageError, "no proposal in"),
        (("accept", "--reason", "short"), UsageError, "too short"),
        (
            ("accept", "cpu-gqa/none", "--reason", "first numbers"),
            UnknownNameError,
            "Run k3perf baseline propose",
        ),
        (("show", "cpu-gqa/none"), UnknownNameError, "Record it"),
    ],
)
def test_misuse_is_told_with_its_next_step(
    tmp_path: Path, run: Run, words: tuple[str, ...], error: type[K3PerfError], said: str
) -> None:
    (tmp_path / "baselines").mkdir()
    with pytest.raises(error, match=said):
        run(*words)


def test_what_cannot_be_proposed(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="no measured cell"):
        run("propose", record(tmp_path / "r0"))
    one, other = (
        record(tmp_path / "r1", cell("default", 100.0)),
        record(tmp_path / "r2", cell("default", 100.0), commit="beef"),
    )
    with pytest.raises(UsageError, match="different commits"):
        run("propose", one, other)
    with pytest.raises(UsageError, match="hold the same run r1"):
        run("propose", one, one)
    with pytest.raises(UsageError, match=r"an injected fault \(hold_device_bytes=1.0\)"):
        run(
            "propose",
            record(tmp_path / "r4", cell("default", 100.0), injected="hold_device_bytes=1.0"),
        )
    with pytest.raises(UnknownNameError, match="unknown config"):
        run(
            "propose", record(tmp_path / "r3", replace(cell("default", 100.0), config="unheard_of"))
        )
    (tmp_path / "baselines").mkdir()
    assert run("show") == 0
    assert "no baseline is committed" in capsys.readouterr().out


def test_runs_of_one_commit_are_taken_together_however_each_names_it(
    tmp_path: Path, run: Run
) -> None:
    full = "9bf9beb" + "1" * 33
    one = record(tmp_path / "r1", cell("default", 100.0, count=3), commit=full[:7])
    second = cell("default", 100.0, count=3)
    second = replace(
        second,
        sessions=tuple(
            replace(session, session_id=f"b{session.session_id}") for session in second.sessions
        ),
    )
    assert run("propose", one, record(tmp_path / "r2", second, commit=full)) == 0
    assert run("accept", "--reason", "two runs of one commit") == 0
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "default")
    assert written is not None
    assert written.acceptance.commit == full


def test_runs_of_several_commits_are_taken_together_on_request(tmp_path: Path, run: Run) -> None:
    one = record(tmp_path / "r1", cell("default", 100.0, count=3), commit="c0ffee")
    second = cell("default", 100.0, count=3)
    second = replace(
        second,
        sessions=tuple(
            replace(session, session_id=f"r2-{session.session_id}") for session in second.sessions
        ),
    )
    other = record(tmp_path / "r2", second, cell("seqs_down", 98.0), commit="beef")
    assert run("propose", "--across-commits", "--only", "cpu-gqa/default", one, other) == 0
    assert run("accept", "--reason", "recorded over two days", "--by", "tester") == 0
    written = read_baseline(tmp_path / "baselines", "cpu-gqa", "default")
    assert written is not None
    assert (written.acceptance.commit, written.acceptance.run_ids) == ("c0ffee, beef", ("r1", "r2"))
    assert read_baseline(tmp_path / "baselines", "cpu-gqa", "seqs_down") is None


def test_a_config_that_is_not_ready_can_be_left_for_later(tmp_path: Path, run: Run) -> None:
    recorded = record(tmp_path / "r1", cell("default", 100.0), cell("seqs_down", 98.0, count=1))
    with pytest.raises(UsageError, match="seqs_down"):
        run("propose", recorded)
    assert run("propose", "--only", "cpu-gqa/default", recorded) == 0
    with pytest.raises(
        UnknownNameError, match=r"gone.*Use one of: cpu-gqa/default, cpu-gqa/seqs_down"
    ):
        run("propose", "--only", "cpu-gqa/gone", recorded)


def test_every_committed_baseline_would_be_accepted_under_todays_plans_and_tolerances() -> None:
    suite, root = load_suite(SUITE), SUITE.parent / "baselines"
    problems = []
    for target in suite.targets:
        committed = read_target_baselines(root, target)
        policy = strictest_policy(suite, target, committed)
        problems += [
            f"{target}/{baseline.config}: {problem.text()}"
            for baseline in committed
            for problem in testable(baseline, policy)
        ]
    assert problems == []


def test_a_proposal_that_was_edited_or_moved_is_not_accepted(tmp_path: Path, run: Run) -> None:
    run("propose", record(tmp_path / "r1", cell("default", 100.0)))
    path = tmp_path / "waiting" / "cpu-gqa" / "default.json"
    text = path.read_text()
    proposal = json.loads(text)
    proposal["baseline"]["workloads"][0]["metrics"][0]["sessions"][0]["value"] *= 0.5
    path.write_text(json.dumps(proposal))
    with pytest.raises(UsageError, match=r"default.json at 'baseline.digest': was edited by hand"):
        run("accept", "--reason", "first numbers of this target")
    path.write_text(text)
    path.rename(path.with_name("seqs_down.json"))
    with pytest.raises(UsageError, match=r"seqs_down.json: holds a proposal for cpu-gqa/default"):
        run("accept", "--reason", "first numbers of this target")
    assert not (tmp_path / "baselines").exists()


def test_accept_says_the_gain_and_whether_its_loss_would_be_noticed(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """seqs_down extends default. Its tolerance of 10 % needs a loss of about 12 %."""
    result = record(tmp_path / "r1", cell("default", 100.0), cell("seqs_down", 140.0))
    assert run("propose", result) == 0
    capsys.readouterr()
    assert run("accept", "--reason", "first numbers of this target") == 0
    said = capsys.readouterr().out
    gain = re.search(
        r"output_tokens_per_s of chat: \+40\.0% \(\+39\.\d% to \+40\.\d%\); the gate would notice",
        said,
    )
    assert gain, said
    assert "ttft_mean_ms of chat: -0.0%" in said or "ttft_mean_ms of chat: +0.0%" in said
    assert "cannot tell" not in said


@pytest.mark.parametrize(
    ("level", "text"),
    [
        (104.0, "the gate would NOT notice the loss of it"),
        (100.0, "chat cannot tell seqs_down from default"),
        (96.0, ", worse"),
    ],
)
def test_a_gain_too_small_for_the_gate_is_said_to_be_so(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str], level: float, text: str
) -> None:
    result = record(tmp_path / "r1", cell("default", 100.0), cell("seqs_down", level))
    assert run("propose", result) == 0
    assert "gain over" not in capsys.readouterr().out
    assert run("accept", "--reason", "first numbers of this target") == 0
    assert text in capsys.readouterr().out


def test_a_parent_without_a_baseline_is_no_gain_of_zero(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("propose", record(tmp_path / "r1", cell("seqs_down", 140.0))) == 0
    assert run("accept", "--reason", "first numbers of this target") == 0
    assert "gain over default: not known, default has no baseline" in capsys.readouterr().out
