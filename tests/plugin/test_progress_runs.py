"""What a person sees while `pytest perf_tests` runs: on a terminal, in a log, and after
every way out.
"""

import os
import re
import shutil
import signal
import sys

import pytest
import yaml
from tests.plugin.sites import AT_ONCE, TARGET, WITHOUT, Site
from tests.plugin.terminal import HIDE_CURSOR, SHOW_CURSOR, TerminalRun

from k3perf.errors import ExitStatus

FEW_ROUNDS = {
    **TARGET["measurement"],
    "minimum_rounds": 1,
    "maximum_rounds": 2,
    "maximum_sessions": 1,
}


@pytest.fixture
def site(tmp_path, repository, forks) -> Site:
    """A site without baselines whose cells take a few rounds; ``other`` is a second
    engine to compare with.
    """
    fresh = Site(tmp_path, repository, forks)
    (tmp_path / "perf_tests" / "targets" / "tiny.yaml").write_text(
        yaml.safe_dump({**TARGET, "measurement": FEW_ROUNDS})
    )
    (tmp_path / "other" / "bin").mkdir(parents=True)
    shutil.copy(fresh.python, tmp_path / "other" / "bin" / "python")
    return fresh


def on_terminal(site: Site, *arguments: str, **environment: str) -> TerminalRun:
    command = [sys.executable, "-m", "pytest", "perf_tests", *WITHOUT, *AT_ONCE, *arguments]
    inherited = {
        key: value
        for key, value in site.environment().items()
        if key not in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS")
    }
    return TerminalRun(
        command, cwd=site.root, environment={**inherited, "TERM": "xterm-256color", **environment}
    )


def judged(site: Site) -> tuple[str, str]:
    return ("--k3-ab-base", str(site.root / "other"))


def assert_cursor_is_shown(run: TerminalRun) -> None:
    """It was never hidden, so that not even a killed process leaves it hidden, and the
    last word is to show it.
    """
    assert HIDE_CURSOR not in run.output
    assert SHOW_CURSOR in run.output


def test_a_terminal_shows_stages_rounds_and_outcomes_while_they_happen(site):
    run = on_terminal(site, *judged(site))
    for text in (
        "1 of 2: tiny-default-quick",
        "(candidate): ready",
        "measuring candidate",
        "valid pairs of rounds",
    ):
        run.wait_for(text)
    assert (
        b"= k3perf =" not in run.output
    )  # it was drawn before the end, under pytest's own capture
    run.wait_for("2 of 2: tiny-fp8_kv-quick")
    assert re.search(
        rb"2 of 2: tiny-fp8_kv-quick, about \d+ s left", run.output
    )  # from what the first cell took
    assert re.search(rb"so far.{0,30}1 (PASS|INCONCLUSIVE|IMPROVED)", run.output)
    assert run.end() in (ExitStatus.OK, ExitStatus.REGRESSED), run.output.decode()
    assert_cursor_is_shown(run)
    lines = run.seen()
    assert not [
        line for line in lines if line.startswith(("  engines", "  rounds", "  so far"))
    ]  # taken away again
    results = [
        line for line in lines if re.match(r"perf_tests/test_config_lock.py \.  +\[ [16]0%\]", line)
    ]
    assert len(results) == 2, "\n".join(lines)  # pytest's own lines are whole
    assert "Captured" not in "\n".join(lines)


def test_interrupting_on_a_terminal_leaves_it_as_it_was(site):
    run = on_terminal(site, "--k3-record", "--k3-sessions", "50")
    run.wait_for("measuring")
    run.type(b"\x03")
    assert run.end() == ExitStatus.INTERRUPTED, run.output.decode()
    assert_cursor_is_shown(run)
    lines = run.seen()
    assert not [line for line in lines if line.startswith(("  engines", "  rounds"))], "\n".join(
        lines
    )
    assert any("KeyboardInterrupt" in line for line in lines)
    assert not site.engines_left()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_ending_it_from_outside_does_not_hide_the_cursor(site, number):
    run = on_terminal(site, "--k3-record", "--k3-sessions", "50")
    run.wait_for("measuring")
    os.kill(run.pid, number)
    assert run.end() == (ExitStatus.INTERRUPTED if number is signal.SIGTERM else -number)
    assert HIDE_CURSOR not in run.output


def test_a_dumb_terminal_gets_lines_and_no_control(site):
    run = on_terminal(site, "--k3-record", "--k3-sessions", "1", "-k", "fp8_kv", "-s", TERM="dumb")
    assert run.end() == ExitStatus.OK, run.output.decode()
    assert b"\x1b" not in run.output
    assert re.search(rb"\[k3perf \d\d:\d\d\] tiny-fp8_kv \(candidate\): ready\r\n", run.output)


def test_no_color_is_drawn_without_colour(site):
    run = on_terminal(site, "--k3-record", "--k3-sessions", "1", "-k", "fp8_kv", "-q", NO_COLOR="1")
    run.wait_for("measuring")
    assert run.end() == ExitStatus.OK, run.output.decode()
    assert not re.search(rb"\x1b\[[0-9;]+m", run.output)
    assert_cursor_is_shown(run)


def stamped(text: str) -> list[str]:
    return [line.partition("] ")[2] for line in text.splitlines() if line.startswith("[k3perf ")]


def test_a_log_gets_a_calm_line_at_each_stage(site):
    command = (*judged(site), "-k", "fp8_kv")
    run = site.pytest(*command, "--k3-results", "normal")
    said = stamped(run.stdout)
    assert said[0] == "1 of 1: tiny-fp8_kv-quick"
    for stage in ("import", "load", "ready", "stop"):
        assert said.count(f"tiny-fp8_kv (candidate): {stage}") == 1, run.stdout
    assert sum(line.startswith("tiny-fp8_kv-quick: ") and "(1 of 1)" in line for line in said) == 1
    assert not [line for line in said if " round 1" in line]
    assert "\x1b" not in run.stdout
    assert re.search(r"^perf_tests/test_config_lock.py \.", run.stdout, re.M)
    quiet = stamped(site.pytest(*command, "-q", "--k3-results", "quiet").stdout)
    assert [line.partition(":")[0] for line in quiet] == ["1 of 1", "tiny-fp8_kv-quick"]
    verbose = stamped(site.pytest(*command, "-v", "--capture=no", "--k3-results", "verbose").stdout)
    assert "tiny-fp8_kv-quick: candidate round 1" in verbose


def test_without_pytests_terminal_reporter_progress_goes_to_stderr(site):
    run = site.pytest("--k3-record", "--k3-sessions", "1", "-k", "fp8_kv", "-p", "no:terminal")
    assert run.returncode == ExitStatus.OK, run.stdout + run.stderr
    assert run.stdout == ""
    assert "tiny-fp8_kv (candidate): ready" in stamped(run.stderr)
