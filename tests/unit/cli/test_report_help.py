"""``k3perf report --help`` and ``k3perf report history --help`` show their own options."""

import pytest

from k3perf.cli.main import build_parser


def _help(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args([*words, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_the_history_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = _help(capsys, "report", "history")
    assert text.startswith("usage: k3perf report history ")
    assert "--junit" not in text


def test_a_results_directory_does_not_change_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    text = _help(capsys, "report", "results")
    assert text == _help(capsys, "report")
    assert "--junit" in text
