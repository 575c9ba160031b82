"""``k3perf memory plan``: predicted memory of a configuration, as text or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from k3perf.capacity.memory_plan import MemoryPlan, plan_memory
from k3perf.capacity.rules import PLATFORMS, platform_rules
from k3perf.capacity.shape import Ranks
from k3perf.cli.shared_options import add_suite_option, count, load_checked
from k3perf.documents import DocumentProblem, json_of, read_json
from k3perf.errors import ConfigFileError, ExitStatus, UsageError
from k3perf.units import GIB

if TYPE_CHECKING:
    from k3perf.config.models import TargetSpec
    from k3perf.config.suite import Suite


_GIVE_CONFIG: Final = "Give the model's config.json."


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """Inputs of a plan. ``notes``: why the declared target does not serve the config,
    or measures another one for it.
    """

    model_config: Mapping[str, Any]
    arguments: Mapping[str, Any]
    environment: Mapping[str, str]
    parallelism: Ranks
    platform: str
    device_memory_bytes: int | None
    notes: tuple[str, ...] = ()


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``memory plan`` to the command line."""
    memory = subparsers.add_parser("memory", help="predict memory before any device is rented")
    commands = memory.add_subparsers(dest="memory_command", metavar="COMMAND", required=True)
    plan = commands.add_parser(
        "plan",
        help="predict weights, KV cache, capacity and fit from config.json and the arguments only",
        epilog="exit status: 10 when the config does not fit",
    )
    plan.add_argument("--config", help="approved config, with --target")
    plan.add_argument("--target", help="declared target, with --config")
    add_suite_option(plan)
    plan.add_argument(
        "--model-config", type=Path, help="a config.json, instead of --config and --target"
    )
    plan.add_argument(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an engine argument; repeatable",
    )
    plan.add_argument(
        "--platform",
        choices=PLATFORMS,
        help="platform to plan for (default: the target's, or nvidia)",
    )
    plan.add_argument(
        "--device-memory-bytes", type=count, help="memory of one device (default: the target's)"
    )
    plan.add_argument(
        "--reserve-bytes",
        type=count,
        help="measured activations, workspaces, graphs and libraries, instead of the estimate",
    )
    for name in ("tensor", "pipeline", "data"):
        plan.add_argument(f"--{name}", type=count, help=f"{name}-parallel ranks")
    plan.add_argument("--expert", action="store_true", help="expert parallelism")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    plan.set_defaults(run=run_plan)


def run_plan(arguments: argparse.Namespace) -> int:
    """Print the plan. Exit status 0 when it fits or fit is unknown, 10 when it does not
    fit: 1 means a regression alone.
    """
    settings = _settings(arguments.settings)
    inputs = _inputs(arguments, settings)
    plan = plan_memory(
        inputs.model_config,
        {**inputs.arguments, **settings},
        parallelism=inputs.parallelism,
        device_memory_bytes=arguments.device_memory_bytes or inputs.device_memory_bytes,
        rules=platform_rules(arguments.platform or inputs.platform),
        environment=inputs.environment,
        reserve_bytes=arguments.reserve_bytes,
    )
    plan = replace(plan, notes=(*plan.notes, *inputs.notes))
    print(json.dumps(asdict(plan), indent=2) if arguments.json else render_plan(plan))
    return ExitStatus.INVALID if plan.fits is False else ExitStatus.OK


def render_plan(plan: MemoryPlan) -> str:
    """The plan as lines of ``name  value``, bytes also in GiB."""
    lines = [f"weights per rank        {_bytes(plan.weights_bytes)}"]
    lines += [f"  {name:<21} {_bytes(size)}" for name, size in plan.weights_bytes_by_part.items()]
    if len(plan.weights_bytes_by_stage) > 1:
        lines.append(
            "  by stage              "
            + ", ".join(f"{size:,}" for size in plan.weights_bytes_by_stage)
        )
    if plan.reserve_bytes_by_part:
        lines.append(f"other memory            {_bytes(sum(plan.reserve_bytes_by_part.values()))}")
        lines += [
            f"  {name:<21} {_bytes(size)}" for name, size in plan.reserve_bytes_by_part.items()
        ]
    asked = (
        ""
        if plan.requested_block_size_tokens in (None, plan.block_size_tokens)
        else f" ({plan.requested_block_size_tokens} requested)"
    )
    lines += [
        f"block size              {plan.block_size_tokens} tokens{asked}",
        f"KV bytes per token      {plan.kv_bytes_per_token:,}",
        f"state per sequence      {_bytes(plan.state_bytes_per_sequence)}",
        f"KV cache                {_bytes(plan.kv_cache_bytes)}",
        f"KV tokens               {_number(plan.kv_tokens)}",
        (
            f"maximum concurrency     {_number(plan.max_concurrency)} at"
            f" {plan.maximum_context_tokens:,} tokens"
        ),
        f"fits                    {_fit(plan)}",
    ]
    return "\n".join([*lines, *(f"note: {note}" for note in plan.notes)])


def _fit(plan: MemoryPlan) -> str:
    if plan.fits is None or plan.headroom_bytes is None:
        return "unknown"
    if plan.fits:
        return f"yes, {_bytes(plan.headroom_bytes)} beyond one request of the full context"
    return f"no, {_bytes(-plan.headroom_bytes)} short of one request of the full context"


def _bytes(size: int | None) -> str:
    return "unknown" if size is None else f"{size:,} B ({size / GIB:.3f} GiB)"


def _number(value: float | None) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def _inputs(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> PlanInputs:
    if arguments.model_config is None:
        if not (arguments.config and arguments.target):
            raise UsageError("give --config and --target, or --model-config FILE")
        inputs = _declared_inputs(arguments.suite, arguments.config, arguments.target, settings)
    else:
        inputs = PlanInputs(
            read_model_config(arguments.model_config),
            {},
            {},
            Ranks(),
            arguments.platform or "nvidia",
            None,
        )
    given = {key: getattr(arguments, key) for key in ("tensor", "pipeline", "data", "expert")}
    asked = {key: value for key, value in given.items() if value}
    return replace(inputs, parallelism=replace(inputs.parallelism, **asked))


def _declared_inputs(
    suite_root: Path, config: str, target: str, settings: Mapping[str, Any]
) -> PlanInputs:
    """Arguments, parallelism and hardware of a declared cell. Its model's config.json
    is in the suite's ``models`` directory.
    """
    suite = _narrow_suite(suite_root.resolve(), config, target)
    spec = suite.target(target)
    model, split = spec.model, spec.parallelism
    # A checkpoint's config.json is kept beside the shipped models, under the last part
    # of its name.
    directory = model.directory or f"models/{(model.checkpoint or '').rpartition('/')[2].lower()}"
    return PlanInputs(
        model_config=read_model_config(suite.root / directory / "config.json"),
        arguments=suite.engine_arguments(spec, suite.config(config)),
        environment=spec.environment,
        parallelism=Ranks(split.tensor, split.pipeline, split.data, split.expert),
        platform=spec.hardware.kind,
        device_memory_bytes=spec.hardware.device_memory_bytes,
        notes=_notes(suite, spec, config, settings),
    )


def _notes(
    suite: Suite, target: TargetSpec, config: str, settings: Mapping[str, Any]
) -> tuple[str, ...]:
    """Refusals of the arguments with ``settings`` over them, and an equivalence of the
    config as declared.
    """
    from k3perf.config.refusals import in_range, matches, range_text

    spec = suite.config(config)
    arguments = {**suite.engine_arguments(target, spec), **settings}
    notes = []
    for refusal in suite.refusals_of(target):
        refused = in_range(refusal, None, target)
        if matches(refusal, arguments) and refused is not False:
            by = target.name if refused else range_text(refusal)
            notes.append(f"{by} refuses this config: {refusal.reason}")
    equivalence = suite.equivalent(target, spec) if not settings else ""
    return (*notes, f"{config} on {target.name} {equivalence}") if equivalence else tuple(notes)


def _narrow_suite(root: Path, config: str, target: str) -> Suite:
    """Load only the target, the config with its parents and the known refusals: the
    plan must answer at once.

    Falls back to the whole suite, with its messages, when a document is not in the file
    of its name.
    """
    from k3perf.config.arguments import argument_problems
    from k3perf.config.load_yaml import load_document
    from k3perf.config.models import ConfigSpec, KnownRefusal, TargetSpec, Tolerance
    from k3perf.config.suite import Suite
    from k3perf.config.tolerances import ToleranceFile
    from k3perf.errors import raise_all
    from k3perf.run.argument_table import table_of_engine

    engine_table = table_of_engine(None, root.parent)
    configs: dict[str, ConfigSpec] = {}
    wanted = [config]
    while wanted:
        name = wanted.pop()
        path = root / "configs" / f"{name}.yaml"
        if name in configs or not path.is_file():
            return load_checked(root)
        configs[name] = load_document(ConfigSpec, path)
        raise_all(
            argument_problems(
                configs[name].change, path, "change", place="config", engine_table=engine_table
            )
        )
        parents = (configs[name].extends, *configs[name].combines)
        wanted += [
            parent
            for parent in parents
            if parent is not None and parent not in configs and parent not in wanted
        ]
    if not (root / "targets" / f"{target}.yaml").is_file():
        return load_checked(root)
    path = root / "targets" / f"{target}.yaml"
    spec = load_document(TargetSpec, path)
    raise_all(
        argument_problems(
            spec.engine_arguments,
            path,
            "engine_arguments",
            place="target",
            engine_table=engine_table,
        )
    )
    tolerances = ToleranceFile(
        schema_version=1, defaults={"weights_bytes": Tolerance(loss_ratio=0.0)}
    )  # not read by the plan
    refusals = tuple(
        load_document(KnownRefusal, path)
        for path in sorted((root / "targets" / "refusals").glob("*.y*ml"))
    )
    return Suite(root, configs, {target: spec}, {}, tolerances, refusals)


def read_model_config(path: Path) -> dict[str, Any]:
    """A model's ``config.json``. Raises ConfigFileError when it cannot be read or is
    not a JSON object.
    """
    document = read_json(path, _GIVE_CONFIG, finite=False)
    if not isinstance(document, dict):
        raise ConfigFileError(path, "", None, "is not a JSON object", _GIVE_CONFIG)
    return document


def _settings(pairs: list[str]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        if not separator or not key:
            raise UsageError(
                f"--set {pair!r} is not KEY=VALUE; write for example --set kv-cache-dtype=fp8"
            )
        try:
            settings[key] = json_of(text)
        except DocumentProblem:
            settings[key] = text
    return _known({key.replace("-", "_"): value for key, value in settings.items()})


def _known(settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments that the plan would leave out in silence are refused: mistyped ones,
    and the sizes of parallelism.
    """
    if settings:
        from k3perf.config.arguments import unknown_argument
        from k3perf.config.owned_arguments import PARALLELISM

        for name in settings:
            if name in PARALLELISM:
                option = PARALLELISM[name].replace("_", "-")
                known = (
                    f"Use --{option} instead."
                    if option != "prefill-context"
                    else "The memory plan does not cover it."
                )
                raise UsageError(f"--set {name}: the ranks have their own options. {known}")
            found = unknown_argument(name)
            if found:
                raise UsageError(f"--set {name}: {found}")
    return settings
