"""What every client program here does: a warm-up, then few and many tokens per request
in one process, its CPU time read around each.

Imports, connecting and lazy set-up fall into the warm-up or are the same in both runs,
so the difference is the cost of the tokens.
"""

import json
import resource
import sys

base_url, concurrency, few_tokens, many_tokens = sys.argv[1], *map(int, sys.argv[2:5])
extra = sys.argv[5:]
host, port = base_url.removeprefix("http://").split(":")


def measure(play):
    """``play(output_tokens)`` plays ``concurrency`` streams once. Prints [user s,
    system s] after each run as the last line on stdout.
    """
    readings_s = []
    for tokens in (few_tokens, few_tokens, many_tokens):
        play(tokens)
        readings_s.append(_cpu_s())
    print(json.dumps({"readings_s": readings_s}), flush=True)


def _cpu_s():
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return [sum(part.ru_utime for part in parts), sum(part.ru_stime for part in parts)]


def completion_body(number, output_tokens):
    """What all clients but those with a form of their own ask for."""
    return {
        "model": "mock",
        "prompt": [number, *range(31)],
        "max_tokens": output_tokens,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
    }
