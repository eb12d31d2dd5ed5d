"""One plan for all threads: MuJoCo's pool, kernel shards, torch. Nothing else starts threads.

The plan bounds what can run *at the same time*: without overlap the stages take turns, so each may
use every CPU; with overlap, physics and kernels run side by side and share them.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from unilab.config.schema import RuntimeConfig
from unilab.errors import ConfigError

SMALL_MACHINE_CPUS = 4  # up to here, handing cores from stage to stage beats splitting them
ENVS_PER_BLOCK = 64  # shards and groups are cut at blocks of this many envs


@dataclass(frozen=True)
class ThreadPlan:
    """Who gets how many threads.

    Attributes:
      cpus: CPUs that this process may use.
      physics: threads of MuJoCo's pool.
      shards: threads that run the task's kernel.
      threads_per_shard: Numba threads inside each shard.
      groups: groups of envs that take turns.
      overlap: physics and kernels of different groups run at the same time.
      learner: torch threads.
    """

    cpus: int
    physics: int
    shards: int
    threads_per_shard: int
    groups: int
    overlap: bool
    learner: int

    @property
    def kernel(self) -> int:
        """Threads that run kernels at the same time."""
        return self.shards * self.threads_per_shard

    def describe(self) -> str:
        """One line for a person."""
        per_shard = f" x {self.threads_per_shard}" if self.threads_per_shard > 1 else ""
        return (
            f"{self.cpus} CPUs: physics {self.physics}, kernel {self.shards}{per_shard}, "
            f"learner {self.learner} threads; {self.groups} group(s), "
            f"overlap {'on' if self.overlap else 'off'}"
        )


def available_cpus() -> int:
    """Return how many CPUs this process may use: affinity and cgroup quota, not the machine's."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        count = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(count, math.ceil(quota) if quota is not None else count))


def prepare_environment(runtime: RuntimeConfig) -> None:
    """Set what numerical libraries read when they load. Call before torch, numba or mujoco.

    Raises:
      ConfigError: see `make_plan`.
    """
    cpus = available_cpus()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle pools must not spin on cores others need
    os.environ.setdefault("OMP_NUM_THREADS", str(cpus))
    os.environ.setdefault("MKL_NUM_THREADS", str(cpus))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")  # equal results on every machine
    if isinstance(runtime.threads_per_shard, int) and runtime.threads_per_shard > 1:
        os.environ["NUMBA_NUM_THREADS"] = str(max(cpus, runtime.threads_per_shard))
        layer = runtime.threading_layer
        os.environ["NUMBA_THREADING_LAYER"] = "omp" if layer == "auto" else layer


def make_plan(runtime: RuntimeConfig, num_envs: int) -> ThreadPlan:
    """Resolve the runtime config to a plan.

    Args:
      runtime: the config block; "auto" is filled in.
      num_envs: N.

    Raises:
      ConfigError: more threads at the same time than CPUs, more groups than blocks of envs, or a
        threading layer that cannot run kernels from several threads.
    """
    cpus = available_cpus()
    overlap = runtime.overlap
    if overlap == "auto":
        overlap = cpus > SMALL_MACHINE_CPUS
    groups = runtime.groups if runtime.groups != "auto" else (2 if overlap else 1)
    blocks = math.ceil(num_envs / ENVS_PER_BLOCK)
    if runtime.groups == "auto":
        groups = min(groups, blocks)
    elif groups > blocks:
        raise ConfigError(
            f"runtime.groups={groups} needs at least {groups} blocks of {ENVS_PER_BLOCK} envs, and "
            f"physics.num_envs={num_envs} gives {blocks}; lower runtime.groups to {blocks} or "
            f"raise physics.num_envs to {ENVS_PER_BLOCK * (groups - 1) + 1}"
        )
    per_shard = 1 if runtime.threads_per_shard == "auto" else runtime.threads_per_shard
    given_shards = None if runtime.shards == "auto" else runtime.shards
    given_physics = None if runtime.threads == "auto" else runtime.threads
    if overlap:
        shards = given_shards or max(1, (cpus - (given_physics or 0)) // (4 * per_shard))
        physics = given_physics or max(1, cpus - shards * per_shard)
    else:
        shards = given_shards or max(1, cpus // per_shard)
        physics = given_physics or cpus
    learner = cpus if runtime.learner_threads == "auto" else runtime.learner_threads
    plan = ThreadPlan(cpus, physics, shards, per_shard, groups, overlap, learner)
    _check(plan, runtime)
    return plan


def _check(plan: ThreadPlan, runtime: RuntimeConfig) -> None:
    if plan.threads_per_shard > 1 and runtime.threading_layer == "workqueue":
        raise ConfigError(
            "runtime.threading_layer=workqueue cannot run parallel kernels from shards: it aborts "
            "the process. Use runtime.threading_layer=omp (or tbb), or runtime.threads_per_shard=1"
        )
    if runtime.allow_oversubscription:
        return
    if plan.overlap:
        together = plan.physics + plan.kernel
        text = (
            f"runtime.threads={plan.physics} + runtime.shards={plan.shards} x "
            f"runtime.threads_per_shard={plan.threads_per_shard} = {together} threads at the same "
            f"time (runtime.overlap is on)"
        )
        needed = max(together, plan.learner)
    else:
        text = (
            f"the largest of runtime.threads={plan.physics}, runtime.shards={plan.shards} x "
            f"runtime.threads_per_shard={plan.threads_per_shard} = {plan.kernel} and "
            f"runtime.learner_threads={plan.learner}"
        )
        needed = max(plan.physics, plan.kernel, plan.learner)
    if needed > plan.cpus:
        raise ConfigError(
            f"{text} is more than the {plan.cpus} CPU(s) this process may use; lower them, leave "
            "them at auto, or set runtime.allow_oversubscription=true"
        )


def _cgroup_quota() -> float | None:
    """CPU quota of this process's cgroup, in CPUs; None where there is none."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = Path("/sys/fs/cgroup/cpu")
        micros = int((folder / "cpu.cfs_quota_us").read_text())
        return micros / int((folder / "cpu.cfs_period_us").read_text()) if micros > 0 else None
    except (OSError, ValueError):
        return None
