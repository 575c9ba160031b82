"""The one orchestrator: cell to sessions to rounds to metrics to verdict."""
