"""Cutting blocks into shards, and what happens when one raises."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from unilab.errors import ShardError
from unilab.runtime.shards import LIGHT, Shards
from unilab.runtime.threads import MIN_BLOCKS_PER_SHARD


class Calls:
    """A kernel that notes its calls: (first, last, num_envs, arrays) and the thread."""

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []
        self.threads: set[int] = set()
        self.rest: set[tuple[Any, ...]] = set()

    def __call__(self, first: int, last: int, num_envs: int, *arrays: Any) -> None:
        self.ranges.append((first, last))
        self.threads.add(threading.get_ident())
        self.rest.add((num_envs, *arrays))


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("blocks", [1, 2, 7, 64])
def test_shards_cover_every_block_once(count: int, blocks: int) -> None:
    calls, shards = Calls(), Shards(count, min_blocks=1)
    shards.run(calls, 5, 5 + blocks, 10_000, ("a", "b"))
    shards.close()
    covered = [block for first, last in sorted(calls.ranges) for block in range(first, last)]
    assert covered == list(range(5, 5 + blocks))
    assert len(calls.ranges) == min(count, blocks)
    assert calls.rest == {(10_000, "a", "b")}


def test_a_batch_too_small_to_gain_runs_in_the_caller() -> None:
    shards = Shards(4)
    for blocks, expected in (
        (MIN_BLOCKS_PER_SHARD, 1),
        (2 * MIN_BLOCKS_PER_SHARD - 1, 1),
        (2 * MIN_BLOCKS_PER_SHARD, 2),
        (100 * MIN_BLOCKS_PER_SHARD, 4),
    ):
        calls = Calls()
        shards.run(calls, 0, blocks, 64 * blocks, ())
        assert len(calls.ranges) == expected
        if expected == 1:
            assert calls.threads == {threading.get_ident()}
    calls = Calls()
    shards.run(calls, 0, 2 * MIN_BLOCKS_PER_SHARD, 10_000, (), light=True)
    assert len(calls.ranges) == 1
    calls = Calls()
    shards.run(calls, 0, 2 * LIGHT * MIN_BLOCKS_PER_SHARD, 100_000, (), light=True)
    assert len(calls.ranges) == 2
    shards.close()


@pytest.mark.parametrize("bad_block", [0, 2, 3])
def test_an_error_surfaces_with_its_envs_when_all_other_shards_are_finished(bad_block: int) -> None:
    finished = []

    def kernel(first: int, last: int, num_envs: int) -> None:
        if first == bad_block:
            raise ZeroDivisionError("in the kernel")
        time.sleep(0.05)
        finished.append(first)

    shards = Shards(4, min_blocks=1)
    with pytest.raises(ShardError, match=r"ZeroDivisionError.*in the kernel") as caught:
        shards.run(kernel, 0, 4, 250, ())
    assert sorted(finished) == [block for block in range(4) if block != bad_block]
    assert caught.value.start == 64 * bad_block
    assert caught.value.stop == min(64 * bad_block + 64, 250)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    calls = Calls()
    shards.run(calls, 0, 4, 250, ())  # the workers are still there
    assert len(calls.ranges) == 4
    shards.close()


def test_an_interrupt_in_the_caller_leaves_no_shard_running() -> None:
    finished = []

    def kernel(first: int, last: int, num_envs: int) -> None:
        if first == 0:
            raise KeyboardInterrupt
        time.sleep(0.05)
        finished.append(first)

    shards = Shards(3, min_blocks=1)
    with pytest.raises(KeyboardInterrupt):
        shards.run(kernel, 0, 3, 192, ())
    assert sorted(finished) == [1, 2]
    shards.close()


def test_close_may_be_called_twice_and_nothing_is_skipped_afterwards() -> None:
    calls, shards = Calls(), Shards(4, min_blocks=1)
    shards.close()
    shards.close()
    shards.run(calls, 0, 4, 256, ())
    assert calls.ranges == [(0, 4)]


def test_a_worker_that_went_off_duty_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the next job meets it on its way out: the waits are about as long as the duty."""
    monkeypatch.setattr("unilab.runtime.shards._ON_DUTY_S", 0.002)
    shards = Shards(3, min_blocks=1)
    for k in range(300):
        calls = Calls()
        shards.run(calls, 0, 3, 192, ())
        assert len(calls.ranges) == 3
        time.sleep(0.0015 + 0.000005 * (k % 200))
    shards.close()


def test_workers_of_shards_that_are_dropped_end() -> None:
    before = threading.active_count()
    shards = Shards(3, min_blocks=1)
    shards.run(Calls(), 0, 3, 192, ())
    assert threading.active_count() == before + 2
    del shards
    gc.collect()
    deadline = time.monotonic() + 10.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_a_process_that_never_closes_its_shards_ends() -> None:
    code = (
        "from unilab.runtime.shards import Shards\nkept = Shards(3, min_blocks=1)\n"
        "kept.run(print, 0, 3, 192, ())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert len(done.stdout.splitlines()) == 3
