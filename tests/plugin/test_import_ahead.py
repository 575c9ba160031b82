"""`import_ahead`: the next engine's process imports vLLM and waits at a gate; it serves
when its turn comes and nothing of it is left.
"""

import json
import shlex
import sys

import psutil
import pytest
import yaml
from tests.engine_answers import ANSWERS
from tests.plugin.sites import STAND_IN, TARGET, Site

from k3perf.engine.process_tree import ENGINE_ID_VARIABLE
from k3perf.errors import ExitStatus

SERVER = f"import runpy\nrunpy.run_path({str(STAND_IN)!r}, run_name='__main__')\n"


@pytest.fixture
def site(tmp_path, repository, forks) -> Site:
    """A suite whose engine is a package called vllm, in baseline mode, with engines
    that are imported ahead.
    """
    site = Site(tmp_path, repository, forks)
    package = tmp_path / "engine" / "vllm"
    for folder in (
        package,
        package / "engine",
        package / "entrypoints",
        package / "entrypoints" / "openai",
    ):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    imported = "import os, sys\nopen(os.environ['K3PERF_SEEN'], 'a').write(f'{os.getpid()}\\n')\n"
    (package / "engine" / "arg_utils.py").write_text(imported)
    (package / "entrypoints" / "openai" / "api_server.py").write_text(SERVER)
    site.python.write_text(
        f"#!/bin/sh\n{ANSWERS}PYTHONPATH={tmp_path}/engine:$PYTHONPATH exec"
        f' {shlex.quote(sys.executable)} "$@"\n'
    )
    measurement = {
        **TARGET["measurement"],
        "mode": "baseline",
        "interleave": "sessions",
        "import_ahead": True,
        "baseline_sessions": 2,
    }
    (tmp_path / "perf_tests" / "targets" / "tiny.yaml").write_text(
        yaml.safe_dump({**TARGET, "measurement": measurement})
    )
    return site


def sessions_of(site, run="recorded"):
    document = json.loads((site.root / run / "measurements.json").read_text())
    return {cell["config"]: cell["sessions"] for cell in document["cells"]}


def marked_processes_of(pids):
    return [
        pid
        for pid in pids
        if psutil.pid_exists(pid) and ENGINE_ID_VARIABLE in psutil.Process(pid).environ()
    ]


def test_every_engine_but_the_first_has_imported_ahead(site):
    run = site.pytest(
        "--k3-record", "--k3-results", "recorded", "-q", K3PERF_SEEN=str(site.root / "imported")
    )
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    ahead = [int(pid) for pid in (site.root / "imported").read_text().split()]
    assert (
        len(set(ahead)) == 3
    )  # two configs, two sessions each, the first engine was started from nothing
    assert not marked_processes_of(ahead)
    found = sessions_of(site)
    assert {config: len(own) for config, own in found.items()} == {"default": 2, "fp8_kv": 2}
    reasons = [
        own["values"]["startup_cold_s"]["excluded"]
        for config in ("default", "fp8_kv")
        for own in found[config]
    ]
    assert ["imported_ahead" in reason for reason in reasons] == [False, True, True, True]
    lines = [
        json.loads(line)
        for line in (site.root / "recorded" / "results.jsonl").read_text().splitlines()
    ]
    pids_of_turns = [line for line in lines if line.get("kind") == "session_end"]
    assert len(pids_of_turns) == 4


def test_a_process_that_never_got_its_turn_is_ended(site):
    """The expected config is imported ahead while default is measured; the run is
    narrowed by a failure before its turn.
    """
    (site.root / "behaviour.json").write_text(json.dumps({"die_after_requests": 12}))
    run = site.pytest(
        "--k3-record", "--k3-results", "recorded", "-q", K3PERF_SEEN=str(site.root / "imported")
    )
    assert run.returncode == ExitStatus.INVALID, run.stdout + run.stderr
    ahead = [int(pid) for pid in (site.root / "imported").read_text().split()]
    assert ahead
    assert not marked_processes_of(ahead)
    assert not site.engines_left()


def test_imports_that_never_end_are_given_up_and_the_engine_is_started_from_nothing(site):
    """The process that imports ahead hangs; the config is measured all the same, and
    the hanging process is gone.

    Engines that are started from nothing have the same deadline, so it grows where a
    busy machine cannot keep it.
    """
    hang = (
        "import os, sys, time\nopen(os.environ['K3PERF_SEEN'],"
        " 'a').write(f'{os.getpid()}\\n')\ntime.sleep(6000)\n"
    )
    (site.root / "engine" / "vllm" / "engine" / "arg_utils.py").write_text(hang)
    path = site.root / "perf_tests" / "targets" / "tiny.yaml"
    target = yaml.safe_load(path.read_text())
    for import_s in (2, 10, 100):
        path.write_text(yaml.safe_dump({**target, "stage_deadlines": {"import_s": import_s}}))
        seen, results = site.root / f"imported-{import_s}", f"recorded-{import_s}"
        run = site.pytest("--k3-record", "--k3-results", results, "-q", K3PERF_SEEN=str(seen))
        (hanging,) = (int(pid) for pid in seen.read_text().split())
        assert not marked_processes_of([hanging])
        assert (
            run.stdout.count("it will start without prepared imports") == 1
        )  # and no second one is tried
        if run.returncode == ExitStatus.OK or import_s == 100:
            break
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert {config: len(own) for config, own in sessions_of(site, results).items()} == {
        "default": 2,
        "fp8_kv": 2,
    }
