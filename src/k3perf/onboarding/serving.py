"""How a deployment serves, as any source describes it: model, arguments, ranks and
environment. Pure.

``from_command`` reads a ``vllm serve`` command line, ``from_arguments`` a mapping of
arguments. Both sort what they find: what a suite declares, what its target's
parallelism declares, and what the harness sets itself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from k3perf.config.arguments import shipped_table
from k3perf.config.owned_arguments import PARALLELISM, owned_table
from k3perf.documents import DocumentProblem, json_of
from k3perf.errors import UsageError, shortened

SHORT: Final = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "pcp": "prefill_context_parallel_size",
    "dcp": "decode_context_parallel_size",
    "ep": "enable_expert_parallel",
    "O": "optimization_level",
    "cc": "compilation_config",
    "sc": "speculative_config",
    "n": "nnodes",
    "r": "node_rank",
    "asc": "api_server_count",
}
"""Short options of ``vllm serve`` and the arguments that they set."""

_SERVER_MODULES: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SECRET: Final = re.compile(r"(?i)(^|_)(token|key|secret|password|credentials?)$")
"""Arguments and variables with such names never enter a committed file."""

_WRITE: Final = 'Write it as you start it: --from "vllm serve MODEL --max-num-seqs 64".'


@dataclass(frozen=True, slots=True)
class Serving:
    """One deployment. ``arguments`` are those that a config can hold, with underscores.

    ``parallelism`` has the keys of ``config.models.Parallelism``. ``environment``: the
    variables that the source sets. ``notes``: what was omitted or assumed, a sentence
    each.
    """

    model: str
    arguments: dict[str, Any]
    parallelism: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    trust_remote_code: bool = False
    dummy_weights: bool = False
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def rank_count(self) -> int:
        """Ranks of one engine."""
        sizes = (self.parallelism.get(key, 1) for key in PARALLELISM.values() if key != "expert")
        product = 1
        for size in sizes:
            product *= int(size)
        return product


def from_command(
    text: str, *, read_config: Callable[[Path], Mapping[str, Any]] | None = None
) -> Serving:
    """The deployment of a command line. ``read_config`` reads the file that its
    ``--config`` names.

    Variables in front (``VLLM_X=1 vllm serve ...``) become the environment. Raises
    UsageError.
    """
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(
            f"--from: the command cannot be split into words: {error}. {_WRITE}"
        ) from None
    environment, rest = _split_words(words)
    given = _arguments_of(rest)
    model = given.pop("", None)
    file = given.pop("config", None)
    if file is not None:
        if read_config is None:
            raise UsageError(f"--from: the command names --config {file}. Give --from {file}.")
        given = {**_named(read_config(Path(str(file)))), **given}
    if model is not None:
        given["model"] = model
    return from_arguments(
        given, environment=environment, source=f"vllm serve {model or ''}".strip()
    )


def from_arguments(
    given: Mapping[str, Any], *, environment: Mapping[str, str] | None = None, source: str
) -> Serving:
    """The deployment of a mapping of arguments, dashes or underscores. Raises
    UsageError without a model, and for an argument that no known vLLM has.
    """
    found = _named(given)
    tag = found.pop("model_tag", None)
    model = found.pop("model", tag)
    if not isinstance(model, str) or not model:
        raise UsageError(f"--from: {source} names no model. {_WRITE}")
    arguments: dict[str, Any] = {}
    parallelism: dict[str, Any] = {}
    notes = []
    trust = bool(found.pop("trust_remote_code", False))
    dummy = found.get("load_format") == "dummy"
    public: dict[str, str] = {}
    for name, text in (environment or {}).items():
        if may_be_secret(name):
            notes.append(f"{name} is omitted: it may hold a secret. Set it where the suite runs")
        else:
            public[name] = text
    for name, value in found.items():
        if may_be_secret(name):
            notes.append(f"--{name.replace('_', '-')} is omitted: it may hold a secret")
        elif name in PARALLELISM:
            parallelism[PARALLELISM[name]] = value
        elif name in owned_table():
            if name != "load_format" or not dummy:
                entry = owned_table()[name]
                notes.append(f"--{name.replace('_', '-')} is omitted: it {entry.problem}")
        else:
            arguments[name] = value
    return Serving(
        model=model,
        arguments=dict(sorted(arguments.items())),
        parallelism=parallelism,
        environment=public,
        trust_remote_code=trust,
        dummy_weights=dummy,
        source=source,
        notes=tuple(notes),
    )


def may_be_secret(name: str) -> bool:
    """Whether an argument or a variable of this name may hold a secret."""
    return _SECRET.search(name) is not None


def _split_words(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Variables of the command and the words after ``serve``."""
    environment: dict[str, str] = {}
    for index, word in enumerate(words):
        if word == "serve" or (word in _SERVER_MODULES and words[index - 1] == "-m"):
            rest = list(words[index + 1 :])
            return environment, rest[1:] if rest[:1] == ["serve"] else rest
        if _ASSIGNMENT.match(word):
            name, _, value = word.partition("=")
            environment[name] = value
    raise UsageError(
        f"--from {shortened(' '.join(words))!r}: is not a `vllm serve` command, a file or an"
        f" address. {_WRITE}"
    )


def _arguments_of(words: Sequence[str]) -> dict[str, Any]:
    """Arguments by name. The key "" holds the positional model."""
    found: dict[str, Any] = {}
    for option, texts in _options(words):
        if not option:
            if "" in found:
                raise UsageError(
                    f"--from: {texts[0]!r} follows no option, and {found['']!r} is the model."
                    f" {_WRITE}"
                )
            found[""] = texts[0]
            continue
        name, *path = option.split(".")
        _put(found, (_canonical(name), *path), texts)
    return found


def _options(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each option without its dashes, and the texts behind it. A positional word comes
    with an empty option.
    """
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not _is_option(word):
            yield "", [word]
            continue
        name, joined, text = word.lstrip("-").partition("=")
        if re.fullmatch(r"O[0-9]", name):  # -O3
            yield "O", [name[1:]]
            continue
        texts = [text] if joined else []
        many = _takes_many(name)
        while (
            not joined
            and index < len(words)
            and not _is_option(words[index])
            and (many or (not texts and not _is_flag(name)))
        ):
            texts.append(words[index])
            index += 1
        yield name, texts


def _is_option(word: str) -> bool:
    """``--name`` or ``-tp``, not a negative number."""
    return word.startswith("-") and not re.fullmatch(r"-[0-9.]+", word) and word != "-"


def _canonical(name: str) -> str:
    plain = name.replace("-", "_")
    if name in SHORT:
        return SHORT[name]
    aliases = {
        alias: own.name for own in shipped_table().arguments.values() for alias in own.aliases
    }
    return aliases.get(plain, plain)


def _is_flag(name: str) -> bool:
    plain = _canonical(name.partition(".")[0])
    known = shipped_table().arguments
    return plain.removeprefix("no_") in known and known[plain.removeprefix("no_")].kind == "flag"


def _takes_many(name: str) -> bool:
    known = shipped_table().arguments.get(_canonical(name.partition(".")[0]))
    return known is not None and known.form in ("list", "append")


def _put(found: dict[str, Any], path: tuple[str, ...], texts: list[str]) -> None:
    """``--compilation-config.mode 3`` sets a key of a mapping."""
    name, *keys = path
    value: Any
    if not texts:
        positive = name.removeprefix("no_")
        known = positive in shipped_table().arguments
        name, value = (positive, False) if positive != name and known else (name, True)
    elif _takes_many(name):
        value = [value_of(text) for text in texts]
    else:
        value = value_of(texts[0])
    place = found
    for key in (name, *keys)[:-1]:
        inner = place.setdefault(key, {})
        if not isinstance(inner, dict):
            raise UsageError(f"--from: --{name} is given as a value and as a mapping. Give one.")
        place = inner
    place[(name, *keys)[-1]] = value


def value_of(text: str) -> Any:
    """A word of the command line as vLLM's configuration file holds it."""
    try:
        return json_of(text)
    except DocumentProblem:
        return text


def _named(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _canonical(str(name).lstrip("-")) if name else "": value for name, value in given.items()
    }
