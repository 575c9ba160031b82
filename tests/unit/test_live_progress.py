"""Progress of a run as it is written: lines of a log by verbosity, and nothing that can
end the run.
"""

import io
import re
import threading
from dataclasses import dataclass, field

import pytest

from k3perf.pytest_plugin.live_progress import NORMAL, QUIET, VERBOSE, LiveProgress
from k3perf.run.progress import RoundDone, Step


@dataclass
class Log:
    """Stands for a screen that is not a terminal."""

    live: bool = False
    lines: list[str] = field(default_factory=list)

    def line(self, text: str) -> None:
        self.lines.append(re.sub(r"^\[k3perf \d\d:\d\d\] ", "", text))

    def leave(self) -> None:
        pass


def tell_all(progress: LiveProgress) -> None:
    with progress.drawing():
        progress.planned([Step("t-a-w", 60.0), Step("t-b-w", 60.0)])
        progress.started("t-a-w")
        progress.stage("t-a (candidate)", "load")
        progress.measuring("candidate")
        progress.round(RoundDone("t-a-w", "candidate", 1, 1, 1, 4, 1))
        progress.round(RoundDone("t-a-w", "candidate", 1, 2, 1, 4, 1, invalid="CPUs are busy"))
        progress.undecided("t-a-w", 0, 6)
        progress.undecided("t-a-w", 2, 0)
        progress.note("a note")
        progress.finished("t-a-w", "PASS", measured=True)


STARTED, STAGE, ROUND = (
    "1 of 2: t-a-w, about 2 min left",
    "t-a (candidate): load",
    "t-a-w: candidate round 1",
)
BAD_ROUND = "t-a-w: candidate round 2 is invalid: CPUs are busy"
BOUGHT = [
    "t-a-w: undecided, measuring up to 6 rounds",
    "t-a-w: undecided, measuring up to 2 sessions",
]


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        (QUIET, [STARTED, "a note"]),
        (NORMAL, [STARTED, STAGE, BAD_ROUND, *BOUGHT, "a note"]),
        (VERBOSE, [STARTED, STAGE, ROUND, BAD_ROUND, *BOUGHT, "a note"]),
    ],
)
def test_a_log_gets_what_its_verbosity_asks_for(verbosity, expected):
    log = Log()
    tell_all(LiveProgress(log, verbosity=verbosity))
    assert log.lines[:-1] == expected
    assert re.fullmatch(r"t-a-w: PASS \(1 of 2, about \d+ (s|min) left\)", log.lines[-1])


class Terminal(Log):
    """Stands for a terminal; ``broken`` refuses every write, as one that was closed
    does.
    """

    def __init__(self, broken: bool = False) -> None:
        super().__init__(live=True)
        self.out = io.StringIO()
        self.broken = broken

    size = (100, 30)

    def enter(self) -> None:
        pass

    def wrote_lines(self) -> None:
        pass

    def console(self):
        from rich.console import Console

        if self.broken:
            self.out.close()
        return Console(file=self.out, force_terminal=True, color_system=None)


def test_nothing_is_drawn_while_a_round_is_measured():
    terminal = Terminal()
    progress = LiveProgress(terminal)
    with progress.drawing():
        progress.started("t-a-w")
        progress.measuring("candidate")
        before = terminal.out.tell()
        threading.Event().wait(2.5)  # longer than two redraws of the clock
        assert terminal.out.tell() == before
        progress.round(RoundDone("t-a-w", "candidate", 1, 1, 1, 4, 1))
        assert terminal.out.tell() > before


def test_a_terminal_that_is_gone_ends_no_run():
    tell_all(LiveProgress(Terminal(broken=True)))


def test_the_status_is_taken_away_on_every_way_out():
    terminal = Terminal()
    progress = LiveProgress(terminal)

    def interrupted() -> None:
        with progress.drawing():
            progress.started("t-a-w")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "t-a-w" in terminal.out.getvalue()
    assert terminal.out.getvalue().endswith("\x1b[1A\x1b[2K")
    assert not [thread for thread in threading.enumerate() if thread.name == "k3perf-progress"]
