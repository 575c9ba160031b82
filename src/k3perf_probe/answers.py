"""A rank's place among all ranks of the engine, and its answer as a file, for the ranks
whose answers vLLM does not pass on.

vLLM calls a method in every data-parallel engine, waits for all of them, and returns
the first engine's answers alone (``DPLBAsyncMPClient.call_utility_async``). So every
rank also leaves its answer in a directory that the harness makes for that one call.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def rank_of(worker: Any) -> int:
    """The rank's number, unique over all data-parallel engines: engine's index x ranks
    of an engine + rank in the engine. -1: not offered.

    ``worker.rank`` counts pipeline and tensor ranks within one engine. Of the two names
    of an engine's place only ``data_parallel_index`` will do: a dense model's engines
    run on their own, and each has ``data_parallel_rank`` 0 and ``data_parallel_size``
    1. vLLM numbers its workers in the same way where it must tell all of them apart
    (``Worker.update_weights``).
    """
    rank = int(getattr(worker, "rank", -1))
    parallel = getattr(getattr(worker, "vllm_config", None), "parallel_config", None)
    index, size = (
        getattr(parallel, "data_parallel_index", None),
        getattr(parallel, "world_size", None),
    )
    if rank < 0 or not isinstance(index, int) or not isinstance(size, int):
        return rank
    return index * size + rank


def leave_answer(answer: dict[str, Any], directory: str) -> dict[str, Any]:
    """Write ``answer`` to ``directory`` as ``RANK.json``, whole or not at all, and
    return it; nothing is written without a directory.

    A rank that cannot write (it is on another host, or the call is over and its
    directory gone) says so in the engine's log and answers all the same. The directory
    is never made here: on another host no one would read or remove it.
    """
    if not directory:
        return answer
    path = Path(directory) / f"{answer['rank']}.json"
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        unfinished.write_text(json.dumps(answer), encoding="utf-8")
        unfinished.replace(path)
    except OSError as problem:
        sys.stderr.write(
            f"k3perf: rank {answer['rank']} could not write its answer to {directory}:"
            f" {problem.strerror}\n"
        )
        sys.stderr.flush()
    return answer
