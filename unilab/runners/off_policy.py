"""The loop of an off-policy learner: step the envs, keep what happened, learn from what is kept.

A *tick* is one control step of all envs and one cycle of the learner. Two schedules::

    sync      act, step, keep, learn (from what was just kept too)
    lockstep  act, then step and learn side by side, then keep: what a tick brought is learned from
              one tick later, so neither waits for the other

With `runtime.overlap` the two sides of a lockstep tick run at the same time; without, one after the
other. Both give the same bits: they share nothing until both are done.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from unilab.buffers.replay import Replay
from unilab.config.off_policy import ReplayConfig
from unilab.learners.capture import Cycle
from unilab.learners.off_policy import OffPolicyLearner
from unilab.record import Recorder
from unilab.runners import checkpoint as checkpoints
from unilab.runners.checkpoint import Checkpoint, Progress
from unilab.runners.interrupt import Interrupt
from unilab.runners.non_finite import NON_FINITE, NonFiniteWatch
from unilab.runners.on_policy import is_complete, smooth_score
from unilab.runtime.pipeline import Pipeline, Transitions
from unilab.runtime.thread_names import COLLECTOR
from unilab.runtime.timers import Timers


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

    def checkpoint(self) -> Checkpoint:
        """Take a checkpoint; no step may be in flight."""
        config = self.pipeline.built.config
        runner: dict[str, Any] = {
            "sampler": self.sampler.get_state(), "ticks": self.ticks,
            "refused": float(self.refused),
        }  # fmt: skip
        if config.checkpoint.replay:
            runner["replay"] = self.replay.state_dict()
        return Checkpoint(
            config, replace(self.progress), self.learner.state_dict(),
            self.pipeline.state_dict(), runner,
        )  # fmt: skip

    def restore(self, runner: Mapping[str, Any]) -> None:
        """Take up what `checkpoint` put beside the learner and the pipeline.

        Without a saved buffer, or with checkpoint.replay off, an empty one goes on with what the
        envs show now; learning waits until it has its first steps.
        """
        if "ticks" in runner:
            self.ticks, self.refused = int(runner["ticks"]), float(runner.get("refused", 0.0))
            if self.sampler.device.type == "cpu":
                self.sampler.set_state(runner["sampler"].cpu())
        if "replay" in runner and self.pipeline.built.config.checkpoint.replay:
            self.replay.load_state_dict(runner["replay"])
        else:
            self.show_first()

    def show_first(self) -> None:
        """Write the observations that the first actions are for."""
        for group, envs in enumerate(self.pipeline.groups):
            self.replay.set_first(*self.pipeline.observe(group), envs.start, envs.stop)


def run_off_policy(run: OffPolicyRun, interrupt: Interrupt) -> None:
    """Train until the last iteration, the time limit, or an interrupt.

    An iteration is `num_steps` ticks. A checkpoint is written every `checkpoint.every` iterations
    and at the end, whatever the end is; an interrupt ends the tick, not the iteration.

    Raises:
      UnilabError: physics or numerics failed beyond repair; the last checkpoint is good.
    """
    config, progress, num_steps = run.pipeline.built.config, run.progress, run.settings.num_steps
    begin = perf_counter() - progress.wall_s
    watch, saved_at = NonFiniteWatch(run.run_dir, config), progress.iteration
    run.timers.take()
    run.pipeline.timers.take()
    metrics: dict[str, Tensor] = {}
    with _Collector(run.pipeline) as collector:
        while not (is_complete(config.train, progress) or interrupt.requested):
            metrics = tick(run, collector) or metrics
            run.ticks += 1
            progress.env_steps += run.pipeline.num_envs
            progress.wall_s = perf_counter() - begin
            if run.ticks < num_steps:
                continue
            run.ticks = 0
            progress.iteration += 1
            with run.timers.span("log"):
                if is_complete(config.train, progress) or (
                    progress.iteration % config.log.every == 0
                ):
                    log = _read_log(run, metrics)
                    run.recorder.write(progress.iteration, log, _take_times(run))
                    watch.check(progress.iteration, log, run.learner.state_dict, run.learned)
            if progress.iteration % config.checkpoint.every == 0 and watch.trusts(run.refused):
                with run.timers.span("checkpoint"):
                    save(run)
                saved_at = progress.iteration
    if saved_at < progress.iteration or run.ticks:
        watch.check_end(progress.iteration, metrics, run.learner.state_dict, run.learned)
        save(run)


def save(run: OffPolicyRun) -> None:
    """Write a checkpoint of a run between two ticks."""
    checkpoint = run.checkpoint()
    checkpoints.save(run.run_dir, checkpoint, keep=run.pipeline.built.config.checkpoint.keep)
    run.progress.best_score = checkpoint.progress.best_score


def tick(run: OffPolicyRun, collector: _Collector) -> dict[str, Tensor] | None:
    """One control step of all envs and one cycle of the learner. Returns the cycle's metrics."""
    timers, lockstep = run.timers, run.settings.schedule == "lockstep"
    with timers.span("policy", busy="policy"):
        actions = _act(run)
    with timers.span("collect"):
        stepping = collector.start(actions)
    metrics = _learn(run) if lockstep else None
    with timers.span("collect"):
        steps = stepping.result()
    with timers.span("buffer"):
        for step in steps:
            _keep(run, step)
        run.replay.commit()
        _observe_rewards(run)
    return metrics if lockstep else _learn(run)


def _act(run: OffPolicyRun) -> NDArray[np.float32]:
    """Return the actions (N, A) of all envs: at random until there is enough to learn from."""
    pipeline, learner = run.pipeline, run.learner
    if _is_warm(run):
        obs = torch.from_numpy(pipeline.arrays["obs_out"]).to(learner.device, non_blocking=True)
        action = learner.act(obs).action
    else:
        action = learner.random_actions(pipeline.num_envs)
    return pipeline.actions.fetch(slice(0, pipeline.num_envs), action)


def _is_warm(run: OffPolicyRun) -> bool:
    return run.replay.committed >= run.settings.warmup_steps


def _learn(run: OffPolicyRun) -> dict[str, Tensor] | None:
    """Make the updates of a tick, once there is enough to learn from."""
    if not _is_warm(run) or run.replay.num_starts == 0:
        return None
    with run.timers.span("learn", busy="learner"):
        count = run.learner.updates_per_step * run.learner.batch_size
        batch = run.replay.sample(count, run.sampler)
        metrics = run.cycle(batch)
        run.learned = batch._asdict()
        run.refused = run.refused + metrics.get(NON_FINITE, 0.0)
        return metrics


def _keep(run: OffPolicyRun, step: Transitions) -> None:
    """Append a group's transitions, and take their observations into the statistics."""
    run.replay.append(
        step.start,
        step.stop,
        action=_finite(step),
        reward=step.reward,
        terminated=step.terminated.view(np.bool_),
        truncated=step.truncated.view(np.bool_),
        final_obs=step.final_obs,
        final_critic_obs=step.final_critic_obs,
        next_obs=step.obs,
        next_critic_obs=step.critic_obs,
    )
    device = run.learner.device
    run.learner.observe(
        *(torch.from_numpy(rows).to(device, non_blocking=True)
          for rows in (step.obs, step.critic_obs))
    )  # fmt: skip


def _observe_rewards(run: OffPolicyRun) -> None:
    """Show the learner the rewards of all envs."""
    arrays, device = run.pipeline.arrays, run.learner.device
    ended = (arrays["terminated_out"] | arrays["truncated_out"]).view(np.bool_)
    run.learner.observe_rewards(
        torch.from_numpy(arrays["reward_out"]).to(device, non_blocking=True),
        torch.from_numpy(ended).to(device, non_blocking=True),
    )


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

    def __enter__(self) -> _Collector:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def start(self, actions: NDArray[np.float32]) -> Future[list[Transitions]]:
        """Begin a control step of all groups with the actions (N, A)."""
        if self._thread is not None:
            return self._thread.submit(self._step, actions)
        done: Future[list[Transitions]] = Future()
        done.set_result(self._step(actions))
        return done

    def _step(self, actions: NDArray[np.float32]) -> list[Transitions]:
        pipeline = self._pipeline
        for group, envs in enumerate(pipeline.groups):
            pipeline.submit(group, actions[envs])
        return [pipeline.finish(group) for group in range(len(pipeline.groups))]


def _read_log(run: OffPolicyRun, metrics: dict[str, Tensor]) -> dict[str, float]:
    """Read the envs' statistics and, once, the learner's metrics from its device."""
    log = run.pipeline.take_log()
    log.update({name: float(value) for name, value in metrics.items()})
    log[NON_FINITE], run.refused = float(run.refused), 0.0
    smooth_score(run.progress, log)
    log["counter/env_steps"] = float(run.progress.env_steps)
    log["replay/transitions"] = float(run.replay.filled * run.pipeline.num_envs)
    log["replay/dropped"] = float(run.replay.dropped)
    log["system/rss_bytes"] = float(psutil.Process().memory_info().rss)
    return log


def _take_times(run: OffPolicyRun) -> dict[str, float]:
    """Return the main line's times, and what the collecting side was busy with."""
    collecting = run.pipeline.timers.take()
    busy = {name: value for name, value in collecting.items() if name.startswith("busy/")}
    return {**run.timers.take(), **busy}
