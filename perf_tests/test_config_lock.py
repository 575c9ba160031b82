"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_config_lock import test_config_lock

__all__ = ["test_config_lock"]
