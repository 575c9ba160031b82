"""What a streamed token costs each client in CPU time, side by side against the same mock server.

    python benchmarks/client_cost.py [--concurrency 1,64,256,1024] [--engine-python P --tokenizer DIR] [--guidellm G] [--httpx-python P]

Every client runs as a process pinned to one core, the mock server on another. A client is run twice, with few and with many tokens per
request; the difference in its CPU time over the difference in tokens is its marginal cost, so imports and connecting do not count.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from k3perf.load.mock_server import Behaviour, Delay, start_mock_server

HERE = Path(__file__).resolve().parent / "load_clients"
# inter-token time in ms at each concurrency: about 1,000 to 20,000 tokens per second in all
ITL_MS = {1: 1.0, 64: 8.0, 256: 20.0, 1024: 51.2}
# few and many output tokens per request: 10,000 to 200,000 tokens apart in all
TOKENS = {1: (500, 10_500), 64: (50, 1050), 256: (40, 440), 1024: (40, 240)}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--concurrency", default="1,64,256,1024")
    parser.add_argument("--clients", default="", help="comma-separated names; default: all that are available")
    parser.add_argument("--engine-python", help="a Python with vLLM: adds vllm bench serve")
    parser.add_argument("--tokenizer", help="tokenizer directory for vllm bench serve and guidellm")
    parser.add_argument("--guidellm", help="path of the guidellm command")
    parser.add_argument("--httpx-python", help="a Python with httpx")
    parser.add_argument("--client-cpu", type=int, default=0)
    parser.add_argument("--server-cpu", type=int, default=1)
    parser.add_argument(
        "--realtime", action="store_true", help="SCHED_FIFO for server and clients while they stream (root; a busy machine)"
    )
    parser.add_argument("--speed", type=float, default=1.0, help="divide the inter-token times by this: nearer to what one core carries")
    parser.add_argument("--repeats", type=int, default=1, help="pairs of runs; the smallest cost is reported")
    return parser.parse_args()


def commands(options, scratch):
    python = sys.executable
    table = {
        "bare asyncio protocol": lambda *work: [python, HERE / "bare_protocol.py", *work],
        "bare protocol on uvloop": lambda *work: [python, HERE / "bare_protocol.py", *work, "uvloop"],
        "k3perf": lambda *work: [python, HERE / "k3perf_reader.py", *work],
        "aiohttp + json": lambda *work: [python, HERE / "library_reader.py", *work, "aiohttp-json"],
        "aiohttp + orjson + uvloop": lambda *work: [python, HERE / "library_reader.py", *work, "aiohttp-orjson-uvloop"],
    }
    if options.httpx_python:
        table["httpx + json"] = lambda *work: [options.httpx_python, HERE / "library_reader.py", *work, "httpx"]
    if options.engine_python:
        result = scratch / "vllm.json"
        table["vllm bench serve"] = lambda *work: [options.engine_python, HERE / "vllm_bench.py", *work, options.tokenizer, result]
    if options.guidellm:
        table["guidellm"] = lambda *work: guidellm(options, scratch, *work)
    wanted = [name.strip() for name in options.clients.split(",") if name.strip()]
    return {name: command for name, command in table.items() if not wanted or name in wanted}


def guidellm(options, scratch, base_url, concurrency, output_tokens, requests):
    return [
        *(options.guidellm, "run", "--backend", f"kind=openai_http,target={base_url},model=mock"),
        *("--profile", f"kind=concurrent,streams={concurrency}", "--constraint", f"kind=max_requests,count={requests}"),
        *("--tokenizer", f"kind=huggingface_auto,model={options.tokenizer}"),
        *("--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={output_tokens}"),
        *("--output", f"kind=json,path={scratch / 'guidellm.json'}", "--disable-console"),
    ]


def cpu_s(command, options):
    """(user, system) CPU seconds of one run of the command pinned to its core, and its stdout."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with tempfile.TemporaryFile("w+") as output:
        # tools that import for half a minute must not do that at real-time priority; vllm_bench.py raises its own when it begins to stream
        light = Path(command[0]) == Path(sys.executable) or command[0] == options.httpx_python
        first = ["chrt", "-f", "10"] if options.realtime and light else []
        full = ["/usr/bin/env", *first, "taskset", "-c", str(options.client_cpu), *map(str, command)]
        environment["K3PERF_BENCHMARK_REALTIME"] = "1" if options.realtime else ""
        process = subprocess.Popen(full, stdout=output, stderr=subprocess.STDOUT, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read()
    if status != 0:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{text[-3000:]}")
    return (usage.ru_utime, usage.ru_stime), text


def marginal_cost_us(make_command, base_url, concurrency, options):
    few, many = TOKENS[concurrency]
    requests = concurrency
    costs = []
    for _ in range(options.repeats):
        few_s, _ = cpu_s(make_command(base_url, concurrency, few, requests), options)
        many_s, _ = cpu_s(make_command(base_url, concurrency, many, requests), options)
        tokens = requests * (many - few)
        costs.append(tuple(1e6 * (more - less) / tokens for more, less in zip(many_s, few_s, strict=True)))
    return min(costs, key=sum)


def main():
    options = parse_arguments()
    levels = [int(level) for level in options.concurrency.split(",")]
    rows = {}
    with tempfile.TemporaryDirectory() as directory, start_mock_server(cpus=frozenset({options.server_cpu})) as server:
        if options.realtime:
            os.sched_setscheduler(server.pid, os.SCHED_FIFO, os.sched_param(10))
        for level in levels:
            itl_ms = ITL_MS[level] / options.speed
            # cost: all streams' tokens leave in steps, as an engine sends them; lag: phases spread evenly, the steady state
            in_steps = Behaviour(ttft=Delay(mean_ms=50), itl=Delay(mean_ms=itl_ms), step_ms=itl_ms)
            spread = Behaviour(ttft=Delay(kind="uniform", mean_ms=itl_ms / 2 + 50, spread=itl_ms / 2), itl=Delay(mean_ms=itl_ms))
            for name, make_command in commands(options, Path(directory)).items():
                server.behave(in_steps)
                cost = marginal_cost_us(make_command, server.base_url, level, options)
                rows.setdefault(name, {})[level] = cost
                print(
                    f"{name}, {level} streams: {sum(cost):.1f} us of CPU per token, {cost[0]:.1f} of them user", file=sys.stderr, flush=True
                )
            server.behave(spread)
            work = [server.base_url, level, TOKENS[level][1], level, "truth"]
            _, text = cpu_s([sys.executable, HERE / "k3perf_reader.py", *work], options)
            rows.setdefault("k3perf lag", {})[level] = json.loads(text.splitlines()[-1])
            print(f"k3perf lag, {level} streams: {text.splitlines()[-1]}", file=sys.stderr, flush=True)
    print("| client | " + " | ".join(f"{level} streams" for level in levels) + " |")
    print("|---" * (len(levels) + 1) + "|")
    for name, values in rows.items():
        if name != "k3perf lag":
            print(f"| {name} | " + " | ".join(f"{sum(values[level]):.1f} ({values[level][0]:.1f})" for level in levels) + " |")
    print("| k3perf, p99 lag in ms | " + " | ".join(f"{rows['k3perf lag'][level]['lag_p99_ms']:.3f}" for level in levels) + " |")


if __name__ == "__main__":
    main()
