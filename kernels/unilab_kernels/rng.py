"""Counter-based random numbers: a pure function of a 64-bit key, nothing carried.

A key is made from (seed, rank, environment, episode, step, stream); the stream is the name of the
term that draws. So a draw depends neither on the order of execution nor on the other environments
nor on which other terms are configured.

Source: the finaliser of SplitMix64 (Steele, Lea, Flood 2014), variant 13 of D. Stafford; a sequence
of its values at steps of the golden ratio passes BigCrush.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_A = np.uint64(0xBF58476D1CE4E5B9)
MIX_B = np.uint64(0x94D049BB133111EB)
SHIFT_30 = np.uint64(30)
SHIFT_27 = np.uint64(27)
SHIFT_31 = np.uint64(31)
SHIFT_40 = np.uint64(40)
SHIFT_16 = np.uint64(16)
LOW_24 = np.uint64(0xFFFFFF)


def mix(x):
    """Scramble 64 bits (a bijection)."""
    x = (x ^ (x >> SHIFT_30)) * MIX_A
    x = (x ^ (x >> SHIFT_27)) * MIX_B
    return x ^ (x >> SHIFT_31)


def fold(key, value):
    """Make a new key from a key and one more counter (u64)."""
    return mix(key + GOLDEN * (value + np.uint64(1)))


def bits64(key, n):
    """Return the n-th 64 random bits of a key; they hold its uniforms 2n and 2n + 1."""
    return mix(key + GOLDEN * np.uint64(n + 1))


def first01(bits):
    """Return a uniform float32 in [0, 1), on a grid of 2^-24, from bits 40 to 63."""
    return np.float32(np.int32(bits >> SHIFT_40)) * np.float32(5.9604644775390625e-08)


def second01(bits):
    """Return a uniform float32 in [0, 1), on a grid of 2^-24, from bits 16 to 39."""
    return np.float32(np.int32((bits >> SHIFT_16) & LOW_24)) * np.float32(5.9604644775390625e-08)


def uniform01(key, n):
    """Return the n-th uniform float32 in [0, 1) of a key, on a grid of 2^-24."""
    bits = bits64(key, n >> 1)
    return second01(bits) if n & 1 else first01(bits)


def uniform(key, n, low, high):
    """Return the n-th uniform float32 between low and high of a key."""
    return low + (high - low) * uniform01(key, n)
