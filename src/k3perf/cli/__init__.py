"""Argument parsing and exit statuses of ``k3perf``; each command delegates at once."""
