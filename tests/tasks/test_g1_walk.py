"""The layout of g1_walk, its gait clock, what its reward asks for, and how it ends."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import numpy as np
import pytest

from unilab.config import config_dir, load_config
from unilab.runners.build import make_pipeline
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.threads import make_plan
from unilab.tasks.base import BuiltTask, build_task

QUIET = ["physics.num_envs=8", "episode.random_start=false", "events.push=null"]
ACTOR = {
    "base_ang_vel": 3,
    "gravity": 3,
    "velocity_command": 3,
    "joint_pos_rel": 29,
    "joint_velocity": 29,
    "last_action": 29,
    "gait_phase": 2,
}


def build(*overrides: str) -> BuiltTask:
    return build_task(load_config("g1_walk", [*QUIET, *overrides]).config)


@pytest.fixture(scope="module")
def pipeline() -> Iterator[Pipeline]:
    built = build()
    pipeline = make_pipeline(built, make_plan(built.config.runtime, 8), seed=3)
    yield pipeline
    pipeline.close()


def start(pipeline: Pipeline, command: list[float]) -> None:
    pipeline.field("fixed_command")[:] = [1.0, *command]
    pipeline.reset()


def advance(pipeline: Pipeline) -> float:
    """One control step at the default targets; returns the phase of env 0, in turns."""
    pipeline.submit(0, np.zeros((8, 29), np.float32))
    pipeline.finish(0)
    return float(pipeline.field("gait_phase")[0, 0])


def test_the_actor_sees_98_numbers_and_the_critic_101_without_noise() -> None:
    kernel = build().kernel
    assert {p.name: p.stop - p.start for p in kernel.actor_layout} == ACTOR
    critic = {p.name: p.stop - p.start for p in kernel.critic_layout}
    assert critic == {**ACTOR, "base_lin_vel": 3}
    assert [p.name for p in kernel.critic_layout] == [*ACTOR, "base_lin_vel"]
    assert (kernel.num_obs, kernel.num_critic_obs) == (98, 101)
    assert all(p.noise == 0.0 for p in kernel.critic_layout)
    scales = [[p.scale for p in layout] for layout in (kernel.actor_layout, kernel.critic_layout)]
    assert scales[0] == scales[1][:-1]


def test_fifteen_reward_terms_count_and_two_are_metrics() -> None:
    rewards = load_config("g1_walk").config.rewards
    weights = {name: given["weight"] for name, given in rewards.items()}
    assert sum(weight != 0.0 for weight in weights.values()) == 15
    assert {n for n, w in weights.items() if w == 0.0} == {"lin_vel_error", "ang_vel_error"}


def test_the_full_recipe_at_the_head_of_the_config_is_one_that_config_accepts() -> None:
    lines = (config_dir() / "g1_walk.yaml").read_text().splitlines()
    text = "\n".join(line.removeprefix("#") for line in lines if line.startswith("#   "))
    words = shlex.split(text.replace("\\\n", " "))
    assert words[:3] == ["unilab", "train", "g1_walk"]
    recipe = load_config("g1_walk", words[3:])
    assert recipe.config.physics.num_envs == 4096
    assert recipe.config.learners.ppo.actor_hidden == (512, 256, 128)
    assert recipe.config.evaluation == load_config("g1_walk").config.evaluation
    samples = recipe.config.train.iterations * 4096 * recipe.config.learners.ppo.num_steps
    assert samples == pytest.approx(300e6, rel=0.05)


def test_the_clock_of_a_walking_robot_turns_at_its_frequency(pipeline: Pipeline) -> None:
    start(pipeline, [0.5, 0.0, 0.0])
    phases = pipeline.field("gait_phase")[:, 0]
    assert len(np.unique(phases)) == 8, "every episode begins at a phase of its own"
    frequency = pipeline.built.config.commands["gait"]["frequency_hz"]
    before = float(phases[0])
    for _ in range(20):
        after = advance(pipeline)
        turned = (after - before) % 1.0
        assert turned == pytest.approx(frequency * pipeline.built.control_dt, abs=1e-5)
        before = after
        obs, _ = pipeline.observe(0)
        circle = [np.cos(2 * np.pi * after), np.sin(2 * np.pi * after)]
        np.testing.assert_allclose(obs[0, -2:], circle, atol=1e-5)


@pytest.mark.parametrize(("phase", "stop"), [(0.2, 0.5), (0.7, 0.0), (0.5, 0.5), (0.0, 0.0)])
def test_the_clock_of_a_standing_robot_ends_its_step_and_stops(
    pipeline: Pipeline, phase: float, stop: float
) -> None:
    start(pipeline, [0.5, 0.0, 0.0])
    pipeline.field("fixed_command")[:] = [1.0, 0.0, 0.0, 0.0]
    pipeline.field("command")[:] = 0.0
    pipeline.field("gait_phase")[:] = phase
    seen = [advance(pipeline) for _ in range(25)]
    assert seen[-1] == stop
    moving = [value for value in seen if value != stop]
    assert moving == sorted(moving)
    assert all(phase < value < (stop or 1.0) for value in moving)


def test_a_robot_that_begins_by_standing_begins_with_both_feet_down(pipeline: Pipeline) -> None:
    start(pipeline, [0.0, 0.0, 0.0])
    assert set(pipeline.field("gait_phase")[:, 0]) == {0.0, 0.5}


def test_contact_as_the_clock_asks_is_rewarded(pipeline: Pipeline) -> None:
    """Both feet stand on the floor: right in double support, and for the stance foot alone."""
    start(pipeline, [0.5, 0.0, 0.0])
    column = pipeline.built.kernel.log_names.index("reward/gait_contact")
    # The clock as the policy saw it before the step: left swings at 0.25, right at 0.75.
    for phase, wanted in ((0.0, 2.0), (0.25, 1.0), (0.5, 2.0), (0.75, 1.0)):
        pipeline.reset()
        for _ in range(8):  # it starts up to 3 cm above the ground
            advance(pipeline)
        pipeline.field("gait_phase")[:] = phase
        pipeline.arrays["log_io"][:] = 0.0
        advance(pipeline)
        assert pipeline.arrays["log_io"][0, column] == 8 * wanted


def test_without_a_policy_the_robot_sinks_tips_and_its_episode_ends_as_a_fall(
    pipeline: Pipeline,
) -> None:
    start(pipeline, [0.0, 0.0, 0.0])
    rest, length = np.zeros((8, 29), np.float32), np.zeros(8)
    for step in range(1, 150):
        pipeline.submit(0, rest)
        done = pipeline.finish(0)
        fell = (done.terminated == 1) & (length == 0)
        length[fell] = step * pipeline.built.control_dt
        if (length > 0).all():
            break
        assert np.isfinite(done.obs).all()
        assert not done.truncated.any()
    assert ((length > 0.6) & (length < 2.9)).all()
    log = dict(
        zip(pipeline.built.kernel.log_names, pipeline.arrays["log_io"].sum(axis=0), strict=True)
    )
    assert not any(value for name, value in log.items() if name.startswith("failure/"))
    assert log["termination/tilted"] + log["termination/base_low"] >= 8
