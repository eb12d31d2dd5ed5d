"""Random numbers: the same as with Python's integers, uniform, and different wherever a key is."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import pytest
from numba import njit

from tests.kernels.support import library
from tests.reference import rng_reference as reference
from unilab_kernels import rng
from unilab_kernels.fuse import seed_key
from unilab_kernels.source import SourceCollector

NUM_BINS = 16
# Chi-square with 15 degrees of freedom is above this once in 10^5 (and once in 10^9: 74).
LIMIT = 50.0


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """The functions as the kernels have them: their text, compiled."""
    collector = SourceCollector()
    for function in (rng.uniform, rng.fold):
        collector.add(function, function.__name__)
    text = "\n".join(collector.functions(["uniform; fold"]))
    text += """
@njit
def uniforms(keys, n, out):
    for k in range(len(keys)):
        out[k] = uniform01(keys[k], n)

@njit
def folded(key, value):
    return fold(key, value)

@njit
def between(key, n, low, high):
    return uniform(key, n, low, high)
"""
    scope: dict[str, Any] = {"njit": njit, "np": np, "f32": np.float32, "_HELPER": {}}
    exec("\n".join(collector.constants.values()), scope)
    exec(text, scope)
    return scope


KEYS = [0, 1, 2**63, 2**64 - 1, 0x9E3779B97F4A7C15, 123456789012345678]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("value", [0, 1, 7, 2**32 - 1, 2**64 - 1])
def test_fold_is_the_reference(key, value, compiled):
    assert int(compiled["folded"](np.uint64(key), np.uint64(value))) == reference.fold(key, value)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 999])
def test_uniforms_are_the_reference(n, compiled):
    out = np.full(len(KEYS), np.nan, np.float32)
    compiled["uniforms"](np.array(KEYS, np.uint64), n, out)
    assert out.tolist() == [reference.uniform01(key, n) for key in KEYS]
    low, high = np.float32(-2.0), np.float32(3.0)
    between = [compiled["between"](np.uint64(key), n, low, high) for key in KEYS]
    np.testing.assert_allclose(
        between, [reference.uniform(key, n, -2, 3) for key in KEYS], 1e-6, 1e-6
    )


@pytest.mark.parametrize(("seed", "rank"), [(0, 0), (1, 0), (0, 1), (2**40, 3), (-1, 0)])
def test_the_seed_key_is_the_reference(seed, rank):
    wanted = reference.fold(reference.fold(0, seed % 2**64), rank)
    assert seed_key(seed, rank).tolist() == [wanted]


# -- along each part of a key ---------------------------------------------------------------------

BASE = {"seed": 3, "rank": 0, "env": 5, "episode": 2, "step": 11, "stream": zlib.crc32(b"a/b")}


def keys_along(part: str, count: int) -> list[int]:
    """Keys that differ in one part alone."""
    keys = []
    for value in range(count):
        p = {**BASE, part: value}
        key = reference.env_key(p["seed"], p["rank"], p["env"], p["episode"], p["step"])
        keys.append(reference.fold(key, p["stream"]))
    return keys


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(np.sum((counts - expected) ** 2 / expected))


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("part", list(BASE))
def test_draws_along_each_part_of_the_key_are_uniform_and_independent(part, n, compiled):
    keys = np.array(keys_along(part, 8_000), np.uint64)
    out = np.full(len(keys), np.nan, np.float32)
    compiled["uniforms"](keys, n, out)
    assert len(set(keys.tolist())) == len(keys)
    assert out.min() >= 0.0
    assert out.max() < 1.0
    bins = (out * NUM_BINS).astype(int)
    assert chi_square(np.bincount(bins, minlength=NUM_BINS)) < LIMIT
    quarters = (out * 4).astype(int)
    pairs = np.bincount(quarters[:-1] * 4 + quarters[1:], minlength=16)  # neighbours
    assert chi_square(pairs) < LIMIT


def test_the_two_halves_of_a_word_are_independent(compiled):
    keys = np.array(keys_along("env", 8_000), np.uint64)
    first, second = np.empty(8_000, np.float32), np.empty(8_000, np.float32)
    compiled["uniforms"](keys, 0, first)
    compiled["uniforms"](keys, 1, second)
    both = (first * 4).astype(int) * 4 + (second * 4).astype(int)
    assert chi_square(np.bincount(both, minlength=16)) < LIMIT


def test_keys_of_neighbouring_counters_never_meet():
    """(env 1, episode 2) and (env 2, episode 1), and so on: the order of the parts matters."""
    keys = [
        reference.env_key(seed, rank, env, episode, step)
        for seed, rank, env, episode, step in itertools.product(range(4), repeat=5)
    ]
    assert len(set(keys)) == 4**5


def test_no_two_streams_are_equal():
    names = [f"{s}/{n}" for s in ("command", "interval", "reset", "carry") for n in library(s)]
    names += [f"observation/{n}" for n in library("observation")]
    for group in ("actor", "critic"):
        names += [f"noise/observations.{group}.{n}" for n in library("observation")]
    assert len({zlib.crc32(name.encode()) for name in names}) == len(names)
