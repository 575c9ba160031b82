"""What a process imports as ``pynvml`` with this folder first on its path.
K3PERF_TEST_NVML holds the calls of ``host`` as JSON.
"""

import importlib.util
import json
import os
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "k3perf_test_nvml_host", Path(__file__).with_name("host.py")
)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
globals().update(vars(_module.host(json.loads(os.environ.get("K3PERF_TEST_NVML", "{}")))))
