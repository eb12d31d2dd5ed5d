"""The loop of an off-policy learner: step the envs, keep what happened, learn from what is kept.

A *tick* is one control step of all envs and one cycle of the learner. Three schedules::

    sync      act, step, keep, learn (from what was just kept too)
    lockstep  act, then step and learn side by side, then keep: what a tick brought is learned from
              one tick later, so neither waits for the other
    free      act and step on a thread of its own, some ticks ahead: see `free_off_policy`

With `runtime.overlap` the two sides of a lockstep tick run at the same time; without, one after the
other. Both give the same bits: they share nothing until both are done.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from unilab.buffers.replay import Replay
from unilab.config.off_policy import ReplayConfig
from unilab.learners.capture import Cycle
from unilab.learners.off_policy import OffPolicyLearner
from unilab.learners.state import restore_stream, stream_state
from unilab.record import Recorder
from unilab.runners import checkpoint as checkpoints
from unilab.runners.checkpoint import Checkpoint, Progress
from unilab.runners.interrupt import Interrupt
from unilab.runners.non_finite import NON_FINITE, NonFiniteWatch
from unilab.runners.on_policy import is_complete, smooth_score
from unilab.runtime.pipeline import Pipeline, Transitions
from unilab.runtime.thread_names import COLLECTOR
from unilab.runtime.timers import Timers

OUTCOMES = ("reward", "terminated", "truncated")  # what `keep` takes of all envs at once


@dataclass
class OffPolicyRun:
    """All parts of a run, built and ready.

    Attributes:
      settings: the learner's block of the config.
      sampler: draws what is learned from.
      timers: of the main line; the pipeline's own are those of the collecting side.
      cycle: the learner's cycle, as it is or recorded.
      ticks: done in the iteration that goes on.
      refused: () updates refused since the last row of the log.
      learned: the batch of the last update, by name.
    """

    run_dir: Path
    pipeline: Pipeline
    learner: OffPolicyLearner
    replay: Replay
    recorder: Recorder
    progress: Progress
    settings: ReplayConfig
    sampler: torch.Generator
    timers: Timers
    cycle: Cycle
    ticks: int = 0
    refused: Tensor | float = 0.0
    learned: dict[str, Tensor] = field(default_factory=dict)

    @property
    def is_warm(self) -> bool:
        """Whether there is enough to learn from: the policy acts, and learns."""
        return self.replay.committed >= self.settings.warmup_steps

    def checkpoint(self) -> Checkpoint:
        """Take a checkpoint; no step may be in flight."""
        config = self.pipeline.built.config
        runner = self.runner_state()
        if config.checkpoint.replay:
            runner["replay"] = self.replay.state_dict()
        return Checkpoint(
            config, replace(self.progress), self.learner.state_dict(),
            self.pipeline.state_dict(), runner,
        )  # fmt: skip

    def runner_state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the learner, the pipeline and the buffer."""
        return {
            "sampler": stream_state(self.sampler), "ticks": self.ticks,
            "refused": float(self.refused),
        }  # fmt: skip

    def restore(self, runner: Mapping[str, Any]) -> None:
        """Take up what `checkpoint` put beside the learner and the pipeline.

        Without a saved buffer, or with checkpoint.replay off, an empty one goes on with what the
        envs show now; learning waits until it has its first steps.
        """
        if "ticks" in runner:
            self.ticks, self.refused = int(runner["ticks"]), float(runner["refused"])
            seed = self.sampler.initial_seed() + self.progress.env_steps
            restore_stream(self.sampler, runner["sampler"], seed)
        if "replay" in runner and self.pipeline.built.config.checkpoint.replay:
            self.replay.load_state_dict(runner["replay"])
        else:
            self.show_first()

    def show_first(self) -> None:
        """Write the observations that the first actions are for."""
        for group, envs in enumerate(self.pipeline.groups):
            self.replay.set_first(*self.pipeline.observe(group), envs.start, envs.stop)


class Ticks(Protocol):
    """What makes the ticks of a run, by one of the schedules."""

    def tick(self) -> dict[str, Tensor] | None:
        """Keep one control step of all envs and make one cycle. Returns the cycle's metrics."""
        ...

    def still(self) -> AbstractContextManager[None]:
        """Hold the envs between two control steps; `tick` still works while there are `pending`."""
        ...

    @property
    def pending(self) -> int:
        """Control steps that are done and not kept yet."""
        ...

    def take_metrics(self) -> dict[str, float]:
        """What the schedule has to say since the last call."""
        ...


def run_off_policy(run: OffPolicyRun, interrupt: Interrupt) -> None:
    """Train in sync or in lockstep; see `TickLoop`."""
    with _InTurn(run) as ticks:
        TickLoop(run, ticks).run(interrupt)


class TickLoop:
    """Trains a run until the last iteration, the time limit, or an interrupt.

    An iteration is `num_steps` ticks. A checkpoint is written every `checkpoint.every` iterations
    and at the end, whatever the end is; an interrupt ends the tick, not the iteration.

    Args:
      run: all parts; its progress goes on.
      ticks: makes the ticks.
    """

    def __init__(self, run: OffPolicyRun, ticks: Ticks) -> None:
        self._run, self._ticks = run, ticks
        self._begin = perf_counter() - run.progress.wall_s
        self._watch = NonFiniteWatch(run.run_dir, run.pipeline.built.config)
        self._saved_at = run.progress.iteration
        self._metrics: dict[str, Tensor] = {}

    def run(self, interrupt: Interrupt) -> None:
        """Train.

        Raises:
          UnilabError: physics or numerics failed beyond repair; the last checkpoint is good.
        """
        run, config = self._run, self._run.pipeline.built.config
        run.timers.take()
        run.pipeline.timers.take()
        while not (is_complete(config.train, run.progress) or interrupt.requested):
            before = run.progress.iteration
            self._advance()
            now = run.progress.iteration
            due = now > before and now % config.checkpoint.every == 0
            if due and self._watch.trusts(run.refused):
                self._save()
        if self._saved_at < run.progress.iteration or run.ticks:
            self._watch.check_end(
                run.progress.iteration, self._metrics, run.learner.state_dict, run.learned
            )
            self._save()

    def _advance(self) -> None:
        """Make a tick; where it ends an iteration, write down how that went."""
        run, progress = self._run, self._run.progress
        self._metrics = self._ticks.tick() or self._metrics
        run.ticks += 1
        progress.env_steps += run.pipeline.num_envs
        progress.wall_s = perf_counter() - self._begin
        if run.ticks < run.settings.num_steps:
            return
        run.ticks = 0
        progress.iteration += 1
        config = run.pipeline.built.config
        if is_complete(config.train, progress) or progress.iteration % config.log.every == 0:
            with run.timers.span("log"):
                self._log()

    def _log(self) -> None:
        run, iteration = self._run, self._run.progress.iteration
        with self._ticks.still():
            log = _read_log(run, self._metrics) | self._ticks.take_metrics()
            times = _take_times(run)
        run.recorder.write(iteration, log, times)
        self._watch.check(iteration, log, run.learner.state_dict, run.learned)

    def _save(self) -> None:
        """Write a checkpoint in which envs, buffer and learner are at the same control step."""
        with self._ticks.still():
            while self._ticks.pending:
                self._advance()
            with self._run.timers.span("checkpoint"):
                save(self._run)
        self._saved_at = self._run.progress.iteration


def save(run: OffPolicyRun) -> None:
    """Write a checkpoint of a run between two ticks."""
    checkpoint = run.checkpoint()
    checkpoints.save(run.run_dir, checkpoint, keep=run.pipeline.built.config.checkpoint.keep)
    run.progress.best_score = checkpoint.progress.best_score


class _InTurn:
    """Ticks in sync or in lockstep: a control step is begun and ended in the same tick."""

    pending = 0

    def __init__(self, run: OffPolicyRun) -> None:
        self._run, self._collector = run, _Collector(run.pipeline)

    def __enter__(self) -> _InTurn:
        return self

    def __exit__(self, *_error: object) -> None:
        self._collector.close()

    def tick(self) -> dict[str, Tensor] | None:
        """As `Ticks`."""
        run, collector = self._run, self._collector
        timers, lockstep = run.timers, run.settings.schedule == "lockstep"
        with timers.span("policy", busy="policy"):
            actions = choose(run.pipeline, run.learner, random=not run.is_warm)
        with timers.span("collect"):
            stepping = collector.start(actions)
        metrics = learn(run) if lockstep else None
        with timers.span("collect"):
            steps = stepping.result()
        with timers.span("buffer"):
            arrays = run.pipeline.arrays
            keep(run, steps, *(arrays[f"{name}_out"] for name in OUTCOMES))
        return metrics if lockstep else learn(run)

    def still(self) -> AbstractContextManager[None]:
        """As `Ticks`. Between two ticks they are."""
        return nullcontext()

    def take_metrics(self) -> dict[str, float]:
        """As `Ticks`."""
        return {}


def choose(pipeline: Pipeline, policy: OffPolicyLearner, *, random: bool) -> NDArray[np.float32]:
    """Return actions (N, A) for what all envs show now, of the policy or all over its range."""
    if random:
        action = policy.random_actions(pipeline.num_envs)
    else:
        obs = torch.from_numpy(pipeline.arrays["obs_out"])
        action = policy.act(obs.to(policy.device, non_blocking=True)).action
    return pipeline.actions.fetch(slice(0, pipeline.num_envs), action)


def step_all(pipeline: Pipeline, actions: NDArray[np.float32]) -> list[Transitions]:
    """Make a control step of all groups with the actions (N, A)."""
    for group, envs in enumerate(pipeline.groups):
        pipeline.submit(group, actions[envs])
    return [pipeline.finish(group) for group in range(len(pipeline.groups))]


def learn(run: OffPolicyRun) -> dict[str, Tensor] | None:
    """Make the updates of a tick, once there is enough to learn from."""
    if not run.is_warm or run.replay.num_starts == 0:
        return None
    with run.timers.span("learn", busy="learner"):
        count = run.learner.updates_per_step * run.learner.batch_size
        batch = run.replay.sample(count, run.sampler)
        metrics = run.cycle(batch)
        run.learned = batch._asdict()
        run.refused = run.refused + metrics.get(NON_FINITE, 0.0)
        return metrics


def keep(
    run: OffPolicyRun,
    steps: Sequence[Transitions],
    reward: NDArray[np.float32],
    terminated: NDArray[np.uint8],
    truncated: NDArray[np.uint8],
) -> None:
    """Keep a control step of all envs in the buffer and in the learner's statistics.

    Args:
      run: all parts.
      steps: of each group.
      reward, terminated, truncated: (N,) the same of all envs, f32 and u8.
    """
    for step in steps:
        _keep_group(run, step)
    run.replay.commit()
    ended = (terminated | truncated).view(np.bool_)
    run.learner.observe_rewards(run.replay.bring(reward), run.replay.bring(ended))


def _keep_group(run: OffPolicyRun, step: Transitions) -> None:
    """Append a group's transitions, and take their observations into the statistics."""
    obs, critic_obs = (run.replay.bring(rows) for rows in (step.obs, step.critic_obs))
    run.replay.append(
        step.start,
        step.stop,
        action=_finite(step),
        reward=step.reward,
        terminated=step.terminated.view(np.bool_),
        truncated=step.truncated.view(np.bool_),
        final_obs=step.final_obs,
        final_critic_obs=step.final_critic_obs,
        next_obs=obs,
        next_critic_obs=critic_obs,
    )
    run.learner.observe(obs, critic_obs)


def _finite(step: Transitions) -> NDArray[np.float32]:
    """Put 0 where an action was not finite: the env ran with 0, and NaN stays out of the buffer."""
    if not len(step.bad_action_ids):
        return step.action
    action = step.action.copy()
    action[step.bad_action_ids - step.start] = 0.0
    return action


class _Collector:
    """Steps all envs once, on a thread of its own where the plan lets things overlap."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._thread = ThreadPoolExecutor(1, COLLECTOR) if pipeline.plan.overlap else None

    def close(self) -> None:
        """Release the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def start(self, actions: NDArray[np.float32]) -> Future[list[Transitions]]:
        """Begin a control step of all groups with the actions (N, A)."""
        if self._thread is not None:
            return self._thread.submit(step_all, self._pipeline, actions)
        done: Future[list[Transitions]] = Future()
        done.set_result(step_all(self._pipeline, actions))
        return done


def _read_log(run: OffPolicyRun, metrics: dict[str, Tensor]) -> dict[str, float]:
    """Read the envs' statistics and, once, the learner's metrics from its device."""
    log = run.pipeline.take_log()
    log.update({name: float(value) for name, value in metrics.items()})
    log[NON_FINITE], run.refused = float(run.refused), 0.0
    smooth_score(run.progress, log)
    log["counter/env_steps"] = float(run.progress.env_steps)
    log["replay/transitions"] = float(run.replay.filled * run.pipeline.num_envs)
    log["replay/dropped"] = float(run.replay.dropped)
    log["replay/sample_age_mean"] = run.replay.mean_age
    log["replay/h2d_bytes"] = run.replay.take_traffic()
    log["system/rss_bytes"] = float(psutil.Process().memory_info().rss)
    return log


def _take_times(run: OffPolicyRun) -> dict[str, float]:
    """Return the main line's times, and what the collecting side was busy with."""
    return {**run.timers.take(), **run.pipeline.timers.take_busy()}
