"""`unilab export`: the file alone is enough to act as the live envs do."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from tests.runners.support import cli, files, train
from unilab.config import config_dir, load_config
from unilab.runners.backends import choose_device
from unilab.runners.build import make_learner, make_pipeline
from unilab.runners.checkpoint import Progress
from unilab.runners.export import RESETS, describe, effort_limits, first_observations
from unilab.runners.restore import RestoredPolicy, restore_policy
from unilab.runs import find_checkpoint
from unilab.runtime.threads import make_plan
from unilab.tasks.base import ASSETS, build_task


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


def untrained(task: str, *overrides: str) -> RestoredPolicy:
    """A policy of a task as it is before training."""
    built = build_task(load_config(task, overrides).config)
    learner = make_learner(built, built.config, choose_device("cpu"), 0)
    return RestoredPolicy(built, learner, Progress())


def test_the_contract_says_what_each_number_is_and_what_each_joint_takes():
    contract = asdict(describe(untrained("go1_walk")))
    json.dumps(contract, allow_nan=False)
    parts = {part["name"]: part for part in contract["observation_layout"]}
    assert parts["base_ang_vel"]["meaning"] == "Base angular velocity in the base frame, rad/s."
    assert "q - default_pose" in parts["joint_pos_rel"]["meaning"]
    assert parts["joint_velocity"]["scale"] == 0.1
    assert parts["joint_velocity"]["noise"] == pytest.approx(0.15)
    for words in ("clipped `action` output of the previous step", "0 at the start"):
        assert words in parts["last_action"]["meaning"]
    assert contract["joint_names"][:3] == ("FR_hip_joint", "FR_thigh_joint", "FR_calf_joint")
    assert contract["actuator_type"] == ["position"] * 12
    assert contract["effort_limit"] == [23.7, 23.7, 35.55] * 4
    assert contract["gear"] == [1.0] * 12


def test_last_action_is_what_the_contract_says():
    policy = untrained("go1_walk", "actions.clip=0.5", "episode.random_start=false")
    pipeline = make_pipeline(
        policy.built, make_plan(policy.built.config.runtime, 2), seed=1, num_envs=2
    )
    (part,) = (p for p in policy.built.kernel.actor_layout if p.name == "last_action")
    pipeline.reset()
    assert not pipeline.observe(0)[0][:, part.start : part.stop].any()
    pipeline.submit(0, np.tile(np.linspace(-1, 1, 12, dtype=np.float32), (2, 1)))
    pipeline.finish(0)
    seen = pipeline.observe(0)[0][:, part.start : part.stop]
    pipeline.close()
    np.testing.assert_array_equal(seen[0], np.clip(np.linspace(-1, 1, 12), -0.5, 0.5, dtype="f4"))


def test_effort_is_limited_by_actuator_gear_and_joint(tmp_path):
    text = (ASSETS / "cartpole.xml").read_text()
    motor = '<motor name="slide" joint="slider" gear="10" ctrllimited="true" ctrlrange="-1 1"'
    joint = '<joint name="slider"'
    assert motor in text
    assert joint in text
    limited = text.replace(motor, motor + ' forcerange="-3 2"')
    cases = {
        "none.xml": (text, None),
        "actuator.xml": (limited, 20.0),
        "joint.xml": (limited.replace(joint, joint + ' actuatorfrcrange="-7 9"'), 7.0),
    }
    for name, (content, limit) in cases.items():
        (tmp_path / name).write_text(content)
        robot = untrained("cartpole", f"physics.model={tmp_path / name}").built.robot
        assert effort_limits(robot) == [limit]


def test_a_task_file_is_named_without_the_folder_it_is_in(tmp_path, monkeypatch):
    (tmp_path / "my_pole.py").write_text("from unilab.tasks.cartpole import TASK as TASK\n")
    shutil.copy(config_dir() / "cartpole.yaml", tmp_path / "my_pole.yaml")

    def none(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)  # a bare checkout
    metadata = describe(untrained(str(tmp_path / "my_pole.py")))
    assert metadata.task == "my_pole"
    assert metadata.extra["unilab_version"] == "unknown"
    assert str(tmp_path) not in json.dumps(asdict(metadata))


def test_the_file_is_compared_on_first_observations_of_the_task(trained, tmp_path):
    built = restore_policy(trained, find_checkpoint(trained), []).built
    obs = first_observations(built, RESETS)
    assert (obs.shape, obs.dtype) == ((RESETS, 5), np.float32)
    assert len(np.unique(obs, axis=0)) == RESETS
    assert np.abs(obs[:, 2] ** 2 + obs[:, 3] ** 2 - 1).max() < 0.02  # cosine and sine, with noise
    outcome = cli("export", cwd=tmp_path)
    assert f"on {1 + 7 + 1000 + RESETS} observations" in outcome.out


def test_a_robot_given_by_a_relative_path_is_found_from_another_folder(tmp_path):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    shutil.copy(ASSETS / "cartpole.xml", home / "mine.xml")
    run = train(home, "physics.model=mine.xml", "train.iterations=1", "log.tensorboard=false")
    for arguments in (
        ("eval", "--run", str(run)),
        ("export", "--run", str(run)),
        ("train", "--resume", str(run), "train.iterations=2"),
    ):
        outcome = cli(*arguments, cwd=elsewhere)
        assert outcome.code == 0, outcome


@pytest.mark.parametrize("output", ["config.yaml/policy.onnx", "checkpoints"])
def test_a_place_that_cannot_be_written_to_is_refused_in_a_line(trained, tmp_path, output):
    before = files(trained)
    outcome = cli("export", "--output", str(trained / output), cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ")
    assert "--output" in outcome.err
    assert files(trained) == before
