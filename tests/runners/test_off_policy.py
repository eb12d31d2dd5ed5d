"""The off-policy loop: what its schedules change and what they do not, restart, and its ratio."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runtime.support import built_task, plan
from tests.runtime.test_overlap import ATTEMPTS, sleeping_pipeline
from unilab.buffers.batch import Batch
from unilab.learners.base import ActOutput
from unilab.record import Recorder
from unilab.runners.build import learner_settings, make_learner, make_pipeline, make_replay
from unilab.runners.checkpoint import Progress, load
from unilab.runners.interrupt import Interrupt
from unilab.runners.off_policy import OffPolicyRun, _InTurn, run_off_policy, save
from unilab.runs import find_checkpoint
from unilab.runtime.timers import Timers

CPU = torch.device("cpu")
WORDS = (
    "learner=sac", "learners.sac.batch_size=64", "learners.sac.updates_per_step=2",
    "learners.sac.actor_every=2", "learners.sac.replay_capacity=40", "learners.sac.warmup_steps=4",
    "learners.sac.actor_hidden=[16]", "learners.sac.critic_hidden=[16]", "learners.sac.num_steps=8",
    "learners.sac.n_steps=3", "episode.length_s=0.6", "log.tensorboard=false",
)  # fmt: skip
NUM_ENVS = 128


def make_run(folder: Path, *words: str, groups: int = 1, overlap: bool = False) -> OffPolicyRun:
    """A small cart-pole run, ready to go."""
    built = built_task("cartpole", *WORDS, *words)
    pipeline = make_pipeline(built, plan(groups=groups, overlap=overlap), seed=3, num_envs=NUM_ENVS)
    pipeline.reset()
    (folder / "checkpoints").mkdir(parents=True)
    learner: Any = make_learner(built, built.config, CPU, 3)
    settings: Any = learner_settings(built.config)
    run = OffPolicyRun(
        folder, pipeline, learner, make_replay(built, NUM_ENVS, CPU),
        Recorder(folder, total_iterations=100, tensorboard=False), Progress(),
        settings, torch.Generator().manual_seed(3), Timers(), learner.cycle,
    )  # fmt: skip
    run.restore({})
    return run


def ticks(run: OffPolicyRun, count: int) -> None:
    with _InTurn(run) as turn:
        for _ in range(count):
            turn.tick()


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return every leaf of nested dicts by its path."""
    if isinstance(value, dict):
        parts = [flat(item, f"{prefix}/{name}") for name, item in value.items()]
        return {key: leaf for part in parts for key, leaf in part.items()}
    return {prefix: value}


def assert_equal(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    found, wanted = flat(found), flat(wanted)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor | np.ndarray):
            same = np.array_equal(np.asarray(found[name]), np.asarray(value), equal_nan=True)
        else:
            same = found[name] == value
        assert same, name


def everything(run: OffPolicyRun) -> dict[str, Any]:
    return {
        "learner": run.learner.state_dict(),
        "replay": run.replay.state_dict(),
        "pipeline": run.pipeline.state_dict(),
    }


def test_lockstep_side_by_side_gives_the_bits_of_lockstep_in_turn(tmp_path: Path) -> None:
    serial = make_run(tmp_path / "a", groups=2)
    parallel = make_run(tmp_path / "b", groups=2, overlap=True)
    for run in (serial, parallel):
        ticks(run, 30)
    assert int(serial.learner.state_dict()["updates"]) > 40
    assert_equal(everything(parallel), everything(serial))


def test_sync_learns_from_a_step_one_tick_earlier_than_lockstep(tmp_path: Path) -> None:
    runs = {
        name: make_run(tmp_path / name, f"learners.sac.schedule={name}")
        for name in ("sync", "lockstep")
    }
    updates = {}
    for name, run in runs.items():
        ticks(run, 6)
        updates[name] = int(run.learner.state_dict()["updates"])
    # Learning begins with 4 steps: sync learns in the tick that brings the fourth.
    assert updates == {"sync": 2 * 3, "lockstep": 2 * 2}


def test_every_step_is_kept_once_and_actions_are_random_before_learning(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    ticks(run, 10)
    assert run.replay.committed == 10
    state = run.replay.state_dict()
    actions = state["rows"][: 4 * NUM_ENVS, -1]
    assert actions.abs().max() <= 1.0
    assert actions.std() == pytest.approx(1 / np.sqrt(3), rel=0.05)  # uniform in -1 to 1


def test_a_restored_run_goes_on_bit_for_bit_with_its_replay(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a", "checkpoint.replay=true")
    ticks(first, 21)
    first.ticks = 5
    save(first)
    ticks(first, 20)
    checkpoint = load(find_checkpoint(tmp_path / "a"))
    second = make_run(tmp_path / "b", "checkpoint.replay=true")
    second.learner.load_state_dict(checkpoint.learner)
    second.pipeline.load_state_dict(checkpoint.pipeline)
    second.restore(checkpoint.runner)
    assert second.ticks == 5
    ticks(second, 20)
    assert_equal(everything(second), everything(first))


def test_without_its_replay_a_restored_run_fills_it_anew(tmp_path: Path) -> None:
    first = make_run(tmp_path / "a")
    ticks(first, 12)
    save(first)
    checkpoint = load(find_checkpoint(tmp_path / "a"))
    assert "replay" not in checkpoint.runner
    second = make_run(tmp_path / "b")
    second.learner.load_state_dict(checkpoint.learner)
    second.pipeline.load_state_dict(checkpoint.pipeline)
    second.restore(checkpoint.runner)
    assert second.replay.committed == 0
    before = int(second.learner.state_dict()["updates"])
    ticks(second, 8)
    assert int(second.learner.state_dict()["updates"]) > before


def test_an_iteration_is_a_row_of_the_log_and_the_ratio_holds(tmp_path: Path) -> None:
    run = make_run(tmp_path, "train.iterations=4")
    run_off_policy(run, Interrupt())
    assert run.progress.iteration == 4
    assert run.progress.env_steps == 4 * 8 * NUM_ENVS
    # Lockstep: two updates for each tick that began with 4 steps or more.
    assert int(run.learner.state_dict()["updates"]) == 2 * (4 * 8 - 4)
    assert find_checkpoint(tmp_path).name == "iter_000004.pt"


class SleepingLearner:
    """A learner whose cycle takes a while."""

    device, batch_size, updates_per_step = CPU, 1, 1

    def __init__(self, cycle_s: float) -> None:
        self._cycle_s = cycle_s

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        zeros = torch.zeros(len(obs), 1)
        return ActOutput(zeros, zeros, zeros[:, 0])

    def random_actions(self, rows: int) -> Tensor:
        return torch.zeros(rows, 1)

    def observe(self, obs: Tensor, critic_obs: Tensor) -> None:
        pass

    def observe_rewards(self, reward: Tensor, ended: Tensor) -> None:
        pass

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        sleep(self._cycle_s)
        return {}


@pytest.mark.parametrize(
    ("collect_s", "learn_s", "limit"),
    [(0.12, 0.04, 1.05), (0.04, 0.12, 1.05), (0.06, 0.06, 1.15)],
    ids=["3:1", "1:3", "1:1"],
)
def test_in_lockstep_a_tick_takes_as_long_as_the_slower_side(
    tmp_path: Path, collect_s: float, learn_s: float, limit: float
) -> None:
    built = built_task("cartpole", *WORDS, "learners.sac.batch_size=1")
    slowest, count = max(collect_s, learn_s), 12
    with sleeping_pipeline(collect_s, 0.0, groups=1, overlap=True) as pipeline:
        learner: Any = SleepingLearner(learn_s)
        settings: Any = learner_settings(built.config)
        run = OffPolicyRun(
            tmp_path, pipeline, learner, make_replay(built, pipeline.num_envs, CPU),
            Recorder(tmp_path, total_iterations=1, tensorboard=False), Progress(),
            settings, torch.Generator(), Timers(), learner.cycle,
        )  # fmt: skip
        run.restore({})
        ticks(run, 8)  # warm
        for _ in range(ATTEMPTS):  # the machine may be busy with something else for a moment
            begin = perf_counter()
            ticks(run, count)
            found = (perf_counter() - begin) / count
            if found <= limit * slowest:
                break
    assert slowest <= found <= limit * slowest
