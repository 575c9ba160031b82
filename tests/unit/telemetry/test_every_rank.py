"""Readings of all ranks of data-parallel engines: the real probe in fake workers,
behind a server that returns the first engine's answers alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from k3perf.errors import EngineError
from k3perf.metrics.ranks import memory_note
from k3perf.metrics.session_values import session_values
from k3perf.records.samples import Arm, EngineIdentity, RankMemory, SessionRecord
from k3perf.telemetry.server import ServerProbe
from tests.unit.probe.fakes import FakeModel, FakeModule, FakeTensor, FakeWorker

Engine = list[FakeWorker]


def engine(
    index: int, weights_bytes: Sequence[int], *, moe: bool = False, engine_count: int = 2
) -> Engine:
    """The ranks of one data-parallel engine as vLLM 0.32.0 numbers them; a dense
    model's engines forget that there are others.
    """
    workers = []
    for rank, size_bytes in enumerate(weights_bytes):
        worker = FakeWorker(FakeModel([FakeTensor(size_bytes)]))
        worker.rank = rank
        known = (
            {"data_parallel_rank": index, "data_parallel_size": engine_count}
            if moe
            else {"data_parallel_rank": 0, "data_parallel_size": 1}
        )
        worker.vllm_config.parallel_config = FakeModule(
            data_parallel_index=index, world_size=len(weights_bytes), **known
        )  # type: ignore[attr-defined]
        workers.append(worker)
    return workers


class DataParallelServer(ServerProbe):
    """Calls every worker of every engine and answers for the first engine.
    ``elsewhere`` are engines of another host, which lacks the directory.
    """

    def __init__(
        self, engines: Sequence[Engine], scratch: Path, elsewhere: Iterable[int] = ()
    ) -> None:
        super().__init__("http://127.0.0.1:1", scratch=scratch)
        self.engines = list(engines)
        self.elsewhere = set(elsewhere)
        self.directories: list[str] = []

    def call(self, method: str, *arguments: object) -> list[Any]:
        (directory,) = arguments
        self.directories.append(str(directory))
        assert Path(str(directory)).is_dir()
        answers = [
            [
                getattr(worker, method)(
                    f"{directory}-elsewhere" if index in self.elsewhere else directory
                )
                for worker in workers
            ]
            for index, workers in enumerate(self.engines)
        ]
        return answers[0]


def judged_weights_bytes(memory: tuple[RankMemory, ...]) -> float | None:
    identity = EngineIdentity("0.32.0", "3.12", "2.11", "cpu", (), None, "host")
    record = SessionRecord(
        "s", "t", "c", "w", "p", Arm.CANDIDATE, "2026-11-29T00:00:00Z", identity, {}, (), memory, ()
    )
    return session_values(record)["weights_bytes"].value


@pytest.mark.parametrize("moe", [False, True], ids=["dense", "moe"])
def test_every_rank_of_every_engine_is_read_and_the_worst_is_judged(
    moe: bool, tmp_path: Path
) -> None:
    server = DataParallelServer(
        [engine(0, (100, 110), moe=moe), engine(1, (100, 140), moe=moe)], tmp_path
    )
    memory = server.rank_memory()
    assert [(rank.rank, rank.weights_bytes) for rank in memory] == [
        (0, 100),
        (1, 110),
        (2, 100),
        (3, 140),
    ]
    assert judged_weights_bytes(memory) == 140
    assert "worst weights_bytes 140 B on rank 3 (spread 40 B, 28.57%)" in memory_note([memory], 4)


def test_an_engine_of_another_host_is_told_as_missing_and_says_so_in_its_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server = DataParallelServer([engine(0, (100,)), engine(1, (140,))], tmp_path, elsewhere={1})
    memory = server.rank_memory()
    assert [rank.rank for rank in memory] == [0]
    assert (
        memory_note([memory], 2)
        == "memory of 1 of 2 ranks: the other ranks' readings are missing and are not judged"
    )
    directory = f"{server.directories[0]}-elsewhere"
    assert (
        capfd.readouterr().err
        == f"k3perf: rank 1 could not write its answer to {directory}: No such file or directory\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_release_that_does_not_tell_engines_apart_leaves_ranks_missing_never_mixed_up(
    tmp_path: Path,
) -> None:
    engines = [engine(0, (100, 100)), engine(1, (140, 140))]
    for worker in engines[0] + engines[1]:
        del worker.vllm_config.parallel_config.data_parallel_index  # type: ignore[attr-defined]
    memory = DataParallelServer(engines, tmp_path).rank_memory()
    assert [(rank.rank, rank.weights_bytes) for rank in memory] == [(0, 100), (1, 100)]
    assert memory_note([memory], 4).startswith("memory of 2 of 4 ranks: ")


def test_an_earlier_answer_is_never_taken_for_a_new_one(tmp_path: Path) -> None:
    server = DataParallelServer([engine(0, (100,)), engine(1, (140,))], tmp_path)
    assert len(server.rank_memory()) == 2
    server.elsewhere = {1}  # nothing comes from it this time
    assert [rank.rank for rank in server.rank_memory()] == [0]
    server.elsewhere = set()
    server.engines[1] = engine(1, (150,))
    assert [rank.weights_bytes for rank in server.rank_memory()] == [100, 150]
    assert len(set(server.directories)) == 3
    assert list(tmp_path.iterdir()) == []
    assert {Path(directory).parent for directory in server.directories} == {tmp_path}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), EngineError("timed out")], ids=["interrupt", "error"]
)
def test_nothing_is_left_behind_by_a_call_that_does_not_end(
    error: BaseException, tmp_path: Path
) -> None:
    class Interrupted(DataParallelServer):
        def call(self, method: str, *arguments: object) -> list[Any]:
            super().call(method, *arguments)
            raise error

    server = Interrupted([engine(0, (100,)), engine(1, (140,))], tmp_path)
    with pytest.raises(type(error)):
        server.rank_memory()
    assert list(tmp_path.iterdir()) == []
    late = server.engines[1][0].k3perf_memory(
        server.directories[0]
    )  # a rank that answers after the harness has given up
    assert late["rank"] == 1
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_answer_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", killed)
    server = DataParallelServer([engine(0, (100,)), engine(1, (140,))], tmp_path)
    assert [rank.rank for rank in server.rank_memory()] == [0]


def test_a_scratch_directory_that_is_gone_is_an_engine_error_that_names_it(tmp_path: Path) -> None:
    server = DataParallelServer([engine(0, (100,))], tmp_path / "gone")
    with pytest.raises(
        EngineError, match=r"k3perf_memory: the ranks' answers cannot be gathered in .*/gone"
    ):
        server.rank_memory()


def test_identity_is_the_first_ranks_and_other_releases_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = iter(["0.32.0", "0.32.0", "0.32.0", "0.33.0"])
    reading = {"driver_version": "580", "python_version": "3.12.3"}
    monkeypatch.setattr(
        "k3perf_probe.identity.read_identity",
        lambda: {
            **reading,
            "vllm_version": next(seen),
            "host": "a" if len(server.directories) < 2 else "b",
        },
    )
    server = DataParallelServer([engine(0, (100,)), engine(1, (100,))], tmp_path)
    first = server.identity()
    assert (first["rank"], first["vllm_version"], first["host"]) == (0, "0.32.0", "a")
    with pytest.raises(
        EngineError,
        match=r"vllm_version is 0\.32\.0 on rank 0 \(host b\) and 0\.33\.0 on rank 1 \(host b\)",
    ):
        server.identity()


def test_ranks_that_do_not_know_their_number_are_refused_not_taken_for_one(tmp_path: Path) -> None:
    engines = [engine(0, (100, 140))]
    for worker in engines[0]:
        del worker.rank
    with pytest.raises(
        EngineError, match=r"k3perf_memory answered rank -1: .*python -m k3perf_probe\.contract"
    ):
        DataParallelServer(engines, tmp_path).every_rank("k3perf_memory")
