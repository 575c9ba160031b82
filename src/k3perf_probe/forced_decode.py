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


class ForcedDecode(LogitsProcessor):  # type: ignore[misc]
    """One for each rank's batch. ``rows``: of each forced request its tokens and the
    list of those that it has, which vLLM extends.
    """

    def __init__(self, *_: Any) -> None:
        self.rows: dict[int, tuple[list[int], list[int]]] = {}

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

    def apply(self, logits: Any) -> Any:
        """Leave the wanted token of each forced row as the only possible one."""
        for row, (wanted, had) in self.rows.items():
            place = len(had)
            if place < len(wanted):
                logits[row] = float("-inf")
                logits[row, wanted[place]] = 0.0
        return logits


def _entry(
    parameters: Any, _prompt: list[int] | None, output: list[int]
) -> tuple[list[int], list[int]] | None:
    wanted = forced_tokens(parameters)
    return None if wanted is None else (wanted, output)
