"""Overlap hides what it can: a step takes as long as its slowest resource, not their sum.

Physics and kernel are stubs that sleep, so that what is timed is the schedule and not this machine;
the pipeline, the loop of the runner and the rollout are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter, perf_counter_ns, sleep
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runtime.support import built_task, plan
from unilab.buffers.rollout import Rollout
from unilab.learners.base import ActOutput
from unilab.physics.base import StateView
from unilab.runners.on_policy import collect, set_first
from unilab.runtime.pipeline import Pipeline, cut_groups
from unilab.runtime.timers import Timers

NUM_ENVS, STEPS, ATTEMPTS = 128, 20, 6


class SleepingTicket:
    """A step that is over when its future is."""

    def __init__(self, group: int, future: Future[tuple[int, int]]) -> None:
        self.group, self.future = group, future

    @property
    def span_ns(self) -> tuple[int, int]:
        return self.future.result()


class SleepingPhysics:
    """One device that steps one group after the other; the state never changes."""

    def __init__(self, model: Any, groups: tuple[slice, ...], step_s: float, overlap: bool) -> None:
        n, width = groups[-1].stop, 1 + model.nq + model.nv
        self.groups, self._group_s, self._overlap = groups, step_s / len(groups), overlap
        self.state = np.zeros((n, 1, width), np.float32)
        self.sensors = np.zeros((n, 1, model.nsensordata), np.float32)
        self.ctrl = np.zeros((n, 1, model.nu), np.float32)
        self.variants = None
        self._device = ThreadPoolExecutor(1)

    def submit(self, group: int, ctrl: Any) -> SleepingTicket:
        ticket = SleepingTicket(group, self._device.submit(self._step))
        if not self._overlap:
            ticket.future.result()
        return ticket

    def _step(self) -> tuple[int, int]:
        begin = perf_counter_ns()
        sleep(self._group_s)
        return begin, perf_counter_ns()

    def wait(self, ticket: Any) -> StateView:
        ticket.future.result()
        envs = self.groups[ticket.group]
        failures = np.zeros(envs.stop - envs.start, np.uint8)
        return StateView(self.state[envs], self.sensors[envs], failures)

    def write_state(self, env_ids: Any, qpos: Any, qvel: Any) -> None:
        pass

    def set_variants(self, env_ids: Any, variant_ids: Any) -> None:
        pass

    def reset_sensors(self, env_ids: Any, ctrl: Any) -> None:
        pass

    def events(self, group: int) -> tuple[str, ...]:
        return ()

    def describe(self) -> str:
        return "sleeping"

    def snapshot(self) -> Mapping[str, Any]:
        return {}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        self._device.shutdown()


@contextmanager
def sleeping_pipeline(
    physics_s: float, kernel_s: float, *, groups: int, overlap: bool
) -> Iterator[Pipeline]:
    """A pipeline whose physics and kernel take this long for all envs together."""
    built = built_task("cartpole")
    physics = SleepingPhysics(built.robot.model, cut_groups(NUM_ENVS, groups), physics_s, overlap)
    pipeline = Pipeline(
        built, physics, plan(groups=groups, overlap=overlap), seed=1, timers=Timers()
    )
    kernel = pipeline._step

    def slow_kernel(first: int, last: int, num_envs: int, *arrays: Any) -> None:
        sleep(kernel_s * 64 * (last - first) / NUM_ENVS)
        kernel(first, last, num_envs, *arrays)

    pipeline._step = slow_kernel
    try:
        pipeline.reset(random_start=False)
        yield pipeline
    finally:
        pipeline.close()


def act(obs: Tensor) -> ActOutput:
    """A policy that costs nothing."""
    zeros = torch.zeros(len(obs), 1)
    return ActOutput(zeros, zeros, zeros[:, 0])


def step_s(
    physics_s: float, kernel_s: float, *, groups: int, overlap: bool, limit_s: float
) -> float:
    """Return the time of a control step, of the first rollout within the limit or the last."""
    with sleeping_pipeline(physics_s, kernel_s, groups=groups, overlap=overlap) as pipeline:
        kernel = pipeline.built.kernel
        rollout = Rollout(
            STEPS, NUM_ENVS, kernel.num_obs, kernel.num_critic_obs, 1, torch.device("cpu")
        )
        set_first(pipeline, rollout)
        for _ in range(ATTEMPTS):  # the machine may be busy with something else for a moment
            begin = perf_counter()
            collect(pipeline, act, rollout)
            found = (perf_counter() - begin) / STEPS
            rollout.carry_over()
            if found <= limit_s:
                break
        return found


@pytest.mark.parametrize(
    ("physics_s", "kernel_s", "limit"),
    [(0.12, 0.04, 1.05), (0.04, 0.12, 1.05), (0.06, 0.06, 1.15)],
    ids=["3:1", "1:3", "1:1"],
)
def test_with_overlap_a_step_takes_as_long_as_the_slower_of_physics_and_kernel(
    physics_s: float, kernel_s: float, limit: float
) -> None:
    slowest = max(physics_s, kernel_s)
    found = step_s(physics_s, kernel_s, groups=2, overlap=True, limit_s=limit * slowest)
    assert slowest <= found <= limit * slowest


@pytest.mark.parametrize("groups", [1, 2])
def test_without_overlap_a_step_takes_the_sum(groups: int) -> None:
    found = step_s(0.04, 0.02, groups=groups, overlap=False, limit_s=0.066)
    assert 0.06 <= found <= 1.1 * 0.06
