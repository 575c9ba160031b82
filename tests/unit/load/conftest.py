"""One mock server process for all tests of the client. Each test sets its behaviour."""

from __future__ import annotations

import pytest

from k3perf.load.mock_server import MockServer, start_mock_server


@pytest.fixture(scope="session")
def mock_server() -> MockServer:
    with start_mock_server() as server:
        yield server
