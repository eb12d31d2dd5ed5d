"""The loop of an off-policy learner with schedule=free: the envs run ahead of the learner.

The collector's thread steps the envs with a copy of the policy and hands over each control step
in memory of its own; the main line keeps it and makes one cycle. So the ratio of updates to data is
that of the other schedules, whichever side is slower, and a side's hiccup costs the other nothing
until it is `max_lag` ticks long. What is learned depends on timing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from unilab.learners.capture import CycleRunner
from unilab.learners.off_policy import OffPolicyLearner
from unilab.learners.state import restore_stream, stream_state
from unilab.runners.interrupt import Interrupt
from unilab.runners.off_policy import (
    OUTCOMES,
    OffPolicyRun,
    TickLoop,
    choose,
    keep,
    learn,
    step_all,
)
from unilab.runtime.free_running import FreeRunning
from unilab.runtime.pipeline import Pipeline, Transitions
from unilab.runtime.transfer import zeros

ACTING_STREAM = 0xAC7  # tells the acting stream's seed from that of sampling


@dataclass
class FreeOffPolicyRun(OffPolicyRun):
    """An off-policy run whose envs run ahead.

    Attributes:
      acting: what exploring draws from. With the learner's own stream, which of acting and learning
        drew first would depend on timing.
    """

    cycle: CycleRunner
    acting: torch.Generator = field(kw_only=True)

    def runner_state(self) -> dict[str, Any]:
        """As there, and the acting stream."""
        return super().runner_state() | {"acting": stream_state(self.acting)}

    def restore(self, runner: Any) -> None:
        """As there. A run that was of another schedule has no acting stream: it begins here."""
        super().restore(runner)
        if "acting" in runner:
            seed = self.acting.initial_seed() + self.progress.env_steps
            restore_stream(self.acting, runner["acting"], seed)


class TickSlot:
    """A control step of all envs, in memory of its own.

    Args:
      pipeline: the envs.
      device: what it goes to next; pinned where that is a GPU.

    Attributes:
      rows: by name, as in `Transitions`, of all N envs.
      steps: views of it, one a group.
    """

    def __init__(self, pipeline: Pipeline, device: torch.device) -> None:
        pinned, arrays = device.type == "cuda", pipeline.arrays
        names = ("obs", "critic_obs", "final_obs", "final_critic_obs", *OUTCOMES)
        like = {name: arrays[f"{name}_out"] for name in names}
        like["action"] = arrays["policy_action_in"]
        self.rows = {name: zeros(a.shape, a.dtype, pinned=pinned) for name, a in like.items()}
        self.steps: list[Transitions] = []

    def fill(self, steps: list[Transitions]) -> None:
        """Copy what a control step gave; final observations only where an episode ended."""
        self.steps.clear()
        for step in steps:
            envs = slice(step.start, step.stop)
            views: dict[str, Any] = {}
            for name, rows in self.rows.items():
                given, views[name] = getattr(step, name), rows[envs]
                if name.startswith("final_"):
                    rows[step.done_ids] = given[step.done_ids - step.start]
                else:
                    rows[envs] = given
            self.steps.append(replace(step, **views))


def run_free_off_policy(run: FreeOffPolicyRun, interrupt: Interrupt) -> None:
    """Train while a collector runs ahead; see `TickLoop`."""
    with _collector(run) as running:
        TickLoop(run, _Ahead(run, running)).run(interrupt)


class _Ahead:
    """Ticks from control steps that the collector has made already. Methods as `Ticks`."""

    def __init__(
        self, run: FreeOffPolicyRun, running: FreeRunning[TickSlot, OffPolicyLearner]
    ) -> None:
        self._run, self._running = run, running

    def tick(self) -> dict[str, Tensor] | None:
        """Take the oldest step, keep it, learn, publish."""
        run, running = self._run, self._running
        with ExitStack() as reading:
            with run.timers.span("collect"):
                tick = reading.enter_context(running.rollout()).payload
            with run.timers.span("buffer"):
                keep(run, tick.steps, *(tick.rows[name] for name in OUTCOMES))
            # Recording a graph wants the device for itself, and tries out states of the learner.
            with running.paused() if run.cycle.records_next else nullcontext():
                metrics = learn(run)
            with run.timers.span("learn", busy="learner"):
                running.publish(run.learner.publish)
        return metrics

    def still(self) -> AbstractContextManager[None]:
        """Hold the collector between two control steps."""
        return self._running.paused()

    @property
    def pending(self) -> int:
        """Control steps that are handed over and not kept."""
        return self._running.handover.ready

    def take_metrics(self) -> dict[str, float]:
        """Lags and waits."""
        return self._running.handover.take_metrics()


def _collector(run: FreeOffPolicyRun) -> FreeRunning[TickSlot, OffPolicyLearner]:
    """Return the collector, ready to start. It ends with the last tick of the last iteration."""
    pipeline, learner, settings = run.pipeline, run.learner, run.settings
    numbers = count(run.replay.committed)

    def fill(
        policy: OffPolicyLearner,
        slot: TickSlot,
        previous: TickSlot | None,
        check: Callable[[], None],
    ) -> None:
        if previous is None:
            torch.set_num_threads(pipeline.plan.acting)
        check()
        with pipeline.timers.span("policy", busy="policy"):
            actions = choose(pipeline, policy, random=next(numbers) < settings.warmup_steps)
        slot.fill(step_all(pipeline, actions))

    to_go = pipeline.built.config.train.iterations - run.progress.iteration
    return FreeRunning(
        [TickSlot(pipeline, learner.device) for _ in range(settings.max_lag + 1)],
        (learner.snapshot(run.acting), learner.snapshot(run.acting)),
        fill,
        max_lag=settings.max_lag,
        count=to_go * settings.num_steps - run.ticks,
        device=learner.device,
    )
