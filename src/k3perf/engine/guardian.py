"""A tiny process beside the harness that outlives it: when the harness dies without a
clean end, the guardian ends the engines by itself.

A parent-death signal would not do: it is bound to the thread that started the child, is
cleared in grandchildren, and reaches only the API server. The guardian waits on the
harness's pid file descriptor and on a pipe, in a separate session, and finds the tree
by its mark.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from k3perf.engine.process_tree import ENGINE_ID_VARIABLE, read_row
from k3perf.errors import PreflightError

_MAIN = Path(__file__).with_name("guardian_main.py")


class Guardian:
    """Guards every process whose engine id begins with ``prefix``, and removes
    ``paths`` after them, should the harness die.

    ``inherited`` file descriptors stay open in the guardian until it is done: a lock on
    one of them is held that long.
    """

    def __init__(
        self, prefix: str, *, paths: Iterable[Path] = (), inherited: tuple[int, ...] = ()
    ) -> None:
        row = read_row(os.getpid())
        if row is None:
            raise PreflightError(
                "/proc does not show this process; the supervisor needs a mounted /proc"
            )
        environment = {key: value for key, value in os.environ.items() if key != ENGINE_ID_VARIABLE}
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-S",
                str(_MAIN),
                str(row.pid),
                str(row.start_ticks),
                prefix,
                *(str(path) for path in paths),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd="/",
            start_new_session=True,
            pass_fds=inherited,
        )
        stdout = self._process.stdout
        if stdout is None or stdout.readline() != b"guarding\n":
            self._process.kill()
            self._process.wait()
            raise PreflightError(
                "the guardian process did not start; an engine without one could outlive a killed"
                " harness"
            )
        stdout.close()

    @property
    def pid(self) -> int:
        """The guardian's own pid."""
        return self._process.pid

    def add_session(self, session_id: int) -> None:
        """Guard every process of this session too."""
        self._send(f"session {session_id}\n")

    def add_files(self, inodes: Iterable[int]) -> None:
        """Remove these files of /dev/shm too: the engine was seen with them, though
        perhaps no process of it has them at its end.
        """
        self._send("".join(f"file {inode}\n" for inode in inodes))

    def release(self) -> None:
        """All is ended: the guardian leaves without doing anything."""
        self._send("release\n")
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(OSError):
                stdin.close()
        self._process.wait()

    def _send(self, line: str) -> None:
        stdin = self._process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError):
                stdin.write(line.encode())
                stdin.flush()
