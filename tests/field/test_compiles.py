"""Every entry of ``compiles.yaml``: lines that show a compile, compiles that no line
shows, and engines without a monitor.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from k3perf.config.arguments import environment_problems
from k3perf.config.log_environment import FIXED
from k3perf.config.suite import load_suite
from k3perf.engine.jit_monitor import JitMonitor, can_be_verbose, monitor_of
from k3perf.engine.log_lines import compile_event, is_monitor_greeting
from k3perf.engine.log_reader import LogReader
from k3perf.engine.process_tree import ProcessTree, is_compiler, process_identity
from k3perf.engine.render import measured_launch
from k3perf.errors import ConfigFileError, raise_all
from k3perf.metrics.resolved import resolved_config
from k3perf.metrics.validity import ValidityRules, judge_round
from k3perf.records.samples import RoundKind, RoundRecord
from k3perf.run.compile_watch import CompileWatch, Seen, compile_reading

FIELD = yaml.safe_load(Path(__file__).with_name("compiles.yaml").read_text())
RULE = "compile_in_window"
VERBOSE = JitMonitor(offered=True, verbose=True)


def each(part: str) -> list[Any]:
    return [pytest.param(entry, id=entry["id"]) for entry in FIELD[part]]


@pytest.mark.parametrize("entry", each("lines"))
def test_which_lines_show_a_compile(entry: dict[str, Any], tmp_path: Path) -> None:
    assert (compile_event(entry["line"]) is not None) is entry["expected"]
    log = tmp_path / "engine.log"
    reader = LogReader(log, start_ns=0, clock_ns=lambda: 5)
    log.write_text(f"{entry['line']}\n")
    assert len(reader.compiles_between(0, 10)) == int(entry["expected"])
    assert reader.greetings_count == int(entry["id"] == "greeting")


@pytest.mark.parametrize("entry", each("together"))
def test_lines_of_one_event_are_one_compile(entry: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    reader = LogReader(log, start_ns=0, clock_ns=lambda: 5)
    log.write_text("".join(f"{line}\n" for line in entry["lines"]))
    assert len(reader.compiles_between(0, 10)) == entry["count"]


def broken(reading: Any) -> bool:
    record = RoundRecord(0, RoundKind.MEASURED, 0, 1, (), telemetry=(reading,))
    return RULE in {reason.rule for reason in judge_round(record, ValidityRules())}


@pytest.mark.parametrize("entry", each("silent"))
def test_no_line_is_no_proof_of_no_compile(entry: dict[str, Any]) -> None:
    seen = Seen(
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in entry["seen"].items()
        }
    )
    reading = compile_reading(seen, JitMonitor(**entry["monitor"]))
    assert reading.value == entry["value"]
    assert re.search(entry["source"], reading.source), reading.source
    assert broken(reading) is entry["invalid"]


@pytest.mark.parametrize("entry", each("engines"))
def test_which_engines_have_a_monitor(entry: dict[str, Any]) -> None:
    assert monitor_of(entry["config"]) == JitMonitor(entry["offered"], entry["verbose"])


def test_the_greeting_counts_whatever_stands_before_it() -> None:
    assert is_monitor_greeting(
        "\x1b[36m(Worker_TP0 pid=1)\x1b[0m INFO [x.py:1] Kernel JIT monitor activated; mode=warn."
    )
    assert not is_monitor_greeting("Kernel JIT monitor is disabled")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *(
            (name, True)
            for name in (
                "ninja",
                "nvcc",
                "cicc",
                "ptxas",
                "ptxas-blackwell",
                "cc1plus",
                "ld",
                "ld.lld",
                "g++-12",
                "clang-18",
            )
        ),
        *(
            (name, True)
            for name in (
                "x86_64-linux-gnu-g++"[:15],
                "gnu-ld",
                "cudafe++",
                "hipcc.bin",
                "as",
                "collect2",
                "fatbinary",
                "make",
            )
        ),
        *(
            (name, False)
            for name in (
                "VLLM::Worker",
                "python",
                "python3.11",
                "pt_main_thread",
                "ray::IDLE",
                "ssh",
                "sh",
                "",
                "cat",
                "asd",
            )
        ),
    ],
)
def test_which_programs_compile(name: str, expected: bool) -> None:
    assert is_compiler(name) is expected


# ---- the watch over real processes


class Probe:
    def __init__(self, **answer: Any) -> None:
        self.answer = {"rank": 0, "new_folders": [], "new_count": 0, "problem": "", **answer}
        self.asked: list[tuple[object, ...]] = []

    def every_rank(self, method: str, *arguments: object) -> list[dict[str, Any]]:
        self.asked.append((method, *arguments))
        return [self.answer]


def spawn(code: str, engine_id: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "K3PERF_ENGINE_ID": engine_id},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


# runs a child at every line it gets; a real worker waits for its compiler in the same
# way
PARENT = """
import subprocess, sys
for line in sys.stdin:
    *words, marker = line.split()
    subprocess.run(words, check=False)
    open(marker, "w").close()
"""


@pytest.fixture
def engines(tmp_path: Path) -> Any:
    """Two engines of one process each; ``run(position, program)`` makes one run a
    program to its end.
    """
    names = [f"{process_identity(os.getpid())}-watch-{position}" for position in range(2)]
    processes = [spawn(PARENT, name) for name in names]
    trees = [ProcessTree(name, process.pid) for name, process in zip(names, processes, strict=True)]

    def run(position: int, *words: str) -> None:
        stdin = processes[position].stdin
        assert stdin is not None
        marker = tmp_path / f"{position}-{time.monotonic_ns()}"
        stdin.write(f"{' '.join(words)} {marker}\n".encode())
        stdin.flush()
        end_s = time.monotonic() + 60
        while not marker.exists() and time.monotonic() < end_s:
            time.sleep(0.02)

    def engine(position: int) -> Any:
        log = tmp_path / f"{position}.log"
        log.touch()
        return SimpleNamespace(logs=(LogReader(log, start_ns=0),), trees=(trees[position],))

    yield SimpleNamespace(run=run, engine=engine, trees=trees)
    for process in processes:
        process.communicate()


def busy_program(folder: Path, name: str, seconds: float) -> Path:
    """A program of this name that uses the CPU, as a compiler does."""
    path, python = folder / name, folder / "python"
    if not python.exists():
        python.symlink_to(sys.executable)  # whose path may hold a space
    path.write_text(f"#!{python} -S\nimport time\nwhile time.process_time() < {seconds}: pass\n")
    path.chmod(0o755)
    return path


def test_a_compiler_child_is_seen_in_its_own_engine_alone(engines: Any, tmp_path: Path) -> None:
    program = busy_program(tmp_path, "nvcc", 0.3)
    active, idle = CompileWatch(engines.engine(0)), CompileWatch(engines.engine(1))
    start_ns = time.monotonic_ns()
    engines.run(0, str(program))
    seen = active.seen(start_ns, time.monotonic_ns(), probe=Probe(), ranks_count=1)
    (text,) = seen.programs
    assert re.search(r"children of pid \d+ .* used 0\.\d s of CPU time", text)
    assert idle.seen(start_ns, time.monotonic_ns(), probe=Probe(), ranks_count=1).programs == ()
    assert broken(compile_reading(seen, JitMonitor(offered=False, verbose=False)))


def test_a_compiler_that_a_look_meets_is_named(engines: Any, tmp_path: Path) -> None:
    program = busy_program(tmp_path, "cicc", 1.5)
    watch = CompileWatch(engines.engine(0))
    start_ns = time.monotonic_ns()
    running = threading.Thread(target=engines.run, args=(0, str(program)))
    running.start()
    end_s = time.monotonic() + 30
    while not engines.trees[0].compilers_seen and time.monotonic() < end_s:
        time.sleep(0.05)
        engines.trees[0].pids()  # the sampler's look
    running.join()
    (text,) = watch.seen(start_ns, time.monotonic_ns(), probe=Probe(), ranks_count=1).programs
    assert re.fullmatch(r"cicc \(pid \d+\)", text)


def test_a_program_before_the_window_or_too_small_to_compile_does_not_count(
    engines: Any, tmp_path: Path
) -> None:
    engines.run(0, str(busy_program(tmp_path, "ptxas", 0.3)))
    watch = CompileWatch(engines.engine(0))
    start_ns = time.monotonic_ns()
    engines.run(0, "/bin/true")
    assert watch.seen(start_ns, time.monotonic_ns(), probe=Probe(), ranks_count=1).programs == ()


# a child that has computed before it gets its line, and ends then
IDLE_WORKER = """
import subprocess, sys
code = "import sys, time\\nwhile time.process_time() < 0.5: pass\\nopen(sys.argv[1], 'w').close()\\nsys.stdin.readline()"
child = subprocess.Popen([sys.executable, "-c", code, sys.argv[1]], stdin=subprocess.PIPE)
sys.stdin.readline()
child.communicate(b"end")
open(sys.argv[1] + ".ended", "w").close()
sys.stdin.readline()
"""


def test_a_worker_that_ends_idle_in_the_window_has_compiled_nothing_in_it(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Inductor ends its pool of compile workers after a minute without work."""
    marker = tmp_path / "marker"
    name = f"{process_identity(os.getpid())}-idle"
    process = subprocess.Popen(
        [sys.executable, "-c", IDLE_WORKER, str(marker)],
        env={**os.environ, "K3PERF_ENGINE_ID": name},
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    request.addfinalizer(process.communicate)
    assert process.stdin is not None
    end_s = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < end_s:
        time.sleep(0.02)
    engine = SimpleNamespace(logs=(), trees=(ProcessTree(name, process.pid),))
    watch = CompileWatch(engine)  # type: ignore[arg-type]
    start_ns = time.monotonic_ns()
    process.stdin.write(b"now\n")
    process.stdin.flush()
    while not Path(f"{marker}.ended").exists() and time.monotonic() < end_s:
        time.sleep(0.02)
    assert watch.seen(start_ns, time.monotonic_ns(), probe=Probe(), ranks_count=1).programs == ()


def test_the_ranks_are_asked_for_the_windows_time_on_the_wall_clock(engines: Any) -> None:
    watch, probe = (
        CompileWatch(engines.engine(0)),
        Probe(new_folders=["/x/deep_gemm/1"], new_count=3),
    )
    before_ns = time.time_ns()
    start_ns = time.monotonic_ns()
    seen = watch.seen(start_ns, start_ns, probe=probe, ranks_count=1)
    ((method, since_ns, sent_ns),) = probe.asked
    assert method == "k3perf_new_compiled_files"
    assert isinstance(since_ns, int)
    assert isinstance(sent_ns, int)
    assert abs(since_ns - before_ns) < 1_000_000_000
    assert since_ns <= sent_ns
    reading = compile_reading(seen, VERBOSE)
    assert (reading.value, reading.source) == (3.0, "new in: /x/deep_gemm/1")


def test_lines_of_every_rank_count_and_those_from_before_do_not(tmp_path: Path) -> None:
    logs = [tmp_path / "0.log", tmp_path / "1.log"]
    line = FIELD["lines"][0]["line"]
    logs[0].write_text("Kernel JIT monitor activated; mode=warn.\n")
    logs[1].write_text(f"Kernel JIT monitor activated; mode=warn.\n{line}\n")
    engine = SimpleNamespace(logs=tuple(LogReader(log, start_ns=0) for log in logs), trees=())
    watch = CompileWatch(engine)  # type: ignore[arg-type]  # what stood there was written before the window
    start_ns = time.monotonic_ns()
    answers = SimpleNamespace(every_rank=lambda *_: [{"rank": 0}, {"rank": 1}])
    assert watch.seen(start_ns, time.monotonic_ns(), probe=answers, ranks_count=2).lines == ()
    with logs[1].open("a") as log:
        log.write(f"{line}\n{line}\n")
    seen = watch.seen(start_ns, time.monotonic_ns(), probe=answers, ranks_count=2)
    assert seen.lines == (line, line)
    assert seen.greetings_count == 2
    assert compile_reading(seen, VERBOSE).value == 2.0


# ---- what the harness sets itself


def launch(repository: Path, **changes: Any) -> Any:
    suite = load_suite(repository / "perf_tests")
    target = suite.target("cpu-hybrid")
    arguments = suite.engine_arguments(target, suite.config("default"))
    places = {
        "engine_python": Path("/e/python"),
        "python_path": "/probe",
        "cache_directory": Path("/cache"),
    }
    return measured_launch(target, arguments, model="m", **{**places, **changes})


def test_the_monitor_is_verbose_where_the_release_can(repository: Path) -> None:
    assert "--jit-monitor-verbose" in launch(repository, verbose_monitor=True).argv
    assert "--jit-monitor-verbose" not in launch(repository).argv
    assert (
        "jit-monitor-verbose" not in launch(repository, verbose_monitor=True).config_file_text
    )  # nothing that is deployed


def test_the_form_of_the_log_is_the_harness_s_own(repository: Path) -> None:
    environment = launch(repository).environment
    assert {name: environment[name] for name in FIXED} == FIXED
    assert environment["VLLM_LOGGING_LEVEL"] == "INFO"
    assert environment["FORCE_COLOR"] is None


def test_a_verbose_monitor_is_not_part_of_the_resolved_configuration() -> None:
    """Else every baseline from before it would be CONFIG_DRIFT."""
    sections: dict[str, Any] = {"cache_config": {}, "scheduler_config": {}}

    def info(*, verbose: bool, level: str) -> dict[str, Any]:
        observability = {"jit_monitor_mode": "warn", "jit_monitor_verbose": verbose}
        # one that is removed has the release's own value, as where a baseline was
        # recorded
        environment = {
            name: level
            for name, value in FIXED.items()
            if name.startswith("VLLM_") and value is not None
        }
        return {
            "vllm_config": {**sections, "observability_config": observability},
            "vllm_env": environment,
            "system_env": {},
        }

    assert resolved_config(info(verbose=True, level="1")) == resolved_config(
        info(verbose=False, level="2")
    )


@pytest.mark.parametrize("name", sorted(FIXED))
def test_every_variable_of_the_log_is_refused_in_a_target(name: str) -> None:
    with pytest.raises(ConfigFileError, match=rf"environment\.{name}.*set by the harness"):
        raise_all(
            environment_problems(
                {"VLLM_USE_DEEP_GEMM": "0", name: "x"}, Path("t.yaml"), "environment"
            )
        )


def test_a_target_that_sets_the_form_of_the_log_is_refused(suite_copy: Path) -> None:
    path = suite_copy / "targets" / "cpu-gqa.yaml"
    document = yaml.safe_load(path.read_text())
    document.setdefault("environment", {})["VLLM_LOGGING_LEVEL"] = "ERROR"
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(
        ConfigFileError, match=r"cpu-gqa\.yaml.*environment\.VLLM_LOGGING_LEVEL.*set by the harness"
    ):
        load_suite(suite_copy)


def test_a_config_that_sets_the_monitor_is_refused(suite_copy: Path) -> None:
    path = suite_copy / "configs" / "seqs_up.yaml"
    document = yaml.safe_load(path.read_text())
    document["change"] = {"jit_monitor_verbose": True}
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigFileError, match=r"change\.jit_monitor_verbose.*set by the harness"):
        load_suite(suite_copy)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("jit_monitor_verbose: bool = False", True), ("jit_monitor_mode: str", False), (None, False)],
)
def test_whether_a_release_can_be_verbose_is_read_from_its_source(
    text: str | None, expected: bool, tmp_path: Path
) -> None:
    if text is not None:
        package = tmp_path / "vllm" / "config"
        package.mkdir(parents=True)
        (tmp_path / "vllm" / "__init__.py").write_text("raise RuntimeError('imported')\n")
        (package / "observability.py").write_text(f"class ObservabilityConfig:\n    {text}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncd "{tmp_path}"\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    assert can_be_verbose(python) is expected


def test_an_engine_python_that_is_not_there_cannot(tmp_path: Path) -> None:
    assert can_be_verbose(tmp_path / "none") is False
