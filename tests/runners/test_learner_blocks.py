"""Every task has settings for every learner, that fit the task and make a learner that learns."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession

from unilab.buffers.batch import Batch
from unilab.config import RunConfig, load_config
from unilab.config.off_policy import OffPolicyConfig
from unilab.onnx_graph import write_onnx
from unilab.runners.build import LEARNERS, check_memory, learner_settings, make_learner
from unilab.tasks.base import BuiltTask, build_task

CPU = torch.device("cpu")
TASKS = sorted(path.stem for path in (Path(__file__).parents[2] / "configs").glob("*.yaml"))


@cache
def built_task(task: str) -> BuiltTask:
    return build_task(load_config(task).config)


def config_of(task: str, learner: str, *words: str) -> RunConfig:
    loaded = load_config(task, [f"learner={learner}", *words])
    settings = {
        key: where for key, where in loaded.origins.items() if f"learners.{learner}." in key
    }
    assert any("configs/" in where for where in settings.values()), "no block in the task's file"
    return loaded.config


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_block_for_every_learner_and_builds_it(task: str, learner: str) -> None:
    config = config_of(task, learner)
    built, settings = replace(built_task(task), config=config), learner_settings(config)
    check_memory(built)
    made: Any = make_learner(built, config, CPU, 1)
    obs = torch.randn(4, built.kernel.num_obs, generator=torch.Generator().manual_seed(1))
    action = made.act(obs).action
    assert action.shape == (4, len(built.model.ctrl_offset))
    assert torch.isfinite(action).all()
    if task != "cartpole":
        assert settings.symmetry == "augment"


@pytest.mark.parametrize("learner", [n for n in LEARNERS if n not in ("ppo", "appo")])
@pytest.mark.parametrize("task", TASKS)
def test_a_learner_with_the_tasks_block_makes_a_cycle_of_updates(task: str, learner: str) -> None:
    config = config_of(task, learner, f"learners.{learner}.batch_size=16")
    built = replace(built_task(task), config=config)
    made: Any = make_learner(built, config, CPU, 1)
    rows, draw = 16 * made.updates_per_step, torch.Generator().manual_seed(1)
    obs, critic_obs, after, critic_after = (
        torch.randn(rows, width, generator=draw)
        for width in (built.kernel.num_obs, built.kernel.num_critic_obs) * 2
    )
    reward, ones = torch.randn(rows, generator=draw), torch.ones(rows)
    made.observe_rewards(reward, ones > 2)
    action = made.random_actions(rows)
    discount = made.config.gamma * ones
    metrics = made.cycle(
        Batch(obs, critic_obs, action, reward, discount, after, critic_after, ones)
    )
    assert metrics["learner/non_finite_updates"].item() == 0
    assert math.isfinite(metrics["loss/critic"].item())


@pytest.mark.parametrize("learner", ["sac", "td3"])
@pytest.mark.parametrize("task", TASKS)
def test_the_support_spans_the_best_discounted_return(task: str, learner: str) -> None:
    config = config_of(task, learner)
    settings = learner_settings(config)
    assert isinstance(settings, OffPolicyConfig)
    # Terms of positive weight are at most 1; a reward is their sum times the control step.
    best = sum(max(0.0, float(term["weight"])) for term in config.rewards.values())
    step_s = config.physics.timestep_s * config.physics.substeps
    most = best * step_s / (1 - settings.gamma)
    assert 0.5 * settings.v_max <= most <= settings.v_max
    assert settings.v_min < 0


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_policy_of_every_learner_can_be_exported(learner: str, tmp_path: Path) -> None:
    config, built = config_of("cartpole", learner), built_task("cartpole")
    made: Any = make_learner(replace(built, config=config), config, CPU, 1)
    draw = torch.Generator().manual_seed(2)
    for parameter in made.actor.parameters():  # gains and offsets that matter
        parameter.data.add_(0.1 * torch.randn(parameter.shape, generator=draw))
    policy, path = made.policy_module(), tmp_path / "policy.onnx"
    one = np.ones(1, np.float32)
    write_onnx(policy, obs_dim=built.kernel.num_obs, ctrl_scale=one, ctrl_offset=0 * one,
               action_clip=10.0, properties={}, path=path)  # fmt: skip
    obs = 2 * torch.randn(50, built.kernel.num_obs, generator=draw)
    (action,) = InferenceSession(path).run(["action"], {"obs": obs.numpy()})
    np.testing.assert_allclose(action, policy(obs).numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(action, made.act(obs, explore=False).action, rtol=1e-5, atol=1e-5)
    assert action.std() > 0.01
