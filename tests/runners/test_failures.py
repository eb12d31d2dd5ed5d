"""Numbers that are not finite: one is an event of one env, many stop the run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.runners import test_off_policy as off_policy
from tests.runners.support import LEARNERS, TINY, cli, metrics, only_run, tensors
from tests.runners.support import train as start
from unilab.buffers.rollout import Rollout
from unilab.config import load_config
from unilab.errors import UnilabError
from unilab.learners.base import ActOutput
from unilab.learners.ppo import PPO
from unilab.record import Recorder
from unilab.runners.build import make_learner, make_pipeline
from unilab.runners.checkpoint import Progress
from unilab.runners.interrupt import Interrupt
from unilab.runners.non_finite import describe
from unilab.runners.off_policy import run_off_policy
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
    assert [iteration for iteration, _ in list_checkpoints(tmp_path)] == [2]  # 4 was a bad one
    assert len(metrics(tmp_path)) == 5  # the fifth stopped it


def test_a_pause_between_bad_iterations_does_not_stop_the_run(tmp_path, capsys):
    run = make_run(tmp_path, range(0, 36, 9))  # iterations 1, 2, 4, 5: never three in a row
    train(run)
    counts = [line.get("failure/bad_action", 0.0) for line in metrics(tmp_path)]
    assert counts == [1, 1, 0, 1, 1, 0]
    assert [iteration for iteration, _ in list_checkpoints(tmp_path)] == [6]


# What makes numbers overflow in the third iteration, and what the message must then name.
BLOWN_UP = {
    "ppo": ("learners.ppo.learning_rate=1e30", "learners.ppo.schedule=fixed"),
    "appo": ("learners.appo.learning_rate=1e30", "learners.appo.schedule=fixed"),
    "sac": ("learners.sac.learning_rate=1e30",),
    "td3": ("learners.td3.learning_rate=1e30",),
    "flashsac": ("learners.flashsac.learning_rate=1e30",),
}
QUICK = ("log.tensorboard=false", "checkpoint.every=1")


@pytest.mark.parametrize("learner", list(LEARNERS))
def test_a_run_that_blows_up_leaves_a_dump_and_its_last_good_state(tmp_path, learner):
    run = start(tmp_path, *LEARNERS[learner], *QUICK, "train.iterations=2")
    with pytest.raises(UnilabError, match="3 iterations in a row") as caught:
        cli("train", "--resume", "latest", "train.iterations=9", *BLOWN_UP[learner], cwd=tmp_path)
    message, dump = str(caught.value), run / "non_finite_000005.pt"
    good = list_checkpoints(run)[-1][1]
    assert good.name == "iter_000002.pt"
    last = "loss/policy" if learner in ("ppo", "appo") else "loss/critic"
    slower = f"learners.{learner}.learning_rate=1e+29"
    for part in (dump.name, good.name, last, "go on from it", "--resume", slower):
        assert part in message

    content = torch.load(dump, weights_only=True)
    kept = dict(tensors({key: content[key] for key in ("learner", "data")}))
    assert kept[".data.reward"].numel() == (48 if learner in ("ppo", "appo") else 2 * 16)
    assert all(torch.isfinite(value).all() for name, value in kept.items() if ".data." in name)
    assert [log["iteration"] for log in content["metrics"]] == [3.0, 4.0, 5.0]
    assert math.isnan(content["metrics"][-1][last])

    report = json.loads(dump.with_suffix(".json").read_text())
    assert report["metrics"][last] == "nan"
    assert report["advice"] in message
    if learner == "flashsac":  # its projection divides an overflow by itself
        assert "learner.actor.weights.0" in report["not_finite"]
    else:
        assert report["tensors"][report["largest"][0]]["max"] > 1e29
    for name, row in report["tensors"].items():
        assert row["not_finite"] == int((~torch.isfinite(kept["." + name])).sum()), name

    # From the last good state it goes on where the cause is gone.
    sane = [f"learners.{learner}.learning_rate=1e-4"]
    sane += [f"learners.{learner}.final_learning_rate=1e-4"] if learner == "flashsac" else []
    outcome = cli("train", "--resume", "latest", "train.iterations=4", *sane, cwd=tmp_path)
    assert outcome.code == 0, outcome
    assert "resumed  after iteration 2" in outcome.out
    assert [log["learner/non_finite_updates"] for log in metrics(run)] == [0.0] * 4


def test_rewards_beyond_reason_are_named(tmp_path):
    words = ("rewards.pole_upright.weight=1e30", "learners.ppo.learning_rate=1e-4")
    with pytest.raises(UnilabError, match=r"Rewards reach 2\.0e\+28: lower the") as caught:
        cli("train", "cartpole", *TINY, *QUICK, *words, cwd=tmp_path)
    assert "pole_upright" in str(caught.value)
    assert list_checkpoints(only_run(tmp_path)) == []


def test_a_run_does_not_end_well_without_a_finite_update(tmp_path):
    words = ("rewards.pole_upright.weight=1e30", "train.iterations=2")
    with pytest.raises(UnilabError, match=r"in the end no update was finite.*There is no"):
        cli("train", "cartpole", *TINY, *QUICK, *words, "learner=appo",
            "learners.appo.num_steps=6", cwd=tmp_path)  # fmt: skip
    assert (only_run(tmp_path) / "non_finite_000002.json").exists()


def test_updates_refused_in_any_step_of_an_iteration_are_counted(tmp_path):
    run = off_policy.make_run(tmp_path, "train.iterations=2")
    off_policy.ticks(run, 5)
    run.learner.observe(torch.full((4, 5), math.inf), torch.zeros(4, 5))  # counted by the next tick
    try:
        run_off_policy(run, Interrupt())
    finally:
        run.pipeline.close()
    counts = [log["learner/non_finite_updates"] for log in metrics(tmp_path)]
    assert counts == [1.0, 0.0]


def test_tensors_are_described_as_numpy_sees_them():
    values = torch.tensor([[1.5, -3.0], [math.nan, math.inf]])
    found = describe({"a": values, "none": torch.full((2,), math.nan), "ids": torch.arange(3)})
    assert found["tensors"] == {
        "a": {"size": 4, "not_finite": 2, "min": -3.0, "max": 1.5},
        "none": {"size": 2, "not_finite": 2, "min": None, "max": None},
    }
    assert (found["not_finite"], found["largest"]) == (["a", "none"], ["a", "none"])
