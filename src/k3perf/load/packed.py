"""Samples as arrays, so that a client process hands over millions of tokens in two
copies.

A pickled token costs more than a streamed one. Here only requests are pickled, and all
tokens of a process are three arrays.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from k3perf.load.round_samples import RoundSamples
from k3perf.records.samples import ChunkRecord, RequestSample


@dataclass(frozen=True, slots=True)
class PackedSamples:
    """``requests`` have no chunks. Theirs follow one another in the arrays:
    ``chunk_counts[i]`` of them belong to ``requests[i]``.
    """

    requests: tuple[RequestSample, ...]
    chunk_counts: npt.NDArray[np.int64]
    at_ns: npt.NDArray[np.int64]
    token_counts: npt.NDArray[np.int32]


def pack(samples: Sequence[RequestSample]) -> PackedSamples:
    """Samples to arrays."""
    counts = np.fromiter((len(sample.chunks) for sample in samples), np.int64, len(samples))
    total = int(counts.sum())
    chunks = [chunk for sample in samples for chunk in sample.chunks]
    return PackedSamples(
        requests=tuple(replace(sample, chunks=()) for sample in samples),
        chunk_counts=counts,
        at_ns=np.fromiter((chunk.at_ns for chunk in chunks), np.int64, total),
        token_counts=np.fromiter((chunk.token_count for chunk in chunks), np.int32, total),
    )


def unpack(packed: PackedSamples) -> tuple[RequestSample, ...]:
    """Arrays to samples. Raises ValueError if the arrays do not fit each other."""
    total = int(packed.chunk_counts.sum())
    if not len(packed.at_ns) == len(packed.token_counts) == total or len(
        packed.chunk_counts
    ) != len(packed.requests):
        raise ValueError("the arrays of a client process do not fit each other")
    chunks = tuple(map(ChunkRecord, packed.at_ns.tolist(), packed.token_counts.tolist()))
    samples = []
    begin = 0
    for request, count in zip(packed.requests, packed.chunk_counts.tolist(), strict=True):
        samples.append(replace(request, chunks=chunks[begin : begin + count]))
        begin += count
    return tuple(samples)


def to_bytes(seen: RoundSamples) -> bytes:
    """A whole round for a pipe."""
    return pickle.dumps((replace(seen, samples=()), pack(seen.samples)), protocol=5)


def from_bytes(data: bytes) -> RoundSamples:
    """The round that ``to_bytes`` wrote in a process of our own."""
    seen, packed = pickle.loads(data)  # noqa: S301 - written by our own child
    whole: RoundSamples = replace(seen, samples=unpack(packed))
    return whole
