"""How fast physics, the collector, the buffer and the learner are, for one task and env count."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unilab.bench.results import Spread
from unilab.buffers.rollout import Rollout
from unilab.learners.base import Learner
from unilab.physics.base import F32, F64
from unilab.runners.backends import physics_place
from unilab.runners.build import compile_kernels, make_on_policy_learner, make_pipeline
from unilab.runners.on_policy import collect, set_first
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.threads import make_plan
from unilab.tasks.base import BuiltTask

NUM_STEPS, PASSES, WARM_UP = 24, 5, 2
HOST_STAGES = ("kernel", "reset", "buffer", "other")


@dataclass(frozen=True)
class Rates:
    """One row of the table. Times are per control step of all envs, unless said otherwise.

    Attributes:
      physics_env_steps_per_s: physics alone: the same controls from the same states, nothing else.
      collector_env_steps_per_s: with policy, kernels, resets and buffer.
      overhead: collector time over physics alone, minus 1.
      host_ms: exposed time of kernels, resets, buffer and the rest of the host.
      exposed_ms, busy_ms: by stage and by resource.
      to_device_bytes, to_host_bytes: per env step.
      update_ms: one update of the learner from a whole rollout.
      overflows: env steps that failed for want of room; a rate with any means nothing.
    """

    task: str
    num_envs: int
    plan: str
    physics: str
    physics_env_steps_per_s: Spread
    collector_env_steps_per_s: Spread
    overhead: Spread
    host_ms: Spread
    exposed_ms: dict[str, float]
    busy_ms: dict[str, float]
    to_device_bytes: int
    to_host_bytes: int
    update_ms: Spread
    overflows: int

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            name: value.plain() if isinstance(value, Spread) else value
            for name, value in vars(self).items()
        }


def measure_rates(built: BuiltTask, device: torch.device, *, passes: int = PASSES) -> Rates:
    """Measure a task at its config's env count. Physics and collector take turns."""
    config = built.config
    plan = make_plan(config.runtime, config.physics.num_envs, physics=physics_place(config, device))
    pipeline = make_pipeline(built, plan, seed=1)
    try:
        compile_kernels(pipeline)
        learner = make_on_policy_learner(built, config, device, 1)
        kernel = built.kernel
        rollout = Rollout(
            NUM_STEPS, pipeline.num_envs, kernel.num_obs, kernel.num_critic_obs,
            pipeline.num_actions, device,
        )  # fmt: skip
        pipeline.reset()
        set_first(pipeline, rollout)
        for _ in range(WARM_UP):
            collect(pipeline, learner.act, rollout)
            learner.update(rollout)
            rollout.carry_over()
        return _measure(pipeline, learner, rollout, passes)
    finally:
        pipeline.close()


def _measure(pipeline: Pipeline, learner: Learner, rollout: Rollout, passes: int) -> Rates:
    device, count = rollout.device, pipeline.num_envs
    physics_s, collector_s, update_s, host_ms = [], [], [], []
    times: list[dict[str, float]] = []
    for _ in range(passes):
        before = pipeline.state_dict()
        pipeline.timers.take()
        begin = perf_counter()
        collect(pipeline, learner.act, rollout)
        _finish(device)
        collector_s.append((perf_counter() - begin) / NUM_STEPS)
        times.append({k: v / NUM_STEPS for k, v in pipeline.timers.take().items()})
        host_ms.append(sum(times[-1].get(f"stage/{name}_ms", 0.0) for name in HOST_STAGES))
        after = pipeline.state_dict()
        pipeline.physics.restore(before["physics"])
        physics_s.append(_replay(pipeline, _controls(pipeline, rollout)) / NUM_STEPS)
        pipeline.load_state_dict(after)
        begin = perf_counter()
        learner.update(rollout)
        _finish(device)
        update_s.append(perf_counter() - begin)
        rollout.carry_over()
    ratio = [c / p - 1.0 for c, p in zip(collector_s, physics_s, strict=True)]
    built, kernel = pipeline.built, pipeline.built.kernel
    return Rates(
        task=built.config.task,
        num_envs=count,
        plan=pipeline.plan.describe(),
        physics=pipeline.physics.describe(),
        physics_env_steps_per_s=Spread.of(count / s for s in physics_s),
        collector_env_steps_per_s=Spread.of(count / s for s in collector_s),
        overhead=Spread.of(ratio),
        host_ms=Spread.of(host_ms),
        exposed_ms=_medians(times, "stage/"),
        busy_ms=_medians(times, "busy/"),
        to_device_bytes=_row_bytes(pipeline.physics.ctrl)
        + 4 * (kernel.num_obs + kernel.num_critic_obs + 1)
        + 2,
        to_host_bytes=_row_bytes(pipeline.physics.state)
        + _row_bytes(pipeline.physics.sensors)
        + 4 * (1 + pipeline.num_actions),
        update_ms=Spread.of(1e3 * s for s in update_s),
        overflows=int(pipeline.take_log().get("failure/frozen", 0.0)),
    )


def _controls(pipeline: Pipeline, rollout: Rollout) -> list[list[F32 | F64]]:
    """Return what the actuators got in a rollout: for each step and group (Ng, T, A)."""
    built, clip = pipeline.built, pipeline.built.config.actions.clip
    action = rollout.action.clamp(-clip, clip).cpu().numpy()
    ctrl = built.model.ctrl_offset + built.ctrl_scale * action
    like = pipeline.physics.ctrl

    def rows(row: NDArray[Any], envs: slice) -> Any:
        return np.repeat(row[envs, None], like.shape[1], axis=1).astype(like.dtype)

    return [[rows(row, envs) for envs in pipeline.groups] for row in ctrl]


def _replay(pipeline: Pipeline, ctrl: list[list[F32 | F64]]) -> float:
    """Step physics alone with recorded controls. Returns the time of a whole pass, s."""
    physics, groups = pipeline.physics, range(len(pipeline.groups))
    begin = perf_counter()
    tickets = [physics.submit(group, ctrl[0][group]) for group in groups]
    for row in ctrl[1:]:
        for group in groups:
            physics.wait(tickets[group])
            tickets[group] = physics.submit(group, row[group])
    for ticket in tickets:
        physics.wait(ticket)
    return perf_counter() - begin


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _medians(times: list[dict[str, float]], prefix: str) -> dict[str, float]:
    names = dict.fromkeys(name for row in times for name in row if name.startswith(prefix))
    return {
        name.removeprefix(prefix).removesuffix("_ms"): float(
            np.median([row.get(name, 0.0) for row in times])
        )
        for name in names
    }


def _row_bytes(array: F32 | F64) -> int:
    return int(array[0].nbytes)
