"""Numbers that are not finite: one is an event of one env, many stop the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.runners.support import TINY, metrics, tensors
from unilab.buffers.rollout import Rollout
from unilab.config import load_config
from unilab.errors import UnilabError
from unilab.learners.base import ActOutput
from unilab.learners.ppo import PPO
from unilab.record import Recorder
from unilab.runners.build import make_learner, make_pipeline
from unilab.runners.checkpoint import Progress
from unilab.runners.interrupt import Interrupt
from unilab.runners.on_policy import OnPolicyRun, run_on_policy, set_first
from unilab.runs import list_checkpoints
from unilab.runtime.threads import make_plan
from unilab.tasks.base import build_task


class Faulty(PPO):
    """PPO whose policy gives NaN for env 2 in the control steps in `faulty_steps`."""

    faulty_steps: range = range(0)
    steps = 0

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        output = super().act(obs, explore)
        if self.steps in self.faulty_steps:
            output.action[2] = torch.nan
            output.log_prob[2] = torch.nan
        self.steps += 1
        return output


def make_run(folder: Path, faulty_steps: range) -> OnPolicyRun:
    """A run of 6 iterations of 6 control steps with a faulty policy."""
    config = load_config("cartpole", [*TINY, "train.iterations=6", "checkpoint.every=2"]).config
    built = build_task(config)
    pipeline = make_pipeline(built, make_plan(config.runtime, 8), seed=7)
    pipeline.reset()
    spec = make_learner(built, config, torch.device("cpu"), 7).spec  # type: ignore[attr-defined]
    learner = Faulty(config.learners.ppo, spec, torch.device("cpu"), 7)
    learner.faulty_steps = faulty_steps
    kernel = built.kernel
    rollout = Rollout(6, 8, kernel.num_obs, kernel.num_critic_obs, 1, learner.device)
    set_first(pipeline, rollout)
    (folder / "checkpoints").mkdir()
    recorder = Recorder(folder, total_iterations=6, tensorboard=False)
    return OnPolicyRun(folder, pipeline, learner, rollout, recorder, Progress())


def train(run: OnPolicyRun) -> None:
    try:
        with run.recorder, Interrupt() as interrupt:
            run_on_policy(run, interrupt)
    finally:
        run.pipeline.close()


def test_one_bad_action_is_counted_and_training_goes_on(tmp_path, capsys):
    run = make_run(tmp_path, range(8, 9))  # in the second iteration
    train(run)
    lines = metrics(tmp_path)
    assert [line.get("failure/bad_action", 0.0) for line in lines] == [0, 1, 0, 0, 0, 0]
    assert [line["learner/non_finite_updates"] for line in lines] == [0.0] * 6
    assert all("non_finite" not in line for line in lines)
    for name, value in tensors(run.learner.state_dict()):
        assert torch.isfinite(value.double()).all(), name
    assert torch.isfinite(run.rollout.obs).all()
    assert torch.isfinite(run.rollout.action).all()


def test_bad_actions_again_and_again_stop_the_run(tmp_path, capsys):
    run = make_run(tmp_path, range(12, 999))  # from the third iteration on
    with pytest.raises(UnilabError, match="3 iterations in a row had numbers that are not finite"):
        train(run)
    assert [iteration for iteration, _ in list_checkpoints(tmp_path)] == [2, 4]
    assert len(metrics(tmp_path)) == 4  # the fifth stopped it


def test_a_pause_between_bad_iterations_does_not_stop_the_run(tmp_path, capsys):
    run = make_run(tmp_path, range(0, 36, 9))  # iterations 1, 2, 4, 5: never three in a row
    train(run)
    counts = [line.get("failure/bad_action", 0.0) for line in metrics(tmp_path)]
    assert counts == [1, 1, 0, 1, 1, 0]
