"""A repository with a suite of one tiny target that the stand-in engine serves, and the
commands that a user gives in it.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import yaml
from tests.engine_answers import ANSWERS
from tests.plugin.stand_in.own_clock import wear
from tests.processes import PATIENCE_S, kept_bytecode

from k3perf.errors import ExitStatus

STAND_IN = Path(__file__).parent / "stand_in" / "engine.py"
# pytest's own summary of a slow plugin that no run needs; it doubles what starting
# pytest costs
WITHOUT = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
TARGET = {
    "schema_version": 1,
    "name": "tiny",
    "description": "The stand-in engine, for tests of whole runs",
    "measured_by_default": True,
    "hardware": {"kind": "cpu", "hardware_class": "any-cpu"},
    "model": {"directory": "models/tiny", "weights": "dummy"},
    "configs": ["default", "fp8_kv"],
    "workloads": ["quick"],
    "measurement": {
        "mode": "reference",
        "interleave": "rounds",
        "warm_up_rounds": 1,
        "minimum_rounds": 4,
        "maximum_rounds": 4,
        "minimum_sessions": 1,
        "maximum_sessions": 2,
        "baseline_sessions": 3,
    },
    # the stand-in has its own clock: nothing that the machine does to it may spoil a
    # round
    "validity": {
        "foreign_cpu_ratio": 10,
        "steal_ratio": 10,
        "psi_memory_some_ratio": 10,
        "swap_used_bytes": 1 << 60,
        "clock_jump_ms": 10**9,
    },
    "provenance": {"kind": "experiment", "source": "tests", "date": "2026-11-29"},
}
WORKLOAD = {
    "schema_version": 1,
    "name": "quick",
    "description": "Eight requests of a few tokens",
    "seed": 1,
    "requests": 8,
    "arrival": {"kind": "closed_loop", "concurrency": 8},
    "prompt_tokens": {"kind": "fixed", "tokens": 8},
    "output_tokens": {"kind": "fixed", "tokens": 12},
}
TOLERANCES = {
    "schema_version": 1,
    "defaults": {
        "output_tokens_per_s": {"loss_ratio": 0.4},
        "tpot_mean_ms": {"loss_ratio": 0.4},
        "weights_bytes": {"loss_absolute": 0},
        "kv_cache_bytes": {"loss_absolute": 0},
        "engine_peak_rss_bytes": {"loss_absolute": 30_000_000},
    },
}


# a recording watches the machine for two seconds in front of each session
# and it must not go on for as long as the noise of a loaded machine needs
AT_ONCE = ("--k3-quiet-wait", "0", "--k3-record-minutes", "0")
# the plugin is imported already when a fork becomes pytest
IMPORTED = ("-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning")


class Forks:
    """``forked_python.py``, running. ``results``: a file like those that its runs
    read.
    """

    def __init__(self, results: Path) -> None:
        script = Path(__file__).with_name("forked_python.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), str(results)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def status(
        self,
        module: str,
        arguments: list[str],
        *,
        cwd: Path,
        environment: dict[str, str],
        output: Path | None,
        errors: Path | None = None,
    ) -> int:
        """What ``python -m MODULE`` ends with. ``output`` None: a pipe without a reader.
        ``errors`` None: standard error goes there too.
        """
        request = {
            "module": module,
            "arguments": arguments,
            "cwd": str(cwd),
            "environment": environment,
            "output": str(output or ""),
            "errors": str(errors or ""),
        }
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], PATIENCE_S)[0]:
            for child in psutil.Process(self._process.pid).children():
                child.kill()
            raise TimeoutError(f"{module} {arguments} did not end within {PATIENCE_S} s")
        return int(self._process.stdout.readline())

    def run(
        self, module: str, arguments: list[str], *, cwd: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """As ``subprocess.run`` with captured text."""
        with tempfile.TemporaryDirectory() as folder:
            output, errors = Path(folder) / "output", Path(folder) / "errors"
            status = self.status(
                module, arguments, cwd=cwd, environment=environment, output=output, errors=errors
            )
            return subprocess.CompletedProcess(
                arguments, status, output.read_text(), errors.read_text()
            )

    def close(self) -> None:
        self._process.communicate()


class Site:
    """``forks``: what runs its commands, processes from nothing where there is none."""

    def __init__(self, root: Path, repository: Path, forks: Forks | None = None) -> None:
        self.root = root
        self._forks = forks
        suite = root / "perf_tests"
        for folder in ("configs", "targets", "workloads", "models/tiny"):
            (suite / folder).mkdir(parents=True)
        for name in ("default", "fp8_kv"):
            shutil.copy(repository / "perf_tests" / "configs" / f"{name}.yaml", suite / "configs")
        for module in repository.glob("perf_tests/test_*.py"):
            shutil.copy(module, suite)
        shutil.copy(
            repository / "perf_tests" / "models" / "cpu-gqa" / "config.json",
            suite / "models" / "tiny",
        )
        (suite / "targets" / "tiny.yaml").write_text(yaml.safe_dump(TARGET))
        (suite / "workloads" / "quick.yaml").write_text(yaml.safe_dump(WORKLOAD))
        (suite / "tolerances.yaml").write_text(yaml.safe_dump(TOLERANCES))
        (root / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
        (root / "conftest.py").write_text(wear(str(STAND_IN.parent)))
        self.temporary = root / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.python = root / "engine_python"
        self.python.write_text(
            f'#!/bin/sh\n{ANSWERS}exec {shlex.join([sys.executable, str(STAND_IN)])} "$@"\n'
        )
        self.python.chmod(0o755)
        self.behave()

    def behave(self, **behaviour) -> None:
        (self.root / "behaviour.json").write_text(json.dumps(behaviour))

    def environment(self) -> dict[str, str]:
        """A temporary directory of its own: another suite on this machine may hold the
        device's lock.
        """
        own = {
            "K3PERF_STAND_IN": str(self.root / "behaviour.json"),
            "K3PERF_ENGINE_PYTHON": str(self.python),
            "TMPDIR": str(self.temporary),
        }
        return {**os.environ, **kept_bytecode(), **own}

    def pytest(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        words = ["perf_tests", *WITHOUT, "--k3-plain", *arguments, *IMPORTED]
        if not any(word.startswith("--k3-quiet-wait") for word in arguments):
            words += AT_ONCE
        return self._run("pytest", words, environment)

    def k3perf(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run("k3perf.cli.main", list(arguments), {})

    def _run(
        self, module: str, arguments: list[str], environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        environment = self.environment() | environment
        # an interpreter reads PYTHONPATH when it starts
        if self._forks is not None and environment.get("PYTHONPATH") == os.environ.get(
            "PYTHONPATH"
        ):
            return self._forks.run(module, arguments, cwd=self.root, environment=environment)
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def record(self) -> None:
        run = self.pytest("--k3-record", "--k3-results", "recorded", "-q")
        assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
        proposed = self.k3perf("baseline", "propose", "recorded/measurements.json")
        assert proposed.returncode == ExitStatus.OK, proposed.stdout + proposed.stderr
        accepted = self.k3perf(
            "baseline", "accept", "--by", "tester", "--reason", "first recording of the stand-in"
        )
        assert accepted.returncode == ExitStatus.OK, accepted.stdout + accepted.stderr

    def engines_left(self) -> list[int]:
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if str(self.root) in " ".join(process.info["cmdline"] or [])
        ]
