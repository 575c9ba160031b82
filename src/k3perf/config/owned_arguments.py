"""Arguments of vLLM that a suite's files cannot give, with the reason and the next
step. Data only.

Some are the harness's own. Some decide the number of ranks, which `parallelism` alone
declares. Some place the ranks, which `launch` does. Some ask for a server that the
suite cannot measure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Owned:
    """Why an argument is refused: a problem after the argument's name, and a next
    step.
    """

    problem: str
    next_step: str


def _same(owned: Owned, *names: str) -> dict[str, Owned]:
    return dict.fromkeys(names, owned)


_HARNESS: Final = "is set by the harness itself"
_COMMAND_LINE: Final = "Remove it; give it on the command line of the deployment."
_ONE_SERVER: Final = "Remove it; the suite measures one HTTP server with all ranks behind it."
_HOSTS: Final = (
    "Remove it; `launch` and `hardware.host_count` place the ranks (docs/multi-host.md)."
)

OWNED: Final[dict[str, Owned]] = {
    **_same(
        Owned(_HARNESS, "Remove it; targets declare model and weights."),
        *(
            "model",
            "model_tag",
            "load_format",
            "served_model_name",
            "config",
            "worker_extension_cls",
        ),
    ),
    **_same(
        Owned(_HARNESS, "Remove it; a measured server listens on a free loopback port."),
        *("host", "port", "uds"),
    ),
    **_same(
        Owned(
            f"{_HARNESS}, which reads stages, compiles and causes of death from the log",
            _COMMAND_LINE,
        ),
        *("log_level", "logging_config", "log_config_file", "uvicorn_log_level", "log_error_stack"),
        "jit_monitor_verbose",
    ),
    "disable_log_stats": Owned(
        f"{_HARNESS}, which counts tokens by the server's own statistics", _COMMAND_LINE
    ),
    **_same(
        Owned("cannot be measured: the client speaks plain HTTP and sends no key", _COMMAND_LINE),
        *("api_key", "ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"),
        "enable_ssl_refresh",
    ),
    **_same(
        Owned("cannot be measured: such a server answers no completions over HTTP", _ONE_SERVER),
        *("grpc", "grpc_port", "tokens_only"),
    ),
    **_same(
        Owned("needs a load balancer in front of several servers", _ONE_SERVER),
        *("data_parallel_external_lb", "data_parallel_hybrid_lb"),
        *("data_parallel_multi_port_external_lb", "data_parallel_supervisor_port"),
        *("dp_supervisor_probe_interval_s", "dp_supervisor_probe_timeout_s"),
        "dp_supervisor_probe_failure_threshold",
    ),
    **_same(
        Owned("places ranks on hosts, which is declared elsewhere", _HOSTS),
        *("nnodes", "node_rank", "master_addr", "master_port", "headless"),
        *("data_parallel_size_local", "data_parallel_rank", "data_parallel_start_rank"),
        *("data_parallel_address", "data_parallel_rpc_port"),
    ),
    # The parser of the server module takes it and its main() runs one server all the
    # same.
    "api_server_count": Owned(
        "is obeyed by `vllm serve` alone; the server module that the suite measures would ignore it"
        " and run one API server",
        "Remove it. A target that is exported for several hosts may set"
        " launch.options.api_servers.",
    ),
}

PARALLELISM: Final[dict[str, str]] = {
    "tensor_parallel_size": "tensor",
    "pipeline_parallel_size": "pipeline",
    "data_parallel_size": "data",
    "prefill_context_parallel_size": "prefill_context",
    "enable_expert_parallel": "expert",
}
"""Arguments that follow from `parallelism`, with the key that declares each."""


def owned(name: str, value: Any, *, in_config: bool) -> Owned | None:
    """Why a target's `engine_arguments` or a config's `change` cannot hold ``name``
    (None: it can).
    """
    key = PARALLELISM.get(name)
    if key is None:
        return OWNED.get(name)
    decides = "how experts are spread over the ranks" if key == "expert" else "the number of ranks"
    shown = str(value).lower() if isinstance(value, bool) else value
    declared = f"parallelism: {{{key}: {shown}}}"
    step = (
        f"give the ranks a target of their own, with {declared}"
        if in_config
        else f"declare {declared}"
    )
    return Owned(
        f"decides {decides}, which is said in one place only: a target's parallelism",
        f"Remove it and {step}.",
    )
