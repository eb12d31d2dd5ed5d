"""The baseline's random numbers: the kernels' own, and fast ones that are uniform."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from tests.reference import rng_reference as rng
from unilab.bench.agreement import check_noise
from unilab.bench.draws import FastDraws, KernelDraws
from unilab.errors import UnilabError
from unilab_kernels.fuse import seed_key


def test_kernel_draws_are_those_of_the_kernels():
    draws = KernelDraws(seed_key(7))
    ids = np.array([0, 5, 9])
    draws.begin(ids, np.array([1, 2, 3], np.int32), np.array([4, 5, 6], np.int32))
    found = draws.uniform("command/velocity", np.array([0, 2]), 3)
    for row, (env, episode, step) in zip(found, ((0, 1, 4), (9, 3, 6)), strict=True):
        key = int(seed_key(7)[0])
        for counter in (env, episode, step, zlib.crc32(b"command/velocity")):
            key = rng.fold(key, counter)
        assert row.tolist() == [float(np.float32(rng.uniform01(key, n))) for n in range(3)]


def test_noise_of_several_terms_lies_side_by_side():
    draws = KernelDraws(seed_key(7))
    draws.begin(np.arange(4), np.ones(4, np.int32), 0)
    together, alone = np.empty((2, 5), np.float32), np.empty((2, 2), np.float32)
    draws.noise(slice(1, 3), (("noise/a", 3), ("noise/b", 2)), together)
    draws.noise(slice(1, 3), (("noise/b", 2),), alone)
    np.testing.assert_array_equal(together[:, 3:], alone)


def test_fast_noise_is_uniform_and_differs_between_draws():
    check_noise(FastDraws(1))
    draws, out = FastDraws(1), np.empty((2, 3, 5), np.float32)
    for half in out:
        draws.noise(slice(0, 3), (("a", 5),), half)
    assert len(np.unique(out)) == out.size


class Narrow(FastDraws):
    """Noise that is not as wide as it should be."""

    unit = 0.9 * FastDraws.unit


def test_noise_that_is_not_uniform_is_refused():
    with pytest.raises(UnilabError, match="not uniform"):
        check_noise(Narrow(1))
