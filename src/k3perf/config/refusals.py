"""Which known refusals meet a target's arguments, and on which vLLM releases. Pure but
for reading a model's config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from k3perf.config.models import KnownRefusal, Refusal, TargetSpec
from k3perf.documents import read_json
from k3perf.errors import ConfigFileError

if TYPE_CHECKING:
    from packaging.version import Version


def applying(
    refusals: tuple[KnownRefusal, ...], target: TargetSpec, model_type: str
) -> tuple[Refusal, ...]:
    """The target's own refusals, then those of its hardware class and its model's
    family.
    """
    shared = (
        refusal
        for refusal in refusals
        if any(_is_class(target.hardware.hardware_class, name) for name in refusal.hardware_classes)
        and (not refusal.model_types or model_type in refusal.model_types)
    )
    return (*target.refusals, *shared)


def matches(refusal: Refusal, arguments: Mapping[str, Any]) -> bool:
    """Whether every argument that the refusal names has a value it means."""
    return all(_means(wanted, arguments.get(name)) for name, wanted in refusal.when.items())


def named_values(refusal: Refusal) -> list[dict[str, Any]]:
    """The arguments of ``when`` as plain values, to be checked like any other: one
    mapping for each value that is listed.
    """
    return [
        {name: value}
        for name, wanted in refusal.when.items()
        for value in _operator_and_values(wanted)[1]
    ]


def in_range(refusal: Refusal, release: str | None, target: TargetSpec) -> bool | None:
    """Whether this vLLM release refuses it; None: the release is not known and not all
    that the target takes agree.
    """
    minimum, below = _version(refusal.minimum_vllm), _version(refusal.below_vllm)
    known = _version(release or "")
    if known is not None:
        return (minimum is None or known >= minimum) and (below is None or known < below)
    lowest = _version(target.hardware.minimum_vllm)
    if below is not None and lowest is not None and lowest >= below:
        return False
    certain = below is None and (minimum is None or (lowest is not None and lowest >= minimum))
    return True if certain else None


def too_old(target: TargetSpec, release: str | None) -> bool:
    """The engine is known to be older than the target allows."""
    known, lowest = _version(release or ""), _version(target.hardware.minimum_vllm)
    return known is not None and lowest is not None and known < lowest


def range_text(refusal: Refusal) -> str:
    """``vLLM 0.27.0 and later``, ``vLLM before 0.34.0`` and so on."""
    if refusal.minimum_vllm and refusal.below_vllm:
        return f"vLLM from {refusal.minimum_vllm} to before {refusal.below_vllm}"
    if refusal.minimum_vllm:
        return f"vLLM {refusal.minimum_vllm} and later"
    return f"vLLM before {refusal.below_vllm}" if refusal.below_vllm else "every vLLM release"


def model_type_of(root: Path, target: TargetSpec) -> str:
    """``model_type`` of the target's config.json, empty where there is none to read. A
    checkpoint's is with the shipped models, under the last part of its name.
    """
    model = target.model
    directory = model.directory or f"models/{(model.checkpoint or '').rpartition('/')[2].lower()}"
    try:
        return str(
            read_json(root / directory / "config.json", "", finite=False).get("model_type", "")
        )
    except (ConfigFileError, AttributeError):
        return ""


def _is_class(hardware_class: str, name: str) -> bool:
    return hardware_class == name or hardware_class.startswith(f"{name}-")


def _operator_and_values(wanted: Any) -> tuple[str, list[Any]]:
    """``{one_of: [...]}`` or ``{other_than: VALUE}`` taken apart. Any other value is
    the one that is refused.
    """
    if isinstance(wanted, Mapping) and len(wanted) == 1:
        ((operator, held),) = wanted.items()
        if operator in ("one_of", "other_than"):
            return operator, held if operator == "one_of" else [held]
    return "one_of", [wanted]


def _means(wanted: Any, value: Any) -> bool:
    operator, values = _operator_and_values(wanted)
    return value in values if operator == "one_of" else value is not None and value not in values


def _version(text: str) -> Version | None:
    if not text:
        return None
    from packaging.version import InvalidVersion, Version

    try:
        return Version(text)
    except InvalidVersion:
        return None
