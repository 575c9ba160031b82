"""The commands that workflows call, as a user calls them: a real repository with a real
suite of 60 cells.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from k3perf.ci.selection import ChangedPath, select
from k3perf.cli import ci_command as ci
from k3perf.cli import plan_command as plan
from k3perf.errors import ConfigFileError, ExitStatus, UnknownNameError, UsageError
from tests.processes import PATIENCE_S

from .conftest import PROVENANCE
from .test_baseline_changes import baseline, written
from .verdicts import cell, invalid, metric, regressed, verdict
from .verdicts import plan as plan_of

GIT = shutil.which("git") or "git"


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        [GIT, "-C", str(root), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout.strip()


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    subparsers = parser.add_subparsers()
    plan.register(subparsers)
    ci.register(subparsers)
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


def declare(root: Path) -> None:
    """10 configs on 3 targets with 2 workloads."""
    suite = root / "perf_tests"
    why = {"why": "made for a test", "provenance": PROVENANCE}

    def write(folder: str, name: str, data: dict[str, object]) -> None:
        path = suite / folder / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump({"schema_version": 1, "name": name, **data}))

    write("configs", "default", why)
    for index in range(1, 10):
        write(
            "configs",
            f"seqs_{index}",
            {
                "extends": "seqs_3" if index == 9 else "default",
                "change": {"max_num_seqs": index},
                **why,
            },
        )
    for name, kind in (("alpha", "nvidia"), ("beta", "nvidia"), ("gamma", "cpu")):
        (suite / "models" / name).mkdir(parents=True)
        (suite / "models" / name / "config.json").write_text("{}")
        hardware = {"kind": kind, "hardware_class": "h200" if kind == "nvidia" else "cpu-avx512"}
        data = {
            "description": "made for a test",
            "hardware": hardware,
            "model": {"directory": f"models/{name}"},
            "workloads": ["burst", "chat"],
        }
        write(
            "targets", name, {**data, "measurement": {"mode": "baseline"}, "provenance": PROVENANCE}
        )
    for name in ("burst", "chat"):
        tokens = {"kind": "fixed", "tokens": 8}
        data = {
            "description": "made for a test",
            "seed": 1,
            "requests": 2,
            "arrival": {"kind": "all_at_once"},
        }
        write("workloads", name, {**data, "prompt_tokens": tokens, "output_tokens": tokens})
    (suite / "tolerances.yaml").write_text(
        yaml.safe_dump({"schema_version": 1, "defaults": {"tpot_mean_ms": {"loss_ratio": 0.05}}})
    )


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("origin")
    declare(root)
    (root / "baselines" / "alpha").mkdir(parents=True)
    (root / "baselines" / "alpha" / "seqs_1.json").write_bytes(written(baseline(config="seqs_1")))
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "base")
    return root


@pytest.fixture
def checkout(origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "checkout"
    shutil.copytree(origin, root)
    monkeypatch.chdir(root)
    git(root, "checkout", "--quiet", "-b", "topic")
    return root


def touch(root: Path, name: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + "# touched\n")


def planned(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, list[dict[str, object]]]:
    assert run("plan", "--json", *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_one_changed_config_of_60_cells_selects_its_own_its_childrens_and_the_references(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(planned(capsys)["cells"]) == 60
    touch(checkout, "perf_tests/configs/seqs_3.yaml")
    git(checkout, "commit", "--quiet", "--all", "--message", "change")
    found = planned(capsys, "--changed-since", "main")
    assert {entry["config"] for entry in found["cells"]} == {"default", "seqs_3", "seqs_9"}
    assert len(found["cells"]) == 3 * 3 * 2


def test_candidates_are_planned_on_request_alone(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = checkout / "perf_tests" / "targets" / "gamma.yaml"
    declared = yaml.safe_load(path.read_text())
    declared["candidates"] = [{"configs": ["seqs_3"], "reason": "not recorded yet"}]
    path.write_text(yaml.safe_dump(declared))
    found = planned(capsys)
    assert len(found["cells"]) == 58
    (note,) = [str(note) for note in found["notes"] if "--candidates" in str(note)]
    assert note.startswith("not planned without --candidates: gamma-seqs_3-")
    assert note.endswith(" No baseline: not recorded yet")
    assert len(planned(capsys, "--candidates")["cells"]) == 60


def test_selection_of_60_cells_takes_less_than_300_ms(checkout: Path) -> None:
    from k3perf.config.suite import load_suite

    suite = load_suite(checkout / "perf_tests")
    started = time.process_time()  # a busy machine takes longer on the wall
    chosen = select(suite, [ChangedPath("perf_tests/configs/seqs_3.yaml")])
    assert time.process_time() - started < 0.3
    assert len(chosen.cells) == 18


def test_a_plan_loads_nothing_heavy(checkout: Path) -> None:
    """A plan is asked for on every pull request and by hand; most of its time is
    Python's start.
    """
    program = (
        "import sys; from k3perf.cli.main import main; main(['plan', '--changed-since', 'main']);"
        " print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert {"aiohttp", "jinja2", "numpy", "psutil", "pytest", "rich", "scipy"} & set(
        done.stderr.split()
    ) == set()


def test_uncommitted_untracked_deleted_and_renamed_files_count(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(checkout, "perf_tests/configs/seqs_5.yaml")
    assert {entry["config"] for entry in planned(capsys, "--changed-since", "main")["cells"]} == {
        "default",
        "seqs_5",
    }
    git(checkout, "checkout", "--quiet", ".")
    touch(checkout, "src/new module.py")
    assert len(planned(capsys, "--changed-since", "main")["cells"]) == 60
    (checkout / "src" / "new module.py").unlink()
    git(checkout, "mv", "perf_tests/models/beta/config.json", "perf_tests/models/beta/other.json")
    touch(checkout, "perf_tests/models/beta/config.json")
    assert {entry["target"] for entry in planned(capsys, "--changed-since", "main")["cells"]} == {
        "beta"
    }
    git(checkout, "reset", "--quiet", "--hard")
    git(checkout, "rm", "--quiet", "perf_tests/configs/seqs_7.yaml")
    assert planned(capsys, "--changed-since", "main")["notes"] == [
        "perf_tests/configs/seqs_7.yaml was deleted; its cells are no longer measured"
    ]


def test_changes_on_the_base_since_the_branch_left_do_not_count(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(checkout, "checkout", "--quiet", "main")
    touch(checkout, "perf_tests/configs/seqs_8.yaml")
    git(checkout, "commit", "--quiet", "--all", "--message", "meanwhile")
    git(checkout, "checkout", "--quiet", "topic")
    assert planned(capsys, "--changed-since", "main")["cells"] == []


def test_shards_matrix_and_output_files(
    checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, file = tmp_path / "github", tmp_path / "plan.json"
    assert run("plan", "--shards", "3", "--output", str(file), "--github-output", str(output)) == 0
    told = capsys.readouterr().out
    assert "60 cells" in told
    assert "shard h200-0" in told
    values = dict(line.split("=", 1) for line in output.read_text().splitlines())
    assert (values["has_cpu"], values["has_gpu"], values["gated_metric_count"]) == (
        "true",
        "true",
        "60",
    )
    gpu = json.loads(values["gpu_matrix"])["include"]
    assert len(gpu) == 3
    assert json.loads(gpu[0]["runner"]) == ["self-hosted", "gpu", "h200"]
    assert json.loads(json.loads(values["cpu_matrix"])["include"][0]["runner"]) == ["ubuntu-24.04"]
    cells = [
        name
        for part in ("cpu_matrix", "gpu_matrix")
        for job in json.loads(values[part])["include"]
        for name in json.loads(job["cells"])
    ]
    assert sorted(cells) == sorted(entry["cell"] for entry in json.loads(file.read_text())["cells"])
    assert "--k3-target alpha" in " ".join(job["arguments"] for job in gpu)


def test_narrowing_options(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert {entry["target"] for entry in planned(capsys, "--target", "beta")["cells"]} == {"beta"}
    assert {entry["target"] for entry in planned(capsys, "--kind", "cpu")["cells"]} == {"gamma"}
    assert planned(capsys, "--whole-model", "only")["cells"] == []
    assert len(planned(capsys, "--whole-model", "never")["cells"]) == 60
    narrow = planned(capsys, "--hardware-classes", "h200")
    assert {entry["target"] for entry in narrow["cells"]} == {"alpha", "beta"}
    assert narrow["notes"] == [
        "20 touched cells on cpu-avx512 are not measured: no runner of this class"
    ]
    with pytest.raises(UnknownNameError):
        run("plan", "--target", "nobody")


def test_recorded_costs_and_budget(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = {
        "schema_version": 1,
        "engine_start_s": {"gamma/default": 30.0},
        "session_s": {"gamma-default-chat": 30.0, "gamma-default-burst": 30.0},
    }
    (checkout / "perf_tests" / "costs.json").write_text(json.dumps(costs))
    found = planned(capsys, "--target", "gamma", "--budget-minutes", "10")
    assert len(found["cells"]) == 5, (
        "five configs' first workloads, at two minutes each: the second session proves a loss"
    )
    assert found["device_minutes"] == 10.0
    assert len(found["left_out"]) == 15
    costs_of = {entry["cell"]: entry["cost"] for entry in found["cells"]}
    measured = [name for name in costs_of if name.startswith("gamma-default-")]
    assert [costs_of.pop(name) for name in measured] == ["measured"] * len(measured)
    assert set(costs_of.values()) == {"related"}
    by_estimate = {
        entry["cell"]
        for entry in found["left_out"]
        if "minutes by estimate" in str(entry["reason"])
    }
    known = {"gamma-default-chat", "gamma-default-burst"}
    assert by_estimate == {entry["cell"] for entry in found["left_out"]} - known
    assert run("plan", "--target", "gamma", "--budget-minutes", "10") == 0
    told = capsys.readouterr().out
    assert "of the cells were never measured: their minutes are an estimate." in told
    assert "(minutes: estimated from other configs)" in told
    (checkout / "perf_tests" / "costs.json").write_text('{"session_s": {"a": -1}}')
    with pytest.raises(ConfigFileError, match=r"session_s\.a"):
        run("plan")
    with pytest.raises(UsageError, match="file not found"):
        run("plan", "--costs", "none.json")


@pytest.mark.parametrize(
    "given",
    [
        ["--shards", "0"],
        ["--shards", "300"],
        ["--budget-minutes", "-1"],
        ["--budget-minutes", "inf"],
        ["--kind", "tpu"],
    ],
)
def test_impossible_options_are_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        run("plan", *given)


@pytest.mark.parametrize("reference", ["no-such-branch", "--upload-pack=x", ""])
def test_an_unknown_reference_is_a_usage_error(checkout: Path, reference: str) -> None:
    with pytest.raises(UsageError):
        run("plan", f"--changed-since={reference}")


def test_outside_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: Path
) -> None:
    shutil.copytree(origin / "perf_tests", tmp_path / "perf_tests")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="git merge-base main HEAD failed"):
        run("plan", "--changed-since", "main")


def test_a_plan_holds_the_cells_and_metrics_that_the_base_judges(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "perf_tests" / "configs" / "seqs_5.yaml").unlink()
    gated = {"tpot_mean_ms": None, "ttft_mean_ms": {"loss_ratio": 0.5}}
    (checkout / "perf_tests" / "tolerances.yaml").write_text(
        yaml.safe_dump(
            {
                "schema_version": 1,
                "defaults": {"tpot_mean_ms": {"loss_ratio": 0.9}},
                "workloads": {"chat": gated},
            }
        )
    )
    cell = "alpha-seqs_1-chat"
    costs = {"schema_version": 1, "runs": ["r"], "session_s": {cell: 6e6}}
    (checkout / "perf_tests" / "costs.json").write_text(json.dumps(costs))
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "fewer")
    own = planned(capsys, "--changed-since", "main")
    judged = planned(capsys, "--changed-since", "main", "--judge-from", "main")
    assert (len(own["cells"]), len(judged["cells"])) == (54, 60)
    assert (own["gated_metric_count"], judged["gated_metric_count"]) == (54, 60)
    assert sum("-seqs_5-" in str(one) for one in judged["cells"]) == 6
    assert {one["cost"] for one in own["cells"]} != {"assumed"}
    assert {one["cost"] for one in judged["cells"]} == {"assumed"}


@pytest.fixture
def files(tmp_path: Path) -> Callable[[str, object], Path]:
    def write(name: str, data: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return path

    return write


def test_merge_joins_folders_and_ends_with_the_outcome(
    files: Callable[[str, object], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned_file = files(
        "plan.json", plan_of("alpha-one-chat", "alpha-two-chat").model_dump(mode="json")
    )
    files("results/a/verdict.json", verdict(cell("one")).dump())
    output = tmp_path / "joined.json"
    arguments = [
        "merge",
        str(tmp_path / "results"),
        "--plan",
        str(planned_file),
        "--output",
        str(output),
    ]
    assert run(*arguments) == 10
    files("results/b/verdict.json", "{broken")
    assert run(*arguments) == 10
    assert (
        "b/verdict.json" in json.loads(output.read_text())["cells"][1]["invalid_reasons"][0]["text"]
    )
    files("results/b/verdict.json", verdict(cell("two", regressed())).dump())
    assert run(*arguments) == 1
    files("results/b/verdict.json", verdict(cell("two", metric(outcome="INCONCLUSIVE"))).dump())
    assert run(*arguments) == 0
    assert run(*arguments, "--strict") == 13
    assert "2 results, 0 unreadable" in capsys.readouterr().out


def test_links_in_artefacts_are_not_followed(
    files: Callable[[str, object], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned_file = files("plan.json", plan_of("alpha-one-chat").model_dump(mode="json"))
    real = files("elsewhere.json", verdict(cell("one")).dump())
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "verdict.json").symlink_to(real)
    assert run("merge", str(tmp_path / "results"), "--plan", str(planned_file)) == 10
    assert "not found, or not a regular file" in capsys.readouterr().err


def test_renderers_print_write_and_survive_broken_files(
    files: Callable[[str, object], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = str(files("verdict.json", verdict(cell("one", regressed())).dump()))
    bad = str(files("bad.json", "{<script>@everyone"))
    for command in ("comment", "summary"):
        assert run("ci", command, good) == 0
        assert "k3perf: REGRESSED" in capsys.readouterr().out
        assert run("ci", command, bad, "--output", str(tmp_path / "out.md")) == 0
        text = (tmp_path / "out.md").read_text()
        assert "could not be read" in text
        assert "script" not in text
    assert run("ci", "annotations", good) == 0
    assert capsys.readouterr().out.startswith("::error file=perf_tests/configs/one.yaml")
    assert run("ci", "annotations", good, "--format", "check-run", "--head-sha", "a" * 40) == 0
    assert json.loads(capsys.readouterr().out)["conclusion"] == "failure"
    assert run("ci", "annotations", bad, "--format", "check-run", "--head-sha", "a" * 40) == 0
    assert json.loads(capsys.readouterr().out)["output"]["title"] == "k3perf: INVALID"
    with pytest.raises(UsageError, match="--head-sha"):
        run("ci", "annotations", good, "--format", "check-run")


def test_retry_asks_for_the_other_pool(
    files: Callable[[str, object], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned_file = str(
        files("plan.json", plan_of("alpha-one-chat", "alpha-two-chat").model_dump(mode="json"))
    )
    joined = str(files("joined.json", verdict(cell("one"), invalid("two")).dump()))
    monkeypatch.setenv("K3PERF_POOL", "a")
    monkeypatch.setenv("RUNNER_NAME", "gpu-host-1")
    assert (
        run(
            "ci",
            "record-runner",
            "--shard",
            "h200-0",
            "--output",
            str(tmp_path / "results" / "x" / "runner.json"),
        )
        == 0
    )
    arguments = [
        "ci",
        "retry",
        joined,
        "--plan",
        planned_file,
        "--results",
        str(tmp_path / "results"),
        "--pools",
        "a,b",
    ]
    assert run(*arguments) == 0
    values = dict(line.split("=", 1) for line in capsys.readouterr().out.splitlines())
    (job,) = json.loads(values["gpu_matrix"])["include"]
    assert json.loads(job["cells"]) == ["alpha-two-chat"]
    assert json.loads(job["runner"])[-1] == "pool-b"
    (tmp_path / "results" / "x" / "runner.json").write_text(
        '{"shard": "h200-0", "runner": "x", "pool": "$(id)"}'
    )
    assert run(*arguments) == 0
    monkeypatch.setenv("K3PERF_POOL", "Not A Pool")
    with pytest.raises(UsageError, match="K3PERF_POOL"):
        run("ci", "record-runner", "--shard", "s", "--output", str(tmp_path / "r.json"))


def test_check_baselines(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert run("ci", "check-baselines", "--base", "main") == 0
    path = checkout / "baselines" / "alpha" / "seqs_1.json"
    path.write_bytes(
        written(baseline({"tpot_mean_ms": 20.0, "output_tokens_per_s": 4000.0}, config="seqs_1"))
    )
    git(checkout, "commit", "--quiet", "--all", "--message", "better")
    assert run("ci", "check-baselines", "--base", "main") == 0
    assert "1 baselines changed, 0 problems found" in capsys.readouterr().out
    path.write_bytes(
        written(baseline({"tpot_mean_ms": 30.0, "output_tokens_per_s": 3378.0}, config="seqs_1"))
    )
    assert run("ci", "check-baselines", "--base", "main") == ExitStatus.USAGE
    assert "keeps the old reason" in capsys.readouterr().out
    path.write_text(path.read_text().replace("30.0", "28.0"))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert run("ci", "check-baselines", "--base", "main") == ExitStatus.USAGE
    assert "::error file=baselines/alpha/seqs_1.json::its digest" in capsys.readouterr().out
    path.unlink()
    assert run("ci", "check-baselines", "--base", "main") == ExitStatus.USAGE
    assert "was deleted, yet alpha still measures seqs_1" in capsys.readouterr().out


def test_the_readable_plan_names_what_it_leaves_out(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(checkout, "perf_tests/configs/seqs_3.yaml")
    assert run("plan", "--changed-since", "main", "--target", "gamma", "--budget-minutes", "1") == 0
    told = capsys.readouterr().out
    assert "directly touched cells alone exceed the budget" in told
    assert "2 cells omitted, over the budget:" in told
    assert "gamma-seqs_9-chat: needs" in told
    git(checkout, "rm", "--quiet", "perf_tests/configs/seqs_7.yaml")
    assert run("plan", "--changed-since", "main") == 0
    assert "note: perf_tests/configs/seqs_7.yaml was deleted" in capsys.readouterr().out


def test_without_git_a_plan_says_so(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="git could not be run"):
        run("plan", "--changed-since", "main")


def test_files_that_are_no_plan_or_too_many_are_refused(
    files: Callable[[str, object], Path], tmp_path: Path
) -> None:
    bad = str(files("plan.json", "[]"))
    with pytest.raises(UsageError, match="is not a plan file"):
        run("merge", "--plan", bad)
    for index in range(601):
        files(f"many/{index}/verdict.json", "{}")
    good = str(files("good.json", plan_of("alpha-one-chat").model_dump(mode="json")))
    with pytest.raises(UsageError, match="601 verdict files"):
        run("merge", str(tmp_path / "many"), "--plan", good)
