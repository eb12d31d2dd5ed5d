"""The counter-based random numbers once more, with Python's own integers. The oracle of rng.py."""

from __future__ import annotations

import zlib

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def fold(key: int, value: int) -> int:
    return mix((key + GOLDEN * (value + 1)) & MASK)


def env_key(seed: int, rank: int, env: int, episode: int, step: int) -> int:
    key = fold(fold(0, seed & MASK), rank)
    for value in (env, episode, step):
        key = fold(key, int(value) & MASK)
    return key


def stream_key(key: int, stream: str) -> int:
    return fold(key, zlib.crc32(stream.encode()))


def uniform01(key: int, n: int) -> float:
    word = mix((key + GOLDEN * (n // 2 + 1)) & MASK)
    return ((word >> (16 if n % 2 else 40)) & 0xFFFFFF) / 2.0**24


def uniform(key: int, n: int, low: float, high: float) -> float:
    return low + (high - low) * uniform01(key, n)
