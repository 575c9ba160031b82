"""Forced tokens under both of vLLM's interfaces of a logits processor, with stand-ins
for vLLM's base classes. tests/engine/test_quality_live.py runs it in a real engine.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

FIRST = "vllm.v1.sample.logits_processor"
SECOND = "vllm.v1.worker.gpu.sample.logits_processor"


def forced_class(monkeypatch: pytest.MonkeyPatch, *, second: bool = True) -> Any:
    for name in (FIRST, SECOND)[: 1 + second]:
        parts = name.split(".")
        for end in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(parts[end - 1]))
        module = ModuleType(name)
        module.LogitsProcessor = type("LogitsProcessor", (), {})  # type: ignore[attr-defined]
        module.process_dict_updates = None  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "k3perf_probe.forced_decode", raising=False)
    made = importlib.import_module("k3perf_probe.forced_decode").ForcedDecode
    monkeypatch.delitem(sys.modules, "k3perf_probe.forced_decode")
    return made


def parameters(tokens: object = None) -> SimpleNamespace:
    return SimpleNamespace(extra_args=None if tokens is None else {"k3perf_forced": tokens})


def step(slots: list[int], positions: list[int]) -> SimpleNamespace:
    return SimpleNamespace(expanded_idx_mapping=np.array(slots), pos=np.array(positions))


def chosen(logits: np.ndarray) -> list[int | None]:
    """By row the only possible token, or None for a row that was not touched."""
    return [int(np.argmax(row)) if np.isinf(row).sum() == len(row) - 1 else None for row in logits]


def test_both_runners_take_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forced_class(monkeypatch)
    assert issubclass(made, sys.modules[FIRST].LogitsProcessor)
    assert issubclass(made, sys.modules[SECOND].LogitsProcessor)


def test_a_release_without_the_second_interface_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forced_class(monkeypatch, second=False)
    assert issubclass(made, sys.modules[FIRST].LogitsProcessor)


def test_the_second_runner_gets_the_tokens_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = SimpleNamespace(np=np.array([3, 5, 2]))
    made = forced_class(monkeypatch)(object(), SimpleNamespace(prompt_len=lengths))
    assert made.add_request(0, parameters([7, 8]))
    assert not made.add_request(1, parameters())
    assert made.add_request(2, parameters([4]))
    # rows in another order than slots; slot 0 samples its first token, slot 2 too
    logits = np.zeros((3, 10))
    made.apply(logits, step([2, 1, 0], [1, 4, 2]))
    assert chosen(logits) == [4, None, 7]
    # slot 0 has one token, slot 2 has all of its tokens
    logits = np.zeros((2, 10))
    made.apply(logits, step([0, 2], [3, 2]))
    assert chosen(logits) == [8, None]
    # another request takes slot 0
    assert not made.add_request(0, parameters())
    logits = np.zeros((1, 10))
    made.apply(logits, step([0], [2]))
    assert chosen(logits) == [None]


def test_the_first_runner_gets_them_by_what_a_request_has(monkeypatch: pytest.MonkeyPatch) -> None:
    made = forced_class(monkeypatch)(object(), object(), False)
    had: list[int] = []
    made.rows[1] = ([6, 5], had)
    for wanted in (6, 5, None):
        logits = np.zeros((2, 10))
        made.apply(logits)
        assert chosen(logits) == [None, wanted]
        had.append(0)


@pytest.mark.parametrize("tokens", ["word", [], [-1]])
def test_unusable_tokens_are_refused(tokens: object, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="k3perf_forced"):
        forced_class(monkeypatch).validate_params(parameters(tokens))
