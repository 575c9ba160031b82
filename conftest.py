"""Site facts of this repository's pytest runs. The k3perf plugin comes in by its entry point."""
