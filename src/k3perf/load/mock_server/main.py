"""``python -m k3perf.load.mock_server.main``: the mock server's process. ``k3perf
mock-server`` runs the same.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError

from k3perf.documents import Misfit
from k3perf.errors import UsageError, shortened
from k3perf.load.mock_server.behaviour import Behaviour, Delay, Fault, FaultKind
from k3perf.load.mock_server.fast import serve_fast
from k3perf.load.mock_server.serve import HOST, serve

_LARGEST_PORT: Final = 65535


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the mock server."""
    parser.add_argument(
        "--port",
        type=_port,
        default=8000,
        help="port on 127.0.0.1, 0 for a free one (default: 8000)",
    )
    _add_stream_arguments(parser)
    parser.add_argument(
        "--block-tokens", type=int, help="keep a prefix cache of such blocks and report its hits"
    )
    parser.add_argument(
        "--fault",
        action="append",
        default=[],
        metavar="KIND[:EVERY[:FIRST]]",
        help=f"a fault at every EVERY-th request; may be repeated; kinds: {', '.join(FaultKind)}",
    )
    parser.add_argument(
        "--model-name", default="mock", help="name under /v1/models (default: mock)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of drawn delays (default: 0)")
    parser.add_argument(
        "--behaviour",
        metavar="JSON",
        help="all of the above as one JSON document; overrides the others",
    )
    parser.add_argument("--cpus", metavar="N,N", help="CPUs to run on")
    parser.add_argument(
        "--fast",
        action="store_true",
        help="write faster than a client reads: fixed delays, completions only, no faults",
    )


def _add_stream_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the delays and chunks of a stream."""
    parser.add_argument(
        "--ttft",
        default="20",
        metavar="MS[:KIND[:SPREAD]]",
        help="delay of the first token (default: 20)",
    )
    parser.add_argument(
        "--itl", default="5", metavar="MS[:KIND[:SPREAD]]", help="time between tokens (default: 5)"
    )
    parser.add_argument(
        "--step",
        type=float,
        default=0.0,
        metavar="MS",
        help="chunks of all streams leave together at multiples of this",
    )
    parser.add_argument(
        "--chunk-tokens", type=int, default=1, help="tokens in each chunk (default: 1)"
    )
    parser.add_argument(
        "--empty-chunks",
        type=int,
        default=0,
        help="chunks without a token before the first (default: 0)",
    )
    parser.add_argument(
        "--reasoning-tokens",
        type=int,
        default=0,
        help="first tokens of a chat reply in the reasoning channel",
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. The base URL is the first line on stdout. Raises
    UsageError.
    """
    if arguments.cpus:
        _pin(arguments.cpus)
    behaviour = _behaviour(arguments)
    try:
        if arguments.fast:
            serve_fast(_fast_profile(behaviour), arguments.port, _announce)
        else:
            serve(behaviour, arguments.port, _announce)
    except OSError as error:
        raise UsageError(
            f"cannot serve on {HOST}:{arguments.port}: {error.strerror}; choose another --port"
        ) from None
    return 0


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= _LARGEST_PORT:
        raise argparse.ArgumentTypeError(
            f"{shortened(text)} is not a port between 0 and {_LARGEST_PORT}"
        )
    return value


def _pin(cpus: str) -> None:
    try:
        os.sched_setaffinity(0, {int(number) for number in cpus.split(",")})
    except (ValueError, OSError, OverflowError):
        here = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise UsageError(
            f"--cpus {shortened(cpus)}: give numbers of CPUs that this machine has, such as {here}."
        ) from None


def _announce(port: int) -> None:
    sys.stdout.write(f"http://{HOST}:{port}\n")
    sys.stdout.flush()


def _behaviour(arguments: argparse.Namespace) -> Behaviour:
    try:
        if arguments.behaviour:
            return Behaviour.model_validate_json(arguments.behaviour)
        return Behaviour(
            ttft=_delay(arguments.ttft),
            itl=_delay(arguments.itl),
            step_ms=arguments.step,
            chunk_tokens=arguments.chunk_tokens,
            empty_chunks=arguments.empty_chunks,
            reasoning_tokens=arguments.reasoning_tokens,
            block_tokens=arguments.block_tokens,
            faults=tuple(_fault(text) for text in arguments.fault),
            seed=arguments.seed,
            model_name=arguments.model_name,
        )
    except ValidationError as error:
        misfit = Misfit(error)
        raise UsageError(
            f"invalid behaviour of the mock server: {misfit.place or 'the behaviour'}:"
            f" {misfit.problem} (value: {shortened(repr(misfit.value))})"
        ) from None


def _fast_profile(behaviour: Behaviour) -> dict[str, float]:
    """The profile of the fast server. Raises UsageError for what it cannot do."""
    plain = Behaviour(
        ttft=behaviour.ttft,
        itl=behaviour.itl,
        step_ms=behaviour.step_ms,
        chunk_tokens=behaviour.chunk_tokens,
    )
    if plain != behaviour or {behaviour.ttft.kind, behaviour.itl.kind} != {"fixed"}:
        raise UsageError(
            "--fast knows fixed --ttft and --itl, --step and --chunk-tokens; remove the other"
            " options"
        )
    return {
        "ttft_ms": behaviour.ttft.mean_ms,
        "itl_ms": behaviour.itl.mean_ms,
        "step_ms": behaviour.step_ms,
        "chunk_tokens": behaviour.chunk_tokens,
    }


def _delay(text: str) -> Delay:
    mean, _, rest = text.partition(":")
    kind, _, spread = rest.partition(":")
    return Delay.model_validate({"mean_ms": mean, "kind": kind or "fixed", "spread": spread or 0})


def _fault(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    every, _, first = rest.partition(":")
    return Fault.model_validate({"kind": kind, "every": every or 1, "first": first or 0})


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse and serve."""
    parser = argparse.ArgumentParser(prog="k3perf mock-server", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
