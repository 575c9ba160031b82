"""Argument parsing and exit statuses of ``k3perf``. Each command delegates at once."""
