"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_throughput import test_throughput

__all__ = ["test_throughput"]
