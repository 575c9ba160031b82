"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_memory import test_memory

__all__ = ["test_memory"]
