"""The loop of `appo` with collection=free: rollouts are collected while the learner learns.

The collector's thread steps the envs with a copy of the policy and fills one rollout after the
other; the main line learns from each once. How far a rollout's policy is behind is bounded by
`max_lag` and logged. What is learned depends on timing; collection=sync is the reproducible form.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import cast

import torch
from torch import Tensor

from unilab.buffers.rollout import Rollout
from unilab.config.appo import APPOConfig
from unilab.learners.acting import GaussianSampler
from unilab.learners.appo import APPO
from unilab.runners.interrupt import Interrupt
from unilab.runners.non_finite import NON_FINITE, NonFiniteWatch
from unilab.runners.on_policy import (
    OnPolicyRun,
    collect,
    is_complete,
    read_log,
    save,
    set_first,
    tensors,
)
from unilab.runtime.free_running import FreeRunning
from unilab.runtime.timers import Timers


@dataclass
class FreeRun(OnPolicyRun):
    """An on-policy run whose rollouts take turns.

    Attributes:
      rollouts: all of them; `rollout` is the first.
      main: times of the main line; the pipeline's are those of the collector.
    """

    rollouts: list[Rollout]
    main: Timers

    @property
    def timers(self) -> Timers:
        """Those of the main line."""
        return self.main


def run_free(run: FreeRun, interrupt: Interrupt) -> None:
    """Train until the last iteration, the time limit, or an interrupt.

    Raises:
      UnilabError: physics or numerics failed beyond repair; the last checkpoint is good.
    """
    config, progress, timers = run.pipeline.built.config, run.progress, run.timers
    learner, settings = cast(APPO, run.learner), config.learners.appo
    begin = perf_counter() - progress.wall_s
    watch, saved_at = NonFiniteWatch(run.run_dir, config), progress.iteration
    metrics: dict[str, Tensor] = {}
    timers.take()
    run.pipeline.timers.take()
    with _running(run, learner, settings) as running:
        while not (is_complete(config.train, progress) or interrupt.requested):
            with ExitStack() as reading:
                with timers.span("collect"):
                    slot = reading.enter_context(running.rollout())
                with timers.span("learn", busy="learner"):
                    metrics = learner.update(slot.payload)
                    running.publish(learner.publish)
                progress.iteration += 1
                progress.env_steps += run.rollout.num_steps * run.pipeline.num_envs
                progress.wall_s = perf_counter() - begin
                with timers.span("log"):
                    if is_complete(config.train, progress) or (
                        progress.iteration % config.log.every == 0
                    ):
                        log = {**read_log(run, metrics), **running.handover.take_metrics()}
                        run.recorder.write(progress.iteration, log, _take_times(run))
                        learned = tensors(slot.payload)
                        watch.check(progress.iteration, log, learner.state_dict, learned)
            if progress.iteration % config.checkpoint.every == 0 and watch.trusts(
                metrics[NON_FINITE]
            ):
                with timers.span("checkpoint"), running.paused():
                    save(run)
                saved_at = progress.iteration
        if saved_at < progress.iteration:
            watch.check_end(progress.iteration, metrics, learner.state_dict, {})
            with running.paused():
                save(run)


def _running(
    run: FreeRun, learner: APPO, settings: APPOConfig
) -> FreeRunning[Rollout, GaussianSampler]:
    """Return the collector, ready to start."""
    generator = learner.acting_generator

    def fill(
        policy: GaussianSampler,
        rollout: Rollout,
        previous: Rollout | None,
        check: Callable[[], None],
    ) -> None:
        if previous is None:
            set_first(run.pipeline, rollout)
        else:
            rollout.carry_over(previous)

        def act(obs: Tensor) -> object:
            return policy.act(obs, True, generator)

        torch.set_num_threads(run.pipeline.plan.acting)
        collect(run.pipeline, act, rollout, check)  # type: ignore[arg-type]

    return FreeRunning(
        run.rollouts,
        (learner.snapshot(), learner.snapshot()),
        fill,
        max_lag=settings.max_lag,
        version=learner.version,
        device=learner.device,
    )


def _take_times(run: FreeRun) -> dict[str, float]:
    """Return the main line's times, and what the collector was busy with."""
    return {**run.timers.take(), **run.pipeline.timers.take_busy()}
