"""The configuration that the engine resolved is the one that was approved: a changed
default under a tuned setup is seen here.
"""

import pytest


@pytest.mark.configuration
def test_config_lock(cell, k3):
    k3.check_configuration(cell)
