"""A stand-in for vLLM's server that fails on request: same process tree, log lines and
routes. Standard library only.

    fake_engine.py --port P --model NAME [--fault KIND[:ARGUMENT[:PROCESS]]]...

API server -> EngineCore -> Worker; each is this file again under another title. The
stages of a start take ``--stage-s`` each.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

STAGE_LINES = {
    "import": "INFO 01-01 00:00:00 [api_utils.py:286] non-default args: {}",
    "load": "INFO 01-01 00:00:00 [cpu_model_runner.py:68] Starting to load model fake...",
    "profile": (
        "INFO 01-01 00:00:00 [gpu_model_runner.py:5089] Model loading took 1.00 GiB memory and"
        " 0.100000 seconds"
    ),
    "compile": "INFO 01-01 00:00:00 [monitor.py:30] Starting torch.compile",
    "capture": (
        "INFO 01-01 00:00:00 [kv_cache_utils.py:2327] CPU KV cache size: 1,024 tokens, Maximum"
        " concurrency for 64 tokens: 16.00x"
    ),
    "ready": (
        "INFO 01-01 00:00:00 [core.py:402] init engine (profile, create kv cache, warmup model)"
        " took 0.10 s"
    ),
}
# sys.executable is empty under a made-up argv[0]
PYTHON = str(Path("/proc/self/exe").resolve())
WORKER_STAGES = ("load", "profile", "compile", "capture")
NAMES = {"api": "APIServer", "core": "EngineCore", "worker": "Worker"}


class Faults:
    def __init__(self, texts: list[str]) -> None:
        self.rows = [(*text.split(":"), "", "")[:3] for text in texts]

    def get(self, kind: str) -> str | None:
        return next((argument for name, argument, _ in self.rows if name == kind), None)

    def at(self, kind: str, argument: str, process: str, default_process: str) -> bool:
        return any(
            name == kind and value == argument and (where or default_process) == process
            for name, value, where in self.rows
        )


MUTE = False


def say(role: str, text: str) -> None:
    if MUTE and " ERROR " not in f" {text}":
        return
    sys.stdout.write(f"({NAMES[role]} pid={os.getpid()}) {text}\n")
    sys.stdout.flush()


def fail(role: str, stage: str) -> None:
    say(role, "ERROR 01-01 00:00:00 [core.py:1510] failed to start.")
    say(role, "ERROR 01-01 00:00:00 [core.py:1510] Traceback (most recent call last):")
    say(
        role,
        f"ERROR 01-01 00:00:00 [core.py:1510] RuntimeError: injected death in {role} at {stage}",
    )
    os._exit(13)


def pass_stage(role: str, stage: str, options: argparse.Namespace) -> None:
    default = "worker" if stage in WORKER_STAGES else ("api" if stage == "import" else "core")
    say(role, STAGE_LINES[stage])
    if options.faults.at("die", stage, role, default):
        fail(role, stage)
    for kind, number in (
        ("killed", signal.SIGKILL),
        ("slow_death", signal.SIGKILL),
        ("segfault", signal.SIGSEGV),
    ):
        if options.faults.at(kind, stage, role, default):
            # long enough to have been seen
            time.sleep(1 if kind == "slow_death" else 0)
            os.kill(os.getpid(), number)
    if options.faults.at("hang", stage, role, default):
        while True:
            time.sleep(3600)
    if options.faults.at("heartbeat", stage, role, default):
        while True:
            say(
                role,
                "INFO 01-01 00:00:00 [utils.py:1] Waiting for 1 local, 0 remote core engine proc(s)"
                " to start.",
            )
            time.sleep(0.05)
    if options.faults.at("slow", stage, role, default):
        for step in range(1, 11):
            time.sleep(float(options.faults.get("step_s") or 0.15))
            say(role, f"Loading safetensors checkpoint shards:  {step * 10}% Completed")
    work_silently(role, stage, default, options.faults)
    time.sleep(options.stage_s)


def work_silently(role: str, stage: str, default: str, faults: Faults) -> None:
    """Two seconds without a line: a compiler that computes, a cache that grows, a
    compiler that waits, or nothing.
    """
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    code = {
        "compiles": "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass",
        "waits": "import time; time.sleep(600)",
    }
    for kind, text in code.items():
        if faults.at(f"silent_{kind}", stage, role, default):
            compiler = temporary / "ptxas"
            compiler.symlink_to(PYTHON)
            subprocess.run([str(compiler), "-S", "-E", "-c", text], check=False)
    if faults.at("silent_grows", stage, role, default):
        cache = Path(os.environ["VLLM_CACHE_ROOT"]) / "deep_gemm" / "kernel.fake"
        cache.mkdir(parents=True)
        for step in range(10):
            (cache / f"{step}.cubin").write_bytes(b"x" * 100)
            time.sleep(0.2)
    if faults.at("silent", stage, role, default):
        time.sleep(2)


def spawn(role: str, arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [f"VLLM::{NAMES[role]}", "-S", "-E", __file__, *arguments, "--role", role]
    return subprocess.Popen(
        command,
        executable=os.path.realpath("/proc/self/exe"),
        stdout=subprocess.PIPE if role == "core" else None,
        stdin=subprocess.DEVNULL,
    )


def run_worker(options: argparse.Namespace) -> None:
    if options.faults.get("ignore_sigterm") is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if options.faults.get("shared_memory") is not None:
        handle = os.open(f"/dev/shm/psm_{options.model}", os.O_CREAT | os.O_RDWR)
        os.ftruncate(handle, 4096)
        options.keep = mmap.mmap(handle, 4096)
    if (
        options.faults.get("escape") is not None
    ):  # a process that leaves session, parent and mark behind
        subprocess.Popen(
            [
                os.path.realpath("/proc/self/exe"),
                "-S",
                "-E",
                "-c",
                "import time; time.sleep(600)",
                options.model,
            ],
            start_new_session=True,
            env={},
        )
        time.sleep(0.3)
    # only where the configuration file holds this text
    config = options.faults.get("die_with")
    for stage in WORKER_STAGES:
        pass_stage("worker", stage, options)
        if config and config in Path(options.config).read_text():
            fail("worker", stage)
    Path(options.ready_file).write_text("ready")
    late = options.faults.get("die_late")
    eat = options.faults.get("eat_memory")
    hoard = []
    while (
        eat is not None and not Path(eat).exists()
    ):  # only once the test has put the limit in place
        time.sleep(0.02)
    while eat is not None:
        hoard.append(bytearray(b"x") * (1 << 20))
        time.sleep(0.001)
    while os.getppid() == options.parent or options.faults.get("orphans") is not None:
        if late and Path(late).exists():
            fail("worker", "serving")
        time.sleep(0.05)


def run_core(options: argparse.Namespace, arguments: list[str]) -> None:
    if options.faults.get("ignore_sigterm") is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker = spawn("worker", [*arguments, "--parent", str(os.getpid())])
    while not Path(options.ready_file).exists():
        if worker.poll() is not None:
            say(
                "core",
                "ERROR 01-01 00:00:00 [core.py:1510] Exception: WorkerProc initialization failed."
                " See root cause above.",
            )
            sys.exit(1)
        time.sleep(0.02)
    pass_stage("core", "ready", options)
    os.write(options.out, b"ready\n")
    while worker.poll() is None:
        if os.getppid() != options.parent and options.faults.get("orphans") is None:
            worker.terminate()
            sys.exit(1)
        time.sleep(0.05)
    say(
        "core",
        "ERROR 01-01 00:00:00 [multiproc_executor.py:316] Worker proc died unexpectedly (exit"
        f" code: {worker.returncode})",
    )
    if options.faults.get("core_survives_worker") is not None:
        time.sleep(3600)
    sys.exit(1)


def bind(options: argparse.Namespace) -> socket.socket:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    marker = options.faults.get("port_taken")
    if marker and not Path(marker).exists():
        Path(marker).write_text("once")
        say(
            "api",
            "ERROR: [Errno 98] error while attempting to bind on address: address already in use",
        )
        os._exit(1)
    server.bind(("127.0.0.1", options.port))
    return server


def serve(server_socket: socket.socket, options: argparse.Namespace) -> None:
    """In a thread, from now on."""
    import http.server
    import threading

    from fake_routes import Handler

    Handler.options, Handler.say = options, staticmethod(say)
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", options.port), Handler, bind_and_activate=False
    )
    server.socket.close()
    server.socket = server_socket
    server.server_activate()
    threading.Thread(target=server.serve_forever, daemon=True).start()


def run_api(options: argparse.Namespace, arguments: list[str]) -> None:
    pass_stage("api", "import", options)
    server_socket = bind(options)
    options.ready_file = f"{os.environ.get('TMPDIR', '/tmp')}/ready"
    core = spawn(
        "core", [*arguments, "--ready-file", options.ready_file, "--parent", str(os.getpid())]
    )

    def end(_number: int, _frame: object) -> None:
        say(
            "api", "INFO 01-01 00:00:00 [launcher.py:254] [shutdown] API server: shutdown triggered"
        )
        if options.faults.get("orphans") is None:
            core.terminate()
        os._exit(0)

    if options.faults.get("ignore_sigterm") is not None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, end)
    assert core.stdout is not None
    line = core.stdout.readline()
    while line and line != b"ready\n":
        sys.stdout.buffer.write(line)
        sys.stdout.flush()
        line = core.stdout.readline()
    if not line:
        time.sleep(0.5)  # vLLM ends its other processes before it gives up
        say(
            "api",
            "ERROR 01-01 00:00:00 [utils.py:1432] RuntimeError: Engine core initialization failed."
            " See root cause above.",
        )
        os._exit(1)

    if options.faults.get("hang_before_listen") is not None:
        time.sleep(3600)
    serve(server_socket, options)
    say(
        "api",
        "INFO 01-01 00:00:00 [entry.py:140] Starting vLLM server on"
        f" http://127.0.0.1:{options.port}",
    )
    late = options.faults.get("api_dies_late")
    while core.poll() is None:
        if late and Path(late).exists():
            os._exit(7)
        time.sleep(0.05)
    say(
        "api",
        "ERROR 01-01 00:00:00 [async_llm.py:1] EngineDeadError: EngineCore encountered an issue."
        " See stack trace (above).",
    )
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--role", default="api")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", "--served-model-name", dest="model", default="fake")
    parser.add_argument("--config", default="")
    parser.add_argument("--stage-s", type=float, default=0.02)
    parser.add_argument("--fault", action="append", default=[])
    parser.add_argument("--ready-file", default="")
    parser.add_argument("--parent", type=int, default=0)
    options, _vllm_arguments = parser.parse_known_args()
    options.faults = Faults(options.fault)
    global MUTE  # noqa: PLW0603
    MUTE = options.faults.get("mute") is not None
    arguments = [
        "--port",
        str(options.port),
        "--model",
        options.model,
        "--stage-s",
        str(options.stage_s),
        "--config",
        options.config,
    ]
    arguments += [part for fault in options.fault for part in ("--fault", fault)]
    if options.role == "core":
        # what the core and its worker print goes straight to the log; only the ready
        # mark goes to the API server
        options.out = os.dup(1)
        os.dup2(2, 1)
        run_core(options, [*arguments, "--ready-file", options.ready_file])
    elif options.role == "worker":
        run_worker(options)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            run_api(options, arguments)


if __name__ == "__main__":
    main()
