"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_startup import test_startup

__all__ = ["test_startup"]
