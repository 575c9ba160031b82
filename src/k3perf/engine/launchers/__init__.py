"""A cell's engine arguments to the files that start it on several devices or hosts:
``render_launch`` and nothing else.

Pure: data in, text out. Nothing is started, looked up or written here; ``k3perf
export`` writes the files and ``k3perf.engine.group`` starts a multi-node engine.
"""

from __future__ import annotations

from k3perf.engine.launchers.render import LAUNCH_KINDS, render_launch

__all__ = ["LAUNCH_KINDS", "render_launch"]
