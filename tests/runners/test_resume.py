"""A run that was killed and resumed is, bit for bit, the run that was not."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.runners.support import (
    LEARNERS,
    TINY,
    Process,
    assert_same_run,
    cli,
    files,
    last_checkpoint,
    metrics,
    only_run,
    train,
)
from unilab.runs import list_checkpoints

# A process that must do without network, online loggers, and packages of other features.
OFFLINE = """
import socket, sys
def refuse(*arguments, **options):
    raise OSError("no network in this test")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
for name in ("wandb", "mlflow", "swanlab", "neptune", "comet_ml", "onnx", "onnxscript",
             "onnxruntime", "warp", "mujoco_warp"):
    sys.modules[name] = None
from unilab.cli import main
main()
"""


def resume(cwd: Path, *overrides: str) -> None:
    outcome = cli("train", "--resume", "latest", *overrides, cwd=cwd)
    assert outcome.code == 0, outcome


def kill_after(cwd: Path, iteration: int, wait_s: float, *arguments: str) -> bool:
    """Start a command, and kill -9 it some time after it has written an iteration down.

    Returns whether it was still there to be killed.
    """
    process = Process(*arguments, cwd=cwd)
    process.wait_for_iteration(iteration, 300.0)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.popen.wait(wait_s)
    return kill(process)


def kill_in_a_write(cwd: Path, iteration: int, *arguments: str) -> bool:
    """As `kill_after`, but in the midst of writing the next checkpoint."""
    process = Process(*arguments, cwd=cwd)
    process.wait_for_iteration(iteration, 300.0)
    folder = only_run(cwd) / "checkpoints"
    while process.popen.poll() is None and not list(folder.glob("*.partial")):
        pass  # a write takes a few ms
    return kill(process)


def kill(process: Process) -> bool:
    process.popen.send_signal(signal.SIGKILL)
    return process.popen.wait() == -signal.SIGKILL


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    pair = (tmp_path / "whole", tmp_path / "killed")
    for folder in pair:
        folder.mkdir()
    return pair


def test_killed_at_a_random_moment_and_resumed_equals_uninterrupted(folders):
    whole, killed = folders
    options = ("train.iterations=150", "checkpoint.every=3")
    expected = train(whole, *options)
    wait_s = random.SystemRandom().uniform(0.0, 0.15)
    kill_after(killed, 8, wait_s, "train", "cartpole", *TINY, *options)
    run = only_run(killed)
    assert len(metrics(run)) < 150, "it was killed too late to tell anything"
    resume(killed)
    assert_same_run(expected, run)
    assert [name for name, _ in list_checkpoints(run)] == [144, 147, 150]


def test_killed_before_the_first_checkpoint_starts_again_with_the_same_seed(folders):
    whole, killed = folders
    options = ("train.iterations=60", "checkpoint.every=60")
    expected = train(whole, *options)
    kill_after(killed, 4, 0.0, "train", "cartpole", *TINY, *options)
    assert list_checkpoints(only_run(killed)) == []
    resume(killed)
    assert_same_run(expected, only_run(killed))


# Episodes of 0.4 s and robots that are thrown: levels of uneven ground change all the time.
THROWN = (
    *("terrain.tile_m=1.2", "terrain.platform_m=0.6", "terrain.levels=3"),
    *("events.reset_base.lin_vel_ms=2.5", "events.terrain_spawn.first_levels=3.0"),
)


@pytest.mark.parametrize(("task", "more"), [("go1_walk", ()), ("go1_rough", THROWN)])
def test_go1_in_two_parts_equals_go1_in_one(folders, task, more):
    small = (
        *("physics.num_envs=128", "learners.ppo.symmetry=augment", "runtime.groups=2"),
        *("checkpoint.every=2", *more),  # the best score is that of the checkpoints
    )
    expected = train(folders[0], *small, "train.iterations=4", task=task)
    run = train(folders[1], *small, "train.iterations=2", task=task)
    resume(folders[1], "train.iterations=4")
    assert_same_run(expected, run)
    if task == "go1_rough":
        levels = [line["curriculum/terrain_level"] for line in metrics(run)]
        assert len(set(levels)) > 1
        assert levels[2] > 0.0  # the first line after the cut: nobody began anew


def test_randomized_in_two_parts_equals_randomized_in_one(folders):
    drawn = (
        "randomization.body_mass.scale=[0.5, 2.0]",
        "randomization.body_mass.mode=reset",
        "randomization.joint_damping.add_nms=[0.0, 0.1]",
        "randomization.action_delay.substeps=[0, 3]",
        "randomization.action_delay.mode=reset",
        "randomization.observation_delay.steps=[0, 2]",
    )
    expected = train(folders[0], *drawn, "train.iterations=8")
    run = train(folders[1], *drawn, "train.iterations=5")
    resume(folders[1], "train.iterations=8")
    assert_same_run(expected, run)


def test_logging_every_few_iterations_survives_the_cut(folders):
    """The log's sums since the last line are part of the state."""
    options = ("log.every=4", "checkpoint.every=1")
    expected = train(folders[0], *options, "train.iterations=100")
    process = Process("train", "cartpole", *TINY, *options, "train.iterations=100", cwd=folders[1])
    process.wait_for_iteration(1)  # that is the line of iteration 4
    process.end(signal.SIGINT)
    resume(folders[1])
    assert [line["iteration"] for line in metrics(expected)] == list(range(4, 101, 4))
    assert_same_run(expected, only_run(folders[1]))


def test_counters_file_names_and_curves_go_on(tmp_path):
    run = train(tmp_path, "train.iterations=3", "checkpoint.every=2", "log.tensorboard=true")
    before = last_checkpoint(run)
    assert before["progress"]["iteration"] == 3
    resume(tmp_path, "train.iterations=7")
    after = last_checkpoint(run)
    assert after["progress"]["env_steps"] == before["progress"]["env_steps"] * 7 // 3
    assert after["progress"]["wall_s"] > before["progress"]["wall_s"]
    assert after["learner"]["iteration"] == 7
    lines = metrics(run)
    assert [line["iteration"] for line in lines] == list(range(1, 8))
    assert [line["counter/env_steps"] for line in lines] == [48.0 * k for k in range(1, 8)]
    assert [name for name, _ in list_checkpoints(run)] == [4, 6, 7]
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [e.step for e in events.Scalars("loss/value")] == list(range(1, 8))


def test_resume_needs_no_network_and_no_logger_package(trained, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, "train", "--resume", "latest", "train.iterations=5"],
        cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert last_checkpoint(trained)["progress"]["iteration"] == 5


def test_values_changed_at_a_resume_are_said_and_saved(trained, tmp_path):
    outcome = cli(
        "train", "--resume", "-1", "train.iterations=6", "learners.ppo.gamma=0.9", cwd=tmp_path
    )
    assert outcome.code == 0, outcome
    assert "changed: learners.ppo.gamma: 0.98 -> 0.9" in outcome.out
    assert "gamma: 0.9\n" in (trained / "config.yaml").read_text()
    assert last_checkpoint(trained)["progress"]["iteration"] == 6


@pytest.mark.slow
def test_a_reward_term_can_be_taken_out_at_a_resume(tmp_path):
    run = train(tmp_path, "train.iterations=2", "log.every=3")  # sums of the log are carried over
    resume(tmp_path, "train.iterations=6", "rewards.effort=null")
    assert [line["iteration"] for line in metrics(run)] == [2, 3, 6]
    assert "reward/effort" in metrics(run)[0]
    assert "reward/effort" not in metrics(run)[-1]


@pytest.mark.parametrize("learner", [name for name in LEARNERS if name != "ppo"])
def test_every_learner_in_two_parts_equals_it_in_one(folders, learner):
    """With a replay that is over its seam in the first part, and again in the second."""
    small = (*LEARNERS[learner], "log.tensorboard=false", "checkpoint.every=4")
    expected = train(folders[0], *small, "train.iterations=8")
    run = train(folders[1], *small, "train.iterations=4")
    resume(folders[1], "train.iterations=8")
    assert_same_run(expected, run)
    updates = last_checkpoint(run)["learner"]["iteration" if learner == "appo" else "updates"]
    assert updates == (8 if learner == "appo" else 2 * (48 - 4))
    setup = json.loads((run / "stages.json").read_text())["setup"]
    assert setup["update_flops"] > 0


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("seed=8", ("seed", "7", "8")),
        ("physics.num_envs=9", ("physics.num_envs", "8", "9")),
        ("observations.actor.cart_state=null", ("observations.actor", "cart_state")),
        ("learners.ppo.actor_hidden=[8]", ("actor", "shape")),
        ("train.iterations=4", ("is complete", "train.iterations")),
        ("task=go1_walk", ("task",)),
        ("learner=sac", ("learner=sac", "learner=ppo", "new run")),
    ],
)
def test_what_would_make_another_run_is_refused_and_nothing_is_changed(
    trained, tmp_path, override, parts
):
    before = files(trained)
    outcome = cli("train", "--resume", "latest", "train.iterations=9", override, cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ")
    for part in parts:
        assert part in outcome.err
    assert files(trained) == before


def test_a_replay_of_other_sizes_is_refused_and_can_be_left_out(tmp_path):
    run = train(tmp_path, *LEARNERS["sac"], "train.iterations=2", "log.tensorboard=false")
    before = files(run)
    other = ("train", "--resume", "latest", "train.iterations=3", "learners.sac.replay_capacity=25")
    outcome = cli(*other, cwd=tmp_path)
    assert outcome.code == 2, outcome
    for part in ("error: learners.sac", "replay_capacity=18 there and 25 here",
                 "checkpoint.replay=false"):  # fmt: skip
        assert part in outcome.err
    assert files(run) == before
    outcome = cli(*other, "checkpoint.replay=false", cwd=tmp_path)
    assert outcome.code == 0, outcome
    after = last_checkpoint(run)
    assert after["progress"]["iteration"] == 3
    assert "replay" not in after["runner"]
    # Two control steps of the six went by before the new buffer had its n steps to learn from,
    # and two more of warm-up; lockstep is one late.
    assert after["learner"]["updates"] == 2 * (12 - 4) + 2 * (6 - 4)


@pytest.mark.slow
@pytest.mark.parametrize("learner", list(LEARNERS))
def test_killed_again_and_again_equals_uninterrupted(folders, learner):
    """Five kills: at random moments, and in the midst of writing a checkpoint."""
    whole, killed = folders
    steps = 30 if learner in ("ppo", "appo") else 10  # iterations of some 0.1 s
    options = (
        *("train.iterations=60", "checkpoint.every=2", "physics.num_envs=64"),
        *(*LEARNERS[learner], f"learners.{learner}.num_steps={steps}", "log.tensorboard=false"),
    )
    expected = train(whole, *options)
    chance = random.SystemRandom()
    arguments: tuple[str, ...] = ("train", "cartpole", *TINY, *options)
    kills = 0
    for count, iteration in enumerate((6, 15, 24, 33, 42)):
        if count % 2:
            kills += kill_in_a_write(killed, iteration, *arguments)
        else:
            kills += kill_after(killed, iteration, chance.uniform(0.0, 0.3), *arguments)
        arguments = ("train", "--resume", "latest")
    run = only_run(killed)
    assert kills == 5, "it was killed too late to tell anything"
    resume(killed)
    assert_same_run(expected, run)


@pytest.mark.slow
def test_thirty_kills_never_leave_an_unreadable_checkpoint(tmp_path):
    chance = random.SystemRandom()
    arguments: tuple[str, ...] = (
        "train", "cartpole", *TINY, "train.iterations=100000", "checkpoint.every=1",
        "log.tensorboard=false", "learners.ppo.actor_hidden=[512,512]",
    )  # fmt: skip
    reached = 0
    for _ in range(30):
        kill_after(tmp_path, reached + 2, chance.uniform(0.0, 0.3), *arguments)
        run = only_run(tmp_path)
        iteration = last_checkpoint(run)["progress"]["iteration"]
        assert iteration >= reached
        reached = iteration
        arguments = ("train", "--resume", "latest")
    leftovers = [p.name for p in (run / "checkpoints").iterdir() if p.suffix not in (".pt",)]
    assert len(leftovers) <= 2, leftovers
