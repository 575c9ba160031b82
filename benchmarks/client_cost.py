"""What a streamed token costs each client in CPU time, side by side against the same
mock server.

    python benchmarks/client_cost.py [--engine-python P] [--guidellm-python P]
        [--httpx-python P] [--tokenizer DIR]

Every client runs pinned to one core, the mock server on another. Each plays few and
many tokens per request in one process, and the difference in its CPU time over the
difference in tokens is what a token costs it (load_clients/measured.py).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from k3perf.engine.model_directory import materialise
from k3perf.load.mock_server import Behaviour, Delay, start_mock_server

HERE = Path(__file__).resolve().parent
CLIENTS = HERE / "load_clients"
# inter-token time in ms at each concurrency: 1,000, 8,000, 12,800 and 20,000 tokens per
# second in all
ITL_MS = {1: 1.0, 64: 8.0, 256: 20.0, 1024: 51.2}
# few and many output tokens per request: 5,000 to 100,000 tokens apart in all
TOKENS = {1: (200, 5200), 64: (50, 650), 256: (40, 240), 1024: (40, 140)}
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
LONGEST_CLIENT_S = 150
OURS, THEIRS, FLOOR = "k3perf", "vllm bench serve", "bare asyncio protocol"


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--concurrency", default="1,64,256,1024")
    parser.add_argument(
        "--clients", default="", help="comma-separated names; default: all that are available"
    )
    parser.add_argument("--engine-python", help="a Python with vLLM: adds vllm bench serve")
    parser.add_argument("--guidellm-python", help="a Python with guidellm")
    parser.add_argument("--httpx-python", help="a Python with httpx")
    parser.add_argument(
        "--tokenizer",
        help="a tokenizer's directory for vllm bench serve and guidellm (default: the stand-ins')",
    )
    parser.add_argument("--client-cpu", type=int, default=0)
    parser.add_argument("--server-cpu", type=int, default=1)
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        help="divide the inter-token times by this: nearer to what one core carries",
    )
    return parser.parse_args()


def commands(options, scratch):
    """Client name to (Python, program, further arguments)."""
    python = sys.executable
    tokenizer = options.tokenizer or materialise(
        HERE.parent / "perf_tests/models/cpu-gqa", Path(scratch) / "model"
    )
    table = {
        FLOOR: (python, "bare_protocol.py"),
        "the same on uvloop": (python, "bare_protocol.py", "uvloop"),
        OURS: (python, "k3perf_reader.py"),
        "aiohttp + json": (python, "library_reader.py", "aiohttp-json"),
        "aiohttp + orjson + uvloop": (python, "library_reader.py", "aiohttp-orjson-uvloop"),
    }
    if options.httpx_python:
        table["httpx + json"] = (options.httpx_python, "library_reader.py", "httpx")
    if options.engine_python:
        table[THEIRS] = (options.engine_python, "vllm_bench.py", tokenizer, scratch)
    if options.guidellm_python:
        table["guidellm"] = (options.guidellm_python, "guidellm_run.py", tokenizer, scratch)
    wanted = [name.strip() for name in options.clients.split(",") if name.strip()]
    return {name: command for name, command in table.items() if not wanted or name in wanted}


def run_client(command, work, options):
    """The last line of the client's output as JSON; a client that takes too long is
    ended with all its processes.
    """
    python, program, *further = command
    full = [
        *map(
            str,
            (
                "/usr/bin/env",
                "taskset",
                "-c",
                options.client_cpu,
                python,
                CLIENTS / program,
                *work,
                *further,
            ),
        )
    ]
    process = subprocess.Popen(
        full,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | OFFLINE,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=LONGEST_CLIENT_S)
    except BaseException as error:  # an interrupt too
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise SystemExit(f"not done within {LONGEST_CLIENT_S} s: {' '.join(full)}") from None
        raise
    if process.returncode != 0:
        raise SystemExit(f"failed: {' '.join(full)}\n{output[-3000:]}")
    return json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))


def cost_us(command, server, level, options):
    """(user, system) microseconds of CPU for one more token. The server's own count
    says how many tokens there were.
    """
    few, many = TOKENS[level]
    readings_s = run_client(command, [server.base_url, level, few, many], options)["readings_s"]
    written = sum(sum(request["write_tokens"]) for request in server.truth())
    if written != level * (few + few + many):
        raise SystemExit(
            f"{command[1]} was sent {written} tokens where {level * (few + few + many)} were"
            " planned; its cost cannot be told"
        )
    tokens = level * (many - few)
    return tuple(
        1e6 * ((last - middle) - (middle - first)) / tokens
        for first, middle, last in zip(*readings_s, strict=True)
    )


def processor_ticks():
    """All ticks of all processors, and those that the hypervisor gave to others."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[7]


def measure_all(options):
    """Client name to level to (user, system) cost, and level to the lag of k3perf's
    reads.
    """
    levels = [int(level) for level in options.concurrency.split(",")]
    costs, lags = {}, {}
    with (
        tempfile.TemporaryDirectory() as scratch,
        start_mock_server(cpus=frozenset({options.server_cpu})) as server,
    ):
        clients = commands(options, scratch)
        for level in levels:
            itl_ms = ITL_MS[level] / options.speed
            # cost: all streams' tokens leave in steps, as an engine sends them; lag:
            # phases spread evenly, the steady state
            in_steps = Behaviour(ttft=Delay(mean_ms=50), itl=Delay(mean_ms=itl_ms), step_ms=itl_ms)
            spread = Behaviour(
                ttft=Delay(kind="uniform", mean_ms=itl_ms / 2 + 50, spread=itl_ms / 2),
                itl=Delay(mean_ms=itl_ms),
            )
            for name, command in clients.items():
                server.behave(in_steps)
                user_us, system_us = costs.setdefault(name, {})[level] = cost_us(
                    command, server, level, options
                )
                sys.stderr.write(
                    f"{name}, {level} streams: {user_us + system_us:.1f} us of CPU per token,"
                    f" {user_us:.1f} of them user\n"
                )
            if OURS in clients:
                server.behave(spread)
                lags[level] = run_client(
                    (*clients[OURS], "truth"), [server.base_url, level, *TOKENS[level]], options
                )
                sys.stderr.write(f"{OURS} lag, {level} streams: {lags[level]}\n")
    return levels, costs, lags


def print_tables(levels, costs, lags):
    def row(label, cells):
        print(f"| {label} | " + " | ".join(cells) + " |")

    row(
        "us of CPU per token (in user space)",
        [f"{level} stream{'s' if level > 1 else ''}" for level in levels],
    )
    print("|---" * (len(levels) + 1) + "|")
    for name, of_client in costs.items():
        row(name, [f"{sum(of_client[level]):.1f} ({of_client[level][0]:.1f})" for level in levels])
    for other in (THEIRS, FLOOR):
        if OURS in costs and other in costs:
            row(
                f"{OURS} / {other}",
                [f"{sum(costs[OURS][level]) / sum(costs[other][level]):.2f}" for level in levels],
            )
    for key in next(iter(lags.values()), {}):
        row(f"{OURS} reading: {key}", [str(lags[level][key]) for level in levels])


def main():
    options = parse_arguments()
    begin_s, before = time.monotonic(), processor_ticks()
    levels, costs, lags = measure_all(options)
    ticks, stolen = (now - then for now, then in zip(processor_ticks(), before, strict=True))
    print_tables(levels, costs, lags)
    print(
        f"\n{time.monotonic() - begin_s:.0f} s; {stolen / ticks:.1%} of the machine's time was"
        f" stolen; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
