"""A server with vLLM's routes and no model: known delays, known counts, faults on
request, and a record of what it did.

Used by the harness's fidelity and fault tests, and to check any load generator against
a known engine.
"""

from k3perf.load.mock_server.behaviour import Behaviour, Delay, Fault, FaultKind
from k3perf.load.mock_server.process import (
    FastMockServer,
    MockServer,
    start_fast_server,
    start_mock_server,
)

__all__ = [
    "Behaviour",
    "Delay",
    "FastMockServer",
    "Fault",
    "FaultKind",
    "MockServer",
    "start_fast_server",
    "start_mock_server",
]
