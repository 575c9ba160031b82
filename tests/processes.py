"""What tests that start Python processes share: their patience, and an environment in
which a start is cheap.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 600
"""A process that hangs ends its test after this; on a busy machine it may take minutes.
"""

WAIT_S: Final = 120
"""What happens in a moment on a quiet machine has happened after this, or never will.
"""

_BYTECODE: Final = Path(__file__).resolve().parent.parent / ".k3perf" / "test-bytecode"


def kept_bytecode() -> dict[str, str]:
    """Variables with which Python keeps compiled modules where the caller's environment
    forbids it.

    Whole runs start hundreds of processes. Without kept bytecode each compiles all that
    it imports, which takes longer than the run. Empty where Python keeps bytecode
    anyway.
    """
    if not sys.dont_write_bytecode:
        return {}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(_BYTECODE)}
