"""What a transition holds where an episode ends, and what the next one starts with."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.support import built_task, rows, running, step_all, waves
from unilab.runtime.pipeline import Pipeline, Transitions

NUM_ENVS = 96
BACKENDS = ("mujoco_cpu", "mujoco_warp")
LIMITS = ("terminations.tilted.limit_cos=0.34", "terminations.base_low.height_m=0.12")
NO_LIMITS = ("terminations.tilted.limit_cos=-2.0", "terminations.base_low.height_m=-1000.0")
PUSHED = ("events.push.min_s=0.2", "events.push.max_s=0.5")


@dataclass
class Episode:
    """Per env: when its first episode ended, and what its transition said then."""

    ended_at: NDArray[np.int64]
    final: dict[str, NDArray[np.float32]]
    obs: list[dict[str, NDArray[np.float32]]] = field(default_factory=list)


NAMES = ("obs", "critic_obs")


def run(backend: str, steps: int, max_steps: int, limits: tuple[str, ...], size: float) -> Episode:
    """Step go1_walk; note the first end of every env, and every observation."""
    built = built_task("go1_walk", f"physics.backend={backend}", *limits, *PUSHED)
    with running(built, NUM_ENVS) as pipeline:
        pipeline.arrays["max_steps_in"][:] = max_steps
        result = Episode(
            np.full(NUM_ENVS, -1),
            {name: np.full_like(pipeline.arrays[f"{name}_out"], np.nan) for name in NAMES},
        )
        for t in range(steps):
            (step,) = step_all(pipeline, waves(t, slice(0, NUM_ENVS), 12, size))
            first = step.done_ids[result.ended_at[step.done_ids] < 0]
            result.ended_at[first] = t
            result.final["obs"][first] = step.final_obs[first]
            result.final["critic_obs"][first] = step.final_critic_obs[first]
            result.obs.append({"obs": step.obs.copy(), "critic_obs": step.critic_obs.copy()})
    return result


def check_final_is_what_would_have_been_seen(ending: Episode, endless: Episode) -> int:
    """Compare final observations with the run that goes on; return how many episodes ended."""
    assert (endless.ended_at < 0).all()
    envs = np.flatnonzero(ending.ended_at >= 0)
    for env in envs:
        t = int(ending.ended_at[env])
        for name in NAMES:
            expected = endless.obs[t][name][env]
            np.testing.assert_array_equal(ending.final[name][env], expected)
            assert (ending.obs[t][name][env] != expected).any()  # it shows the new episode
    for other in range(NUM_ENVS):  # until then, ends of other envs have not touched this one
        ended = int(ending.ended_at[other])
        for t in range(ended if ended >= 0 else len(ending.obs)):
            for name in NAMES:
                expected = endless.obs[t][name][other]
                np.testing.assert_array_equal(ending.obs[t][name][other], expected)
    return len(envs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_obs_is_the_obs_of_the_same_run_without_that_termination(backend: str) -> None:
    ending = run(backend, 60, 10_000, LIMITS, 4.0)
    endless = run(backend, 60, 10_000, NO_LIMITS, 4.0)
    assert check_final_is_what_would_have_been_seen(ending, endless) > NUM_ENVS // 4


@pytest.mark.parametrize("backend", BACKENDS)
def test_final_obs_is_the_obs_of_the_same_run_without_the_time_limit(backend: str) -> None:
    ending = run(backend, 20, 15, NO_LIMITS, 0.5)
    endless = run(backend, 20, 10_000, NO_LIMITS, 0.5)
    assert check_final_is_what_would_have_been_seen(ending, endless) == NUM_ENVS
    assert (ending.ended_at == 14).all()


def write_hinge(pipeline: Pipeline, env: int, angle: float) -> None:
    """Put the pole of one cart-pole at an angle."""
    ids = np.array([env], np.int32)
    pipeline.physics.write_state(ids, np.array([[0.0, angle]]), np.zeros((1, 2)))


def zeros(pipeline: Pipeline) -> NDArray[np.float32]:
    return np.zeros((pipeline.num_envs, pipeline.num_actions), np.float32)


def upright(pipeline: Pipeline) -> None:
    """All poles exactly upright, which is an equilibrium."""
    n = pipeline.num_envs
    pipeline.physics.write_state(np.arange(n, dtype=np.int32), np.zeros((n, 2)), np.zeros((n, 2)))


def test_an_end_is_reported_in_its_step_only() -> None:
    with running(built_task("cartpole"), 8) as pipeline:
        upright(pipeline)
        seen = []
        for t in range(21):
            if t == 5:
                write_hinge(pipeline, 3, 1.0)
            (step,) = step_all(pipeline, zeros(pipeline))
            seen.append((step.done_ids.tolist(), step.terminated.tolist(), step.truncated.tolist()))
    nobody = [0] * 8
    for t, (ids, terminated, truncated) in enumerate(seen):
        assert ids == ([3] if t == 5 else [])
        assert terminated == ([0, 0, 0, 1, 0, 0, 0, 0] if t == 5 else nobody)
        assert truncated == nobody


def test_terminated_wins_over_truncated() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        upright(pipeline)
        pipeline.arrays["max_steps_in"][:] = 1
        write_hinge(pipeline, 2, 1.0)
        (step,) = step_all(pipeline, zeros(pipeline))
        assert step.terminated.tolist() == [0, 0, 1, 0]
        assert step.truncated.tolist() == [1, 1, 0, 1]
        assert step.done_ids.tolist() == [0, 1, 2, 3]


def test_the_action_of_a_transition_is_the_given_one_even_where_the_episode_ended() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        upright(pipeline)
        write_hinge(pipeline, 1, 1.0)
        action = np.array([[0.25], [-0.5], [7.0], [-7.0]], np.float32)
        (step,) = step_all(pipeline, action)
        assert step.done_ids.tolist() == [1]
        np.testing.assert_array_equal(step.action, action)


def test_carried_fields_start_anew_in_reset_rows_only() -> None:
    with running(built_task("go1_walk", *NO_LIMITS), 4) as pipeline:
        layout = {part.name: part for part in pipeline.built.kernel.actor_layout}
        last_action = slice(layout["last_action"].start, layout["last_action"].stop)
        pipeline.arrays["step_io"][2] = pipeline.built.max_steps - 3  # env 2 runs out of time first
        for t in range(3):
            action = waves(t, slice(0, 4), 12)
            (step,) = step_all(pipeline, action)
        assert step.done_ids.tolist() == [2]
        others = [0, 1, 3]
        np.testing.assert_array_equal(step.obs[others, last_action], action[others])
        np.testing.assert_array_equal(step.obs[2, last_action], np.zeros(12))
        np.testing.assert_array_equal(step.final_obs[2, last_action], action[2])
        for name in ("action", "prev_action", "feet_air_time"):
            assert not pipeline.field(name)[2].any()
        assert pipeline.field("prev_action")[others].any(axis=1).all()


def test_a_reset_in_mid_episode_clears_length_and_return() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        upright(pipeline)
        for _ in range(5):
            step_all(pipeline, zeros(pipeline))
        pipeline.reset(random_start=False)
        pipeline.take_log()
        upright(pipeline)
        pipeline.arrays["max_steps_in"][:] = 10
        returns = np.zeros(4)
        for _ in range(10):
            (step,) = step_all(pipeline, zeros(pipeline))
            returns += step.reward
        log = pipeline.take_log()
        assert step.truncated.all()
        assert log["episode/ended"] == 4
        assert log["episode/length_s"] == pytest.approx(10 * pipeline.built.control_dt)
        assert log["episode/return"] == pytest.approx(returns.mean(), rel=1e-6)
        assert not pipeline.arrays["return_io"].any()


def test_every_reset_and_every_env_draws_another_state() -> None:
    with running(built_task("cartpole"), 8) as pipeline:
        pipeline.arrays["max_steps_in"][:] = 1
        starts = []
        for _ in range(20):
            step_all(pipeline, zeros(pipeline))
            starts.append(rows(pipeline)[:, 1:3].copy())
    assert len(np.unique(np.concatenate(starts), axis=0)) == 8 * 20


def test_the_first_observation_of_an_episode_shows_its_own_state() -> None:
    """Sensors and state of a new episode are those of the drawn pose, not of the fallen one."""
    with running(built_task("go1_walk", *NO_LIMITS), 4) as pipeline:
        pipeline.arrays["max_steps_in"][:] = 1
        (step,) = step_all(pipeline, waves(0, slice(0, 4), 12))
        layout = {part.name: part for part in pipeline.built.kernel.critic_layout}
        height = step.critic_obs[:, layout["base_height"].start]
        np.testing.assert_array_equal(height, pipeline.qpos()[:, 2].astype(np.float32))
        nq = pipeline.built.robot.model.nq
        np.testing.assert_array_equal(pipeline.qpos(), rows(pipeline)[:, 1 : 1 + nq])


def test_views_of_a_transition_are_rewritten_by_the_next_finish() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        first: Transitions = step_all(pipeline, zeros(pipeline))[0]
        kept = first.obs.copy()
        second = step_all(pipeline, zeros(pipeline) + 1)[0]
        assert np.shares_memory(first.obs, second.obs)
        assert (second.obs != kept).any()
