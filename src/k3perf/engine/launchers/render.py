"""One entry for every launch kind: target, arguments and options to ``{file name:
text}``.
"""

from __future__ import annotations

import shlex
from typing import Any, Final

import yaml

from k3perf.config.arguments import native_value
from k3perf.config.models import TargetSpec
from k3perf.engine.launchers.options import LaunchOptions, resolve_options
from k3perf.engine.log_lines import STAGES
from k3perf.errors import UnknownNameError, UsageError

CONFIG_FILE: Final = "config.yaml"
_SCRIPTS: Final[dict[str, tuple[str, ...]]] = {
    "single": ("serve.sh",),
    "multi_node": ("host.sh",),
    "ray": ("ray-head.sh", "ray-worker.sh"),
    "slurm": ("host.sh", "serve.sbatch"),
    "kubernetes": (),
}
LAUNCH_KINDS: Final = tuple(_SCRIPTS)


class _BlockTextDumper(yaml.SafeDumper):
    """Safe dumper that writes text of several lines as a block, so that a person can
    read the configuration inside the ConfigMap.
    """


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_BlockTextDumper.add_representer(str, _represent_text)


def render_launch(
    kind: str,
    engine_arguments: dict[str, Any],
    target: TargetSpec,
    options: dict[str, Any] | None = None,
) -> dict[str, str]:
    """The files that start ``target`` with ``engine_arguments`` by ``kind``; names are
    stable, every text ends in a newline.

    ``config.yaml`` is vLLM's native configuration and holds every engine argument; the
    other files only say where each rank runs. Raises UnknownNameError for another kind
    and UsageError for options that do not fit the target.
    """
    if kind not in _SCRIPTS:
        raise UnknownNameError("launch kind", kind, LAUNCH_KINDS)
    chosen = resolve_options(target, options or {})
    if kind == "single" and chosen.hosts > 1:
        raise UsageError(
            f"target {target.name!r} needs {chosen.hosts} hosts, which one process tree cannot"
            " span. Use --launch multi_node, ray, slurm or kubernetes."
        )
    arguments = dict(engine_arguments)
    if kind == "ray":
        arguments["distributed_executor_backend"] = "ray"
        if target.parallelism.data > 1:
            arguments["data_parallel_backend"] = "ray"
    config = _config_text(arguments, target, chosen)
    files = {CONFIG_FILE: config}
    files |= {name: _template(f"{name}.j2", target, chosen) for name in _SCRIPTS[kind]}
    if kind == "kubernetes":
        files["leaderworkerset.yaml"] = _manifest(target, chosen, config)
    return files


def _manifest(target: TargetSpec, options: LaunchOptions, config: str) -> str:
    stages = target.stage_deadlines
    environment = dict(sorted(target.environment.items()))
    if options.interface:
        names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
        environment |= dict.fromkeys(names, options.interface)
    text = _template(
        "leaderworkerset.yaml.j2",
        target,
        options,
        config=config,
        environment=environment,
        start_up_s=round(sum(getattr(stages, f"{stage}_s") for stage in STAGES)),
    )
    return yaml.dump_all(
        yaml.safe_load_all(text), Dumper=_BlockTextDumper, sort_keys=False, width=140
    )


def _config_text(arguments: dict[str, Any], target: TargetSpec, options: LaunchOptions) -> str:
    own = dict(arguments)
    if options.api_servers is not None:
        own["api_server_count"] = options.api_servers
    if target.model.weights == "dummy":
        own["load_format"] = "dummy"
    if target.model.trust_remote_code:
        own["trust_remote_code"] = True
    rendered = {"model": options.model} | {
        name.replace("_", "-"): native_value(name, value) for name, value in sorted(own.items())
    }
    return yaml.safe_dump(rendered, sort_keys=False, default_flow_style=False)


def _template(name: str, target: TargetSpec, options: LaunchOptions, **more: Any) -> str:
    import jinja2

    loader = jinja2.PackageLoader("k3perf.engine.launchers")
    # shell text, quoted by the ``sh`` filter where a value goes in
    environment = jinja2.Environment(  # noqa: S701
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    own = {"environment": dict(sorted(target.environment.items())), **more}
    return environment.get_template(name).render(target=target, options=options, **own)
