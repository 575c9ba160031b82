"""The quality pass: one engine's answers to the target's fixed prompts, and their
comparison with the reference config's.

It runs once for each engine, after its measured rounds and after its memory was read,
so it disturbs neither. The reference config answers twice: its second answers are the
control arm, which shows the engine's own non-determinism.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from k3perf.config.quality_prompts import Prompt, needle_prompts, quality_prompts
from k3perf.config.quality_spec import QualitySpec
from k3perf.config.suite import Cell
from k3perf.errors import EngineError
from k3perf.load.quality_client import NotOffered, QualityClient, SenselessAnswer, Stretch
from k3perf.metrics.quality import (
    DifferentTokensError,
    Values,
    control_values,
    quality_values,
)
from k3perf.records.quality import NeedleCount, QualityBook, ScoredTokens, SessionQuality
from k3perf.records.samples import Arm, SessionRecord
from k3perf.run.arms import candidate_engine
from k3perf.run.live import LiveEngine
from k3perf.run.pool import EnginePool
from k3perf.run.progress import Progress
from k3perf.run.quality_books import BookCache, book_key
from k3perf.run.settings import RunSettings

DEPTHS: Final = (1, 3, 5, 7)
"""Where forced stretches begin, in eighths of a prompt: one in the middle of each
quarter of the context.
"""
ALONE_STRETCHES: Final = 4
"""Stretches that are decoded again with no other request in the batch."""

Part = TypeVar("Part")


@dataclass
class QualityPass:
    """The passes of one run. ``books`` keeps the reference's answers."""

    settings: RunSettings
    pool: EnginePool
    progress: Progress
    books: BookCache
    _done: dict[str, SessionQuality] = field(default_factory=dict)

    def of_pair(
        self, cell: Cell, lives: Sequence[LiveEngine], records: Sequence[SessionRecord]
    ) -> list[SessionRecord]:
        """The sessions' records with the quality of their answers, where the target
        declares ``quality``. ``lives`` are the engines of ``records``, in their order.

        Raises EngineError when an engine died or does not answer.
        """
        if cell.target.quality is None:
            return list(records)
        arms = {live.arm: live for live in lives}
        ab = self.settings.mode_for(cell.target.name) == "ab"
        found = []
        for live, record in zip(lives, records, strict=True):
            quality = None
            if live.arm is Arm.CANDIDATE or (ab and Arm.CANDIDATE in arms):
                quality = self._known(cell, live, arms.get(Arm.REFERENCE))
            elif not ab:
                self._keep_reference(cell, live)
            found.append(replace(record, quality=quality))
        return found

    def _known(
        self, cell: Cell, live: LiveEngine, reference: LiveEngine | None
    ) -> SessionQuality | None:
        """What the engine came to, asked once for all its cells."""
        if live.session_id not in self._done:
            begin = time.monotonic()
            self.progress.note(f"{cell.cell_id}: comparing answers ({live.arm})")
            values, name, problems = self._compare(cell, live, reference)
            took_s = time.monotonic() - begin
            self._done[live.session_id] = SessionQuality(values, name, took_s, problems)
        return self._done[live.session_id]

    def _compare(
        self, cell: Cell, live: LiveEngine, reference: LiveEngine | None
    ) -> tuple[Values, str, tuple[str, ...]]:
        name = cell.target.reference if reference is None else reference.config
        try:
            mine = self._book(cell, live)
            first, floor, source = self._reference(cell, live, reference)
            return quality_values(first, mine) | floor, f"{name} ({source})", ()
        except (SenselessAnswer, DifferentTokensError) as error:
            return {}, name, (f"the answers cannot be compared: {error}",)

    def _reference(
        self, cell: Cell, live: LiveEngine, reference: LiveEngine | None
    ) -> tuple[QualityBook, Values, str]:
        """The reference's book, its control arm, and where it comes from."""
        if reference is not None:
            return *self._reference_book(cell, reference), "same run"
        if cell.config.name == cell.target.reference and not live.injected:
            return *self._reference_book(cell, live), "same process"
        key = book_key(cell.target, live, self._prompts(cell))
        kept = self.books.find(key)
        if kept is None:
            self.progress.note(f"{cell.cell_id}: starting {cell.target.reference} to compare with")
            self.pool.stop_all()
            wanted = candidate_engine(self.settings, cell.target.name, cell.target.reference)
            (other,) = self.pool.acquire((replace(wanted, arm=Arm.REFERENCE),))
            kept = self._reference_book(cell, other)
            self.pool.stop_all()
        return *kept, "kept answers"

    def _keep_reference(self, cell: Cell, live: LiveEngine) -> None:
        """Ask the reference arm while it is up, for targets that run one engine at a
        time. Senseless answers of it show when a candidate is compared.
        """
        with contextlib.suppress(SenselessAnswer):
            self._reference_book(cell, live)

    def _reference_book(self, cell: Cell, live: LiveEngine) -> tuple[QualityBook, Values]:
        """The reference's answers and the control arm's metrics, asked once."""
        kept = self.books.of_process(live.session_id)
        if kept is None:
            first, second = self._book(cell, live), self._book(cell, live)
            key = book_key(cell.target, live, self._prompts(cell))
            kept = replace(first, key=key), control_values(first, second)
            self.books.keep(live, *kept)
        return kept

    def _book(self, cell: Cell, live: LiveEngine) -> QualityBook:
        vocabulary = self.settings.suite.vocabulary_size(cell.target)
        try:
            return BookMaker(_spec(cell), live, self._prompts(cell), vocabulary).book()
        except EngineError as error:
            self.pool.report_crash(live, error)
            raise

    def _prompts(self, cell: Cell) -> tuple[Prompt, ...]:
        suite = self.settings.suite
        return quality_prompts(_spec(cell), suite.root, suite.vocabulary_size(cell.target))


def _spec(cell: Cell) -> QualitySpec:
    """The declaration of a target that has one."""
    if cell.target.quality is None:
        raise ValueError(f"{cell.target.name} declares no quality")
    return cell.target.quality


@dataclass(frozen=True, slots=True)
class BookMaker:
    """Asks one engine everything that a book holds."""

    spec: QualitySpec
    live: LiveEngine
    prompts: tuple[Prompt, ...]
    vocabulary_size: int

    def book(self) -> QualityBook:
        """The answers. Raises SenselessAnswer, and EngineError for an engine that does
        not answer.
        """
        begin = time.monotonic()
        absent: dict[str, str] = {}
        engine = self.live.engine
        client = QualityClient(engine.base_url, engine.model_name, self.spec.top_k)
        stretches = self.stretches()

        def part(name: str, ask: Callable[[], tuple[Part, ...]]) -> tuple[Part, ...]:
            try:
                return ask()
            except NotOffered as refused:
                absent[name] = str(refused)[:300]
                return ()

        with self.live.or_its_death(), self._spread():
            prefill = part("prefill", lambda: client.score_prompts(self.prompts))
            if not prefill:
                raise SenselessAnswer(f"prompts cannot be scored: {absent['prefill']}")
            self._empty_cache()
            decode = part("decode", lambda: client.score_decode(stretches)) if stretches else ()
            cached: tuple[ScoredTokens, ...] = ()
            alone: tuple[ScoredTokens, ...] = ()
            if decode:
                before = self._hits()
                cached = part("cached", lambda: client.score_decode(stretches))
                if self._hits() <= before:
                    cached, absent["cached"] = (), "no prefix was found in the cache"
                some = stretches[:: max(1, len(stretches) // ALONE_STRETCHES)]
                alone = part("alone", lambda: client.score_decode(some, at_once=1))
            cut = [prompt[: len(prompt) // 2] for prompt in self.prompts]
            tokens = self.spec.greedy_tokens
            greedy = part("greedy", lambda: client.greedy(cut, tokens)) if tokens else ()
            needles = self._needles(client)
        return QualityBook(
            key="",
            context_tokens=max(map(len, self.prompts)),
            top_k=self.spec.top_k,
            prefill=prefill,
            decode=decode,
            cached=cached,
            alone=alone,
            greedy=greedy,
            needles=needles,
            absent=absent,
            duration_s=time.monotonic() - begin,
        )

    def stretches(self) -> tuple[Stretch, ...]:
        """One stretch of every prompt for each depth."""
        found = []
        for index, prompt in enumerate(self.prompts):
            depth = DEPTHS[index % len(DEPTHS)]
            start = max(1, len(prompt) * depth // 8)
            end = min(len(prompt), start + self.spec.decode_tokens)
            if end > start:
                found.append(Stretch(index, prompt, start, end))
        return tuple(found)

    def _needles(self, client: QualityClient) -> NeedleCount | None:
        spec = self.spec.needle
        if spec is None:
            return None
        pairs = needle_prompts(spec, self.prompts, self.vocabulary_size)
        answers = client.greedy([prompt for prompt, _ in pairs], spec.tokens - spec.tokens // 2)
        hits = [
            one == other
            for answer, (_, wanted) in zip(answers, pairs, strict=True)
            for one, other in zip(answer, wanted, strict=True)
        ]
        return NeedleCount(sum(hits), len(hits))

    def _hits(self) -> float:
        return self.live.probe.counters().get("vllm:prefix_cache_hits_total", 0.0)

    def _empty_cache(self) -> None:
        self.live.probe.reset_prefix_cache()

    @contextlib.contextmanager
    def _spread(self) -> Iterator[None]:
        """Dummy weights scaled for the time of the pass."""
        if not self.spec.spread_dummy_weights:
            yield
            return
        self.live.probe.call("k3perf_spread_weights", True)
        try:
            yield
        finally:
            self.live.probe.call("k3perf_spread_weights", False)
