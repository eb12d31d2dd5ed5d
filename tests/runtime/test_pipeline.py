"""The pipeline's boundary: what it takes, saves, restores and releases."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from tests.runtime.support import Recorder, built_task, difference, plan, running, step_all, waves
from unilab.errors import PhysicsError, ShardError
from unilab.runners.build import make_pipeline
from unilab.runtime.pipeline import Pipeline, cut_groups
from unilab.runtime.shards import Shards
from unilab.runtime.threads import ENVS_PER_BLOCK
from unilab_kernels.spec import BLOCK

# Numbers that float16 holds, so that every float type gives the same action.
ACTIONS = (np.arange(4 * 12).reshape(4, 12) % 17 / 16.0 - 0.5).astype(np.float32)


def strided(action: NDArray[np.float32]) -> NDArray[np.float32]:
    wide = np.full((4, 24), np.nan, np.float32)
    wide[:, ::2] = action
    return wide[:, ::2]


@pytest.mark.parametrize(
    "form",
    [
        lambda a: a.astype(np.float16),
        lambda a: a.astype(np.float64),
        np.asfortranarray,
        strided,
        lambda a: a.astype(np.float64)[::-1][::-1],
    ],
    ids=["float16", "float64", "fortran", "strided", "reversed twice"],
)
def test_actions_of_any_float_type_and_order_give_equal_results(
    form: Callable[[NDArray[np.float32]], NDArray[Any]],
) -> None:
    recorders = []
    for action in (ACTIONS, form(ACTIONS)):
        with running(built_task("go1_walk"), 4) as pipeline:
            recorder = Recorder(pipeline)
            for _ in range(2):
                recorder.add(step_all(pipeline, action)[0])
                recorder.end_step()
            recorders.append(recorder)
    assert difference(*recorders) == ""


@pytest.mark.parametrize("shape", [(12,), (1, 12), (4, 1), (4, 11), (5, 12), (4, 12, 1)])
def test_actions_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with running(built_task("go1_walk"), 4) as pipeline:
        with pytest.raises(ValueError) as caught:
            pipeline.submit(0, np.zeros(shape, np.float32))
        assert "(4, 12)" in str(caught.value)
        assert str(shape) in str(caught.value)
        step_all(pipeline, ACTIONS)  # nothing is left half done


def test_groups_are_cut_at_blocks_and_cover_all_envs() -> None:
    assert ENVS_PER_BLOCK == BLOCK
    for num_envs in (1, 63, 64, 65, 512, 1000):
        blocks = -(-num_envs // BLOCK)
        for groups in range(1, blocks + 1):
            cuts = cut_groups(num_envs, groups)
            assert len(cuts) == groups
            assert [c.start for c in cuts] == [0, *(c.stop for c in cuts[:-1])]
            assert cuts[-1].stop == num_envs
            assert all(c.start % BLOCK == 0 and c.stop > c.start for c in cuts)


def continued(built_groups: int, *, overlap: bool) -> None:
    """Step 20, save, step 20 more; the same from the saved state in a new pipeline."""
    built = built_task("go1_walk", "events.push.min_s=0.1", "events.push.max_s=0.3")
    schedule = plan(groups=built_groups, overlap=overlap)
    every = slice(0, 128)

    def go_on(pipeline: Pipeline) -> Recorder:
        recorder = Recorder(pipeline)
        for t in range(20, 40):
            for step in step_all(pipeline, waves(t, every, 12, 3.0)):
                recorder.add(step)
            recorder.end_step()
        return recorder

    with running(built, 128, schedule, random_start=True) as pipeline:
        for t in range(20):
            step_all(pipeline, waves(t, every, 12, 3.0))
        state = pipeline.state_dict()
        first = go_on(pipeline)
        pipeline.load_state_dict(state)
        assert difference(first, go_on(pipeline)) == ""
    assert first.done > 0
    assert first.pushes > 0
    with running(built, 128, schedule) as other:
        other.load_state_dict(state)
        np.testing.assert_array_equal(other.qpos(), state["physics"]["rows"][:, 1:20])
        assert difference(first, go_on(other)) == ""


def test_a_restored_state_goes_on_with_the_same_bits() -> None:
    continued(1, overlap=False)


def test_a_restored_state_goes_on_with_the_same_bits_in_groups() -> None:
    continued(2, overlap=True)


def test_a_state_of_another_number_of_envs_is_refused() -> None:
    built = built_task("cartpole")
    with running(built, 64) as pipeline:
        state = pipeline.state_dict()
    with running(built, 32) as pipeline, pytest.raises((PhysicsError, ValueError)):
        pipeline.load_state_dict(state)


def record_steps(seed: int) -> Recorder:
    with running(built_task("cartpole"), 128, plan(threads=2), seed=seed) as pipeline:
        recorder = Recorder(pipeline)
        for t in range(200):
            for step in step_all(pipeline, waves(t, slice(0, 128), 1)):
                recorder.add(step)
            recorder.end_step()
        return recorder


def test_two_pipelines_stepped_from_two_threads_equal_serial_runs() -> None:
    alone = [record_steps(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(record_steps, (1, 2)))
    assert difference(alone[0], alone[1]) != ""
    for one, other in zip(alone, together, strict=True):
        assert difference(one, other) == ""


def test_building_and_closing_again_and_again_keeps_memory_flat() -> None:
    built = built_task("go1_walk")
    process, sizes = psutil.Process(), []
    for _ in range(10):
        pipeline = make_pipeline(built, plan(threads=2, shards=2), seed=1, num_envs=512)
        pipeline.reset()
        step_all(pipeline, np.zeros((512, 12), np.float32))
        pipeline.close()
        del pipeline
        gc.collect()
        sizes.append(process.memory_info().rss)
    assert sizes[-1] < 1.05 * sizes[2]


def test_close_may_be_called_twice_and_leaves_no_thread() -> None:
    before = psutil.Process().num_threads()
    for overlap in (False, True):
        schedule = plan(threads=2, shards=3, groups=2, overlap=overlap)
        pipeline = make_pipeline(built_task("cartpole"), schedule, seed=1, num_envs=256)
        pipeline.shards.min_blocks = 1
        pipeline.reset()
        step_all(pipeline, np.zeros((256, 1), np.float32))
        assert psutil.Process().num_threads() > before
        pipeline.close()
        pipeline.close()
    for _ in range(100):  # MuJoCo's threads end a moment after their pool
        if psutil.Process().num_threads() <= before:
            break
        sleep(0.05)
    assert psutil.Process().num_threads() <= before


def test_a_shard_that_raises_surfaces_in_the_main_thread_with_its_envs() -> None:
    class Failing(Shards):
        def run(self, kernel: Any, *args: Any, **options: Any) -> None:
            def fails_in_block_1(first: int, last: int, *rest: Any) -> None:
                kernel(first, last, *rest)
                if first == 1:
                    raise ArithmeticError("here")

            super().run(fails_in_block_1, *args, **options)

    with running(built_task("cartpole"), 100) as pipeline:
        pipeline.shards = Failing(2, min_blocks=1)
        with pytest.raises(ShardError, match=r"\[64, 100\).*here") as caught:
            step_all(pipeline, np.zeros((100, 1), np.float32))
        pipeline.shards.close()
        assert (caught.value.start, caught.value.stop) == (64, 100)
        assert isinstance(caught.value.__cause__, ArithmeticError)


@pytest.mark.parametrize("overlap", [False, True])
def test_physics_that_raises_surfaces_in_the_main_thread_with_its_envs(overlap: bool) -> None:
    with running(built_task("cartpole"), 128, plan(groups=2, overlap=overlap)) as pipeline:
        pipeline.arrays["ctrl_out"] = np.zeros((128, 1, 1))  # one substep too few
        with pytest.raises(PhysicsError, match=r"envs \[0, 64\)"):
            step_all(pipeline, np.zeros((128, 1), np.float32))


def test_statistics_taken_by_another_thread_miss_no_episode() -> None:
    steps, ended = 400, 0
    with running(built_task("cartpole"), 256) as pipeline, ThreadPoolExecutor(1) as other:

        def run() -> int:
            total = 0
            for step in range(steps):
                actions = waves(step // 25, slice(0, 256), 1, size=3.0)
                (result,) = step_all(pipeline, actions)
                total += int((result.terminated | result.truncated).sum())
            return total

        counted = other.submit(run)
        while not counted.done():
            ended += int(pipeline.take_log()["episode/ended"])
        ended += int(pipeline.take_log()["episode/ended"])
        assert counted.result() == ended > 256
