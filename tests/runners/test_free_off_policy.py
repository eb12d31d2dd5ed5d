"""schedule=free: what may depend on timing, and what may not."""

from __future__ import annotations

import random
import signal
import traceback
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runners.support import (
    EXIT_DEADLINE_S,
    TINY,
    Process,
    cli,
    last_checkpoint,
    metrics,
    only_run,
    train,
)
from tests.runners.test_off_policy import WORDS, assert_equal
from tests.runtime.support import built_task, plan
from tests.runtime.test_overlap import ATTEMPTS, sleeping_pipeline
from unilab.buffers.batch import Batch
from unilab.buffers.replay_spec import SPARE_SLOTS
from unilab.learners.base import ActOutput
from unilab.learners.capture import CycleRunner
from unilab.record import Recorder
from unilab.runners.build import learner_settings, make_pipeline, make_replay
from unilab.runners.checkpoint import Progress, load
from unilab.runners.free_off_policy import FreeOffPolicyRun, _Ahead, _collector, run_free_off_policy
from unilab.runners.interrupt import Interrupt
from unilab.runners.off_policy import OffPolicyRun, run_off_policy
from unilab.runs import find_checkpoint
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.timers import Timers

CPU = torch.device("cpu")
NUM_ENVS, NUM_STEPS, ITERATIONS, WARMUP = 128, 8, 12, 4
FREE = (*WORDS, "learners.sac.schedule=free", f"train.iterations={ITERATIONS}")


class Steady:
    """A learner whose policy never changes, so that what the envs do cannot depend on timing.

    Both sides take as long as `pause` says. The policy is published as a number that must be that
    of the cycles made, and never half written.
    """

    device, batch_size, updates_per_step, phase, updates = CPU, 64, 2, 0, 0

    def __init__(self, pause: Any = lambda _side: None) -> None:
        self._pause = pause
        self.policy = torch.zeros(2)
        self.seen: list[float] = []
        self.rewards: list[float] = []

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        first, _ = self.policy.tolist()
        self._pause("collect")
        assert self.policy.tolist() == [first, first], "the policy changed while it acted"
        action = torch.sin(3.0 * obs.sum(-1, keepdim=True))
        return ActOutput(action, action, action[:, 0])

    def random_actions(self, rows: int) -> Tensor:
        return torch.full((rows, 1), 0.5)

    def snapshot(self, generator: torch.Generator) -> Self:
        twin = type(self)(self._pause)
        twin.policy = self.policy.clone()
        return twin

    def publish(self, snapshot: Self) -> None:
        snapshot.policy[0] = self.updates
        self._pause("learn")
        snapshot.policy[1] = self.updates

    def observe(self, obs: Tensor, critic_obs: Tensor) -> None:
        self.seen.append(obs.double().sum().item())

    def observe_rewards(self, reward: Tensor, ended: Tensor) -> None:
        self.rewards.append(reward.double().sum().item() + ended.sum().item())

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        self._pause("learn")
        self.updates += self.updates_per_step
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates}


def random_pauses(seed: int) -> Any:
    """Pauses of up to 2 ms, of each side by itself."""
    draws = {"collect": random.Random(seed), "learn": random.Random(seed + 1)}

    def pause(side: str) -> None:
        sleep(draws[side].choice((0.0, 0.0, 0.0002, 0.002)))

    return pause


def make_run(
    folder: Path, learner: Any, *words: str, pipeline: Pipeline | None = None
) -> OffPolicyRun:
    """A run of the schedule that the words say."""
    built = built_task("cartpole", *FREE, *words)
    if pipeline is None:
        pipeline = make_pipeline(built, plan(groups=2), seed=3, num_envs=NUM_ENVS)
        pipeline.reset()
    (folder / "checkpoints").mkdir(parents=True)
    settings: Any = learner_settings(built.config)
    common = (
        folder, pipeline, learner, make_replay(built, pipeline.num_envs, CPU),
        Recorder(folder, total_iterations=100, tensorboard=False), Progress(),
        settings, torch.Generator().manual_seed(3), Timers(), CycleRunner(learner, "off"),
    )  # fmt: skip
    free = settings.schedule == "free"
    run = FreeOffPolicyRun(*common, acting=torch.Generator()) if free else OffPolicyRun(*common)
    run.restore({})
    return run


def assert_as_in_turn(folder: Path, max_lag: int, *words: str) -> None:
    """Whatever the delays, envs, buffer and what the learner is shown are those of sync."""
    wanted = make_run(folder / "sync", Steady(), "learners.sac.schedule=sync", *words)
    run_off_policy(wanted, Interrupt())
    lag = f"learners.sac.max_lag={max_lag}"
    learner = Steady(random_pauses(max_lag))
    run = make_run(folder / "free", learner, lag, "checkpoint.every=1", *words)
    assert isinstance(run, FreeOffPolicyRun)
    run_free_off_policy(run, Interrupt())
    ticks = run.pipeline.built.config.train.iterations * NUM_STEPS
    assert run.replay.committed == ticks
    assert run.progress.env_steps == ticks * NUM_ENVS
    assert learner.updates == 2 * (ticks - WARMUP + 1)  # with the step that brings the fourth
    assert learner.seen == wanted.learner.seen  # type: ignore[attr-defined]
    assert learner.rewards == wanted.learner.rewards  # type: ignore[attr-defined]
    assert_equal(run.replay.state_dict(), wanted.replay.state_dict())
    there, here = wanted.pipeline.state_dict(), run.pipeline.state_dict()
    assert_equal(here, there)
    logs = metrics(folder / "free")
    assert len(logs) == ticks // NUM_STEPS
    assert 0 <= max(log["handover/lag_max"] for log in logs) <= max_lag
    for name in ("episode/ended", "episode/return", "reward/total"):
        # Which step a row of the log ends with depends on timing; none is lost.
        assert all(name in log for log in logs[5:])
    ended = [
        sum(log["episode/ended"] for log in metrics(folder / kind)) for kind in ("free", "sync")
    ]
    assert ended[0] == ended[1] > 100


@pytest.mark.parametrize("max_lag", [1, 2, 5])
def test_no_step_is_torn_lost_or_repeated_whatever_the_delays(tmp_path: Path, max_lag: int) -> None:
    assert_as_in_turn(tmp_path, max_lag)


@pytest.mark.slow
def test_no_step_is_torn_lost_or_repeated_in_very_many(tmp_path: Path) -> None:
    assert_as_in_turn(tmp_path, 2, "train.iterations=2500", "learners.sac.replay_capacity=20000")


class Recording:
    """A cycle that makes a recording in every third call, and takes a while."""

    def __init__(self, steps: list[int]) -> None:
        self._steps, self.calls = steps, 0

    @property
    def records_next(self) -> bool:
        return self.calls % 3 == 0

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        alone, before = self.records_next, len(self._steps)
        self.calls += 1
        sleep(0.005)
        if alone:
            assert len(self._steps) == before, "the envs went on"
        return {}


def test_while_a_graph_is_recorded_the_envs_stand_still(tmp_path: Path) -> None:
    steps: list[int] = []
    run = make_run(tmp_path, Steady(lambda side: steps.append(1) if side == "collect" else None))
    assert isinstance(run, FreeOffPolicyRun)
    cycle: Any = Recording(steps)
    run.cycle = cycle
    run_free_off_policy(run, Interrupt())
    assert cycle.calls == ITERATIONS * NUM_STEPS - WARMUP + 1


class Sleeping(Steady):
    """A learner whose cycle takes a while, from the first tick on."""

    batch_size, updates_per_step = 1, 1

    def __init__(self, cycle_s: float) -> None:
        super().__init__()
        self._cycle_s = cycle_s

    def snapshot(self, generator: torch.Generator) -> Self:
        return type(self)(self._cycle_s)

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        action = torch.zeros(len(obs), 1)
        return ActOutput(action, action, action[:, 0])

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        sleep(self._cycle_s)
        return {}


@pytest.mark.parametrize(
    ("collect_s", "learn_s", "limit"),
    [(0.12, 0.04, 1.05), (0.04, 0.12, 1.05), (0.06, 0.06, 1.15)],
    ids=["3:1", "1:3", "1:1"],
)
def test_a_tick_takes_as_long_as_the_slower_side(
    tmp_path: Path, collect_s: float, learn_s: float, limit: float
) -> None:
    slowest, count = max(collect_s, learn_s), 12
    with sleeping_pipeline(collect_s, 0.0, groups=1, overlap=False) as pipeline:
        words = ("train.iterations=1000", "learners.sac.batch_size=1")
        run = make_run(tmp_path, Sleeping(learn_s), *words, pipeline=pipeline)
        assert isinstance(run, FreeOffPolicyRun)
        with _collector(run) as running:
            ticks = _Ahead(run, running)
            for _ in range(8):  # warm
                ticks.tick()
            for _ in range(ATTEMPTS):  # the machine may be busy with something else for a moment
                begin = perf_counter()
                for _ in range(count):
                    ticks.tick()
                found = (perf_counter() - begin) / count
                if found <= limit * slowest:
                    break
    # What was ready at the beginning is the tick that may be missing.
    assert slowest * (count - 2) / count <= found <= limit * slowest


class Faulty(Steady):
    """Fails in a thread's 30th turn."""

    def __init__(self, pause: Any = lambda _side: None, where: str = "") -> None:
        super().__init__(pause)
        self.where, self.turns = where, 0

    def _turn(self, where: str) -> None:
        self.turns += self.where == where
        if self.turns == 30:
            raise ValueError(f"broken in {where}")

    def snapshot(self, generator: torch.Generator) -> Self:
        twin = super().snapshot(generator)
        twin.where = self.where
        return twin

    def act(self, obs: Tensor, explore: bool = True) -> ActOutput:
        self._turn("act")
        return super().act(obs, explore)

    def cycle(self, batch: Batch) -> dict[str, Tensor]:
        self._turn("cycle")
        return super().cycle(batch)


@pytest.mark.parametrize("where", ["act", "cycle"])
def test_an_error_of_either_side_ends_the_run_with_its_traceback(
    tmp_path: Path, where: str
) -> None:
    run = make_run(tmp_path, Faulty(where=where))
    assert isinstance(run, FreeOffPolicyRun)
    with pytest.raises(ValueError, match=f"broken in {where}") as caught:
        run_free_off_policy(run, Interrupt())
    frames = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert where in frames


def test_the_time_limit_ends_the_tick_and_saves_all_that_was_stepped(tmp_path: Path) -> None:
    words = ("train.iterations=1000", "train.max_time_s=0.3", "checkpoint.replay=true")
    run = make_run(tmp_path, Steady(lambda _side: sleep(0.01)), *words)
    assert isinstance(run, FreeOffPolicyRun)
    run_free_off_policy(run, Interrupt())
    ticks = run.progress.env_steps // NUM_ENVS
    assert 5 < ticks < 40
    assert run.replay.committed == ticks == run.progress.iteration * NUM_STEPS + run.ticks
    saved = load(find_checkpoint(tmp_path))
    assert saved.runner["replay"]["committed"] == ticks
    assert_in_step(saved.runner["replay"], saved.pipeline)


def test_an_interrupt_before_the_first_tick_leaves_nothing_behind(tmp_path: Path) -> None:
    run, interrupt = make_run(tmp_path, Steady()), Interrupt()
    assert isinstance(run, FreeOffPolicyRun)
    interrupt.requested = True
    run_free_off_policy(run, interrupt)
    assert run.progress.env_steps == run.replay.committed == 0
    assert list((tmp_path / "checkpoints").iterdir()) == []


def assert_in_step(replay: dict[str, Any], pipeline: dict[str, Any]) -> None:
    """The row that the next action goes to shows what the envs show."""
    obs = np.asarray(pipeline["arrays"]["obs_out"])
    slots = int(replay["layout"]["replay_capacity"]) + SPARE_SLOTS
    start = int(replay["committed"]) % slots * len(obs)
    kept = replay["rows"][start : start + len(obs), : obs.shape[1]].numpy()
    assert np.array_equal(kept, obs)


# Of each learner, small, with episodes of 20 control steps.
SMALL: dict[str, tuple[str, ...]] = {
    "sac": ("actor_hidden=[16]", "critic_hidden=[16]", "actor_every=2"),
    "td3": ("actor_hidden=[16]", "critic_hidden=[16]", "actor_every=2"),
    "flashsac": ("actor_width=8", "critic_width=8"),
}


def small_words(kind: str, *more: str) -> tuple[str, ...]:
    values = ("schedule=free", "num_steps=5", "batch_size=32", "updates_per_step=2", "n_steps=2",
              "replay_capacity=30", "warmup_steps=4", *SMALL[kind], *more)  # fmt: skip
    return (f"learner={kind}", *(f"learners.{kind}.{value}" for value in values),
            "checkpoint.replay=true", "runtime.learner_threads=1")  # fmt: skip


def assert_exact(run: Path, iterations: int, *, max_lag: int) -> None:
    """The last checkpoint has every tick once, and the updates that belong to it."""
    state = last_checkpoint(run)
    ticks = iterations * 5
    assert state["progress"]["iteration"] == iterations
    assert state["progress"]["env_steps"] == ticks * 8
    assert state["runner"]["replay"]["committed"] == ticks
    assert state["runner"]["ticks"] == 0
    assert state["learner"]["updates"] == 2 * (ticks - 3)
    assert_in_step(state["runner"]["replay"], state["pipeline"])
    logs = metrics(run)
    assert len(logs) == iterations
    assert all(0 <= log["handover/lag_max"] <= max_lag for log in logs)


@pytest.mark.parametrize("kind", SMALL)
def test_a_run_and_its_continuation_count_every_step_once(tmp_path: Path, kind: str) -> None:
    words = small_words(kind, "max_lag=3")
    run = train(tmp_path, *words, "train.iterations=6", "checkpoint.every=2")
    assert_exact(run, 6, max_lag=3)
    outcome = cli("train", "--resume", "latest", "train.iterations=9", cwd=tmp_path)
    assert outcome.code == 0, outcome
    assert_exact(run, 9, max_lag=3)
    assert sum(log["handover/rollouts"] for log in metrics(run)) == 9 * 5


def test_an_interrupted_run_ends_soon_and_goes_on(tmp_path: Path) -> None:
    words = (*small_words("td3"), "train.iterations=100000")
    process = Process("train", "cartpole", *TINY, *words, cwd=tmp_path)
    process.wait_for_iteration(4)
    process.popen.send_signal(signal.SIGINT)
    process.wait_for("everything is saved", EXIT_DEADLINE_S)
    process.popen.wait(60.0)
    outcome = process.outcome()
    assert outcome.code == 130, outcome
    assert "Traceback" not in outcome.out + outcome.err
    state = last_checkpoint(only_run(tmp_path))
    iteration = state["progress"]["iteration"]
    assert state["runner"]["replay"]["committed"] == 5 * iteration + state["runner"]["ticks"]
    assert_in_step(state["runner"]["replay"], state["pipeline"])
    more = f"train.iterations={iteration + 2}"
    assert cli("train", "--resume", "latest", more, cwd=tmp_path).code == 0
    assert_exact(only_run(tmp_path), iteration + 2, max_lag=2)
