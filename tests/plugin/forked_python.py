"""Runs `python -m MODULE` many times, each in a fraction of a start: everything is
imported once, and every run is a fork that becomes the module.

Reads one JSON request a line (``module``, ``arguments``, ``cwd``, ``environment``,
``output``: a file for both streams; empty: a pipe without a reader, ``errors``: a file
for standard error alone) and answers each with its exit status, negative for a signal.
The fork ends as an interpreter does: with the status of SystemExit, or with a traceback
and status 1.
"""

import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import sys
import tempfile
from pathlib import Path

# a fork has one thread: none may be waited for
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
for name in (
    "pytest",
    "pytest_benchmark.plugin",
    "scipy.stats",
    "scipy.special",
    "rich.table",
    "rich.console",
    "pynvml",
):
    importlib.import_module(name)
import k3perf  # noqa: E402

for module in pkgutil.walk_packages(k3perf.__path__, "k3perf."):
    if not module.name.endswith(("__main__", "unpack", "guardian_main", "cli.main")):
        importlib.import_module(module.name)
from k3perf.store.results import read_results  # noqa: E402

read_results(Path(sys.argv[1]))  # makes the validators that every run needs
gc.freeze()  # what is shared by all forks is not looked at by any


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


request = None
for line in sys.stdin:
    request = json.loads(line)
    pid = os.fork()
    if pid == 0:
        break
    request = None
    _, status = os.waitpid(pid, 0)
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()

if request is not None:
    output = (
        os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        if request["output"]
        else closed_pipe()
    )
    errors = output
    if request["errors"]:
        errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor, opened in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, errors)):
        os.dup2(opened, descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        raw = open(descriptor, "wb", 0, closefd=False)  # noqa: SIM115 - lasts as long as the process
        unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
        stream = io.TextIOWrapper(
            raw if unbuffered else io.BufferedWriter(raw),
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "strict",
            line_buffering=name == "stderr",
            write_through=unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    tempfile.tempdir = None
    sys.argv = [request["module"], *request["arguments"]]
    sys.path[0] = request["cwd"]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
