"""Envs of different models and hardware: who gets which, when it changes, and nothing leaks."""

from __future__ import annotations

from functools import cache
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.support import (
    Recorder,
    built_task,
    difference,
    plan,
    running,
    step_all,
    waves,
)
from unilab.physics.mujoco_cpu import MujocoCpu
from unilab.physics.variants import Variants
from unilab.runtime.pipeline import Pipeline

STARTUP = ("randomization.body_mass.scale=[0.7, 1.4]",)
RESET = (
    "randomization.geom_friction.geoms=['*_foot_collision']",
    "randomization.geom_friction.slide=[0.3, 1.3]",
    "randomization.geom_friction.mode=reset",
    "randomization.gravity.scale=[0.9, 1.1]",
    "randomization.gravity.mode=reset",
)
HARDWARE = (
    "randomization.encoder_bias.add_rad=[-0.05, 0.05]",
    "randomization.encoder_bias.mode=reset",
    "randomization.action_delay.substeps=[0, 5]",
    "randomization.observation_delay.steps=[0, 2]",
    "randomization.observation_delay.terms=['joint_*', gravity]",
    "randomization.observation_delay.mode=reset",
)
ALL = (*STARTUP, *RESET, *HARDWARE, "episode.length_s=1.0", "events.push.min_s=0.2",
       "events.push.max_s=0.6")  # fmt: skip
NUM_ENVS = 256


def models(pipeline: Pipeline) -> list[Any]:
    """The model of each env."""
    physics = pipeline.physics
    assert isinstance(physics, MujocoCpu)
    found = physics.models_of(np.arange(pipeline.num_envs, dtype=np.int32))
    assert found is not None
    return found


def table(pipeline: Pipeline) -> Variants:
    assert pipeline.physics.variants is not None
    return pipeline.physics.variants


def variant_ids(pipeline: Pipeline) -> NDArray[np.int64]:
    """The variant of each env, (N,)."""
    ids = {id(model): k for k, model in enumerate(table(pipeline).models)}
    return np.array([ids[id(model)] for model in models(pipeline)])


def value(pipeline: Pipeline, name: str, *index: int) -> NDArray[np.float64]:
    """A number of the model of each env, (N,)."""
    return np.array([getattr(model, name)[index] for model in models(pipeline)])


def record(steps: int, **schedule: int | bool) -> Recorder:
    """Run with everything on, in the order that a runner uses."""
    built = built_task("go1_walk", *ALL)
    with running(built, NUM_ENVS, plan(**schedule), random_start=True) as pipeline:  # type: ignore[arg-type]
        recorder = Recorder(pipeline)
        groups = range(len(pipeline.groups))

        def submit(step: int, group: int) -> None:
            envs = pipeline.groups[group]
            pipeline.submit(group, waves(step, envs, pipeline.num_actions, size=2.5))

        for group in groups:
            submit(0, group)
        for step in range(steps):
            for group in groups:
                recorder.add(pipeline.finish(group))
                if step + 1 < steps:
                    submit(step + 1, group)
            recorder.end_step()
        return recorder


@cache
def serial() -> Recorder:
    return record(120)


@pytest.mark.parametrize(
    "schedule",
    [
        {"shards": 3},
        {"groups": 4, "threads": 2},
        {"groups": 2, "shards": 2, "threads": 2, "overlap": True},
    ],
    ids=str,
)
def test_every_schedule_gives_the_same_bits(schedule: dict[str, int | bool]) -> None:
    assert serial().done > NUM_ENVS
    assert difference(serial(), record(120, **schedule)) == ""


def test_a_restored_pipeline_goes_on_bit_for_bit() -> None:
    built = built_task("go1_walk", *ALL)

    def steps(pipeline: Pipeline, first: int, last: int) -> Recorder:
        recorder = Recorder(pipeline)
        for step in range(first, last):
            for part in step_all(pipeline, waves(step, slice(0, 128), 12, 2.5)):
                recorder.add(part)
            recorder.end_step()
        return recorder

    with running(built, 128, plan(groups=2), random_start=True) as pipeline:
        steps(pipeline, 0, 30)
        saved = pipeline.state_dict()
        before = variant_ids(pipeline)
        expected = steps(pipeline, 30, 70)
        assert expected.done > 64
    with running(built, 128, plan()) as pipeline:
        pipeline.load_state_dict(saved)
        np.testing.assert_array_equal(variant_ids(pipeline), before)
        assert difference(expected, steps(pipeline, 30, 70)) == ""


def test_startup_draws_stay_and_reset_draws_change_in_the_rows_that_reset() -> None:
    """RST-06."""
    with running(built_task("go1_walk", *STARTUP, *RESET), 64) as pipeline:
        assert (len(table(pipeline).models), table(pipeline).num_reset) == (64, 8)
        mass, friction = value(pipeline, "body_mass", 1), models(pipeline)
        friction = value(pipeline, "geom_friction", foot(pipeline), 0)
        changed = np.zeros(64, bool)
        for _ in range(6):
            reset = np.array([3, 40], np.int32)
            before = variant_ids(pipeline)
            pipeline._begin_episodes(reset)
            others = np.delete(np.arange(64), reset)
            np.testing.assert_array_equal(variant_ids(pipeline)[others], before[others])
            now = value(pipeline, "geom_friction", foot(pipeline), 0)
            changed |= now != friction
        np.testing.assert_array_equal(value(pipeline, "body_mass", 1), mass)
        assert np.flatnonzero(changed).tolist() == [3, 40]


def foot(pipeline: Pipeline) -> int:
    return int(pipeline.built.robot.model.geom("FR_foot_collision").id)


def test_five_hundred_resets_never_leave_the_range() -> None:
    """RST-01, RST-14: no factor is ever on top of another; draws spread over envs and time."""
    built = built_task("go1_walk", "randomization.body_mass.scale=[0.9, 1.1]",
                       "randomization.body_mass.mode=reset")  # fmt: skip
    nominal = built.robot.model.body_mass[1:]
    with running(built, 8) as pipeline:
        ratios = []
        for _ in range(500):
            pipeline._begin_episodes(np.arange(8, dtype=np.int32))
            ratios.append([model.body_mass[1:] / nominal for model in models(pipeline)])
    seen = np.array(ratios)
    assert seen.min() >= 0.9 - 1e-12
    assert seen.max() <= 1.1 + 1e-12
    assert np.all(np.ptp(seen, axis=0) > 0.15)
    assert np.all(np.ptp(seen, axis=1).max(axis=0) > 0.15)
    used = {tuple(row) for step in ratios for row in step}
    assert len(used) == 64


def test_envs_of_different_models_step_as_each_alone() -> None:
    built = built_task("go1_walk", *STARTUP, *RESET)
    with running(built, 6, plan(threads=2)) as pipeline:
        own = models(pipeline)
        assert len({id(model) for model in own}) > 3
        physics = pipeline.physics
        assert isinstance(physics, MujocoCpu)
        start, first = physics.rows.copy(), physics.sensors.copy()
        ctrl = np.repeat(pipeline._rest[:6], 2, axis=1)
        for env, model in enumerate(own):  # the sensors of the reset are of its own model too
            data = mujoco.MjData(model)
            mujoco.mj_setState(model, data, start[env], mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
            data.ctrl[:] = ctrl[env, 0]
            mujoco.mj_forward(model, data)
            np.testing.assert_array_equal(first[env, 0], data.sensordata)
        for _ in range(20):
            physics.wait(physics.submit(0, ctrl))
        ends = physics.rows.copy()
        for env, model in enumerate(own):
            alone = MujocoCpu(model, num_envs=1, groups=(slice(0, 1),), substeps=2, threads=1,
                              overlap=False)  # fmt: skip
            alone.rows[:] = start[env]
            for _ in range(20):
                alone.wait(alone.submit(0, ctrl[env : env + 1].copy()))
            np.testing.assert_array_equal(alone.rows[0], ends[env])
            alone.close()


def test_startup_draws_are_in_use_equally_often_and_differ_between_seeds() -> None:
    built = built_task("go1_walk", *STARTUP, "randomization.startup_variants=16")
    with running(built, 64) as pipeline:
        assert np.bincount(variant_ids(pipeline)).tolist() == [4] * 16
        mass = value(pipeline, "body_mass", 1)
    with running(built, 64, seed=8) as pipeline:
        assert np.all(value(pipeline, "body_mass", 1) != mass)


def test_without_randomization_there_is_no_table() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        assert pipeline.physics.variants is None


def test_a_late_action_reaches_the_physics_late() -> None:
    """Cart-pole, T = 2: with 3 substeps of delay the first ctrl is that of rest, then the first."""
    built = built_task("cartpole", "randomization.action_delay.substeps=[3, 3]")
    with running(built, 4) as pipeline:
        taken = []
        for k in range(1, 4):
            step_all(pipeline, np.full((4, 1), 0.1 * k, np.float32))
            taken.append(pipeline.arrays["ctrl_out"][0, :, 0] / built.ctrl_scale[0])
    wanted = [[0.0, 0.0], [0.0, 0.1], [0.1, 0.2]]
    np.testing.assert_allclose(taken, wanted, atol=1e-6)
