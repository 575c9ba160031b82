"""Runs `python -m pytest` many times, each in a fraction of a start: everything is
imported once, and every run is a fork that becomes pytest.

Reads one JSON request a line (``cwd``, ``environment``, ``arguments``, ``output``: a
file for both streams; empty: a pipe without a reader) and answers each with its exit
status, negative for a signal. The fork ends as an interpreter does: with the status of
SystemExit, or with a traceback and status 1.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import sys

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
    if ".cli." not in module.name and not module.name.endswith(
        ("__main__", "unpack", "guardian_main")
    ):
        importlib.import_module(module.name)
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
    for descriptor, opened in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(opened, descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["pytest", *request["arguments"]]
    sys.path[0] = request["cwd"]
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
