"""`unilab export`: the file alone is enough to act as the live envs do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from tests.runners.support import cli, files
from unilab.runners.build import make_pipeline
from unilab.runners.restore import restore_policy
from unilab.runs import find_checkpoint
from unilab.runtime.threads import make_plan


class Runner:
    """What would run on a robot: one file, onnxruntime, and the names in the file."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(str(path))
        properties = self.session.get_modelmeta().custom_metadata_map
        self.contract = json.loads(properties["unilab"])

    def observe(self, measured: dict[str, np.ndarray]) -> np.ndarray:
        """Put the observation together from what was measured, by name."""
        parts = self.contract["observation_layout"]
        obs = np.zeros((1, parts[-1]["stop"]), np.float32)
        for part in parts:
            obs[0, part["start"] : part["stop"]] = measured[part["name"]] * part["scale"]
        return obs

    def ctrl(self, obs: np.ndarray) -> np.ndarray:
        return self.session.run(["ctrl"], {"obs": obs})[0]


def test_a_runner_that_knows_the_file_only_gives_the_ctrl_of_the_live_envs(trained, tmp_path):
    outcome = cli("export", cwd=tmp_path)
    assert outcome.code == 0, outcome
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    runner = Runner(shutil.move(trained / "policy.onnx", alone / "p.onnx"))
    assert runner.contract["joint_names"] == ["slider"]
    assert runner.contract["control_dt_s"] == 0.02
    assert [p["name"] for p in runner.contract["observation_layout"]] == [
        "cart_state",
        "pole_state",
    ]

    quiet = ["observations.actor.cart_state.noise=0", "observations.actor.pole_state.noise=0"]
    policy = restore_policy(trained, find_checkpoint(trained), quiet)
    built = policy.built
    pipeline = make_pipeline(built, make_plan(built.config.runtime, 8), seed=1)
    pipeline.reset()
    worst = 0.0
    for _ in range(30):
        obs = torch.from_numpy(pipeline.observe(0)[0])
        expected = []
        for (x, angle), (v, w) in zip(pipeline.qpos(), pipeline.qvel(), strict=True):
            measured = {
                "cart_state": np.array([x, v]),
                "pole_state": np.array([np.cos(angle), np.sin(angle), w]),
            }
            expected.append(runner.ctrl(runner.observe(measured))[0])
        pipeline.submit(0, policy.learner.act(obs, explore=False).action.numpy())
        ctrl = pipeline.arrays["ctrl_out"][:, -1]
        worst = max(worst, float(np.abs(ctrl - np.array(expected)).max()))
        pipeline.finish(0)
    pipeline.close()
    span = np.ptp(built.robot.model.actuator_ctrlrange)
    assert worst < 1e-5 * span


def test_the_file_says_which_checkpoint_it_is_and_goes_where_it_is_told(trained, tmp_path):
    outcome = cli("export", "--checkpoint", "3", "--output", "out/pole.onnx", cwd=tmp_path)
    assert outcome.code == 0, outcome
    contract = Runner(tmp_path / "out" / "pole.onnx").contract
    assert contract["extra"]["iteration"] == 3
    assert contract["extra"]["seed"] == 7
    assert contract["task"] == "cartpole"
    assert not (trained / "policy.onnx").exists()


def test_the_normaliser_of_the_checkpoint_is_inside(trained, tmp_path):
    """Exported at another iteration, the same observation gives another action."""
    obs = np.array([[0.2, -0.1, 0.9, 0.3, 0.5]], np.float32)
    results = []
    for iteration in (2, 4):
        path = f"{iteration}.onnx"
        arguments = ("export", "--checkpoint", str(iteration), "--output", path)
        assert cli(*arguments, cwd=tmp_path).code == 0
        results.append(Runner(tmp_path / path).ctrl(obs))
        content = torch.load(trained / "checkpoints" / f"iter_{iteration:06d}.pt")
        policy = restore_policy(trained, find_checkpoint(trained, iteration), [])
        stats = policy.learner.state_dict()["obs_normalizer"]
        assert torch.equal(stats["mean"], content["learner"]["obs_normalizer"]["mean"])
        action = policy.learner.act(torch.from_numpy(obs), explore=False).action.numpy()
        assert results[-1] == pytest.approx(policy.built.ctrl_scale * action, abs=1e-5)
    assert results[0] != results[1]


@pytest.mark.parametrize("output", ["config.yaml/policy.onnx", "checkpoints"])
def test_a_place_that_cannot_be_written_to_is_refused_in_a_line(trained, tmp_path, output):
    before = files(trained)
    outcome = cli("export", "--output", str(trained / output), cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ")
    assert "--output" in outcome.err
    assert files(trained) == before
