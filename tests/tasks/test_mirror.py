"""A mirror is right when mirroring the world mirrors what the policy sees and its action does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from unilab.config import load_config
from unilab.runners.build import make_pipeline, make_symmetry
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.threads import make_plan
from unilab.tasks.base import build_task

QUIET = ["physics.num_envs=2", "episode.random_start=false", "events.push=null"]


@pytest.fixture(scope="module", params=["go1_walk", "g1_walk", "go1_rough"])
def pipeline(request: pytest.FixtureRequest) -> Iterator[Pipeline]:
    actor = load_config(request.param).config.observations.actor
    silent = [f"observations.actor.{name}.noise=0" for name in actor if "noise" in actor[name]]
    config = load_config(request.param, QUIET + silent).config
    pipeline = make_pipeline(build_task(config), make_plan(config.runtime, 2), seed=3)
    pipeline.reset()
    yield pipeline
    pipeline.close()


def _mirrored_state(pipeline: Pipeline, qpos: np.ndarray, qvel: np.ndarray) -> tuple:
    """Reflect a floating-base state in the plane y = 0."""
    action = pipeline.built.model.mirrors["action"]
    base = np.array([1, -1, 1, 1, -1, 1, -1]) * qpos[:7]  # y; quaternion x and z
    velocity = np.array([1, -1, 1, -1, 1, -1]) * qvel[:6]  # y; roll and yaw rate
    joints, speeds = qpos[7:][action.perm] * action.sign, qvel[6:][action.perm] * action.sign
    return np.concatenate([base, joints]), np.concatenate([velocity, speeds])


def opposite_clocks(pipeline: Pipeline, *rows: np.ndarray) -> None:
    """Show both envs the clock of the first: the second's is half a turn away from it.

    Each env draws where its clock begins, so this is put into the observations.
    """
    kernel = pipeline.built.kernel
    for layout, array in zip((kernel.actor_layout, kernel.critic_layout), rows, strict=True):
        for part in (p for p in layout if p.name == "gait_phase"):
            assert np.abs(array[0, part.start : part.stop]).max() > 0.1
            array[1, part.start : part.stop] = -array[0, part.start : part.stop]


def test_mirrored_state_gives_the_mirrored_observations(pipeline: Pipeline) -> None:
    rng = np.random.default_rng(0)
    symmetry = make_symmetry(pipeline.built)
    assert symmetry is not None
    ids, model = np.array([0, 1], np.int32), pipeline.built.robot.model
    for _ in range(20):
        qpos = pipeline.built.robot.default_qpos + rng.uniform(-0.2, 0.2, model.nq)
        qpos[3:7] /= np.linalg.norm(qpos[3:7])
        qvel = rng.uniform(-1.0, 1.0, model.nv)
        command = rng.uniform(-1.0, 1.0, 3)
        other_qpos, other_qvel = _mirrored_state(pipeline, qpos, qvel)
        fixed = pipeline.field("fixed_command")
        fixed[0] = [1.0, *command]
        fixed[1] = [1.0, command[0], -command[1], -command[2]]
        pipeline.physics.write_state(
            ids, np.stack([qpos, other_qpos]), np.stack([qvel, other_qvel])
        )
        pipeline.physics.reset_sensors(ids, np.zeros((2, 1, model.nu)))
        pipeline._kernels.observe_resets(ids, *pipeline._ordered)
        obs, critic_obs = (rows.copy() for rows in pipeline.observe(0))
        opposite_clocks(pipeline, obs, critic_obs)
        for rows, mirror in ((obs, symmetry.obs), (critic_obs, symmetry.critic_obs)):
            expected = rows[0][mirror.permutation.numpy()] * mirror.sign.numpy()
            np.testing.assert_allclose(rows[1], expected, atol=2e-5)


def test_mirrored_action_leads_to_the_mirrored_state_and_the_same_reward(
    pipeline: Pipeline,
) -> None:
    """In the air, where no contact makes a small difference large.

    The tables of the robots are not mirrored to the last digit (masses are off centre).
    """
    rng = np.random.default_rng(1)
    action_mirror = pipeline.built.model.mirrors["action"]
    symmetry = make_symmetry(pipeline.built)
    assert symmetry is not None
    pipeline.reset()
    ids = np.array([0, 1], np.int32)
    qpos, model = pipeline.built.robot.default_qpos.copy(), pipeline.built.robot.model
    qpos[2] += 0.5
    pipeline.physics.write_state(ids, np.stack([qpos, qpos]), np.zeros((2, model.nv)))
    pipeline.field("fixed_command")[:] = [[1.0, 0.6, 0.3, 0.5], [1.0, 0.6, -0.3, -0.5]]
    if "gait_phase" in pipeline.built.kernel.carried_slices:
        pipeline.field("gait_phase")[:] = [[0.1], [0.6]]
    for _ in range(5):
        action = rng.uniform(-1.0, 1.0, model.nu).astype(np.float32)
        pair = np.stack([action, action[action_mirror.perm] * action_mirror.sign])
        pipeline.submit(0, pair)
        step = pipeline.finish(0)
    expected, _ = _mirrored_state(pipeline, pipeline.qpos()[0], pipeline.qvel()[0])
    np.testing.assert_allclose(pipeline.qpos()[1], expected, atol=0.01)
    assert np.abs(pipeline.qpos()[0] - pipeline.qpos()[1]).max() > 0.1
    for rows, mirror in ((step.obs, symmetry.obs), (step.critic_obs, symmetry.critic_obs)):
        expected = rows[0][mirror.permutation.numpy()] * mirror.sign.numpy()
        np.testing.assert_allclose(rows[1], expected, atol=0.1)
    assert step.reward[0] == pytest.approx(step.reward[1], rel=0.02)
