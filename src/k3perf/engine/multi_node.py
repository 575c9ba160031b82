"""A single-process launch to the launches of vLLM's multi-node start, one for each host. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from k3perf.engine.group import MASTER_PORT_PLACEHOLDER, GroupLaunch
from k3perf.engine.launch import EngineLaunch

SERVER_MODULE: Final = "vllm.entrypoints.openai.api_server"
SERVE_MODULE: Final = "k3perf_probe.serve"


def multi_node_launch(
    launch: EngineLaunch,
    *,
    hosts: int,
    master_host: str = "127.0.0.1",
    prefixes: tuple[tuple[str, ...], ...] = (),
    environments: tuple[dict[str, str | None], ...] = (),
) -> GroupLaunch:
    """``launch`` (``PYTHON -m vllm...api_server ARGUMENTS``) on ``hosts`` hosts: rank 0 serves, the others are headless.

    ``prefixes`` and ``environments`` give each rank the words in front of its command (``ip netns exec B``) and variables of its own;
    missing ones are empty. Raises ValueError when the launch does not start vLLM's server module.
    """
    if SERVER_MODULE not in launch.argv:
        raise ValueError(f"the launch does not run {SERVER_MODULE}: {launch.argv}")
    at = launch.argv.index(SERVER_MODULE)
    interpreter, arguments = launch.argv[: at - 1], launch.argv[at + 1 :]
    ranks = []
    for rank in range(hosts):
        prefix = prefixes[rank] if rank < len(prefixes) else ()
        own = environments[rank] if rank < len(environments) else {}
        place = ("--nnodes", str(hosts), "--node-rank", str(rank), "--master-addr", master_host, "--master-port", MASTER_PORT_PLACEHOLDER)
        role = () if rank == 0 else ("--headless",)
        argv = (*prefix, *interpreter, "-m", SERVE_MODULE, "serve", *arguments, *place, *role)
        ranks.append(replace(launch, argv=argv, environment={**launch.environment, **own}))
    return GroupLaunch(tuple(ranks), master_host)
