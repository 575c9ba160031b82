"""A committed ``config.json`` to a directory that vLLM can serve: the tokenizer files
are written beside it, into a cache.

A stand-in's tokenizer follows from its vocabulary size alone (one word per id), so it
is generated instead of committed. The result lies under a digest of what went in: a
changed config gets a new directory, an unchanged one is reused. No weights are written;
vLLM makes dummy ones.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

from k3perf.documents import read_json
from k3perf.errors import ConfigFileError

TOKENIZER_VERSION: Final = 1
"""Part of the digest; raise it when the tokenizer that is written changes."""

SPECIAL_TOKENS: Final = ("<unk>", "<s>", "</s>")
DEFAULT_MODEL_MAX_LENGTH: Final = 32768


def materialise(
    model_source_dir: Path,
    cache: Path,
    *,
    next_step: str = "Set K3PERF_CACHE to a writable directory.",
) -> Path:
    """A servable copy of ``model_source_dir`` under ``cache``, made once per content.

    Every file of the source is copied; ``tokenizer.json`` and ``tokenizer_config.json``
    are generated unless the source ships them. Safe beside other processes: the copy is
    finished under another name and then renamed. Raises ConfigFileError for a source
    without a readable ``config.json`` or without a vocabulary size, and, with
    ``next_step``, when ``cache`` cannot be written; half a copy never stays.
    """
    config = _read_config(model_source_dir / "config.json")
    files = _source_files(model_source_dir)
    target = cache / f"{model_source_dir.name}-{_digest(files)[:16]}"
    if (target / "config.json").is_file():
        return target
    files = {**_tokenizer_files(config, model_source_dir / "config.json"), **files}
    try:
        _write_copy(files, target)
    except OSError as error:
        raise ConfigFileError(cache, "", None, f"cannot be written: {error}", next_step) from None
    return target


def _write_copy(files: dict[str, bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name, content in files.items():
            (scratch / name).write_bytes(content)
        scratch.chmod(0o755)
        _publish(scratch, target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def vocabulary_size(config: dict[str, Any]) -> int | None:
    """A config's ``vocab_size``, in ``text_config`` too. None without one."""
    size = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
    return size if isinstance(size, int) and size > len(SPECIAL_TOKENS) else None


def word_level_tokenizer(vocabulary: int) -> dict[str, Any]:
    """``tokenizer.json`` with exactly ``vocabulary`` words split at white space: three
    special ones, then ``t3``, ``t4``, ...
    """
    words = {word: index for index, word in enumerate(SPECIAL_TOKENS)}
    words |= {f"t{index}": index for index in range(len(SPECIAL_TOKENS), vocabulary)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": SPECIAL_TOKENS[0]},
    }


def _tokenizer_files(config: dict[str, Any], path: Path) -> dict[str, bytes]:
    size = vocabulary_size(config)
    if size is None:
        problem = "must be a whole number above 3"
        raise ConfigFileError(
            path,
            "vocab_size",
            config.get("vocab_size"),
            problem,
            "The tokenizer is generated from it.",
        )
    length = config.get(
        "max_position_embeddings",
        config.get("text_config", {}).get("max_position_embeddings", DEFAULT_MODEL_MAX_LENGTH),
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": SPECIAL_TOKENS[0],
        "bos_token": SPECIAL_TOKENS[1],
        "eos_token": SPECIAL_TOKENS[2],
        "model_max_length": length,
    }
    return {
        "tokenizer.json": json.dumps(word_level_tokenizer(size)).encode(),
        "tokenizer_config.json": json.dumps(settings, indent=1).encode(),
    }


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(
        path,
        "A model directory holds the model's config.json, as its publisher wrote it.",
        finite=False,
    )
    if not isinstance(config, dict):
        raise ConfigFileError(path, "", None, "must be a JSON object", "Correct the file.")
    return config


def _source_files(source: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(source.iterdir()) if path.is_file()}


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256(f"tokenizer {TOKENIZER_VERSION}\0".encode())
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _publish(scratch: Path, target: Path) -> None:
    """Rename the finished copy. A faster process has written the same content."""
    try:
        scratch.rename(target)
    except OSError:
        if not (target / "config.json").is_file():
            raise
