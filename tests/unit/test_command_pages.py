"""The generated pages of commands, options and exit statuses show what the parsers hold."""

import argparse

import pytest
from scripts import command_pages

from k3perf.errors import STATUS_MEANINGS, ExitStatus


def test_every_exit_status_has_a_meaning():
    assert tuple(STATUS_MEANINGS) == tuple(ExitStatus)


@pytest.fixture
def parser(monkeypatch):
    parser = argparse.ArgumentParser(prog="k3perf", add_help=False)
    monkeypatch.setattr(command_pages, "build_parser", lambda: parser)
    return parser


def test_a_command_page_shows_every_argument(parser):
    parser.add_argument("results", nargs="+", help="what a run left")
    parser.add_argument("--unit", choices=("s", "ms"), required=True, help="unit of times")
    parser.add_argument("--budget", default=3, help="minutes, at most 100 %%")
    lines = command_pages.command_line_page().splitlines()
    assert "| `RESULTS` | what a run left |" in lines
    assert "| `--unit s\\|ms` | unit of times (required) |" in lines
    assert "| `--budget BUDGET` | minutes, at most 100 % (default: 3) |" in lines


def test_an_option_without_help_is_refused(parser):
    parser.add_argument("--silent")
    with pytest.raises(ValueError, match="--silent SILENT has no help text"):
        command_pages.command_line_page()


def test_a_commands_own_statuses_are_in_the_table(parser):
    parser.epilog = "exit status: 10 when a check fails"
    assert "| `k3perf` | 10 when a check fails |" in command_pages.exit_status_page().splitlines()
