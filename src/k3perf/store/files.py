"""Reading small text files: absent is None, unreadable is an error with its next step.
``store.atomic`` writes them.
"""

from __future__ import annotations

from k3perf.documents import read_text
from k3perf.store.atomic import replace_file as replace_text

__all__ = ["read_text", "replace_text"]
