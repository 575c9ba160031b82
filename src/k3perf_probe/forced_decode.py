"""Decode along given tokens: a logits processor for vLLM (``--logits-processors
k3perf_probe.forced_decode:ForcedDecode``).

A request with ``vllm_xargs: {"k3perf_forced": [ids]}`` gets these tokens, one a step,
whatever the model prefers. vLLM takes log-probabilities before this class changes the
logits (``logprobs_mode: raw_logprobs``), so they are the model's own. Requests without
the key are not touched.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.sample.logits_processor import LogitsProcessor, process_dict_updates

try:  # the model runner of GPUs has an interface of another form
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as GpuLogitsProcessor
except ImportError:  # a release without it
    GpuLogitsProcessor = object

KEY = "k3perf_forced"


def forced_tokens(parameters: Any) -> list[int] | None:
    """The tokens that a request asks for. None: it asks for none. ValueError for
    anything but a list of ids.
    """
    given = (getattr(parameters, "extra_args", None) or {}).get(KEY)
    if given is None:
        return None
    if not isinstance(given, list) or not given:
        raise ValueError(f"{KEY} must be a list of token ids")
    tokens = [int(one) for one in given]
    if min(tokens) < 0:
        raise ValueError(f"{KEY} holds the token id {min(tokens)}")
    return tokens


class ForcedDecode(LogitsProcessor, GpuLogitsProcessor):  # type: ignore[misc]
    """One for each rank's batch, under either of vLLM's interfaces: the first model
    runner calls ``update_state`` and ``apply(logits)``, the second ``add_request`` and
    ``apply(logits, context)``.

    ``rows``: of each forced request its tokens and the list of those that it has, which
    vLLM extends. ``slots``: by request slot of the second runner the tokens.
    """

    def __init__(self, _config: Any = None, states: Any = None, *_: Any) -> None:
        self.rows: dict[int, tuple[list[int], list[int]]] = {}
        self.slots: dict[int, list[int]] = {}
        self._prompt_lengths: Any = getattr(states, "prompt_len", None)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Refuse a request with unusable tokens, as status 400."""
        forced_tokens(sampling_params)

    def is_argmax_invariant(self) -> bool:
        """It decides the most probable token, so it runs under greedy sampling too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow requests as they enter, leave and move in the batch."""
        process_dict_updates(self.rows, batch_update, _entry)

    def add_request(self, slot: int, sampling_params: Any) -> bool:
        """A request took the slot. Whether it is forced."""
        self.slots.pop(slot, None)
        wanted = forced_tokens(sampling_params)
        if wanted is not None:
            self.slots[slot] = wanted
        return wanted is not None

    def apply(self, logits: Any, context: Any = None) -> Any:
        """Leave the wanted token of each forced row as the only possible one."""
        if context is not None:
            for row, token in self._forced_rows(context):
                _force(logits, row, token)
            return logits
        for row, (wanted, had) in self.rows.items():
            if len(had) < len(wanted):
                _force(logits, row, wanted[len(had)])
        return logits

    def _forced_rows(self, context: Any) -> list[tuple[int, int]]:
        """Of the second runner's batch: rows with the token that each must take. The
        last input token's position says how many tokens a request has.
        """
        if not self.slots:
            return []
        found = []
        places = zip(context.expanded_idx_mapping.tolist(), context.pos.tolist(), strict=False)
        for row, (slot, position) in enumerate(places):
            wanted = self.slots.get(slot)
            place = position + 1 - int(self._prompt_lengths.np[slot])
            if wanted is not None and 0 <= place < len(wanted):
                found.append((row, wanted[place]))
        return found


def _force(logits: Any, row: int, token: int) -> None:
    logits[row] = float("-inf")
    logits[row, token] = 0.0


def _entry(
    parameters: Any, _prompt: list[int] | None, output: list[int]
) -> tuple[list[int], list[int]] | None:
    wanted = forced_tokens(parameters)
    return None if wanted is None else (wanted, output)
