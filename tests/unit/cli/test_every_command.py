"""Every command and every option of ``k3perf``, with everything that can be wrong with
it: one message, a documented status, no traceback.

The commands come from the parser itself. A command or an option without a row fails the
first test.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli import workplace

from k3perf.cli.main import build_parser, main
from k3perf.cli.output import login_name
from k3perf.engine.bundle.wheels import DownloadError
from k3perf.errors import ExitStatus

Call = Callable[..., tuple[int, str, str]]
FIND_RATE = shlex.split(
    "--workload perf_tests/workloads/quick.yaml --base-url SERVER --model-name m --vocabulary-size"
    " 100 --ttft-ms 100 --tpot-ms 100"
)
NUMBERS = {
    "empty": "",
    "word": "x",
    "negative": "-1",
    "not_finite": "nan",
    "infinite": "inf",
    "beyond_float": "1e999",
    "huge": "1" * 400,
}
NAMES = {
    "empty": "",
    "unknown": "nosuch",
    "a_path": "../../etc",
    "long": "x" * 5000,
    "two_lines": "a\nb",
    "dashes": "---",
}


@dataclass(frozen=True)
class Kind:
    """What an option takes: its wrong values by name, or a function of a folder to put
    them in. ``statuses``: what they may end with.
    """

    values: dict[str, str] | Callable[[Path], dict[str, Path]] = field(default_factory=dict)
    statuses: frozenset[int] = frozenset({4})
    but: frozenset[str] = frozenset()
    prefix: str = ""

    def may(self, *statuses: int) -> Kind:
        """The same, where other statuses are right."""
        return Kind(self.values, frozenset(statuses), self.but, self.prefix)

    def without(self, *names: str) -> Kind:
        """The same, without values that are right here."""
        return Kind(self.values, self.statuses, self.but | set(names), self.prefix)


INPUT, FOLDER, OUTPUT = (
    Kind(workplace.bad_inputs),
    Kind(workplace.bad_folders),
    Kind(workplace.bad_outputs),
)
NUMBER, NAME = Kind(NUMBERS), Kind(NAMES)
SUITE = Kind(workplace.bad_folders)
FLAG, TEXT = Kind(), Kind({"empty": "", "odd": "\N{BELL}\n\x1b[31m"}, frozenset({0, 4, 10}))
CHOICE = Kind({"unknown": "nosuch", "empty": ""})
REFERENCE = Kind(
    {"unknown": "nosuch", "an_option": "--upload-pack=x", "empty": "", "long": "x" * 5000}
)
PYTHON = Kind(
    {"missing": "/nowhere/python", "a_folder": "/", "another_program": "/bin/false", "empty": ""},
    frozenset({4}),
)


@dataclass(frozen=True)
class Command:
    """A command line that works, and the kind of every argument and option. ``status``:
    of the line that works; None: it is not tried.
    """

    line: str
    options: dict[str, Kind]
    status: int | None = 0


BASELINES = {"--baselines": FOLDER.may(0, 4)}
DOCUMENTS = {"verdict": INPUT.may(0, 4), "--plan": INPUT.may(0, 4), "--output": OUTPUT}
MEASURING = {
    "--target": NAME,
    "--workload": NAME,
    "--config": NAME.without("empty"),
    "--budget-minutes": NUMBER,
    "--rounds": NUMBER,
    "--slo-ttft-ms": NUMBER,
    "--slo-tpot-ms": NUMBER,
    "--results": OUTPUT.may(0, 4),  # a dry run writes nothing
    "--json": FLAG,
    "--picture": OUTPUT.may(0, 4),
    "--dry-run": FLAG,
    "--engine-python": PYTHON,
    "--suite": SUITE,
    **BASELINES,
}
PROCESSES = Kind({"empty": "", "word": "many", "zero": "0", "negative": "-1"})
ADDRESS = Kind(
    {
        "a_word": "nosuch",
        "empty": "",
        "no_host": "http://",
        "another_scheme": "ftp://127.0.0.1",
        "tls": "https://127.0.0.1:1",
        "bad_port": "http://127.0.0.1:x",
        "a_path": "http://127.0.0.1:9/v1",
    }
)
LINKED = {**DOCUMENTS, "--run-url": TEXT}
COMMANDS = {
    "init": Command(
        "init --no-record --no-workflow --suite other/perf_tests --name made --from"
        " 'vllm serve nosuch/model --max-num-seqs 8'",
        {
            "--from": Kind(
                {
                    **ADDRESS.values,
                    "half_a_quote": "vllm serve 'x",
                    "no_model": "vllm serve --max-num-seqs 8",
                    "unknown_argument": "vllm serve m --no-such-argument 1",
                    "no_file": "nosuch.yaml",
                    "another_file": "perf_tests/tolerances.yaml",
                    "two_models": "vllm serve a b",
                    "nobody": "http://127.0.0.1:9",
                },
                frozenset({4, 10}),
            ),
            "--suite": Kind(workplace.bad_folders, frozenset({0, 4, 10})),
            "--name": Kind(NAMES, frozenset({0, 4})),
            "--engine-python": PYTHON.without("empty"),
            "--no-record": FLAG,
            "--no-workflow": FLAG,
        },
    ),
    "drift": Command(
        "drift fp8_kv --target tiny --server http://127.0.0.1:9",
        {
            "config": NAME,
            "--server": ADDRESS,
            "--target": NAME.without("empty"),
            "--json": FLAG,
            "--suite": SUITE,
            "--baselines": FOLDER.may(4, 10, 11),
        },
        status=10,
    ),
    "upgrade": Command(
        "upgrade --show run",
        {
            "--engine": PYTHON,
            "--accept": INPUT,
            "--show": INPUT,
            "--engine-python": PYTHON,
            "--results": OUTPUT,
            "--reason": TEXT.may(4),
            "--by": TEXT.may(4),
            "--with-losses": FLAG,
            "--suite": SUITE,
            "--baselines": FOLDER,
            "pytest_arguments": FLAG,  # pytest's
        },
        status=4,  # the run is not one of two engines
    ),
    "export": Command(
        "export fp8_kv --target tiny",
        {
            "config": NAME,
            "--target": NAME,
            "--model": TEXT,
            "--output": OUTPUT,
            "--launch": CHOICE,
            "--suite": SUITE,
        },
    ),
    "inject": Command(
        "inject --slow-step-percent 15",
        {
            "--slow-step-percent": NUMBER.without(
                "negative", "not_finite", "infinite", "beyond_float", "huge"
            ),
            "--hold-device-bytes": NUMBER.without("negative", "huge"),
            "--hold-host-bytes": NUMBER.without("negative", "huge"),
            "--hold-weights-bytes": NUMBER.without("negative", "huge"),
            "--wrong-answers": Kind({"unknown": "nosuch=1", "half": "router_top_k="}),
            "--both-arms": FLAG,
            "pytest_arguments": FLAG,  # pytest's
        },
        status=None,
    ),
    "memory plan": Command(
        "memory plan --config fp8_kv --target tiny",
        {
            "--config": NAME.without("empty"),
            "--target": NAME.without("empty"),
            "--suite": SUITE,
            "--model-config": INPUT,
            "--set": Kind({"empty": "", "no_value": "fp8", "unknown": "nosuch=1", "half": "=1"}),
            "--platform": CHOICE,
            "--device-memory-bytes": NUMBER,
            "--reserve-bytes": NUMBER,
            "--tensor": NUMBER,
            "--pipeline": NUMBER,
            "--data": NUMBER,
            "--expert": FLAG,
            "--json": FLAG,
        },
    ),
    "baseline propose": Command(
        "baseline propose run",
        {
            "results": INPUT,
            "--new-anchor": FLAG,
            "--across-commits": FLAG,
            "--only": NAME,
            "--only-testable": FLAG,
            "--suite": SUITE,
            **BASELINES,
            "--proposals": OUTPUT.without("a_folder"),
        },
    ),
    "baseline accept": Command(
        "baseline accept --reason 'the same numbers once more' --by ann",
        {
            "cells": NAME,
            "--reason": Kind({"empty": "", "short": "x"}),
            "--by": TEXT,
            "--suite": SUITE,
            "--baselines": FOLDER.may(0, 4),  # accepting makes it
            "--proposals": FOLDER,
        },
    ),
    "baseline show": Command(
        "baseline show", {"cells": NAME, "--suite": SUITE, "--baselines": FOLDER.without("hollow")}
    ),
    "gate selftest": Command(
        "gate selftest --runs 1 --recorded-only --recorded recordings",
        {
            "--runs": NUMBER,
            "--seed": NUMBER.without("negative", "huge"),
            "--recorded": FOLDER,
            "--recorded-only": FLAG,
            "--shape": CHOICE,
            "--tolerance": NUMBER,
            "--write": INPUT.may(4),
        },
    ),
    "load find-rate": Command(
        "load find-rate --workload perf_tests/workloads/quick.yaml --base-url http://127.0.0.1:9"
        " --model-name m --vocabulary-size 100 --ttft-ms 100 --tpot-ms 100 --duration 0.1",
        {
            "--target": NAME.without("empty"),
            "--workload": INPUT.may(4),
            "--base-url": Kind(
                {
                    "a_word": "nosuch",
                    "no_host": "http://",
                    "another_scheme": "ftp://127.0.0.1",
                    "bad_port": "http://127.0.0.1:x",
                }
            ),
            "--model-name": TEXT,
            "--vocabulary-size": NUMBER,
            "--ttft-ms": NUMBER,
            "--tpot-ms": NUMBER,
            "--attainment": NUMBER,
            "--duration": NUMBER,
            "--least-requests": NUMBER,
            "--lowest-rate": NUMBER,
            "--highest-rate": NUMBER,
            "--precision": NUMBER,
            "--output": OUTPUT.may(4, 10),
            "--by": TEXT,
            "--baselines": FOLDER.may(4, 10),
            "--engine-python": PYTHON.may(4, 10),
            "--client-processes": PROCESSES,
            "--suite": SUITE.may(4, 10),
        },
        status=10,
    ),
    "load run": Command(
        "load run --base-url http://127.0.0.1:9 --model-name m --requests 1 --warm-up 0"
        " --client-processes 1",
        {
            "--base-url": Kind(
                {
                    "a_word": "nosuch",
                    "no_host": "http://",
                    "another_scheme": "ftp://127.0.0.1",
                    "bad_port": "http://127.0.0.1:x",
                }
            ),
            "--route": CHOICE,
            "--server": CHOICE,
            "--model-name": TEXT.may(10),
            "--api-key-env": Kind({"unset": "K3PERF_NO_SUCH_KEY", "empty": ""}, frozenset({4, 10})),
            "--tls-ca-file": INPUT.may(4, 10),
            "--workload": INPUT.may(4, 10),
            "--extra-body": Kind({"word": "x", "list": "[]", "owned": '{"stream": false}'}),
            "--prompts": INPUT.may(4, 10),
            "--trace": INPUT.may(4, 10),
            "--prompt-template": INPUT.may(4, 10),
            "--json-schema": INPUT.may(4, 10),
            "--output": OUTPUT.may(4, 10),
            "--csv": OUTPUT.may(4, 10),
            "--parquet": OUTPUT.may(4, 10),
            "--concurrency": Kind({"empty": "", "word": "x", "zero": "0"}),
            "--rate": Kind({"empty": "", "word": "x", "zero": "0"}),
            "--requests": NUMBER,
            "--duration": NUMBER,
            "--input-tokens": NUMBER.may(4, 10),
            "--output-tokens": NUMBER.may(4, 10),
            "--turns": NUMBER.may(4, 10),
            "--think-time": NUMBER,
            "--vocabulary-size": NUMBER,
            "--temperature": NUMBER,
            "--seed": Kind({"word": "x", "empty": ""}),
            "--warm-up": Kind({"word": "x", "empty": "", "negative": "-1"}),
            "--ttft-ms": NUMBER,
            "--tpot-ms": NUMBER,
            "--request-timeout": NUMBER,
            "--client-processes": PROCESSES,
            "--arrival": CHOICE,
            "--slo": Kind({"empty": "", "word": "x", "no_limit": "ttft_p99_ms<="}),
            "--header": Kind({"empty": "", "no_colon": "x"}),
            "--insecure": FLAG,
            "--natural-end": FLAG,
            "--stop-when-missed": FLAG,
            "--suite": SUITE.may(4, 10),
        },
        status=10,
    ),
    "load import-log": Command(
        "load import-log log.jsonl --time-unit s --output other/trace.jsonl",
        {"log": FLAG, "--output": OUTPUT, "--time-unit": CHOICE, "--block-tokens": NUMBER},
    ),
    "load make-trace": Command(
        "load make-trace --requests 5 --output other/trace.jsonl",
        {
            "--requests": NUMBER,
            "--duration": NUMBER,
            "--seed": NUMBER.without("negative", "huge"),
            "--output": OUTPUT,
        },
    ),
    "mock-server": Command(
        "mock-server --port 0",
        {
            "--port": NUMBER,
            "--ttft": NUMBER,
            "--itl": NUMBER,
            "--step": NUMBER,
            "--chunk-tokens": NUMBER.without("huge"),
            "--empty-chunks": NUMBER.without("huge"),
            "--reasoning-tokens": NUMBER.without("huge"),
            "--block-tokens": NUMBER.without("huge"),
            "--fault": Kind(
                {"unknown": "nosuch", "empty": "", "no_number": "reset:x", "negative": "reset:-1"}
            ),
            "--fast": FLAG,
            "--model-name": FLAG,
            "--seed": Kind({"word": "x", "empty": ""}),
            "--behaviour": Kind(
                {"word": "x", "deep": "[" * 100_000, "unknown": '{"a": 1}', "list": "[]"}
            ),
            "--cpus": Kind({"word": "x", "none_such": "4095", "negative": "-1", "comma": ","}),
        },
        status=None,
    ),
    "doctor": Command(
        "doctor --target tiny --results other/results",
        {
            "--target": NAME,
            "--engine-python": PYTHON.may(4, 10),
            "--results": OUTPUT.may(10).without("a_folder"),
            "--json": FLAG,
            "--suite": SUITE,
        },
        status=10,
    ),
    "plan": Command(
        "plan",
        {
            "--suite": SUITE,
            "--changed-since": REFERENCE,
            "--judge-from": REFERENCE,
            "--budget-minutes": NUMBER,
            "--shards": NUMBER,
            "--shard-limit-minutes": NUMBER.may(0, 4),
            "--target": NAME,
            "--kind": CHOICE,
            "--hardware-classes": Kind(
                {"unknown": "nosuch", "empty": "", "commas": ",,"}, frozenset({0})
            ),
            "--baselines": FOLDER.may(0, 4),
            "--candidates": FLAG,
            "--whole-model": CHOICE,
            "--record": FLAG,
            "--costs": INPUT,
            "--json": FLAG,
            "--output": OUTPUT,
            "--github-output": OUTPUT,
            "--record-costs": INPUT,
        },
    ),
    "merge": Command(
        "merge pass.json --plan plan.json",
        {"results": INPUT.may(10), "--plan": INPUT, "--output": OUTPUT, "--strict": FLAG},
        status=10,  # the plan's own cells are lost
    ),
    "ci comment": Command("ci comment pass.json", LINKED),
    "ci summary": Command("ci summary pass.json", LINKED),
    "ci annotations": Command(
        "ci annotations pass.json",
        {
            **DOCUMENTS,
            "--format": CHOICE,
            "--head-sha": TEXT,
            "--changed-since": REFERENCE,
            "--head": REFERENCE.may(0, 4),
        },
    ),
    "ci retry": Command(
        "ci retry pass.json --plan plan.json",
        {
            "verdict": INPUT,
            "--plan": INPUT,
            "--results": FOLDER.may(0, 4),
            "--pools": TEXT,
            "--github-output": OUTPUT,
        },
    ),
    "ci record-runner": Command(
        "ci record-runner --shard s --output other/runner.json",
        {"--shard": Kind({"long": "x" * 5000}), "--output": OUTPUT},
    ),
    "ci check-baselines": Command(
        "ci check-baselines --base main", {"--base": REFERENCE, "--suite": SUITE}
    ),
    "ci check-judge": Command(
        "ci check-judge --base main",
        {
            "--base": REFERENCE,
            "--head": REFERENCE,
            "--acknowledge": REFERENCE,
            "--format": CHOICE,
            "--output": OUTPUT,
            "--suite": SUITE,
        },
    ),
    "history append": Command(
        "history append run --history other/history.jsonl",
        {"results": INPUT.without("a_folder"), "--history": INPUT.without("missing", "empty")},
    ),
    "history unmeasured": Command(
        "history unmeasured run --plan plan.json",
        {"results": INPUT.may(4, 10), "--plan": INPUT},
        status=10,
    ),
    "history changes": Command(
        "history changes --history history.jsonl",
        {
            "--history": INPUT.without("empty"),
            "--suite": SUITE.may(0, 4),
            "--json": FLAG,
            "--issue": OUTPUT.may(0),
            "--github-output": OUTPUT,
        },
    ),
    "night plan": Command(
        "night plan --nights kept --hardware-classes any-cpu --output other/night.json",
        {
            "--nights": FOLDER.without("hollow"),
            "--hardware-classes": NAME.may(0, 4),
            "--shards": NUMBER.without("huge"),
            "--shard-minutes": NUMBER.without("huge"),
            "--costs": INPUT,
            "--output": OUTPUT,
            "--github-output": OUTPUT,
            "--suite": SUITE,
            **BASELINES,
        },
    ),
    "night keep": Command(
        "night keep run --plan plan.json --verdict pass.json --nights other/kept",
        {
            "results": INPUT.may(4, 10),
            "--plan": INPUT,
            "--verdict": INPUT,
            "--nights": FOLDER.may(4, 10),
            "--suite": SUITE,
            "--baselines": FOLDER.may(4, 10),
        },
        status=10,
    ),
    "night issue": Command(
        "night issue --nights kept --output other/issue.md",
        {
            "--nights": FOLDER.without("hollow"),
            "--output": OUTPUT,
            "--github-output": OUTPUT,
        },
    ),
    "night refresh": Command(
        "night refresh --nights kept --body other/refresh.md",
        {
            "--nights": FOLDER.without("hollow"),
            "--body": OUTPUT,
            "--window-sessions": NUMBER.without("huge"),
            "--window-batches": NUMBER.without("huge"),
            "--suite": SUITE,
            **BASELINES,
        },
    ),
    "bisect": Command(
        "bisect a b --cell tiny-fp8_kv-quick --engine a=/x --engine b=/y --run true --state"
        " other/bisect.json",
        {
            "good": NAME,
            "bad": NAME,
            "--cell": NAME,
            "--engine": Kind({"empty": "", "no_python": "c", "half": "=x"}),
            "--state": INPUT.without("missing", "empty", "itself"),
            "--attempts": NUMBER.without("huge"),
            "--run": Kind({"no_program": "/nowhere/judge {point}"}),
            "--suite": SUITE,
        },
        status=10,
    ),
    "history page": Command(
        "history page --history history.jsonl --output other/page.html",
        {
            "--history": INPUT.without("empty"),
            "--output": OUTPUT,
            "--suite": SUITE.may(0, 4),
        },
    ),
    "bundle inventory": Command(
        "bundle inventory",
        {
            "--python": Kind({**PYTHON.values, "a_silent_program": "/bin/true"}),
            "--show-script": FLAG,
        },
    ),
    "bundle make": Command(
        "bundle make --inventory host.json --output other/bundle --requirements-file"
        " requirements.txt --downloads other/downloads",
        {
            "--inventory": INPUT,
            "--output": OUTPUT.without("in_a_closed_folder"),
            "--requirement": Kind({"unknown": "not a requirement", "empty": ""}),
            # a word is a package that is not found
            "--requirements-file": INPUT.may(4, 10),
            "--recipe": INPUT,
            "--leave-out": FLAG,
            "--part-size": NUMBER,
            "--downloads": OUTPUT.without("a_folder"),
        },
        status=10,
    ),
    "bundle verify": Command("bundle verify bundle", {"folder": FOLDER.may(4, 10)}),
    "recover": Command(
        f"recover run --commit {workplace.COMMIT} --output other/measurements.json",
        {
            "results": INPUT,
            "--commit": Kind({"empty": "", "another": "f" * 40, "short": "0"}),
            "--output": OUTPUT,
            "--suite": SUITE,
        },
    ),
    "scaling": Command(
        "scaling",
        {
            "--target": NAME,
            "--baselines": FOLDER.without("hollow", "closed"),
            "--json": FLAG,
            "--suite": SUITE,
        },
    ),
    "tune": Command(
        "tune --target tiny --workload quick --dry-run --engine-python engine_python",
        {
            **MEASURING,
            "--steps": CHOICE,
            "--only": NAME,
            "--values": Kind({"empty": "", "no_value": "block_size", "unknown": "nosuch=1"}),
            "--objective": NAME,
            "--bound": Kind({"empty": "", "no_limit": "ttft_p99_ms", "word": "ttft_p99_ms=x"}),
            "--error-rate": NUMBER,
            "--smallest-effect": NUMBER,
            "--quality": INPUT,
            "--largest-quality-loss": NUMBER,
            "--validate-workload": NAME.without("empty"),
            "--trace": INPUT,
        },
    ),
    "tune accept": Command(
        "tune accept tuned best",
        {
            "results": INPUT,
            "point": NAME,
            "--name": NAME.without("empty", "unknown"),
            "--reason": TEXT,
            "--proposals": OUTPUT.may(0, 4),
            **BASELINES,
            "--suite": SUITE,
        },
    ),
    "sweep": Command(
        "sweep --target tiny --workload quick --set max_num_seqs=4,8 --dry-run"
        " --engine-python engine_python",
        {
            **MEASURING,
            "--set": Kind({"empty": "", "no_value": "block_size", "unknown": "nosuch=1"}),
            "--blocks": NUMBER,
            "--concurrency": Kind({"empty": "", "word": "x", "zero": "0", "huge": "9" * 40}),
            "--base-url": TEXT.may(4),
            "--model-name": TEXT.may(4),
            "--vocabulary-size": NUMBER,
            "--output": OUTPUT,
        },
    ),
    "report": Command(
        "report judged --html other/report.html --rounds-csv other/rounds.csv --samples-csv"
        " other/samples.csv --junit other/junit.xml --prometheus other/k3perf.prom",
        {
            "results": INPUT,
            "--html": OUTPUT,
            "--rounds-csv": OUTPUT,
            "--samples-csv": OUTPUT,
            "--rounds-parquet": OUTPUT,
            "--samples-parquet": OUTPUT,
            "--junit": OUTPUT,
            "--prometheus": OUTPUT,
            "--history": INPUT,
            "--suite": SUITE.may(0, 4),
            **BASELINES,
        },
    ),
    "compare": Command(
        "compare --html other/compare.html",
        {
            "--target": NAME,
            "--format": CHOICE,
            "--html": OUTPUT,
            "--suite": SUITE,
            "--baselines": FOLDER,
        },
        status=4,  # the workplace's one baseline has no parent's
    ),
    "quality trade": Command(
        "quality trade run/measurements.json",  # whose cells compared no answers
        {"measurements": INPUT, "--json": FLAG},
        status=4,
    ),
    "quality sample-size": Command(
        "quality sample-size --score 0.76 --loss 0.02 --discordant 0.05",
        dict.fromkeys(("--score", "--loss", "--alpha", "--power", "--discordant"), NUMBER),
    ),
    "quality tasks": Command(
        "quality tasks --server http://127.0.0.1:9 --model m --tasks t --reference-score 0.9"
        " --output answers --python /nowhere/python",
        {
            "--server": Kind({"empty": "", "word": "nosuch"}),
            "--reference-server": Kind({"empty": "", "word": "nosuch"}),
            "--model": FLAG,
            "--tokenizer": FLAG,
            "--tasks": Kind({"empty": "", "commas": ",,"}),
            "--include-path": FLAG,  # lm_eval's
            "--python": PYTHON.may(4, 10),
            "--output": OUTPUT.may(4),
            **dict.fromkeys(("--loss", "--alpha", "--power", "--questions", "--timeout"), NUMBER),
            "--reference-score": NUMBER,
        },
        status=4,  # there is no such Python
    ),
}


def leaves(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be run, with its parser."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below or parser.get_default("run") is not None:
        yield " ".join(words), parser
    for action in below:
        for name, sub in action.choices.items():
            yield from leaves(sub, (*words, name))


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {
        action.option_strings[-1] if action.option_strings else action.dest
        for action in parser._actions
        if not isinstance(action, argparse._SubParsersAction)
    } - {"--help", "--version"}


def test_every_command_and_option_has_a_row() -> None:
    declared = {name: options_of(parser) for name, parser in leaves(build_parser())}
    assert {name: set(command.options) for name, command in COMMANDS.items()} == declared


@pytest.fixture(scope="module")
def place(repository: Path) -> Iterator[Path]:
    """The workplace, in a folder that other users may look into."""
    with tempfile.TemporaryDirectory(prefix="k3perf-commands-") as folder:
        root = Path(folder)
        root.chmod(0o755)
        workplace.build(root, repository)
        (root / "other").mkdir(mode=0o777)
        yield root


@pytest.fixture
def call(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run one command in the workplace and give back its status and what it wrote; the
    workplace is as before afterwards.
    """

    def run(words: list[str], *, closed: bool = False) -> tuple[int, str, str]:
        monkeypatch.chdir(place)
        capsys.readouterr()
        try:
            with workplace.as_nobody() if closed else contextlib.nullcontext():
                status = main(words)
        except SystemExit as ended:
            status = int(ended.code or 0)
        said = capsys.readouterr()
        restore(place, before)
        return status, said.out, said.err

    before = contents(place)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.setattr("os.execv", lambda *_: (_ for _ in ()).throw(SystemExit(0)))
    monkeypatch.setattr("k3perf.load.mock_server.main.serve", lambda *_: None)
    monkeypatch.setattr("k3perf.engine.bundle.make.PipFetcher", no_network)
    return run


def no_network(folder: Path, *_: object) -> Callable[[object], None]:
    def fetch(_requirements: object) -> None:
        raise DownloadError("pip found no wheel. Leave the package out.")

    folder.mkdir(parents=True, exist_ok=True)
    return fetch


def contents(place: Path) -> dict[Path, bytes]:
    """What the commands may change in the workplace."""
    folders = [
        place / name
        for name in ("perf_tests", "baselines", ".k3perf", "run", "recordings", "bundle", "models")
    ]
    paths = [path for folder in folders for path in folder.rglob("*")] + list(place.glob("*.*"))
    return {path: path.read_bytes() for path in paths if path.is_file()}


def restore(place: Path, before: dict[Path, bytes]) -> None:
    now = contents(place)
    for path in now.keys() - before.keys():
        path.unlink()
    for path, content in before.items():
        if now.get(path) != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    shutil.rmtree(place / "other", ignore_errors=True)
    (place / "other").mkdir(mode=0o777)


def line_with(command: Command, option: str, value: str) -> list[str]:
    """The line that works, with ``value`` for ``option``: in the place of its own, or
    added.
    """
    words = shlex.split(command.line)
    if not option.startswith("--"):
        return positional(command, option, value, words)
    if option in words:
        words[words.index(option) + 1] = value
        return words
    return (
        [*words, option, value] if value.startswith("-") is False else [*words, f"{option}={value}"]
    )


def positional(command: Command, option: str, value: str, words: list[str]) -> list[str]:
    """Arguments without a name stand behind the command's own words."""
    name = next(name for name, known in COMMANDS.items() if known is command)
    at = len(name.split())
    taken = at < len(words) and not words[at].startswith("--")
    rest = words[at + 1 :] if taken else words[at:]
    return [*words[:at], *rest, "--", value]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_that_works_ends_with_its_documented_status(name: str, call: Call) -> None:
    command = COMMANDS[name]
    if command.status is None:
        pytest.skip("serves, or becomes pytest")
    status, said, told = call(shlex.split(command.line))
    assert not accident(status, told or said, frozenset({command.status})), (status, told)


@pytest.mark.parametrize(
    ("name", "option"), [(name, option) for name in COMMANDS for option in COMMANDS[name].options]
)
def test_what_is_wrong_is_one_message_and_a_documented_status(
    name: str, option: str, call: Call, place: Path
) -> None:
    command = COMMANDS[name]
    kind = command.options[option]
    folder = place / "wrong" / f"{name} {option}".replace(" ", "_")
    folder.mkdir(parents=True)
    values = kind.values if isinstance(kind.values, dict) else kind.values(folder)
    found = []
    for wrong in values.keys() - kind.but:
        status, said, told = call(
            line_with(command, option, str(values[wrong])), closed="closed" in wrong
        )
        problem = accident(status, told or said, kind.statuses)
        found += [f"{wrong}: {problem}: status {status}: {told[-1500:]}"] if problem else []
    assert not found, "\n".join(found)


def accident(status: int, told: str, right: frozenset[int]) -> str:
    """What is wrong with the end of a command; empty: nothing."""
    if status not in right:
        return f"not one of {sorted(right)}"
    if "Traceback" in told or "internal error" in told:
        return "not a message"
    if status and not 0 < len(told.encode()) < 3000:
        return "no message, or the file instead"
    return ""


@pytest.mark.parametrize(("outcome", "status"), [("pass", 0), ("regressed", 1), ("invalid", 10)])
def test_every_command_that_reads_a_verdict(
    outcome: str, status: int, call: Call, place: Path
) -> None:
    assert call(["merge", f"{outcome}.json", "--plan", str(one_cell_plan(place))])[0] == status
    for words in (["ci", "comment"], ["ci", "summary"], ["ci", "annotations"]):
        # what they show is the verdict's matter
        assert call([*words, f"{outcome}.json"])[0] == 0
    assert call(["ci", "retry", f"{outcome}.json", "--plan", "plan.json"])[0] == 0


def one_cell_plan(place: Path) -> Path:
    """A plan of the cell that the verdicts are of."""
    path = place / "wrong" / "plan.json"
    path.parent.mkdir(exist_ok=True)
    document = json.loads((place / "plan.json").read_text())
    cell = {
        **document["cells"][0],
        "cell": "alpha-one-chat",
        "target": "alpha",
        "config": "one",
        "workload": "chat",
    }
    document |= {"cells": [cell], "shards": []}
    path.write_text(json.dumps(document))
    return path


# What a message says


@pytest.mark.parametrize(
    "words",
    [
        "plan --output",
        "plan --github-output",
        "ci summary pass.json --output",
        "export fp8_kv --target tiny --output",
        "load make-trace --requests 5 --output",
        "history page --history history.jsonl --output",
    ],
)
def test_a_full_disk_behind_an_output_is_not_wrong_use(words: str, call: Call) -> None:
    status, _, told = call([*words.split(), "/dev/full"])
    assert status == ExitStatus.INVALID, told
    assert "No space left on device: '/dev/full'" in told
    assert "check free disk space" in told


@pytest.mark.parametrize("content", ["", "{}", '{"schema_version": 1}\n', "\n\n", "words\n"])
def test_recover_says_what_it_needs_instead_of_another_file(
    content: str, call: Call, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(content)
    status, _, told = call(["recover", str(wrong), "--commit", "a" * 40])
    assert status == ExitStatus.USAGE
    assert "not a results file" in told
    assert "Give results.jsonl of the interrupted run, or the run's directory." in told


@pytest.mark.parametrize(
    ("python", "problem"),
    [
        ("/bin/false", "could not list its packages: it ended with status 1."),
        ("/bin/true", "printed no inventory."),
        ("/nowhere/python", "does not run: No such file or directory."),
    ],
)
def test_an_inventory_of_another_program_is_refused(python: str, problem: str, call: Call) -> None:
    status, said, told = call(["bundle", "inventory", "--python", python])
    assert (status, said) == (ExitStatus.USAGE, "")
    step = "Give the Python of the environment that the engine will run in."
    assert told == f"k3perf: --python {python} {problem} {step}\n"


def test_the_prefix_is_printed_once(call: Call) -> None:
    assert call(["inject"])[2] == (
        "k3perf: give at least one fault, for example --slow-step-percent 15\n"
    )


def test_damaged_costs_name_the_file_and_no_option(call: Call, place: Path) -> None:
    (place / "perf_tests" / "costs.json").write_text("{")
    status, _, told = call(["plan"])
    assert status == ExitStatus.USAGE
    assert "perf_tests/costs.json" in told
    assert "--costs" not in told


@pytest.fixture
def elsewhere(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of suite and baselines, seen from another directory that has baselines of
    its own.
    """
    (tmp_path / "here" / "baselines").mkdir(parents=True)
    for name in ("perf_tests", "baselines"):
        shutil.copytree(place / name, tmp_path / "site" / name)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "site"


def test_baselines_lie_next_to_the_suite(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["baseline", "show", "--suite", str(elsewhere / "perf_tests")]) == 0
    assert "tiny/fp8_kv on " in capsys.readouterr().out
    monkeypatch.chdir(elsewhere / "perf_tests")
    assert main(["baseline", "show", "--suite", "."]) == 0
    assert "tiny/fp8_kv on " in capsys.readouterr().out


def test_scaling_reads_the_baselines_next_to_the_suite(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(elsewhere / "baselines")
    assert main(["scaling", "--suite", str(elsewhere / "perf_tests")]) == ExitStatus.USAGE
    assert f"--baselines {elsewhere / 'baselines'}: not found." in capsys.readouterr().err


def test_a_rate_is_stored_next_to_the_suite(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = elsewhere / "baselines" / "tiny" / "found_rates.yaml"
    stored.write_text("rates: [")
    words = "load find-rate --target tiny --workload quick --base-url http://127.0.0.1:9"
    status = main([*words.split(), "--model-name", "m", "--suite", str(elsewhere / "perf_tests")])
    assert status == ExitStatus.USAGE
    assert str(stored) in capsys.readouterr().err


def test_baselines_that_were_named_and_are_not_there(call: Call) -> None:
    status, said, told = call(["baseline", "show", "--baselines", "nowhere"])
    assert (status, said) == (ExitStatus.USAGE, "")
    assert told == (
        "k3perf: --baselines nowhere: not found. Give the directory of the committed baselines.\n"
    )


# Real processes: signals and pipes


def start(place: Path, words: list[str], **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "k3perf.cli.main", *words], cwd=place, text=True, **streams
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_an_import_end_first(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    number: signal.Signals,
) -> None:
    """An import that KeyboardInterrupt cuts short ends in a panic of a compiled module, or
    kills the process after its clean end.
    """
    name = f"imported_while_signal_{number}_came"
    (tmp_path / f"{name}.py").write_text(
        f"import signal\nsignal.raise_signal({number})\nDONE = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    imported = []

    def import_and_work(_modules: Any) -> None:
        imported.append(importlib.import_module(name).DONE)
        time.sleep(30)

    monkeypatch.setattr("k3perf.cli.main.build_parser", import_and_work)
    assert main(["doctor"]) == ExitStatus.INTERRUPTED
    assert capsys.readouterr().err == f"k3perf: interrupted by {number.name}\n"
    assert imported == [1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["gate", "selftest", "--runs", "100000", "--shape", "normal"], 2),
        (["load", "find-rate", *FIND_RATE], 2),
        (["mock-server", "--port", "0"], 0),  # it serves until it is told to end
    ],
)
def test_a_signal_ends_a_command_without_a_traceback(
    place: Path, words: list[str], status: int, number: int, silent_server: str
) -> None:
    if words[0] == "mock-server" and number == signal.SIGHUP:
        status = 2  # for it a hangup is no way of being told
    words = [word.replace("SERVER", silent_server) for word in words]
    with start(place, words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        if words[0] == "mock-server":
            assert running.stdout is not None
            assert running.stdout.readline().startswith("http://")
        else:
            wait_until(lambda: is_at_work(running.pid))
        running.send_signal(number)
        _, told = running.communicate(timeout=60)
    assert running.returncode == status, told
    assert "Traceback" not in told
    if status:
        assert "k3perf: interrupted" in told


def is_at_work(pid: int) -> bool:
    """All imports are done when the handler of SIGTERM, which the command installs
    first, is there.
    """
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(
        next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16
    )
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def wait_until(true: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_a_closed_pipe_changes_no_status(place: Path) -> None:
    plan = one_cell_plan(place)
    for words, status in (
        (["plan", "--json"], 0),
        (["merge", "regressed.json", "--plan", str(plan)], 1),
        (["ci", "summary", "pass.json"], 0),
        (["--help"], 0),
        (["nosuch"], 4),
    ):
        reading, writing = os.pipe()
        os.close(reading)
        with start(place, words, stdout=writing, stderr=subprocess.PIPE) as running:
            _, told = running.communicate(timeout=60)
        os.close(writing)
        assert running.returncode == status, (words, told)
        assert "Traceback" not in told
        assert "BrokenPipe" not in told
        with start(
            place, words, stdout=subprocess.DEVNULL, stderr=writing_end_without_reader()
        ) as running:
            assert running.wait(60) == status, words


def writing_end_without_reader() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["plan", "--json"], 10),
        (["merge", "regressed.json", "--plan", "PLAN"], 1),
        (["--help"], 10),
    ],
)
def test_a_full_disk_behind_standard_output_is_told(
    place: Path, words: list[str], status: int
) -> None:
    words = [str(one_cell_plan(place)) if word == "PLAN" else word for word in words]
    with (
        Path("/dev/full").open("w") as full,
        start(place, words, stdout=full, stderr=subprocess.PIPE) as running,
    ):
        _, told = running.communicate(timeout=60)
    assert running.returncode == status, told
    assert told == "k3perf: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_are_closed_from_the_start(place: Path, closed: str) -> None:
    for words, status in (("plan", 0), ("scaling --target nosuch", 4)):
        command = f"{shlex.quote(sys.executable)} -m k3perf.cli.main {words} {closed}"
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr


def test_an_error_that_nobody_thought_of_is_one_line(
    place: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("k3perf.cli.scaling_command.suite_of", lambda _: {}["gone"])
    status, _, told = call(["scaling"])
    assert status == ExitStatus.INTERNAL_ERROR
    assert told.startswith("k3perf: internal error: KeyError: 'gone' at test_every_command.py:")
    monkeypatch.setenv("K3PERF_TRACEBACK", "1")
    with pytest.raises(KeyError):
        call(["scaling"])


def test_a_user_without_a_name_accepts_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", fail)
    assert login_name() == f"user {os.getuid()}"
