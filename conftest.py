"""Site facts of this repository's pytest runs. The k3perf plugin comes in by its entry
point.
"""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    from k3perf.pytest_plugin.benchmark_output import make_no_folder

    make_no_folder(config)
