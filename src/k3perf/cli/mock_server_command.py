"""``k3perf mock-server``: a server with vLLM's routes, known delays and faults on
request.
"""

from __future__ import annotations

import argparse


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    from k3perf.load.mock_server import main

    parser = subparsers.add_parser(
        "mock-server",
        help="serve known delays and faults under vLLM's routes, on 127.0.0.1",
        epilog="exit status: 0 when SIGINT or SIGTERM ends it",
    )
    main.add_arguments(parser)
    parser.set_defaults(run=main.run)
