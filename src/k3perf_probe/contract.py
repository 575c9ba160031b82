"""What the probe and its reader rely on inside vLLM (``contract.json``), and a check:
``python -m k3perf_probe.contract`` in the engine's Python.

Starts nothing and needs no device. Prints JSON with the release and one sentence for
every name that has moved; exit status 1 if any has. An attribute counts as there when
the class has it or when the source of the class or of a parent assigns it to ``self``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from k3perf_probe.identity import read_identity
from k3perf_probe.worker_extension import ProbeExtension


@dataclass(frozen=True)
class Relied:
    """Names of one class or module, and what is lost without them."""

    module: str
    owner: str  # a class, or empty for the module itself
    names: tuple[str, ...]
    needed_for: str


RELIED_ON: tuple[Relied, ...] = tuple(
    Relied(row["module"], row["owner"], tuple(row["names"]), row["needed_for"])
    for row in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
)

# The extension is mixed into these; a shared name would make vLLM refuse the start.
WORKERS: tuple[tuple[str, str], ...] = (
    ("vllm.v1.worker.gpu_worker", "Worker"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker"),
)


def broken(relied_on: tuple[Relied, ...] = RELIED_ON) -> Iterator[str]:
    """One sentence for every name that is not where it is looked for."""
    for relied in relied_on:
        try:
            owner = _owner(relied)
        except (ImportError, AttributeError) as problem:
            yield (
                f"{relied.module} {relied.owner or '(module)'} cannot be found ({problem}); needed"
                f" for {relied.needed_for}"
            )
            continue
        for name in relied.names:
            if not _offers(owner, name):
                yield (
                    f"{relied.module}.{relied.owner or ''} no longer has {name!r}; needed for"
                    f" {relied.needed_for}"
                )


def clashes(workers: tuple[tuple[str, str], ...] = WORKERS) -> Iterator[str]:
    """One sentence for every name that the extension shares with a worker class."""
    names = [name for name in dir(ProbeExtension) if not name.startswith("__")]
    for module, owner in workers:
        worker = getattr(importlib.import_module(module), owner)
        for name in names:
            if hasattr(worker, name):
                yield (
                    f"{module}.{owner} has an attribute {name!r} too; vLLM would refuse the"
                    " worker extension"
                )


def _owner(relied: Relied) -> object:
    module = importlib.import_module(relied.module)
    return getattr(module, relied.owner) if relied.owner else module


def _offers(owner: object, name: str) -> bool:
    if hasattr(owner, name):
        return True
    classes = owner.__mro__[:-1] if isinstance(owner, type) else ()
    annotated = any(name in vars(cls).get("__annotations__", {}) for cls in classes)
    return annotated or any(
        f"self.{name}" in inspect.getsource(cls) for cls in classes if cls.__module__ != "builtins"
    )


def main() -> int:
    """Print the check's JSON."""
    problems = [*broken(), *clashes()]
    sys.stdout.write(
        json.dumps({"vllm_version": read_identity()["vllm_version"], "problems": problems}) + "\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
