"""Options, hooks and fixtures of ``pytest perf_tests``; they delegate at once."""
