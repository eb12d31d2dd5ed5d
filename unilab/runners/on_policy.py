"""The loop of an on-policy learner: collect a rollout, learn from it, log, save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil
import torch
from torch import Tensor

from unilab.buffers.rollout import Rollout
from unilab.config.schema import TrainConfig
from unilab.learners.base import ActOutput, Learner
from unilab.record import Recorder
from unilab.runners import checkpoint as checkpoints
from unilab.runners.checkpoint import Checkpoint, Progress
from unilab.runners.interrupt import Interrupt
from unilab.runners.non_finite import NON_FINITE, NonFiniteWatch
from unilab.runtime.pipeline import Pipeline, Transitions
from unilab.runtime.timers import Timers

SCORE_MEMORY = 0.9  # weight of the past in the smoothed return that "best" is judged by


@dataclass
class OnPolicyRun:
    """All parts of a run, built and ready."""

    run_dir: Path
    pipeline: Pipeline
    learner: Learner
    rollout: Rollout
    recorder: Recorder
    progress: Progress

    @property
    def timers(self) -> Timers:
        """Those of the main line: an on-policy loop is one with its pipeline."""
        return self.pipeline.timers

    def checkpoint(self) -> Checkpoint:
        """Take a complete checkpoint; no step may be in flight."""
        return Checkpoint(
            self.pipeline.built.config,
            replace(self.progress),
            self.learner.state_dict(),
            self.pipeline.state_dict(),
        )


def run_on_policy(run: OnPolicyRun, interrupt: Interrupt) -> None:
    """Train until the last iteration, the time limit, or an interrupt.

    A checkpoint is written every `checkpoint.every` iterations and at the end, whatever the end is,
    but never of a state that numbers which are not finite have come from.

    Args:
      run: all parts; its progress goes on.
      interrupt: asked after each iteration; knows the state at the start of each.

    Raises:
      UnilabError: physics or numerics failed beyond repair; the last checkpoint is good.
      KeyboardInterrupt: an interrupt cut an iteration short; see `Interrupt.cut_at`.
    """
    config = run.pipeline.built.config
    progress, timers, plan = run.progress, run.pipeline.timers, run.pipeline.plan
    begin = perf_counter() - progress.wall_s
    watch, saved_at = NonFiniteWatch(run.run_dir, config), progress.iteration
    metrics: dict[str, Tensor] = {}
    timers.take()
    while not (is_complete(config.train, progress) or interrupt.requested):
        with timers.span("snapshot"):
            interrupt.resume_point = run.checkpoint() if watch.is_calm else None
        if plan.overlap:  # the policy then acts beside physics, on what that leaves of the CPUs
            torch.set_num_threads(plan.acting)
        collect(run.pipeline, run.learner.act, run.rollout)
        if plan.overlap:
            torch.set_num_threads(plan.learner)
        with timers.span("learn", busy="learner"):
            metrics = run.learner.update(run.rollout)
        interrupt.resume_point = None  # from here on the state is that of a finished iteration
        progress.iteration += 1
        progress.env_steps += run.rollout.num_steps * run.pipeline.num_envs
        progress.wall_s = perf_counter() - begin
        with timers.span("log"):
            if is_complete(config.train, progress) or progress.iteration % config.log.every == 0:
                log = read_log(run, metrics)
                run.recorder.write(progress.iteration, log, timers.take())
                watch.check(progress.iteration, log, run.learner.state_dict, tensors(run.rollout))
        if progress.iteration % config.checkpoint.every == 0 and watch.trusts(metrics[NON_FINITE]):
            with timers.span("checkpoint"):
                save(run)
            saved_at = progress.iteration
        with timers.span("buffer"):
            run.rollout.carry_over()
    if saved_at < progress.iteration:
        watch.check_end(progress.iteration, metrics, run.learner.state_dict, tensors(run.rollout))
        save(run)


def save(run: OnPolicyRun) -> None:
    """Write a checkpoint of a run between two iterations."""
    checkpoint = run.checkpoint()
    checkpoints.save(run.run_dir, checkpoint, keep=run.pipeline.built.config.checkpoint.keep)
    run.progress.best_score = checkpoint.progress.best_score


def is_complete(train: TrainConfig, progress: Progress) -> bool:
    """True when the last iteration is done or the time is up."""
    out_of_time = train.max_time_s is not None and progress.wall_s >= train.max_time_s
    return out_of_time or progress.iteration >= train.iterations


def read_log(run: OnPolicyRun, metrics: dict[str, Tensor]) -> dict[str, float]:
    """Read the envs' statistics and, once, the learner's metrics from its device."""
    log = run.pipeline.take_log()
    log.update({name: float(value) for name, value in metrics.items()})
    smooth_score(run.progress, log)
    log["counter/env_steps"] = float(run.progress.env_steps)
    log["system/rss_bytes"] = float(psutil.Process().memory_info().rss)
    return log


def smooth_score(progress: Progress, log: dict[str, float]) -> None:
    """Take the return of the episodes that ended into the score that "best" is judged by."""
    if "episode/return" in log:
        new = log["episode/return"]
        old = progress.score if progress.score is not None else new
        progress.score = SCORE_MEMORY * old + (1.0 - SCORE_MEMORY) * new


def collect(
    pipeline: Pipeline,
    act: Callable[[Tensor], ActOutput],
    rollout: Rollout,
    check: Callable[[], None] | None = None,
) -> None:
    """Fill a rollout: T control steps of every group.

    While a group's physics is in flight (with overlap), the next group's kernel and policy run.
    At the end nothing is in flight.

    Args:
      pipeline: the envs.
      act: the policy, exploring.
      rollout: its row 0 is there, by `set_first` or `carry_over`.
      check: called before each control step, when nothing is in flight but steps that are begun;
        it may raise to end the rollout early.
    """
    groups, timers = range(len(pipeline.groups)), pipeline.timers
    outputs: list[ActOutput | None] = [None] * len(pipeline.groups)

    def start_step(t: int, group: int) -> None:
        envs = pipeline.groups[group]
        with timers.span("policy", busy="policy", group=group):
            output = act(rollout.obs[t, envs])
            action = pipeline.actions.fetch(envs, output.action)
        outputs[group] = output
        pipeline.submit(group, action)

    for group in groups:
        start_step(0, group)
    for t in range(rollout.num_steps):
        if check is not None:
            check()
        for group in groups:
            step = pipeline.finish(group)
            with timers.span("buffer", group=group):
                output = outputs[group]
                assert output is not None
                append(rollout, t, _without_bad_actions(output, step), step)
            if t + 1 < rollout.num_steps:
                start_step(t + 1, group)


def set_first(pipeline: Pipeline, rollout: Rollout) -> None:
    """Write the observations of the first step of training to row 0."""
    for group, envs in enumerate(pipeline.groups):
        obs, critic_obs = pipeline.observe(group)
        rollout.set_first(
            torch.from_numpy(obs), torch.from_numpy(critic_obs), envs.start, envs.stop
        )


def append(rollout: Rollout, t: int, output: ActOutput, step: Transitions) -> None:
    """Copy a group's transitions to step t of the rollout."""
    rollout.append(
        t,
        step.start,
        step.stop,
        action=output.action,
        mean=output.mean,
        log_prob=output.log_prob,
        reward=step.reward,
        terminated=step.terminated.view(np.bool_),
        truncated=step.truncated.view(np.bool_),
        final_critic_obs=step.final_critic_obs,
        next_obs=step.obs,
        next_critic_obs=step.critic_obs,
    )


def _without_bad_actions(output: ActOutput, step: Transitions) -> ActOutput:
    """Put 0 where an action was not finite: the env ran with 0, and NaN stays out of the batch."""
    if len(step.bad_action_ids) == 0:
        return output
    rows = torch.from_numpy(step.bad_action_ids - step.start).long().to(output.action.device)
    return ActOutput(*(part.index_fill(0, rows, 0.0) for part in output))


def tensors(rollout: Rollout) -> dict[str, Tensor]:
    """The tensors of a rollout, by name."""
    return {name: value for name, value in vars(rollout).items() if isinstance(value, Tensor)}
