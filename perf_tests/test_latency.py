"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_latency import test_latency

__all__ = ["test_latency"]
