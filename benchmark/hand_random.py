"""What the hand-written kernels share: flags of the compiler, and random numbers."""

from __future__ import annotations

import zlib

import numpy as np
from numba import njit

from unilab_kernels import rng

f32 = np.float32
u64 = np.uint64
FLAGS = {"error_model": "numpy", "fastmath": {"reassoc", "contract", "arcp", "nsz"}}
INNER = {**FLAGS, "forceinline": True}
GOLDEN, MIX_A, MIX_B = rng.GOLDEN, rng.MIX_A, rng.MIX_B
S16, S27, S30, S31, S40 = (np.uint64(n) for n in (16, 27, 30, 31, 40))
LOW_24 = np.uint64(0xFFFFFF)
TO_UNIT = f32(2.0**-24)


def stream(name: str) -> np.uint64:
    """Return the stream of a term that draws."""
    return np.uint64(zlib.crc32(name.encode()))


@njit(**INNER)
def fold(key, value):
    x = key + GOLDEN * (value + u64(1))
    x = (x ^ (x >> S30)) * MIX_A
    x = (x ^ (x >> S27)) * MIX_B
    return x ^ (x >> S31)


@njit(**INNER)
def high(bits):
    return f32(np.int32(bits >> S40)) * TO_UNIT


@njit(**INNER)
def low(bits):
    return f32(np.int32((bits >> S16) & LOW_24)) * TO_UNIT


@njit(**INNER)
def between(unit, least, most):
    return least + (most - least) * unit
