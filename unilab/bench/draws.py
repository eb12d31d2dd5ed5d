"""Random numbers of the NumPy baseline: fast ones for timing, the kernels' own for comparing."""

from __future__ import annotations

import itertools
import threading
import zlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from unilab_kernels.rng import bits64, first01, fold, second01

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
Streams = tuple[tuple[str, int], ...]  # name and number of columns of each


class Draws(Protocol):
    """Where the baseline gets its random numbers.

    Attributes:
      unit: `noise` gives numbers between -1 / unit and 1 / unit.
    """

    unit: float

    def begin(self, env_ids: I64, episode: I32, step: I32 | int) -> None:
        """Say which envs, episodes and steps the next draws are for; each (n,)."""

    def noise(self, rows: slice, streams: Streams, out: F32) -> None:
        """Fill out (m, sum of columns) for some of the rows."""

    def uniform(self, stream: str, rows: I64, count: int) -> F32:
        """Return (len(rows), count) numbers in [0, 1) for some of the rows."""


class FastDraws:
    """The fastest uniform float32 that NumPy has: 64 random bits make two numbers.

    `Generator.random(out=..., dtype=float32)` takes 2.9 ns a number; whole 64-bit integers, read as
    pairs of int32 and converted, take 1.3 ns (NumPy 2.4, one core of a Xeon). SFC64 is the fastest
    of NumPy's bit generators. Each thread has its own, so that shards never wait for each other.

    Args:
      seed: of all threads' generators.
    """

    unit = 2.0**-31

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._threads = itertools.count()
        self._local = threading.local()

    def begin(self, env_ids: I64, episode: I32, step: I32 | int) -> None:
        """Nothing: these numbers do not depend on who draws."""

    def noise(self, rows: slice, streams: Streams, out: F32) -> None:  # noqa: ARG002
        """Fill out (m, columns); see `Draws`."""
        pairs = -(-out.size // 2)
        bits = self._generator().integers(0, 2**64 - 1, pairs, np.uint64, endpoint=True)
        numbers = bits.view(np.int32)[: out.size].reshape(out.shape)
        np.copyto(out, numbers, casting="unsafe")

    def uniform(self, stream: str, rows: I64, count: int) -> F32:  # noqa: ARG002
        """Return (len(rows), count) in [0, 1); see `Draws`."""
        return self._generator().random((len(rows), count), dtype=np.float32)

    def _generator(self) -> np.random.Generator:
        generator: np.random.Generator | None = getattr(self._local, "generator", None)
        if generator is None:
            key = np.random.SeedSequence((self._seed, next(self._threads)))
            generator = self._local.generator = np.random.Generator(np.random.SFC64(key))
        return generator


class KernelDraws:
    """The very numbers of the fused kernels, so that results can be compared value by value.

    Serves one thread.

    Args:
      seed_key: (1,) u64, the kernels' ``seed_in``.
    """

    unit = 1.0

    def __init__(self, seed_key: U64) -> None:
        self._base = self._keys = seed_key

    def begin(self, env_ids: I64, episode: I32, step: I32 | int) -> None:
        """Make the key of each env; see `Draws`."""
        keys = np.broadcast_to(self._base, env_ids.shape)
        for counter in (env_ids, episode, np.broadcast_to(np.asarray(step), env_ids.shape)):
            keys = fold(keys, counter.astype(np.int64).view(np.uint64))  # type: ignore[no-untyped-call]
        self._keys = keys

    def noise(self, rows: slice, streams: Streams, out: F32) -> None:
        """Fill out (m, columns) with numbers in [-1, 1); see `Draws`."""
        start = 0
        for stream, count in streams:
            numbers = _numbers(_stream(stream, self._keys[rows]), count)
            np.multiply(numbers, np.float32(2.0), out=numbers)
            np.subtract(numbers, np.float32(1.0), out=out[:, start : start + count])
            start += count

    def uniform(self, stream: str, rows: I64, count: int) -> F32:
        """Return (len(rows), count) in [0, 1); see `Draws`."""
        return _numbers(_stream(stream, self._keys[rows]), count)


def _stream(name: str, keys: U64) -> U64:
    """Return the key of a stream of each env."""
    stream = np.full_like(keys, zlib.crc32(name.encode()))
    return fold(keys, stream)  # type: ignore[no-untyped-call, no-any-return]


def _numbers(keys: U64, count: int) -> F32:
    """Return the first `count` uniforms in [0, 1) of each key, (n, count)."""
    numbers = np.empty((len(keys), 2 * (-(-count // 2))), np.float32)
    for pair in range(numbers.shape[1] // 2):
        with np.errstate(over="ignore"):
            bits = bits64(keys, pair)  # type: ignore[no-untyped-call]
        numbers[:, 2 * pair] = first01(bits)  # type: ignore[no-untyped-call]
        numbers[:, 2 * pair + 1] = second01(bits)  # type: ignore[no-untyped-call]
    return numbers[:, :count]
