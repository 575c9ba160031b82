"""What every fault test needs: a launch of the fake engine under a name of its own, and
the proof that nothing is left of it.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from k3perf.config.models import StageDeadlines
from k3perf.engine.launch import EngineLaunch
from k3perf.engine.port import listeners
from k3perf.engine.process_tree import process_list

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
# where a machine is slow, a start that must succeed gets its time
PATIENT = StageDeadlines(
    import_s=60, load_s=60, profile_s=60, compile_s=60, capture_s=60, ready_s=60, stop_s=5
)


def commands() -> dict[int, str]:
    """The command line of every running process."""
    found = {}
    for pid, row in process_list().items():
        if row.running:
            with suppress(OSError):
                found[pid] = (
                    Path(f"/proc/{pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
    return found


@dataclass
class Bench:
    """One test's fake engine: its unique model name marks its command lines, ``work``
    is its directory.

    ``temporary`` is where this process makes temporary directories while the test runs.
    """

    model: str
    work: Path
    temporary: Path

    def launch(
        self, *faults: str, deadlines: StageDeadlines = PATIENT, argv: tuple[str, ...] = ()
    ) -> EngineLaunch:
        """A launch with these faults; ``{work}`` in one is the test's directory."""
        flags = [
            part
            for fault in faults
            for part in ("--fault", fault.replace("{work}", str(self.work)))
        ]
        command = (
            sys.executable,
            "-S",
            "-E",
            str(FAKE_ENGINE),
            "--port",
            "{port}",
            "--config",
            "{config_file}",
            "--model",
            self.model,
            *flags,
        )
        return EngineLaunch(
            argv=argv or command,
            model_name=self.model,
            config_file_text="model: fake\n",
            deadlines=deadlines,
        )

    def processes(self) -> dict[int, str]:
        """Running processes of this test's engine and guardian, by command line.

        A process whose title hides its command line (vLLM's do) is known by the
        temporary directory in its environment.
        """
        found = commands()
        found.pop(os.getpid(), None)
        return {
            pid: text
            for pid, text in found.items()
            if self.model in text or str(self.temporary) in text or self._has_in_environment(pid)
        }

    def _has_in_environment(self, pid: int) -> bool:
        with suppress(OSError):
            return str(self.temporary).encode() in Path(f"/proc/{pid}/environ").read_bytes()
        return False

    def leftovers(self, *, ports: tuple[int, ...] = (), lock_directory: bool = False) -> list[str]:
        """Whatever is left: processes, guardians of this process, listening ports,
        temporary directories, shared memory.
        """
        found = [f"process {pid}: {text[:200]}" for pid, text in self.processes().items()]
        found += [f"port {port}" for port in ports if listeners(port)]
        locks = (
            self.temporary / "k3perf-locks"
        )  # where whole suites keep them; the empty directory stays
        found += [f"lock {path}" for path in (locks.iterdir() if locks.exists() else ())]
        found += [
            f"temporary {path}"
            for path in self.temporary.iterdir()
            if not (lock_directory and path == locks)
        ]
        found += [f"shared memory {path}" for path in Path("/dev/shm").glob(f"*{self.model}*")]
        found += [f"half-written {path}" for path in self.work.rglob(".*") if path.is_file()]
        return found

    def assert_nothing_left(
        self, *, ports: tuple[int, ...] = (), within_s: float = 0.0, lock_directory: bool = False
    ) -> None:
        """At once after an orderly end; ``within_s`` where the guardian has to do it."""
        end_s = (
            time.monotonic() + within_s
        )  # generous where it is given: only a failure waits it out
        while (
            found := self.leftovers(ports=ports, lock_directory=lock_directory)
        ) and time.monotonic() < end_s:
            time.sleep(0.05)
        assert found == [], found
