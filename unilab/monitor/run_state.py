"""Where a run stands and what it is made of: the content of its stages.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from unilab.errors import ConfigError
from unilab.monitor.json_values import number, whole


@dataclass(frozen=True)
class Plan:
    """The run's threads, as in `unilab.runtime.threads.ThreadPlan`."""

    cpus: int
    physics: int
    kernel: int
    learner: int
    groups: int
    overlap: bool

    @property
    def together(self) -> int:
        """The most threads that the plan lets run at the same time."""
        side_by_side = self.physics + self.kernel if self.overlap else 0
        return max(self.physics, self.kernel, self.learner, side_by_side)


@dataclass(frozen=True)
class Setup:
    """What a run is made of. What a run of another version does not say is None."""

    host: str | None = None
    task: str | None = None
    learner: str | None = None
    num_envs: int | None = None
    num_steps: int | None = None
    device: str = "cpu"
    gpu_uuid: str | None = None
    plan: Plan | None = None
    update_flops: int | None = None


@dataclass(frozen=True)
class Status:
    """Where a run stands, from its stages.json."""

    state: str
    pid: int
    iteration: int
    total_iterations: int
    time_unix_s: float
    env_steps: int | None
    env_steps_per_s: float | None
    eta_s: float | None
    beats: int | None
    beat_unix_s: float
    setup: Setup


def parse_status(values: Mapping[str, Any]) -> Status:
    """Return the content of a stages.json, of this version or another.

    Raises:
      ConfigError: it does not say the least that is needed.
    """
    state, pid = values.get("state"), whole(values.get("pid"))
    if not isinstance(state, str) or pid is None:
        raise ConfigError("stages.json names no state and process; it is not that of a run")
    written = number(values.get("time_unix_s")) or 0.0
    return Status(
        state=state,
        pid=pid,
        iteration=whole(values.get("iteration")) or 0,
        total_iterations=whole(values.get("total_iterations")) or 0,
        time_unix_s=written,
        env_steps=whole(values.get("env_steps")),
        env_steps_per_s=number(values.get("env_steps_per_s")),
        eta_s=number(values.get("eta_s")),
        beats=whole(values.get("beats")),
        beat_unix_s=max(written, number(values.get("beat_unix_s")) or 0.0),
        setup=_parse_setup(values.get("setup")),
    )


def _parse_setup(values: object) -> Setup:
    if not isinstance(values, Mapping):
        return Setup()
    names = ("host", "task", "learner", "device", "gpu_uuid")
    text = {key: values[key] for key in names if isinstance(values.get(key), str)}
    return Setup(
        **text,
        num_envs=whole(values.get("num_envs")),
        num_steps=whole(values.get("num_steps")),
        update_flops=whole(values.get("update_flops")),
        plan=_parse_plan(values.get("plan")),
    )


def _parse_plan(values: object) -> Plan | None:
    if not isinstance(values, Mapping):
        return None
    names = ("cpus", "physics", "shards", "threads_per_shard", "learner", "groups")
    counts = {name: whole(values.get(name)) for name in names}
    cpus, physics, shards, per_shard, learner, groups = counts.values()
    if not (cpus and physics and shards and per_shard and learner and groups):
        return None
    overlap = values.get("overlap") is True
    return Plan(cpus, physics, shards * per_shard, learner, groups, overlap)
