"""``vllm bench serve``, run with the engine's Python: fifth argument is a tokenizer's directory. Works without the ``vllm`` command."""

import argparse
import os
import sys

from vllm.benchmarks.serve import add_cli_args, main

base_url, concurrency, output_tokens, requests, tokenizer = sys.argv[1:6]
parser = argparse.ArgumentParser()
add_cli_args(parser)
arguments = ["--backend", "openai", "--base-url", base_url, "--model", "mock", "--tokenizer", tokenizer, "--dataset-name", "random"]
arguments += ["--random-input-len", "32", "--random-output-len", output_tokens, "--num-prompts", requests, "--ignore-eos"]
arguments += ["--max-concurrency", concurrency, "--disable-tqdm", "--save-result", "--result-filename", sys.argv[6]]
if os.environ.get("K3PERF_BENCHMARK_REALTIME"):
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(10))
main(parser.parse_args(arguments))
