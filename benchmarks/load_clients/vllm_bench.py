"""``vllm bench serve`` with the engine's Python: then a tokenizer's directory and a
scratch directory. Needs no ``vllm`` command.
"""

import argparse

from measured import base_url, concurrency, extra, measure
from vllm.benchmarks.serve import add_cli_args, main

tokenizer, scratch = extra
parser = argparse.ArgumentParser()
add_cli_args(parser)


def play(tokens):
    arguments = [
        "--backend",
        "openai",
        "--base-url",
        base_url,
        "--model",
        "mock",
        "--tokenizer",
        tokenizer,
        "--dataset-name",
        "random",
    ]
    arguments += [
        "--random-input-len",
        "32",
        "--random-output-len",
        str(tokens),
        "--num-prompts",
        str(concurrency),
        "--ignore-eos",
    ]
    arguments += [
        "--max-concurrency",
        str(concurrency),
        "--disable-tqdm",
        "--save-result",
        "--result-filename",
        f"{scratch}/vllm.json",
    ]
    main(parser.parse_args(arguments))


measure(play)
