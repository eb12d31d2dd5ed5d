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
# A block of a walking task takes 25 to 50 us. Handing a shard to a worker and waiting for it costs
# 20 to 45 us where a core is idle, so two blocks a shard are the break-even. But on a machine that
# others use too, a worker waits for a core: two shards of 4 blocks then took up to 1.3 ms, against
# 0.4 ms in the caller alone. So shards are for batches where there is much to gain.
MIN_BLOCKS_PER_SHARD = 8
# With overlap, kernels get one CPU in this many: those of a walking task need 2 % of what its
# physics needs, and their thread also runs the policy.
CPUS_PER_KERNEL_THREAD = 8


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


def make_plan(runtime: RuntimeConfig, num_envs: int, *, cpus: int | None = None) -> ThreadPlan:
    """Resolve the runtime config to a plan.

    Args:
      runtime: the config block; "auto" is filled in.
      num_envs: N.
      cpus: CPUs to plan for; None takes `available_cpus`.

    Raises:
      ConfigError: more threads at the same time than CPUs, more groups than blocks of envs, or a
        threading layer that cannot run kernels from several threads.
    """
    cpus = available_cpus() if cpus is None else cpus
    blocks = math.ceil(num_envs / ENVS_PER_BLOCK)
    overlap = runtime.overlap
    if overlap == "auto":  # it takes two groups to overlap
        can = blocks > 1 if runtime.groups == "auto" else runtime.groups > 1
        overlap = can and cpus > SMALL_MACHINE_CPUS
    auto_groups = min(2, blocks) if overlap else 1
    groups = auto_groups if runtime.groups == "auto" else runtime.groups
    if groups > blocks:
        raise ConfigError(
            f"runtime.groups={groups} needs at least {groups} blocks of {ENVS_PER_BLOCK} envs, and "
            f"physics.num_envs={num_envs} gives {blocks}; lower runtime.groups to {blocks} or "
            f"raise physics.num_envs to {ENVS_PER_BLOCK * (groups - 1) + 1}"
        )
    per_shard = 1 if runtime.threads_per_shard == "auto" else runtime.threads_per_shard
    given_shards = None if runtime.shards == "auto" else runtime.shards
    given_physics = None if runtime.threads == "auto" else runtime.threads
    useful = max(1, blocks // groups // MIN_BLOCKS_PER_SHARD)
    if overlap:
        spare = (cpus - (given_physics or 0)) // (CPUS_PER_KERNEL_THREAD * per_shard)
        shards = given_shards or max(1, min(useful, spare))
        physics = given_physics or max(1, cpus - shards * per_shard)
    else:
        shards = given_shards or max(1, min(useful, cpus // per_shard))
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


def _cgroup_quota(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """CPU quota of this process's cgroup and those above it, in CPUs; None where there is none."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not on Linux
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        version_1 = "cpu" in controllers.split(",")
        if controllers and not version_1:
            continue
        base = root / "cpu" if version_1 else root
        folder = base / path.lstrip("/")
        for level in (folder, *folder.parents):
            quotas += _read_quota(level, version_1)
            if level == base:
                break
    return min(quotas, default=None)


def _read_quota(folder: Path, version_1: bool) -> list[float]:
    """Quota that one cgroup folder sets, in CPUs; nothing where it sets none."""
    try:
        if version_1:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text()
        else:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
        return [] if quota in ("max", "-1") else [int(quota) / int(period)]
    except (OSError, ValueError):
        return []
