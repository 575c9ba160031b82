"""The class that vLLM mixes into its worker (``--worker-extension-cls
k3perf_probe.worker_extension.ProbeExtension``).

Its methods are called over the server's ``/collective_rpc`` route, once per rank of
every data-parallel engine, and return JSON-able dicts with the rank's number. vLLM
passes on the first engine's answers alone, so a reading is also left in ``directory``
(``answers``). vLLM refuses an extension that shares an attribute name with its worker,
so every name starts with ``k3perf_`` and all state sits in one attribute. A call
changes nothing in the engine unless its name says so (reset, slow down, hold).
Importing the module changes nothing unless oneDNN is capped.
"""

from __future__ import annotations

import os
from typing import Any

from k3perf_probe import (
    answers,
    backends,
    cpu_caps,
    holding,
    identity,
    jit_caches,
    memory,
    slowing,
    spreading,
    wrong_answers,
)

# vLLM imports this module before its worker chooses kernels
cpu_caps.honour_caps(os.environ)


class ProbeExtension:
    """Readings and faults of one rank. ``self`` is vLLM's worker; which of its
    attributes are relied on is in ``contract.py``.
    """

    def k3perf_memory(self, directory: str = "") -> dict[str, Any]:
        """Memory parts of this rank in bytes (fields of ``RankMemory``); what is not
        offered is None and listed in ``absent``.
        """
        return answers.leave_answer(memory.read_memory(self), directory)

    def k3perf_reset_peaks(self) -> dict[str, Any]:
        """Restart the peaks (allocator, resident memory); says which."""
        return memory.reset_peaks(self)

    def k3perf_identity(self, directory: str = "") -> dict[str, Any]:
        """Versions and device names as this process sees them (None: not installed),
        and the backends chosen at load.
        """
        found = {
            "rank": answers.rank_of(self),
            **identity.read_identity(),
            "backends": backends.read_backends(self),
        }
        return answers.leave_answer(found, directory)

    def k3perf_new_compiled_files(
        self, since_ns: int | str, sent_ns: int | str, directory: str = ""
    ) -> dict[str, Any]:
        """What this rank's compilers left on disk since ``since_ns``, wall clock of the
        harness (``jit_caches``).
        """
        return answers.leave_answer(
            jit_caches.new_files(self, int(since_ns), int(sent_ns)), directory
        )

    def k3perf_slow_down(self, percent: float | str) -> dict[str, Any]:
        """Injected fault: every step takes ``percent`` longer; 0 ends it."""
        return slowing.slow_down(self, float(percent))

    def k3perf_hold_bytes(
        self, kind: str, size_bytes: int | str, only_rank: int | str | None = None
    ) -> dict[str, Any]:
        """Injected fault: keep ``size_bytes`` more memory; ``kind`` is ``weights``,
        ``device`` or ``host``. 0 releases that kind.

        With ``only_rank`` on the rank of that number alone.
        """
        return holding.hold_bytes(
            self, kind, int(size_bytes), None if only_rank is None else int(only_rank)
        )

    def k3perf_wrong_answers(self, kind: str, amount: float | str) -> dict[str, Any]:
        """Injected fault: answer wrongly, as ``kind`` says (``wrong_answers``); 0 ends
        it.
        """
        return wrong_answers.wrong_answers(self, kind, float(amount))

    def k3perf_spread_weights(self, on: bool | str) -> dict[str, Any]:
        """Scale dummy weights so that log-probabilities spread, or take that back."""
        return spreading.spread_weights(self, on=str(on) not in {"False", "false", "0"})
