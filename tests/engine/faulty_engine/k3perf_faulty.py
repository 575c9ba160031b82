"""Faults for a real engine, in one phase of its steps or in its front end. On the engine's
PYTHONPATH in tests only."""

from __future__ import annotations

import time
from typing import Any

from k3perf_probe.worker_extension import ProbeExtension

FRONT_END_DELAY_S = 0.08


class FaultyExtension(ProbeExtension):
    """The probe with a slow-down of one kind of step."""

    def k3perf_slow_phase(self, phase: str, percent: float) -> str:
        """Steps with a prompt in them (``prefill``), or without one (``decode``), take
        ``percent`` longer."""
        original = self.execute_model  # type: ignore[attr-defined]

        def slowed(scheduler_output: Any, *arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            result = original(scheduler_output, *arguments, **named)
            scheduled = scheduler_output.num_scheduled_tokens
            with_prompt = any(count > 1 for count in scheduled.values())
            if scheduled and with_prompt == (phase == "prefill"):
                time.sleep((time.perf_counter() - began) * percent / 100)
            return result

        self.execute_model = slowed
        return phase


async def slow_front_end(request: Any, call_next: Any) -> Any:
    """vLLM's ``--middleware``: every completion blocks the API server for a while."""
    if request.url.path.startswith("/v1/"):
        time.sleep(FRONT_END_DELAY_S)
    return await call_next(request)
