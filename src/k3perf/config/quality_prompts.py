"""The prompts of a target's quality pass: read from a file of token ids, or drawn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

from pydantic import Field

from k3perf.config.declared import Declared
from k3perf.config.load_yaml import parse
from k3perf.config.quality_spec import NeedleSpec, QualitySpec
from k3perf.documents import read_json
from k3perf.errors import ConfigFileError

if TYPE_CHECKING:
    from k3perf.config.models import TargetSpec
    from k3perf.config.suite import Suite

Prompt = tuple[int, ...]

_FORM: Final = 'A prompts file is {"schema_version": 1, "prompts": [[1, 2, ...], ...]}.'
_FIRST_PLAIN_ID: Final = 3
"""Lower ids are special in most vocabularies."""


class PromptFile(Declared):
    """Prompts as token ids."""

    schema_version: Literal[1]
    """Version of this file's format."""
    prompts: Annotated[
        tuple[Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=16)], ...],
        Field(min_length=1, max_length=1024),
    ]
    """Token ids of each prompt, at least 16."""


def quality_prompts(
    spec: QualitySpec, suite_root: Path, vocabulary_size: int
) -> tuple[Prompt, ...]:
    """The prompts. Raises ConfigFileError for a file that cannot be used and for an id
    that is not in the vocabulary.
    """
    if spec.prompts is None:
        return drawn(spec.seed, spec.random_prompts, spec.random_tokens, vocabulary_size)
    path = suite_root / spec.prompts
    prompts = parse(PromptFile, read_json(path, _FORM), path).prompts
    for index, prompt in enumerate(prompts):
        if max(prompt) >= vocabulary_size:
            problem = f"is not in the vocabulary of {vocabulary_size} tokens"
            step = "Make the file with the model's own tokenizer."
            raise ConfigFileError(path, f"prompts.{index}", max(prompt), problem, step)
    return prompts


def drawn(seed: int, count: int, tokens: int, vocabulary_size: int) -> tuple[Prompt, ...]:
    """Uniform token ids, equal for equal arguments."""
    import numpy as np

    generator = np.random.default_rng(seed)
    ids = generator.integers(_FIRST_PLAIN_ID, vocabulary_size, size=(count, tokens))
    return tuple(tuple(map(int, row)) for row in ids)


def needle_prompts(
    spec: NeedleSpec, prompts: tuple[Prompt, ...], vocabulary_size: int
) -> tuple[tuple[Prompt, Prompt], ...]:
    """A prompt and the tokens that must follow it, for each depth.

    The hay is the quality prompts one after another. The needle is drawn from the
    vocabulary, so that only this context holds it.
    """
    hay = [token for prompt in prompts for token in prompt]
    room = spec.context_tokens - spec.tokens - spec.tokens // 2
    hay = (hay * (room // len(hay) + 1))[:room]
    needles = drawn(spec.seed, len(spec.depths), spec.tokens, vocabulary_size)
    asked = spec.tokens // 2
    found = []
    for depth, needle in zip(spec.depths, needles, strict=True):
        place = int(depth * room)
        text = (*hay[:place], *needle, *hay[place:], *needle[:asked])
        found.append((text, needle[asked:]))
    return tuple(found)


def quality_problems(suite: Suite, target: TargetSpec, path: Path) -> Iterator[ConfigFileError]:
    """Problems of a target's ``quality`` and of its model's variants."""
    for config, directory in target.model.variants.items():
        key = f"model.variants.{config}"
        if config not in suite.configs:
            step = f"Use one of: {', '.join(suite.configs)}."
            yield ConfigFileError(path, key, config, "no config has this name", step)
        if not (suite.root / directory / "config.json").is_file():
            step = f"The path is relative to {suite.root}."
            problem = "the model directory has no config.json"
            yield ConfigFileError(path, key, directory, problem, step)
    spec = target.quality
    if spec is None:
        return
    dummy = target.model.weights == "dummy"
    if dummy and not spec.spread_dummy_weights:
        problem = "dummy weights give every token the same probability, so nothing is compared"
        step = "Set spread_dummy_weights: true, or serve a checkpoint with weights."
        yield ConfigFileError(path, "quality.spread_dummy_weights", False, problem, step)
    if spec.spread_dummy_weights and not dummy:
        problem = "would change the weights of a checkpoint"
        step = "Remove it; only dummy weights are scaled."
        yield ConfigFileError(path, "quality.spread_dummy_weights", True, problem, step)
    if spec.spread_dummy_weights and target.hardware.kind == "cpu":
        problem = "has no effect on a CPU engine, which packs its weights at load"
        step = "Serve a small trained model, as cpu-quality-gqa does."
        yield ConfigFileError(path, "quality.spread_dummy_weights", True, problem, step)
    if spec.needle is not None and dummy:
        problem = "dummy weights find no needle"
        yield ConfigFileError(path, "quality.needle", None, problem, "Remove it.")
    try:
        prompts = quality_prompts(spec, suite.root, suite.vocabulary_size(target))
    except ConfigFileError as error:
        yield error
        return
    yield from _length_problems(suite, target, spec, path, max(map(len, prompts)))


def _length_problems(
    suite: Suite, target: TargetSpec, spec: QualitySpec, path: Path, prompt_tokens: int
) -> Iterator[ConfigFileError]:
    """A prompt and its answer must fit into the context that every config serves."""
    needle = 0 if spec.needle is None else spec.needle.context_tokens + spec.needle.tokens
    wanted = max(prompt_tokens + 1, prompt_tokens // 2 + spec.greedy_tokens, needle)
    arguments = suite.engine_arguments(target, suite.configs[target.reference])
    limit = arguments.get("max_model_len")
    if isinstance(limit, int) and not isinstance(limit, bool) and wanted > limit:
        problem = f"needs {wanted} tokens of context, max_model_len is {limit}"
        step = "Use shorter prompts, or raise max_model_len in engine_arguments."
        yield ConfigFileError(path, "quality", spec.prompts, problem, step)
