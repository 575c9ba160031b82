"""k3perf: performance-regression tests for tuned Kimi K3 serving on vLLM. Importing it
imports nothing heavy.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__"]
