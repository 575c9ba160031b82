"""``python -m k3perf_probe.held_start GATE MODULE ARGUMENTS...``: import vLLM, wait at
the gate, then run MODULE as if it had been started.

Importing vLLM takes a third of a warm start. It can be done while another engine
starts, and needs neither the device nor the config. GATE is a named pipe that the
harness holds open: a byte opens the gate, its end means that no one needs this engine
any more. Nothing is written to the device, and no CUDA context is made, before the gate
opens.
"""

import importlib
import runpy
import sys
from pathlib import Path

AT_GATE_SUFFIX = ".reached"
# What the server and its EngineCore import anyway; with
# VLLM_WORKER_MULTIPROC_METHOD=fork the EngineCore inherits it.
IMPORTED_AHEAD = (
    "vllm.engine.arg_utils",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "transformers.models.auto.configuration_auto",
)


def import_ahead(modules: tuple[str, ...] = IMPORTED_AHEAD) -> list[str]:
    """Import what can be; a module that this release does not have is no fault here,
    the server itself will say what it misses.
    """
    missing = []
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing.append(f"{name}: {error}")
    return missing


def main() -> None:
    """Import, wait at the gate, become the server. Ends quietly if let go."""
    gate, module, *arguments = sys.argv[1:]
    missing = import_ahead()
    if missing:
        sys.stderr.write("k3perf: not imported ahead: " + "; ".join(missing) + "\n")
    with Path(gate).open("rb") as pipe:
        Path(gate + AT_GATE_SUFFIX).touch()
        if not pipe.read(1):
            return
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
