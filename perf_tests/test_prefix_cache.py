"""The shipped module, so that a path can name it."""

from k3perf.pytest_plugin.suite_modules.test_prefix_cache import test_prefix_cache

__all__ = ["test_prefix_cache"]
