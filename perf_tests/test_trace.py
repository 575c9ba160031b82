"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_trace import test_trace

__all__ = ["test_trace"]
