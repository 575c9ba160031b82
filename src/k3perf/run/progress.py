"""What a run tells whoever watches it. The consumer's protocol; the plugin draws it with rich, tests collect it in a list."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Listener for a run's steps; every call returns at once and never raises."""

    def stage(self, engine: str, stage: str) -> None:
        """An engine's start reached a stage (import, load, profile, compile, capture, ready) or it stops."""

    def round(self, cell: str, arm: str, done_count: int, planned_count: int, detail: str) -> None:
        """A round ended."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class SilentProgress:
    """Listens and says nothing."""

    def stage(self, engine: str, stage: str) -> None:
        """Ignored."""

    def round(self, cell: str, arm: str, done_count: int, planned_count: int, detail: str) -> None:
        """Ignored."""

    def note(self, text: str) -> None:
        """Ignored."""
