"""Objects that look like torch tensors, modules and vLLM workers as far as the probe
looks at them; no torch needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from k3perf_probe.worker_extension import ProbeExtension


class FakeStorage:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def nbytes(self) -> int:
        return self.size_bytes

    def data_ptr(self) -> int:
        return id(self)


class FakeTensor:
    device = "cpu"

    def __init__(
        self, size_bytes: int, *, storage: FakeStorage | None = None, width: int = 2
    ) -> None:
        self.storage = storage or FakeStorage(size_bytes)
        self.size_bytes = size_bytes
        self.width = width

    def untyped_storage(self) -> FakeStorage:
        return self.storage

    def data_ptr(self) -> int:
        return self.storage.data_ptr()

    def numel(self) -> int:
        return self.size_bytes // self.width

    def element_size(self) -> int:
        return self.width


class FakeHandler:
    """oneDNN's handle of a packed weight: only its shape is known."""

    def __init__(self, rows: int, columns: int) -> None:
        self.n, self.k = rows, columns


def closing_over(*contents: object) -> Callable[[], object]:
    """A function with these objects in its closure, as vLLM makes for ``cpu_linear``."""
    return lambda: contents if len(contents) != 1 else _use(contents[0])


def packed(content: object) -> Callable[[object], object]:
    return lambda x: (x, content)


def _use(content: object) -> object:
    return content


class FakeModule:
    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


class FakeModel:
    def __init__(
        self, parameters: list[FakeTensor], buffers: list[FakeTensor] | None = None
    ) -> None:
        self._parameters = parameters
        self._buffers: dict[str, FakeTensor] = {
            str(number): tensor for number, tensor in enumerate(buffers or [])
        }
        self.children: dict[str, FakeModule] = {}

    def parameters(self) -> list[FakeTensor]:
        return self._parameters

    def buffers(self) -> list[FakeTensor]:
        return list(self._buffers.values())

    def named_modules(self) -> Iterator[tuple[str, Any]]:
        yield "", self
        yield from self.children.items()

    def register_buffer(self, name: str, tensor: FakeTensor, *, persistent: bool) -> None:
        assert not persistent
        self._buffers[name] = tensor

    def __delattr__(self, name: str) -> None:
        del self._buffers[name]


class FakeRunner:
    def __init__(self, model: FakeModel, kv_caches: Any) -> None:
        self.model = model
        self.kv_caches = kv_caches

    def get_model(self) -> FakeModel:
        return self.model


class FakeConfig:
    def __init__(self, *, async_scheduling: bool) -> None:
        self.scheduler_config = FakeModule(async_scheduling=async_scheduling)


class FakeDevice:
    type = "cpu"


class FakeWorker(ProbeExtension):
    """A CPU worker. ``step_ns`` is what its two step methods take on ``clock``."""

    def __init__(self, model: FakeModel | None = None, kv_caches: Any = None) -> None:
        self.rank = 3
        self.device = FakeDevice()
        self.vllm_config = FakeConfig(async_scheduling=False)
        self.model_runner = FakeRunner(
            model or FakeModel([FakeTensor(100)]),
            [FakeTensor(64)] if kv_caches is None else kv_caches,
        )
        self.calls: list[str] = []

    def execute_model(self, scheduled: object) -> str:
        self.calls.append("execute_model")
        return f"ran {scheduled}"

    def sample_tokens(self, grammar: object) -> str:
        self.calls.append("sample_tokens")
        return f"sampled {grammar}"
