"""Evaluation: repeatable, without side effects, right in its numbers, true to the run's config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import mujoco
import numpy as np
import pytest
import torch

from tests.runners.support import TINY, cli, files, tensors, train
from unilab.config import load_config
from unilab.errors import ConfigError
from unilab.learners.base import ActOutput
from unilab.runners.build import make_pipeline
from unilab.runners.evaluate import (
    EVALUATION_SEED,
    _fix_tiles,
    check_evaluation,
    evaluate,
    format_evaluation,
)
from unilab.runners.restore import RestoredPolicy, restore_policy
from unilab.runs import find_checkpoint
from unilab.runtime.threads import make_plan
from unilab.tasks.base import BuiltTask, build_task

NO_NOISE = ("observations.actor.cart_state.noise=0", "observations.actor.pole_state.noise=0")


def restored(run: Path, *overrides: str) -> RestoredPolicy:
    return restore_policy(run, find_checkpoint(run), list(overrides))


def built_for(*overrides: str, task: str = "cartpole") -> BuiltTask:
    return build_task(load_config(task, [*TINY, *overrides]).config)


class Push:
    """A policy of one line: push in proportion to the pole's angle (observation: x, v, cos ...)."""

    device = torch.device("cpu")

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def act(self, obs: torch.Tensor, explore: bool = True) -> ActOutput:
        assert not explore
        action = self.gain * obs[:, 3:4]
        return ActOutput(action, action, torch.zeros(len(obs)))


def test_two_evaluations_agree_in_every_bit(trained, tmp_path):
    results = []
    for _ in range(2):
        outcome = cli("eval", cwd=tmp_path)
        assert outcome.code == 0, outcome
        results.append((trained / "evaluation.json").read_bytes())
    assert results[0] == results[1]
    assert json.loads(results[0])["episodes"] == 4
    at_the_end_of_training = [line for line in results[0].splitlines() if b"return" in line]
    assert len(at_the_end_of_training) == 1


def test_the_evaluation_at_the_end_of_training_is_that_of_the_checkpoint(finished):
    policy = restored(finished)
    result = evaluate(policy.built, policy.learner)
    assert json.loads((finished / "evaluation.json").read_text())["metrics"] == result.metrics


def test_an_evaluation_changes_nothing_in_the_learner(finished):
    policy = restored(finished)
    before = {name: value.clone() for name, value in tensors(policy.learner.state_dict())}
    evaluate(policy.built, policy.learner)
    after = dict(tensors(policy.learner.state_dict()))
    assert len(before) > 20
    for name, value in before.items():
        assert torch.equal(value, after[name]), name


def test_an_evaluation_changes_nothing_in_the_training_that_goes_on(tmp_path):
    """As at the end of a run: evaluated or not, its checkpoint is the same."""
    with_, without = tmp_path / "with", tmp_path / "without"
    with_.mkdir()
    without.mkdir()
    first = train(with_, "train.iterations=2", "evaluation.at_end=true")
    second = train(without, "train.iterations=2")
    assert (first / "evaluation.json").is_file()
    assert not (second / "evaluation.json").exists()
    for run in (first, second):
        assert (
            cli("train", "--resume", "latest", "train.iterations=3", cwd=run.parents[2]).code == 0
        )
    states = [torch.load(find_checkpoint(run), weights_only=True) for run in (first, second)]
    for (name, one), (_, two) in zip(
        *(tensors({k: s[k] for k in ("learner", "pipeline")}) for s in states), strict=True
    ):
        assert torch.equal(one, two), name


def simulate(built: BuiltTask, qpos: Any, qvel: Any, gain: float, steps: int) -> dict[str, float]:
    """One episode of the cart-pole written out with mj_step: its return and length."""
    model, config = built.robot.model, built.config
    data = mujoco.MjData(model)
    data.qpos[:], data.qvel[:] = qpos, qvel
    total, dt = 0.0, built.control_dt
    for step in range(1, steps + 1):
        action = float(np.clip(np.float32(gain * np.sin(data.qpos[1])), -1.0, 1.0))
        data.ctrl[0] = built.model.ctrl_offset[0] + built.ctrl_scale[0] * action
        mujoco.mj_step(model, data, config.physics.substeps)
        x, angle = data.qpos
        fallen = abs(x) > 1.6 or abs(angle) > 0.8
        total += dt * (
            0.5 * (1.0 + np.cos(angle)) + np.exp(-(x**2) / 0.25) - 0.05 * action**2 - 20.0 * fallen
        )
        if fallen:
            return {"return": total, "length_s": step * dt, "survived_fraction": 0.0}
    return {"return": total, "length_s": steps * dt, "survived_fraction": 1.0}


@pytest.mark.parametrize("gain", [3.0, -2.0])
def test_metrics_are_those_of_an_independent_simulation(gain):
    """Of a policy that holds the pole and of one that throws it over, to its first end only."""
    built = built_for(*NO_NOISE, "evaluation.episodes=6", "evaluation.episode_length_s=2.0")
    plan = make_plan(built.config.runtime, 6)
    pipeline = make_pipeline(built, plan, seed=EVALUATION_SEED, num_envs=6)
    pipeline.reset(random_start=False)
    starts = [(q.copy(), v.copy()) for q, v in zip(pipeline.qpos(), pipeline.qvel(), strict=True)]
    pipeline.close()
    assert len({float(q[1]) for q, _ in starts}) == 6
    episodes = [simulate(built, q, v, gain, steps=100) for q, v in starts]
    result = evaluate(built, Push(gain))  # type: ignore[arg-type]
    for name in ("return", "length_s", "survived_fraction"):
        expected = np.mean([episode[name] for episode in episodes])
        assert result.metrics[name] == pytest.approx(expected, rel=1e-4), name
    lengths = [episode["length_s"] for episode in episodes]
    assert (min(lengths) < 1.0) == (gain < 0)


def test_thresholds_say_what_is_met_whatever_the_direction():
    built = built_for(
        "evaluation.thresholds={return: 1.0, survived_fraction: 1.0, length_s: 0.4}",
        "evaluation.episode_length_s=0.5",
    )
    result = evaluate(built, Push(3.0))  # type: ignore[arg-type]
    assert result.metrics["length_s"] == pytest.approx(0.5)
    assert result.metrics["return"] < 1.0
    assert result.passed == {"return": False, "survived_fraction": True, "length_s": False}


@pytest.mark.parametrize(
    ("task", "override", "message"),
    [
        ("cartpole", "evaluation.thresholds={survived: 1}", "did you mean 'survived_fraction'"),
        ("cartpole", "evaluation.thresholds={lin_vel_error: 1}", "no such metric"),
        ("cartpole", "evaluation.points=[[1.0, 0.0, 0.0]]", "no command to fix"),
        ("go1_walk", "evaluation.points=[[1.0, 0.0]]", "has 2 numbers"),
    ],
)
def test_thresholds_and_points_are_checked_before_training(task, override, message):
    with pytest.raises(ConfigError, match=message):
        check_evaluation(built_for(override, task=task))


class Stand:
    """Holds the default pose."""

    device = torch.device("cpu")

    def act(self, obs: torch.Tensor, explore: bool = True) -> ActOutput:
        action = torch.zeros(len(obs), 12)
        return ActOutput(action, action, torch.zeros(len(obs)))


def test_tracking_errors_of_a_robot_that_stands_are_the_commands():
    points = [[0.5, 0.0, 0.0], [0.0, -0.4, 0.0], [0.0, 0.0, 0.8], [0.0, 0.0, 0.0]]
    built = built_for(
        "evaluation.episodes=8", "evaluation.episode_length_s=2.0", f"evaluation.points={points}",
        "events.push.min_s=100", "events.push.max_s=200", "events.reset_joints.pos_rad=0",
        "evaluation.thresholds={}", task="go1_walk",
    )  # fmt: skip
    result = evaluate(built, Stand())  # type: ignore[arg-type]
    assert result.metrics["survived_fraction"] == 1.0
    table = {tuple(row["command"]): row for row in result.points}
    assert table.keys() == {tuple(point) for point in points}
    for (vx, vy, yaw), row in table.items():
        assert row["lin_vel_error"] == pytest.approx(np.hypot(vx, vy), abs=0.1)
        assert row["ang_vel_error"] == pytest.approx(abs(yaw), abs=0.1)


def test_on_uneven_ground_the_envs_are_spread_over_all_tiles_and_stay_on_their_level():
    points = [[0.5, 0.0, 0.0], [0.0, 0.4, 0.0]]
    built = built_for(
        "evaluation.episodes=28", "evaluation.episode_length_s=1.0", f"evaluation.points={points}",
        "terrain.levels=2", "evaluation.thresholds={}", task="go1_rough",
    )  # fmt: skip
    result = evaluate(built, Stand())  # type: ignore[arg-type]
    assert [row["level"] for row in result.levels] == [0, 1]
    for name, mean in result.metrics.items():  # 14 envs, two on each kind, on each level
        assert mean == pytest.approx(np.mean([row[name] for row in result.levels])), name
    assert [row["command"] for row in result.points] == sorted(points)
    text = format_evaluation(result).splitlines()
    assert [line.split()[0] for line in text[-2:]] == ["0", "1"]
    pipeline = make_pipeline(built, make_plan(built.config.runtime, 28), seed=1, num_envs=28)
    levels = _fix_tiles(pipeline)
    for _ in range(2):  # what happened in an episode changes nothing
        pipeline.reset(random_start=False)
        pipeline.field("terrain_walk")[:] = [5.0, 0.0, 5.0, 0.0, 0.0, 9.0]
        np.testing.assert_array_equal(pipeline.field("terrain_level")[:, 0], levels)
        columns = pipeline.field("terrain_column")[:, 0]
        assert np.unique(levels * 7 + columns, return_counts=True)[1].tolist() == [2] * 14
    pipeline.close()


def test_overrides_of_eval_are_used_and_saved_nowhere(trained, tmp_path):
    config = (trained / "config.yaml").read_bytes()
    outcome = cli(
        "eval", "evaluation.episodes=3", "evaluation.episode_length_s=0.2", cwd=tmp_path
    )  # fmt: skip
    assert outcome.code == 0, outcome
    assert "evaluation over 3 episodes" in outcome.out
    assert json.loads((trained / "evaluation.json").read_text())["metrics"][
        "length_s"
    ] == pytest.approx(0.2)
    assert (trained / "config.yaml").read_bytes() == config


def own_task(folder: Path, scale: float) -> str:
    """A cart-pole task file outside the package, with an action scale of its own."""
    (folder / "my_pole.py").write_text("from unilab.tasks.cartpole import TASK  # noqa: F401\n")
    text = (Path(__file__).parents[2] / "configs" / "cartpole.yaml").read_text()
    text = text.replace("actions: {clip: 1.0}", f"actions: {{clip: 1.0, scale: {scale}}}")
    (folder / "my_pole.yaml").write_text(text)
    return str(folder / "my_pole.py")


def test_the_config_of_the_run_is_used_and_differences_to_the_file_of_today_are_said(tmp_path):
    task = own_task(tmp_path, 0.25)
    outcome = cli("train", task, *TINY, "train.iterations=1", cwd=tmp_path)
    assert outcome.code == 0, outcome
    first = cli("eval", cwd=tmp_path)
    assert "actions.scale" not in first.out
    own_task(tmp_path, 0.5)
    second = cli("eval", cwd=tmp_path)
    assert second.code == 0, second
    assert "differs from the task's file today: actions.scale: 0.5 -> 0.25" in second.out
    assert numbers_of(second.out) == numbers_of(first.out)
    third = cli("eval", "actions.scale=0.5", cwd=tmp_path)
    assert numbers_of(third.out) != numbers_of(first.out)
    (tmp_path / "my_pole.yaml").write_text("rewards: [broken\n")
    fourth = cli("eval", cwd=tmp_path)
    assert fourth.code == 0, fourth
    assert "the run's own is used" in fourth.out
    assert numbers_of(fourth.out) == numbers_of(first.out)


def numbers_of(out: str) -> list[str]:
    return out[out.index("evaluation over") :].splitlines()


def test_the_first_steps_of_an_evaluation_are_those_of_training():
    """Same seed and actions: the envs of an evaluation are built as those of training are."""
    built = built_for("episode.length_s=0.3")
    actions = np.random.default_rng(5).uniform(-1, 1, (20, 8, 1)).astype(np.float32)
    plan = make_plan(built.config.runtime, 8)
    training = make_pipeline(built, plan, seed=3)
    trace = []
    training.reset(random_start=False)
    for action in actions:
        training.submit(0, action)
        step = training.finish(0)
        trace.append((step.obs.copy(), step.reward.copy(), step.terminated.copy()))
    training.close()

    class Replay:
        """Gives the recorded actions and keeps what it sees."""

        device = torch.device("cpu")
        seen: list[np.ndarray] = []  # noqa: RUF012

        def act(self, obs: torch.Tensor, explore: bool = True) -> ActOutput:
            self.seen.append(obs.numpy().copy())
            action = torch.from_numpy(actions[len(self.seen) - 1])
            return ActOutput(action, action, torch.zeros(8))

    import unilab.runners.evaluate as module

    seed, module.EVALUATION_SEED = module.EVALUATION_SEED, 3
    try:
        config = load_config(
            "cartpole", [*TINY, "evaluation.episodes=8", "evaluation.episode_length_s=0.3"]
        ).config
        result = evaluate(build_task(config), Replay())  # type: ignore[arg-type]
    finally:
        module.EVALUATION_SEED = seed
    seen = Replay.seen
    assert len(seen) == 15  # 0.3 s; from there on the two cut their episodes at the same step too
    for step in range(1, 15):
        np.testing.assert_array_equal(seen[step], trace[step - 1][0], err_msg=f"step {step}")
    total = np.sum([reward for _, reward, _ in trace[:15]], axis=0, dtype=np.float64)
    assert result.metrics["return"] == pytest.approx(total.mean(), rel=1e-12)


@pytest.fixture
def film(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `unilab eval --video`, with an OpenGL platform asked for or not."""

    def run(platform: str | None) -> Any:
        monkeypatch.delenv("UNILAB_GL", raising=False)
        if platform is None:
            monkeypatch.delenv("MUJOCO_GL", raising=False)
        else:
            monkeypatch.setenv("MUJOCO_GL", platform)
        return cli("eval", "--video", "evaluation.video_seconds=0.5", cwd=tmp_path)

    return run


def test_the_video_can_be_played(film, trained):
    outcome = film(None)
    if outcome.code == 1 and "OpenGL does not work here" in outcome.err:
        pytest.skip(outcome.err)
    assert outcome.code == 0, outcome
    frames = iio.imread(trained / "policy.mp4")
    assert frames.shape == (13, 480, 640, 3)  # 0.5 s at 25 frames a second, first and last
    assert frames.std() > 5.0
    assert (frames[0] != frames[-1]).any()


def test_a_video_that_cannot_be_made_fails_eval_in_a_line(film, trained):
    outcome = film("bad")
    assert outcome.code == 1, outcome
    assert outcome.err.startswith("error: no video")
    assert len(outcome.err.splitlines()) <= 3
    assert "evaluation over" in outcome.out
    assert not (trained / "policy.mp4").exists()


def test_a_video_that_cannot_be_made_does_not_fail_training(tmp_path, monkeypatch):
    monkeypatch.delenv("UNILAB_GL", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "bad")
    outcome = cli(
        "train", "cartpole", *TINY, "train.iterations=1", "evaluation.video=true", cwd=tmp_path
    )
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    lines = [line for line in outcome.out.splitlines() if line.startswith("video ")]
    assert len(lines) == 1
    assert "none: no video" in lines[0]
    assert any(name.endswith("iter_000001.pt") for name in files(tmp_path))
