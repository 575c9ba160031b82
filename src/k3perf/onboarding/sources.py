"""A source of a deployment to how it serves: a command line, vLLM's configuration file,
Helm values or Kubernetes manifests, a server's address.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from k3perf.config.arguments import shipped_table
from k3perf.config.load_yaml import read_yaml
from k3perf.errors import UsageError, shortened
from k3perf.onboarding.serving import Serving, from_arguments, from_command
from k3perf.telemetry.outside_server import OutsideServer

_SUFFIXES: Final = (".yaml", ".yml")
_SIZES: Final = {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"}


def serving_of(source: str) -> Serving:
    """The deployment that ``--from`` names. ``FILE#NAME`` chooses one of several models
    in Helm values. Raises UsageError, ConfigFileError or EngineError.
    """
    parts = urlsplit(source)
    if parts.scheme in ("http", "https"):
        return from_server(OutsideServer(source))
    name, _, chosen = source.partition("#")
    path = Path(name)
    if path.suffix in _SUFFIXES and len(shlex.split(name)) == 1:
        return from_file(path, chosen)
    return from_command(source, read_config=read_yaml)


def from_file(path: Path, chosen: str = "") -> Serving:
    """vLLM's own configuration file, Helm values, or a manifest with one deployment."""
    document = read_yaml(path)
    known = shipped_table().arguments
    plain = {str(key).replace("-", "_") for key in document}
    if isinstance(document.get("model"), str) and plain <= {*known, "model_tag"}:
        return from_arguments(document, source=str(path))
    found = dict(_deployments(document))
    if chosen:
        if chosen not in found:
            raise UsageError(
                f"--from {path}#{chosen}: no deployment has this name. It has:"
                f" {', '.join(found) or 'none'}."
            )
        return found[chosen]
    if len(found) > 1:
        raise UsageError(
            f"--from {path}: holds {len(found)} deployments. Choose one, such as"
            f" --from {path}#{next(iter(found))}."
        )
    if found:
        return next(iter(found.values()))
    if "model" in document:
        return from_arguments(document, source=str(path))
    raise UsageError(
        f"--from {path}: holds neither vLLM arguments with a model nor a container that runs"
        ' `vllm serve`. Give the command itself: --from "vllm serve MODEL ...".'
    )


def from_server(server: OutsideServer) -> Serving:
    """What a running server shows of itself. What it does not show is in the notes."""
    seen = server.seen()
    if not seen.model:
        raise UsageError(
            f"--from {server.base_url}: /v1/models names no model. Give the command that started"
            " the server."
        )
    arguments = {
        **seen.arguments,
        "model": seen.model,
    }
    serving = from_arguments(arguments, source=server.base_url)
    blind = tuple(f"{what}: not visible, {why}" for what, why in seen.blind.items())
    notes = ("the arguments are the server's resolved values, defaults included", *blind)
    return Serving(
        model=serving.model,
        arguments=serving.arguments,
        parallelism=serving.parallelism,
        source=serving.source,
        notes=(*serving.notes, *notes),
    )


def _deployments(node: Any, name: str = "") -> Iterator[tuple[str, Serving]]:
    """Every deployment in a document, by the nearest name above it."""
    if isinstance(node, list):
        for item in node:
            yield from _deployments(item, name)
        return
    if not isinstance(node, Mapping):
        return
    own = node.get("name")
    metadata = node.get("metadata")
    if isinstance(metadata, Mapping):
        own = metadata.get("name", own)
    name = str(own) if isinstance(own, str) else name
    if "modelURL" in node:
        yield name or "model", _production_stack(node, name)
        return
    command = _command_of(node)
    if command:
        environment = _environment(node.get("env"))
        found = from_command(shlex.join(command), read_config=read_yaml)
        yield (
            name or "container",
            Serving(
                model=found.model,
                arguments=found.arguments,
                parallelism=found.parallelism,
                environment={**environment, **found.environment},
                trust_remote_code=found.trust_remote_code,
                dummy_weights=found.dummy_weights,
                source=found.source,
                notes=found.notes,
            ),
        )
        return
    for value in node.values():
        yield from _deployments(value, name)


def _command_of(node: Mapping[str, Any]) -> list[str]:
    """``command`` and ``args`` of a container, if they run the server."""
    words = [
        str(word)
        for key in ("command", "args")
        if isinstance(node.get(key), list)
        for word in node[key]
    ]
    if len(words) > 2 and words[0] in ("sh", "bash", "/bin/sh", "/bin/bash"):
        words = shlex.split(words[-1].replace("\\\n", " "))
    serves = any(
        word == "serve" and words[index - 1].endswith("vllm")
        for index, word in enumerate(words)
        if index
    )
    return words if serves or any("vllm.entrypoints" in word for word in words) else []


def _production_stack(node: Mapping[str, Any], name: str) -> Serving:
    """One ``modelSpec`` of vLLM's production stack. Its ``vllmConfig`` spells arguments
    in camel case.
    """
    given: dict[str, Any] = {"model": node["modelURL"]}
    section = node.get("vllmConfig")
    config = dict(section) if isinstance(section, Mapping) else {}
    extra = [str(word) for word in config.pop("extraArgs", None) or ()]
    notes = []
    for key, value in config.items():
        plain = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
        if plain in shipped_table().arguments or plain in _SIZES:
            given[plain] = value
        else:
            notes.append(f"vllmConfig.{key} is omitted: no vLLM argument has this name")
    if extra:
        more = from_command(shlex.join(["vllm", "serve", str(node["modelURL"]), *extra]))
        given.update(more.arguments)
        notes += more.notes
        given.update({"trust_remote_code": more.trust_remote_code})
    serving = from_arguments(
        given, environment=_environment(node.get("env")), source=f"modelSpec {name or 'model'}"
    )
    return Serving(
        model=serving.model,
        arguments=serving.arguments,
        parallelism=serving.parallelism,
        environment=serving.environment,
        trust_remote_code=serving.trust_remote_code,
        dummy_weights=serving.dummy_weights,
        source=shortened(serving.source),
        notes=(*serving.notes, *notes),
    )


def _environment(entries: Any) -> dict[str, str]:
    """Plain variables of a container. References to secrets have no value here."""
    if isinstance(entries, Mapping):
        return {str(name): str(value) for name, value in entries.items()}
    return {
        str(entry["name"]): str(entry["value"])
        for entry in entries or ()
        if isinstance(entry, Mapping) and "name" in entry and "value" in entry
    }
