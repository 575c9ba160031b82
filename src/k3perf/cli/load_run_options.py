"""Options of ``k3perf load run``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from k3perf.cli.shared_options import add_suite_option, client_processes, count, positive

if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_LEVELS: Final = 64


def levels(kind: Callable[[str], float]) -> Callable[[str], tuple[float, ...]]:
    """A list of numbers such as ``1,2,4``, each of ``kind``."""

    def parse(text: str) -> tuple[float, ...]:
        found = tuple(kind(part) for part in text.split(","))
        if len(found) > _MOST_LEVELS:
            raise argparse.ArgumentTypeError(f"at most {_MOST_LEVELS} levels are allowed")
        return found

    return parse


_TEXTS: Final[tuple[tuple[str, str, str], ...]] = (
    ("--model-name", "NAME", "name of the model (default: the server's only model)"),
    ("--api-key-env", "VAR", "environment variable that holds the API key"),
    ("--tls-ca-file", "PEM", "certificates to trust (default: the system's)"),
    ("--workload", "FILE", "workload file, or the name of a declared workload"),
    ("--extra-body", "JSON", "more keys for each request body, as a JSON object"),
)
_FILES: Final[tuple[tuple[str, str, str], ...]] = (
    ("--prompts", "FILE", "real prompts: ShareGPT conversations, chat messages, JSONL"),
    ("--trace", "FILE", "trace to replay, with its times and lengths"),
    ("--prompt-template", "FILE", "Jinja template of a completion's prompt"),
    (
        "--json-schema",
        "FILE",
        "request replies in this JSON schema; a reply that is not JSON fails",
    ),
    ("--output", "JSON", "file for the result with all levels"),
    ("--csv", "FILE", "file for one row per request"),
    ("--parquet", "FILE", "the same as Parquet (needs k3perf[parquet])"),
)
_NUMBERS: Final[tuple[tuple[str, Callable[[str], Any], Any, str], ...]] = (
    (
        "--concurrency",
        levels(count),
        None,
        "requests in flight; 1,2,4 runs three levels (default: 8)",
    ),
    ("--rate", levels(positive), None, "requests per second; 1,2,4 runs three levels"),
    ("--requests", count, None, "requests of one level (default: 4 per slot, at least 32)"),
    ("--duration", positive, None, "duration of one level with --rate, in seconds (default: 30)"),
    ("--input-tokens", count, 256, "length of synthetic prompts (default: 256)"),
    ("--output-tokens", count, 128, "output tokens of a request (default: 128)"),
    ("--turns", count, 1, "turns of synthetic conversations (default: 1)"),
    ("--think-time", positive, None, "seconds between a reply and the next turn (default: 0)"),
    ("--vocabulary-size", count, None, "send random token ids below this, instead of words"),
    ("--temperature", positive, None, "sampling temperature (default: 0)"),
    ("--seed", int, 0, "seed of every random draw (default: 0)"),
    ("--warm-up", int, 8, "requests before the first level (default: 8; 0: none)"),
    ("--ttft-ms", positive, None, "TTFT limit for goodput (default: the workload's)"),
    ("--tpot-ms", positive, None, "TPOT limit for goodput (default: the workload's)"),
    ("--request-timeout", positive, 600.0, "seconds after which a request fails (default: 600)"),
    ("--client-processes", client_processes, "auto", "number of client processes (default: auto)"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add every option of the command."""
    parser.add_argument(
        "--base-url",
        action="append",
        required=True,
        metavar="URL",
        help="server, for example http://127.0.0.1:8000; repeat it for several endpoints",
    )
    parser.add_argument(
        "--route",
        choices=("chat", "completions"),
        help="route to load (default: completions with token ids or a template, else chat)",
    )
    parser.add_argument(
        "--server",
        choices=("vllm", "openai"),
        default="vllm",
        help="openai sends only standard keys, for servers other than vLLM (default: vllm)",
    )
    for option, metavar, text in _TEXTS:
        parser.add_argument(option, metavar=metavar, help=text)
    for option, metavar, text in _FILES:
        parser.add_argument(option, type=Path, metavar=metavar, help=text)
    for option, kind, default, text in _NUMBERS:
        # argparse would repeat the option's name, which fills the usage lines
        parser.add_argument(option, type=kind, default=default, metavar="N", help=text)
    parser.add_argument(
        "--arrival",
        choices=("poisson", "constant"),
        default="poisson",
        help="arrivals of --rate (default: poisson)",
    )
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        metavar="BOUND",
        help="objective, for example ttft_p99_ms<=500; repeat it for several",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        metavar="HEADER",
        help="additional request header, as 'NAME: VALUE'; repeatable",
    )
    parser.add_argument("--insecure", action="store_true", help="accept any TLS certificate")
    parser.add_argument(
        "--natural-end",
        action="store_true",
        help="let replies end by themselves; --output-tokens is then a limit",
    )
    parser.add_argument(
        "--stop-when-missed",
        action="store_true",
        help="stop at the first level that misses an objective",
    )
    add_suite_option(parser)
