"""Wrong use of ``k3perf`` ends with the documented status and shows the usage of the command that was meant."""

from __future__ import annotations

import pytest

from k3perf.cli.main import COMMAND_MODULES, build_parser, main
from k3perf.errors import ExitStatus


@pytest.mark.parametrize(
    ("words", "usage", "message"),
    [
        ("nosuch", "usage: k3perf [", "invalid choice: 'nosuch'"),
        ("", "usage: k3perf [", "required: COMMAND (one of export, inject, memory, "),
        ("baseline", "usage: k3perf baseline ", "required: ACTION (one of propose, accept, show)"),
        ("memory", "usage: k3perf memory ", "required: COMMAND (one of plan)"),
        ("--nosuch scaling", "usage: k3perf [", "unrecognized arguments: --nosuch"),
        ("export default", "usage: k3perf export ", "required: --target"),
        ("scaling --nosuch", "usage: k3perf scaling ", "unrecognized arguments: --nosuch"),
        ("inject --slow-step-percent x", "usage: k3perf inject ", "invalid float value: 'x'"),
        ("bundle make", "usage: k3perf bundle make ", "required"),
        ("load find-rate --workload w --nosuch 3", "usage: k3perf load find-rate ", "unrecognized arguments: --nosuch 3"),
    ],
)
def test_wrong_use_is_the_documented_status(words: str, usage: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == ExitStatus.USAGE == 4
    told = capsys.readouterr().err
    assert told.startswith(usage)
    assert message in told.splitlines()[-1]


def test_help_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    for module in COMMAND_MODULES:
        with pytest.raises(SystemExit) as ended:
            build_parser((module,)).parse_args([module.replace("_", "-"), "--help"])
        assert ended.value.code == 0
    assert "usage: k3perf scaling" in capsys.readouterr().out


def test_what_follows_two_dashes_is_passed_on() -> None:
    parsed = build_parser(("inject",)).parse_args(["inject", "--slow-step-percent", "15", "--", "-k", "fp8_kv"])
    assert parsed.pytest_arguments == ["-k", "fp8_kv"]
