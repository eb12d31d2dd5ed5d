"""A mirror is right when mirroring the world mirrors what the policy sees and its action does."""

from __future__ import annotations

import numpy as np
import pytest

from unilab.config import load_config
from unilab.runners.build import make_pipeline, make_symmetry
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.threads import make_plan
from unilab.tasks.base import build_task

QUIET = [
    "physics.num_envs=2", "episode.random_start=false", "events.push=null",
    *(f"observations.actor.{t}.noise=0" for t in
      ("base_lin_vel", "base_ang_vel", "gravity", "joint_pos_rel", "joint_velocity")),
]  # fmt: skip


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    config = load_config("go1_walk", QUIET).config
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


def test_mirrored_state_gives_the_mirrored_observations(pipeline: Pipeline) -> None:
    rng = np.random.default_rng(0)
    symmetry = make_symmetry(pipeline.built)
    assert symmetry is not None
    ids = np.array([0, 1], np.int32)
    for _ in range(20):
        qpos = pipeline.built.robot.default_qpos + rng.uniform(-0.2, 0.2, 19)
        qpos[3:7] /= np.linalg.norm(qpos[3:7])
        qvel = rng.uniform(-1.0, 1.0, 18)
        command = rng.uniform(-1.0, 1.0, 3)
        other_qpos, other_qvel = _mirrored_state(pipeline, qpos, qvel)
        fixed = pipeline.field("fixed_command")
        fixed[0] = [1.0, *command]
        fixed[1] = [1.0, command[0], -command[1], -command[2]]
        pipeline.physics.write_state(
            ids, np.stack([qpos, other_qpos]), np.stack([qvel, other_qvel])
        )
        pipeline.physics.reset_sensors(ids, np.zeros((2, 1, 12)))
        pipeline._kernels.observe_resets(ids, *pipeline._ordered)
        obs, critic_obs = pipeline.observe(0)
        for rows, mirror in ((obs, symmetry.obs), (critic_obs, symmetry.critic_obs)):
            expected = rows[0][mirror.permutation.numpy()] * mirror.sign.numpy()
            np.testing.assert_allclose(rows[1], expected, atol=2e-5)


def test_mirrored_action_leads_to_the_mirrored_state(pipeline: Pipeline) -> None:
    rng = np.random.default_rng(1)
    action_mirror = pipeline.built.model.mirrors["action"]
    pipeline.reset()
    ids = np.array([0, 1], np.int32)
    qpos = pipeline.built.robot.default_qpos.copy()
    pipeline.physics.write_state(ids, np.stack([qpos, qpos]), np.zeros((2, 18)))
    for _ in range(5):
        action = rng.uniform(-1.0, 1.0, 12).astype(np.float32)
        pair = np.stack([action, action[action_mirror.perm] * action_mirror.sign])
        pipeline.submit(0, pair)
        pipeline.finish(0)
    expected, _ = _mirrored_state(pipeline, pipeline.qpos()[0], pipeline.qvel()[0])
    # The tables of the robot are not mirrored to the last digit (the trunk's mass is off centre).
    np.testing.assert_allclose(pipeline.qpos()[1][:3], expected[:3], atol=0.01)
    np.testing.assert_allclose(pipeline.qpos()[1][7:], expected[7:], atol=0.05)
