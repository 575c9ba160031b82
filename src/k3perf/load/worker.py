"""``python -m k3perf.load.worker``: one client process of a round.
``processes._Worker`` defines the protocol.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
from typing import NoReturn

from k3perf.load.generator import run_round
from k3perf.load.live_counts import SharedCounts
from k3perf.load.packed import to_bytes
from k3perf.load.processes import READY


def main() -> NoReturn:
    """Read the task, get ready, start at the given time, write the samples. A closed
    pipe from the parent also means stop.
    """
    commands = sys.stdin.buffer
    part, base_urls, model_name, form = pickle.load(commands)  # noqa: S301 - written by our own parent
    stop = threading.Event()

    def start_at_ns() -> int:
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        start_ns = int(commands.readline())
        threading.Thread(target=stop_at_next_line, daemon=True).start()
        return start_ns

    def stop_at_next_line() -> None:
        commands.readline()
        stop.set()

    seen = run_round(
        part,
        base_url=base_urls,
        model_name=model_name,
        stop=stop,
        start_at_ns=start_at_ns,
        form=form,
        on_counts=SharedCounts(int(sys.argv[1])).write,
    )
    sys.stdout.buffer.write(to_bytes(seen))
    sys.stdout.buffer.flush()
    os._exit(0)  # an orderly exit would wait for the thread that still reads stdin


if __name__ == "__main__":
    main()
