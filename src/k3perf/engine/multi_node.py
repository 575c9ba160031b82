"""A launch and its target to running ranks: one process tree, or vLLM's multi-node
start with one tree for each host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from k3perf.config.models import TargetSpec
from k3perf.engine.group import MASTER_PORT_PLACEHOLDER, EngineGroup, GroupLaunch, start_group
from k3perf.engine.launch import SERVER_MODULE, EngineLaunch
from k3perf.engine.launchers.options import resolve_options
from k3perf.engine.running import DeviceUsedBytes, Engine
from k3perf.engine.supervisor import start_engine
from k3perf.errors import EngineError, UsageError

SERVE_MODULE: Final = "k3perf_probe.serve"


def multi_node_launch(
    launch: EngineLaunch,
    *,
    hosts: int,
    master_host: str = "127.0.0.1",
    prefixes: tuple[tuple[str, ...], ...] = (),
    environments: tuple[dict[str, str | None], ...] = (),
) -> GroupLaunch:
    """``launch`` (``PYTHON -m vllm...api_server ARGUMENTS``) on ``hosts`` hosts: rank 0
    serves, the others are headless.

    ``prefixes`` and ``environments`` give each rank the words in front of its command
    (``ip netns exec B``) and its own variables; missing ones are empty. Raises
    ValueError when the launch does not start vLLM's server module.
    """
    if SERVER_MODULE not in launch.argv:
        raise ValueError(f"the launch does not run {SERVER_MODULE}: {launch.argv}")
    at = launch.argv.index(SERVER_MODULE)
    interpreter, arguments = launch.argv[: at - 1], launch.argv[at + 1 :]
    ranks = []
    for rank in range(hosts):
        prefix = prefixes[rank] if rank < len(prefixes) else ()
        own = environments[rank] if rank < len(environments) else {}
        place = (
            "--nnodes",
            str(hosts),
            "--node-rank",
            str(rank),
            "--master-addr",
            master_host,
            "--master-port",
            MASTER_PORT_PLACEHOLDER,
        )
        role = () if rank == 0 else ("--headless",)
        argv = (*prefix, *interpreter, "-m", SERVE_MODULE, "serve", *arguments, *place, *role)
        ranks.append(replace(launch, argv=argv, environment={**launch.environment, **own}))
    return GroupLaunch(tuple(ranks), master_host)


def start_target(
    target: TargetSpec,
    launch: EngineLaunch,
    *,
    work_directory: Path,
    on_stage: Callable[[str], None] | None = None,
    device_used_bytes: DeviceUsedBytes | None = None,
    companion_failed: Callable[[], EngineError | None] = lambda: None,
) -> Engine | EngineGroup:
    """Start ``launch`` as the target's ``launch`` section says; both results have the
    surface that a session needs.

    ``companion_failed`` is asked while it starts: an error it gives ends the start.
    Raises UsageError for a kind that a cluster's own tool starts, and what
    ``start_engine`` and ``start_group`` raise.
    """
    kind = target.launch.kind
    if kind == "single":
        return start_engine(
            launch,
            work_directory=work_directory,
            on_stage=on_stage,
            device_used_bytes=device_used_bytes,
            companion_failed=companion_failed,
        )
    if kind != "multi_node":
        if kind == "server":
            raise UsageError(
                f"target {target.name!r} is a server that runs already. Give its address with"
                " --k3-server http://HOST:PORT."
            )
        raise UsageError(
            f"target {target.name!r} is started by {kind}, not by the suite. Start it with the"
            f" files of `k3perf export CONFIG --target {target.name} --launch {kind}`, then give"
            " its address with --k3-server http://HOST:PORT."
        )
    options = resolve_options(target, {})
    group = multi_node_launch(
        launch,
        hosts=options.hosts,
        master_host=options.host_addresses[0] if options.host_addresses else "127.0.0.1",
        prefixes=options.host_commands,
        environments=tuple({"VLLM_HOST_IP": address} for address in options.host_addresses),
    )
    return start_group(
        group,
        work_directory=work_directory,
        on_stage=on_stage,
        device_used_bytes=device_used_bytes,
        companion_failed=companion_failed,
    )
