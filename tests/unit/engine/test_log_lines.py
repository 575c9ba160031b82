"""vLLM's lines: stages, compiles, port clashes, and the one error that matters."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.unit.engine.crash_corpus import CORPUS

from k3perf.engine import log_lines
from k3perf.engine.cause_choice import find_root_cause


def cause_of(lines):
    found = find_root_cause(lines)
    return found.text if found is not None else ""


# of vLLM 0.32.0 (CPU) and 0.27 (GPU), shortened
STAGES = [
    (
        (
            "(APIServer pid=1) INFO 11-29 14:05:44 [api_utils.py:286] non-default args: {'host':"
            " '127.0.0.1'}"
        ),
        None,
    ),
    (
        (
            "(EngineCore pid=2) INFO 11-29 14:06:14 [core.py:133] Initializing a V1 LLM engine"
            " (v0.32.0) with config: model='m'"
        ),
        "load",
    ),
    (
        "(Worker pid=3) INFO 11-29 14:06:27 [cpu_model_runner.py:68] Starting to load model m...",
        "load",
    ),
    ("Loading safetensors checkpoint shards:  50% Completed | 4/8", "load"),
    (
        "(Worker_TP0 pid=3) INFO 1 [default_loader.py:502] Loading weights took 3.20 seconds",
        "profile",
    ),
    (
        (
            "(Worker_TP0 pid=3) INFO 1 [gpu_model_runner.py:5089] Model loading took 1.23 GiB"
            " memory and 4.5 seconds"
        ),
        "profile",
    ),
    (
        (
            "(Worker pid=3) INFO 1 [cpu_worker.py:260] Explicitly set (1.0/8.96) GiB for KV cache"
            " on node 0."
        ),
        "profile",
    ),
    ("(Worker pid=3) INFO 1 [monitor.py:30] Starting torch.compile", "compile"),
    (
        (
            "(EngineCore pid=2) INFO 1 [kv_cache_utils.py:2327] CPU KV cache size: 516,096 tokens,"
            " Maximum concurrency"
        ),
        "capture",
    ),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  14%|x", "capture"),
    (
        (
            "(EngineCore pid=2) INFO 1 [core.py:402] init engine (profile, create kv cache, warmup"
            " model) took 3.48 s"
        ),
        "ready",
    ),
    (
        "(APIServer pid=1) INFO 1 [entry.py:140] Starting vLLM server on http://127.0.0.1:8101",
        "ready",
    ),
    ("INFO:     Application startup complete.", "ready"),
]


@pytest.mark.parametrize(("line", "stage"), STAGES)
def test_stage_of_a_line(line: str, stage: str | None) -> None:
    assert log_lines.stage_opened_by(line) == stage


def test_cache_states() -> None:
    cold = "Compiling a graph for compile range (1, 2048) takes 12.30 s"
    warm = (
        "Directly load the compiled graph(s) for compile range (1, 2048) from the cache, took 0.5 s"
    )
    assert log_lines.compile_cache_warm([cold, warm]) is False
    assert log_lines.compile_cache_warm([warm]) is True
    assert log_lines.compile_cache_warm(["nothing"]) is None


WORKER_FAILURE = """
(APIServer pid=1) INFO 11-29 14:06:37 [entry.py:136] Supported tasks
(Worker pid=3) ERROR 11-29 14:06:27 [multiproc_executor.py:953] WorkerProc failed to start.
(Worker pid=3) ERROR 11-29 14:06:27 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker pid=3) ERROR 11-29 14:06:27 [multiproc_executor.py:953]   File "x.py", line 1, in f
(Worker pid=3) ERROR 11-29 14:06:27 [multiproc_executor.py:953] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
(EngineCore pid=2) ERROR 11-29 14:06:28 [core.py:1510] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-29 14:06:28 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-29 14:06:28 [core.py:1510] Exception: WorkerProc initialization failed due to an exception.
Traceback (most recent call last):
  File "api_server.py", line 1
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
""".strip().splitlines()


def test_the_root_cause_is_the_deepest_processs_first_error() -> None:
    assert (
        cause_of(WORKER_FAILURE)
        == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    )


def test_without_a_worker_the_core_is_the_deepest() -> None:
    lines = [line for line in WORKER_FAILURE if not line.startswith("(Worker")]
    lines.insert(
        1,
        "(EngineCore pid=2) ERROR 11-29 14:06:28 [core.py:9] ValueError: block size 7 is not"
        " supported",
    )
    assert cause_of(lines) == "ValueError: block size 7 is not supported"


def test_an_argument_error_of_the_api_server() -> None:
    lines = [
        "usage: api_server.py [-h]",
        "api_server.py: error: unrecognized arguments: --frobnicate",
    ]
    assert cause_of(lines) == "api_server.py: error: unrecognized arguments: --frobnicate"


def test_only_second_hand_words_are_better_than_none() -> None:
    assert cause_of(
        ["RuntimeError: Engine core initialization failed. See root cause above."]
    ).startswith("RuntimeError: Engine core")
    assert cause_of(["INFO all is well"]) == ""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            (
                "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1',"
                " 8000): address already in use"
            ),
            True,
        ),
        ("OSError: [Errno 98] Address already in use", True),
        ("INFO: started", False),
    ],
)
def test_port_clash(line: str, expected: bool) -> None:
    assert log_lines.shows_port_clash(line) is expected


HEARTBEATS = yaml.safe_load((CORPUS / "stream_and_start_lines.yaml").read_text())["heartbeats"]
WAITING = [
    (
        "(EngineCore pid=2) INFO 11-02 02:46:00 [shm_broadcast.py:542] No available shared memory"
        " broadcast block found in 60 seconds."
    ),
    (
        '{"levelname": "INFO", "message": "Waiting for READY message from DP Coordinator...",'
        ' "vllm_process_name": "EngineCore_DP1"}'
    ),
    (
        "(APIServer pid=1) INFO 11-02 02:46:00 [dp_supervisor.py:372] Waiting for vLLM DP Servers"
        " to become ready."
    ),
    (
        "(ApiServer_0 pid=4) DEBUG 11-02 02:46:00 [utils.py:1402] Waiting for 0 local, 1 remote"
        " core engine proc(s) to connect."
    ),
    "Still waiting to acquire lock on /x/models/.locks/a.lock (elapsed: 120.1 seconds)",
    (
        "(autoscaler +1m12s) Error: No available node types can fulfill resource request {'GPU':"
        " 8.0}. Add suitable node types to this cluster."
    ),
    "(raylet) Warning: The following resource request cannot be scheduled right now: {'GPU': 1.0}.",
    (
        "[W1102 10:15:01.000000 socket.cpp:767] [c10d] The client socket has failed to connect to"
        " [node1]:29500 (errno: 111 - Connection refused)."
    ),
    (
        "(Worker pid=3) WARNING 11-02 10:10:00 [connectionpool.py:870] Retrying (Retry(total=4))"
        " after connection broken by 'ReadTimeoutError'"
    ),
    "    Blocking waiting for file lock on build directory",
    'INFO:     127.0.0.1:51422 - "GET /health HTTP/1.1" 503 Service Unavailable',
    (
        "(APIServer pid=1) INFO 11-02 [loggers.py:271] Engine 000: Avg generation throughput: 0.0"
        " tokens/s, Running: 0 reqs, Waiting: 0 reqs"
    ),
]
GETTING_ON = [
    (
        "(Worker_TP0 pid=3) INFO 11-02 10:10:00 [gpu_model_runner.py:5089] Model loading took 61.2"
        " GiB memory and 84.1 seconds"
    ),
    "Capturing CUDA graphs (decode, FULL):  88%|########  | 45/51 [00:05<00:00,  9.32it/s]",
    "model-00007-of-00096.safetensors:  12%|#1        | 614M/4.97G [00:31<03:40, 19.8MB/s]",
    "(EngineCore pid=2) INFO 11-02 10:10:00 [jit.py:1] Loading JIT ops: fused_moe_103",
    "[3/9] nvcc -c /x/k3.cu -o k3.o",
    (
        "(APIServer pid=1) INFO 11-02 [loggers.py:271] Engine 000: Avg generation throughput: 4.0"
        " tokens/s, Running: 1 reqs, Waiting: 0 reqs"
    ),
    'INFO:     127.0.0.1:51422 - "POST /v1/completions HTTP/1.1" 200 OK',
]


@pytest.mark.parametrize("entry", HEARTBEATS, ids=lambda entry: entry["id"])
def test_heartbeats_of_the_corpus(entry: dict[str, Any]) -> None:
    # YAML reads yes and no as true and false
    assert log_lines.is_heartbeat(entry["line"]) is (entry["expected"] in (True, "yes"))


@pytest.mark.parametrize("line", WAITING)
def test_a_process_that_only_waits_does_not_get_on(line: str) -> None:
    assert log_lines.is_heartbeat(line)


@pytest.mark.parametrize("line", GETTING_ON)
def test_a_line_that_shows_progress(line: str) -> None:
    assert not log_lines.is_heartbeat(line)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("(APIServer pid=1) INFO 11-02 10:15:00 [api_utils.py:286] non-default args: {}", True),
        (
            (
                "\x1b[0;36m(APIServer pid=1)\x1b[0;0m \x1b[32mINFO\x1b[0m \x1b[90m11-02"
                " 10:15:00\x1b[0m x"
            ),
            True,
        ),
        ('{"levelname": "INFO", "message": "x"}', True),
        ("Loading safetensors checkpoint shards:  4% Completed | 4/96", True),
        ("(APIServer pid=1) WARNING 11-02 10:15:00 [argparse_utils.py:195] deprecated", False),
        ("(APIServer pid=1) ERROR 11-02 10:15:00 [x.py:1] INFORMATION is missing", False),
        ("/x/lib.py:12: FutureWarning: y", False),
    ],
)
def test_whether_a_log_names_its_stages(line: str, expected: bool) -> None:
    assert log_lines.is_informative(line) is expected
