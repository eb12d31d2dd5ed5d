"""Bytes moved, against tasks counted by hand; bandwidth; the size of the cache."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from tests.runtime.support import built_task
from unilab.bench.bandwidth import Bandwidth, measure_bandwidth
from unilab.bench.machine import DEFAULT_CACHE_BYTES, last_level_cache_bytes
from unilab.bench.traffic import count, count_calls, size, step_traffic


def test_bytes_of_cartpole_are_those_counted_by_hand():
    traffic = step_traffic(built_task("cartpole").kernel, num_substeps=2)
    # apply_action: policy's action f32, carried action f32; then: prev_action, action, ctrl f32,
    # ctrl of two substeps f64, failure u8.
    act_read, act_written = 4 + 4, 3 * 4 + 2 * 8 + 1
    # step: two positions and two velocities f64, the carried action f32 (effort), age and episode
    # i32, failure u8, return f64; then: age i32, 5 + 5 observations and reward f32, return f64,
    # terminated, truncated, pushed u8.
    step_read, step_written = 4 * 8 + 4 + 4 + 4 + 1 + 8, 4 + 10 * 4 + 4 + 8 + 3
    assert traffic.read_bytes == act_read + step_read
    assert traffic.written_bytes == act_written + step_written
    assert traffic.kernel_bytes == step_read + step_written
    # an end: final observations and the age at the start; sampling: episode twice, 2 + 2 f64;
    # first observation: episode, state; age and start i32, return f64, 3 carried f32, 10
    # observations, failure u8.
    end, sample = 10 * 4 + 4, 2 * 4 + 4 * 8
    first = 4 + 4 * 8 + 4 + 4 + 8 + 3 * 4 + 10 * 4 + 1
    assert traffic.done_bytes == end + sample + first
    assert (
        traffic.total(100, 2.0)
        == 100 * (traffic.read_bytes + traffic.written_bytes) + 2 * traffic.done_bytes
    )


def test_observations_and_state_of_g1_are_counted_once_each():
    kernel = built_task("g1_walk").kernel
    functions = {n.name: n for n in ast.parse(kernel.source).body if isinstance(n, ast.FunctionDef)}
    walk = count(functions["step_serial"], 2, kernel.constants)

    def elements(where: set, name: str) -> int:
        return len({index for array, index in where if array == name})

    assert elements(walk.written, "obs_out") == 98
    assert elements(walk.written, "critic_obs_out") == 101
    assert elements(walk.done, "final_obs_out") == 98
    assert elements(walk.read, "state_in") == 36 + 35  # not the clock
    assert elements(walk.read, "fields_io") <= 97  # also in loops that were made one
    assert elements(walk.written, "push_out") == 6  # of a push; few rows are cleared
    assert {index[0] for array, index in walk.read if array == "state_in"} == {
        1
    }  # the last substep


def test_size_adds_up_item_sizes():
    assert size({("obs_out", (0,)), ("obs_out", (1,)), ("state_in", (1, 3)), ("step_io", ())}) == 20


def test_calls_in_loops_and_branches_are_counted():
    calls = count_calls(built_task("go1_walk").kernel, ("exp", "sqrt", "sin"))
    # tracking of two velocities; speed of each of four feet is one call in a loop over feet
    assert calls["exp"] == 2
    assert calls["sin"] == 0
    assert calls["sqrt"] >= 2


def test_bandwidth_copies_more_than_the_cache_holds():
    found = measure_bandwidth(2**20, threads=2, repeats=1)
    assert found.array_bytes >= 4 * 2**20
    assert found.beyond_cache
    assert found.one_thread_bytes_per_s > 1e7
    assert found.all_threads_bytes_per_s >= found.one_thread_bytes_per_s
    assert not Bandwidth(1.0, 1.0, 1, array_bytes=2**20, cache_bytes=2**20).beyond_cache


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [(("48K", "2048K", "30M"), 30 * 2**20), (("512K",), 512 * 2**10), ((), DEFAULT_CACHE_BYTES)],
)
def test_the_largest_cache_is_the_last(tmp_path, sizes, expected):
    for k, text in enumerate(sizes):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(text + "\n")
    assert last_level_cache_bytes(tmp_path) == expected


def test_micro_loops_cover_what_the_kernel_does():
    from tests.bench.support import busy_g1, recording
    from unilab.bench.microloops import ArithmeticLoop, time_parts

    found = recording()
    parts = time_parts(busy_g1(), found.state[0], found.sensors[0], repeats=1)
    assert set(parts) == {"gather", "store", "random numbers", "exp, sin, cos"}
    assert all(value > 0 for value in parts.values())
    loop = ArithmeticLoop(8)
    loop.set_length(0.5)
    short = loop.rounds
    loop.set_length(5.0)
    assert loop.rounds > 2 * short
    loop(0, 8, 512)
    assert np.count_nonzero(loop.out) == 8
