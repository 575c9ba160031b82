"""The reference config's answers: of this run, and of earlier ones on this machine.

A kept book counts only for an engine of the same release on the same hardware, with the
same reference configuration, model and prompts. Anything else is another key.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from k3perf.config.models import TargetSpec
from k3perf.config.quality_prompts import Prompt
from k3perf.documents import DocumentProblem, validated
from k3perf.metrics.quality import Values
from k3perf.records.quality import QualityBook, QualityValue
from k3perf.run.live import LiveEngine
from k3perf.store.atomic import replace_file


@dataclass(frozen=True, slots=True)
class KeptBook:
    """What a file of the cache holds."""

    book: QualityBook
    floor: dict[str, QualityValue]


def book_key(target: TargetSpec, live: LiveEngine, prompts: tuple[Prompt, ...]) -> str:
    """Digest of what the reference's answers on this engine depend on."""
    identity = live.identity
    parts = [
        target.model_dump(
            mode="json", include={"name", "model", "reference", "engine_arguments", "environment"}
        ),
        None if target.quality is None else target.quality.model_dump(mode="json"),
        [identity.vllm_version, identity.torch_version, identity.hardware_class],
        [identity.device_names, identity.driver_version],
        prompts,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass
class BookCache:
    """Books in memory, and in ``directory`` for later runs."""

    directory: Path
    _books: dict[str, KeptBook] = field(default_factory=dict)
    _processes: dict[str, KeptBook] = field(default_factory=dict)

    def of_process(self, session_id: str) -> tuple[QualityBook, Values] | None:
        """What this very engine process answered."""
        kept = self._processes.get(session_id)
        return None if kept is None else (kept.book, kept.floor)

    def keep(self, live: LiveEngine, book: QualityBook, floor: Values) -> None:
        """Remember the answers, and write them down if the directory can be written.
        Those of an engine with an injected fault stay with its process.
        """
        kept = KeptBook(book, floor)
        self._processes[live.session_id] = kept
        if live.injected:
            return
        self._books[book.key] = kept
        content = TypeAdapter(KeptBook).dump_json(kept)
        try:
            replace_file(self._path(book.key), content)
        except OSError:
            return  # the next run asks again

    def find(self, key: str) -> tuple[QualityBook, Values] | None:
        """Answers under this key; a file that cannot be used counts as none."""
        if key not in self._books:
            try:
                data = orjson.loads(self._path(key).read_bytes())
                kept = validated(KeptBook, data)
            except (OSError, orjson.JSONDecodeError, DocumentProblem):
                return None
            if kept.book.key != key:
                return None
            self._books[key] = kept
        kept = self._books[key]
        return kept.book, kept.floor

    def _path(self, key: str) -> Path:
        return self.directory / f"{key[:32]}.json"
