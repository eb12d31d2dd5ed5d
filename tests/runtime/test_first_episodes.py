"""How episodes begin: at ages that depend on seed and rank, with first observations checked."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.support import built_task, plan, running
from unilab.errors import PhysicsError
from unilab.physics.mujoco_cpu import MujocoCpu
from unilab.runners.build import make_pipeline
from unilab.runtime.pipeline import Pipeline, cut_groups


def start_ages(seed: int, rank: int) -> NDArray[np.int32]:
    """The ages at which 64 envs start, (64,) i32."""
    built = built_task("cartpole")
    physics = MujocoCpu(
        built.robot.model,
        num_envs=64,
        groups=cut_groups(64, 1),
        substeps=2,
        threads=1,
        overlap=False,
    )
    pipeline = Pipeline(built, physics, plan(), seed=seed, rank=rank)
    try:
        pipeline.reset(random_start=True)
        ages: NDArray[np.int32] = pipeline.arrays["start_step_io"].copy()
        np.testing.assert_array_equal(pipeline.arrays["step_io"], ages)
        return ages
    finally:
        pipeline.close()


def test_ages_at_the_start_depend_on_seed_and_rank_and_repeat() -> None:
    base = start_ages(5, 0)
    assert len(np.unique(base)) > 30
    np.testing.assert_array_equal(start_ages(5, 0), base)
    np.testing.assert_array_equal(
        base, np.random.Generator(np.random.Philox(key=5)).integers(0, 500, 64)
    )
    for seed, rank in ((6, 0), (5, 1), (5, 2)):
        assert np.mean(start_ages(seed, rank) == base) < 0.2, (seed, rank)
    assert np.mean(start_ages(5, 1) == start_ages(5, 2)) < 0.2


BAD = ("observations.actor.cart_state.scale=3.0e38", "events.reset_joints.vel_rads=50.0")
NAMED = r"observations\.actor\.cart_state.*envs "


def test_a_first_observation_that_is_not_finite_is_named_with_its_env() -> None:
    pipeline = make_pipeline(built_task("cartpole", *BAD), plan(), seed=3, num_envs=4)
    try:
        with pytest.raises(PhysicsError, match=NAMED) as caught:
            pipeline.reset()
    finally:
        pipeline.close()
    observations = pipeline.arrays["obs_out"]
    assert caught.value.env_ids == tuple(np.flatnonzero(~np.isfinite(observations).all(axis=1)))


def test_it_is_found_in_an_episode_that_begins_later_too() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        layout = pipeline.built.kernel.params
        (widest,) = np.flatnonzero(layout == np.float32(0.3))[1:]  # pos_rad, then vel_rads
        pipeline.arrays["params_in"][widest] = np.inf
        pipeline.submit(0, np.array([[0.0], [np.nan], [0.0], [0.0]], np.float32))
        with pytest.raises(PhysicsError, match="envs 1") as caught:
            pipeline.finish(0)
        assert caught.value.env_ids == (1,)
