"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_quality import test_quality

__all__ = ["test_quality"]
