"""Small real pipelines for the runtime tests, and a recorder of everything that they produce."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.config import load_config
from unilab.physics.mujoco_cpu import MujocoCpu
from unilab.runners.build import make_pipeline
from unilab.runtime.pipeline import Pipeline, Transitions
from unilab.runtime.threads import ENVS_PER_BLOCK, ThreadPlan
from unilab.runtime.timers import Timers
from unilab.tasks.base import BuiltTask, build_task

SEED = 7


@cache
def built_task(task: str, *overrides: str) -> BuiltTask:
    """Build a task once for all tests that use it."""
    return build_task(load_config(task, overrides).config)


def plan(
    *, shards: int = 1, groups: int = 1, threads: int = 1, overlap: bool = False, per_shard: int = 1
) -> ThreadPlan:
    """A plan with exactly these numbers, whatever CPUs there are."""
    return ThreadPlan(2, threads, shards, per_shard, groups, overlap, 1)


@contextmanager
def running(
    built: BuiltTask,
    num_envs: int,
    chosen: ThreadPlan | None = None,
    *,
    seed: int = SEED,
    timers: Timers | None = None,
    random_start: bool = False,
) -> Iterator[Pipeline]:
    """A pipeline that has been reset; shards are used however few blocks there are."""
    pipeline = make_pipeline(built, chosen or plan(), seed=seed, num_envs=num_envs, timers=timers)
    pipeline.shards.min_blocks = 1
    try:
        pipeline.reset(random_start=random_start)
        yield pipeline
    finally:
        pipeline.close()


def waves(step: int, envs: slice, num_actions: int, size: float = 1.0) -> NDArray[np.float32]:
    """Actions as a fixed function of (env, step), (Ng, A) f32."""
    env = np.arange(envs.start, envs.stop)[:, None]
    phase = 0.37 * step + 0.71 * env + 1.9 * np.arange(num_actions)
    return (size * np.sin(phase)).astype(np.float32)


def step_all(pipeline: Pipeline, action: NDArray[Any]) -> list[Transitions]:
    """One control step of every group, one group after the other; action (N, A)."""
    result = []
    for group, envs in enumerate(pipeline.groups):
        pipeline.submit(group, action[envs])
        result.append(pipeline.finish(group))
    return result


def rows(pipeline: Pipeline) -> NDArray[np.float64]:
    """The state that each env's next step starts from, (N, nstate)."""
    assert isinstance(pipeline.physics, MujocoCpu)
    return pipeline.physics.rows


class Recorder:
    """Keeps a hash of every array of every step: transitions, carried fields, physics, log sums.

    Attributes:
      digests: one dict a step, name -> hash.
      done, bad, pushes: how often that happened.
      levels: level of the terrain of each env; empty where there is none.
      moves: by how much levels have changed.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.digests: list[dict[str, bytes]] = []
        self.done = self.bad = self.pushes = 0
        self.levels: list[float] = []
        self.moves: set[int] = set()
        self._step: dict[str, list[NDArray[Any]]] = {}

    def add(self, step: Transitions) -> None:
        """Take a group's step, straight after its `finish`."""
        envs, arrays = slice(step.start, step.stop), self.pipeline.arrays
        blocks = slice(step.start // ENVS_PER_BLOCK, -(-step.stop // ENVS_PER_BLOCK))
        ended = (step.terminated | step.truncated).astype(bool)
        parts = {
            "obs": step.obs,
            "critic_obs": step.critic_obs,
            "reward": step.reward,
            "terminated": step.terminated,
            "truncated": step.truncated,
            "final_obs": step.final_obs[ended],
            "final_critic_obs": step.final_critic_obs[ended],
            "action": step.action,
            "done_ids": step.done_ids,
            "bad_action_ids": step.bad_action_ids,
            "log": arrays["log_io"][blocks],
            "state": self.pipeline.physics.state[envs],
            "sensors": self.pipeline.physics.sensors[envs],
            "rows": rows(self.pipeline)[envs],
        }
        for name in ("fields", "step", "start_step", "episode", "return"):
            parts[name] = arrays[f"{name}_io"][envs]
        for name, part in parts.items():
            self._step.setdefault(name, []).append(part.copy())
        self.done += len(step.done_ids)
        self.bad += len(step.bad_action_ids)
        self.pushes += int((arrays["pushed_out"][envs] > ended).sum())

    def end_step(self) -> None:
        """Close a control step, when every group's part of it has been added."""
        joined = {name: np.concatenate(parts) for name, parts in self._step.items()}
        self.digests.append({k: blake2b(v.tobytes()).digest() for k, v in joined.items()})
        self._step.clear()
        if "terrain_level" in self.pipeline.built.kernel.carried_slices:
            before, self.levels = self.levels, self.pipeline.field("terrain_level")[:, 0].tolist()
            self.moves |= {int(b - a) for a, b in zip(before, self.levels, strict=False)}


def difference(one: Recorder, other: Recorder) -> str:
    """Say where two recordings first differ; empty where they do not."""
    assert len(one.digests) == len(other.digests)
    for step, (a, b) in enumerate(zip(one.digests, other.digests, strict=True)):
        names = sorted(name for name in a if a[name] != b[name])
        if names:
            return f"step {step}: {', '.join(names)}"
    return ""
