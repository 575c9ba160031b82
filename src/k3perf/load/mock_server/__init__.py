"""A server with vLLM's routes and no model: known delays, known counts, faults on
request, and the truth about what it did.

For the harness's own fidelity and fault tests, and for anyone who wants to know what a
load generator makes of a known engine.
"""

from k3perf.load.mock_server.behaviour import Behaviour, Delay, Fault, FaultKind
from k3perf.load.mock_server.process import MockServer, start_mock_server

__all__ = ["Behaviour", "Delay", "Fault", "FaultKind", "MockServer", "start_mock_server"]
