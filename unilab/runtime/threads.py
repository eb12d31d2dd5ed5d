"""One plan for all threads: MuJoCo's pool, kernel shards, torch. Nothing else starts threads.

The plan bounds what can run *at the same time*: without overlap the stages take turns, so each may
use every CPU; with overlap, physics and kernels run side by side and share them.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

from unilab.config.schema import RuntimeConfig
from unilab.errors import ConfigError
from unilab.runtime.cgroup import cpu_quota, free_threads
from unilab.runtime.threading_layer import check_installed, start_layer

SMALL_MACHINE_CPUS = 4  # up to here, handing cores from stage to stage beats splitting them
ENVS_PER_BLOCK = 64  # shards and groups are cut at blocks of this many envs
# A block of a walking task takes 25 to 50 us. Handing a shard to a worker and waiting for it costs
# 20 to 45 us where a core is idle, so two blocks a shard are the break-even. But on a machine that
# others use too, a worker waits for a core: two shards of 4 blocks then took up to 1.3 ms, against
# 0.4 ms in the caller alone. So shards are for batches where there is much to gain.
MIN_BLOCKS_PER_SHARD = 8
# With overlap, physics leaves one CPU in this many to kernels and policy, which take turns. Kernels
# of a walking task need 2 % of what its physics needs; a policy needs 1 to 5 %, but scales badly.
CPUS_PER_HOST_THREAD = 8
# A torch thread needs rows to work on: with fewer, waiting for each other costs more than it gains.
ENVS_PER_LEARNER_THREAD = 16
# What allow_oversubscription allows at most, in all pools together. 2,000 threads still started on
# 2 CPUs; 50,000 hung, and 100,000 crashed the process.
MOST_THREADS, MOST_THREADS_PER_CPU = 256, 16

PhysicsPlace = Literal["cpu_threads", "one_cpu_thread", "gpu"]


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

    @property
    def acting(self) -> int:
        """Torch threads for the policy while collecting: with overlap, what physics leaves."""
        if not self.overlap:
            return self.learner
        return max(self.kernel, min(self.learner, self.cpus - self.physics))

    @property
    def together(self) -> int:
        """Threads that compute at the same time, at most."""
        side_by_side = self.physics + max(self.kernel, self.acting)
        stage = side_by_side if self.overlap else max(self.physics, self.kernel)
        return max(stage, self.learner)

    @property
    def started(self) -> int:
        """Threads of all pools, most of them asleep at any time."""
        return self.physics + self.kernel + self.learner

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
    quota = cpu_quota()
    return max(1, min(count, math.ceil(quota) if quota is not None else count))


def prepare_environment(runtime: RuntimeConfig) -> None:
    """Set what numerical libraries read when they load. Call before torch, numba or mujoco.

    Where Numba is loaded already, its settings are left alone: it refuses to change them. A plan
    that they do not allow is then refused by `make_plan`.
    """
    cpus = available_cpus()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # idle pools must not spin on cores others need
    os.environ.setdefault("OMP_NUM_THREADS", str(cpus))
    os.environ.setdefault("MKL_NUM_THREADS", str(cpus))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")  # equal results on every machine
    per_shard = runtime.threads_per_shard
    if per_shard != "auto" and per_shard > 1 and "numba" not in sys.modules:
        most = max(cpus, min(per_shard, _most_threads(cpus)))
        os.environ["NUMBA_NUM_THREADS"] = str(most)
        if runtime.threading_layer != "auto":
            os.environ["NUMBA_THREADING_LAYER"] = runtime.threading_layer


def make_plan(
    runtime: RuntimeConfig,
    num_envs: int,
    *,
    cpus: int | None = None,
    physics: PhysicsPlace = "cpu_threads",
) -> ThreadPlan:
    """Resolve the runtime config to a plan.

    Args:
      runtime: the config block; "auto" is filled in.
      num_envs: N.
      physics: what steps the envs. On one CPU thread or on a GPU, the CPUs are the kernels'.
      cpus: CPUs of another machine to plan for. None plans for this process: its
        `available_cpus`, the threads its container allows, and Numba's threading layer, which is
        started where the plan needs it.

    Raises:
      ConfigError: more threads at the same time than CPUs, more groups than blocks of envs, more
        threads than can be started, or a threading layer that cannot run kernels from several
        threads.
    """
    here = cpus is None
    cpus = available_cpus() if cpus is None else cpus
    blocks = math.ceil(num_envs / ENVS_PER_BLOCK)
    overlap = runtime.overlap
    if overlap == "auto":  # it takes two groups to overlap
        can = blocks > 1 if runtime.groups == "auto" else runtime.groups > 1
        overlap = can and cpus > (1 if physics == "gpu" else SMALL_MACHINE_CPUS)
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
    if physics != "cpu_threads":
        threads = given_physics or 1
        free = max(1, cpus - threads if overlap else cpus)
        shards = given_shards or max(1, min(useful, free // per_shard))
    elif overlap:
        share = (cpus - (given_physics or 0)) // CPUS_PER_HOST_THREAD
        shards = given_shards or max(1, min(useful, share // per_shard))
        acting = min(share, num_envs // groups // ENVS_PER_LEARNER_THREAD)
        threads = given_physics or max(1, cpus - max(shards * per_shard, acting))
    else:
        shards = given_shards or max(1, min(useful, cpus // per_shard))
        threads = given_physics or cpus
    useful_learner = max(1, min(cpus, num_envs // ENVS_PER_LEARNER_THREAD))
    learner = useful_learner if runtime.learner_threads == "auto" else runtime.learner_threads
    plan = ThreadPlan(cpus, threads, shards, per_shard, groups, overlap, learner)
    _check_layer(plan, runtime)
    _check_cpus(plan, runtime)
    if here:
        _check_here(plan, runtime)
    return plan


def make_side_plan(runtime: RuntimeConfig, num_envs: int, *, cpus: int | None = None) -> ThreadPlan:
    """Plan a side job of a run: an evaluation, a video, an export.

    One group and no overlap. Thread counts of the config that exceed this machine's CPUs are
    lowered to them: the run may have been trained on a larger one, and no value depends on it.

    Args:
      runtime: the config block of the run.
      num_envs: envs of the side job.
      cpus: see `make_plan`.

    Raises:
      ConfigError: see `make_plan`.
    """
    values: dict[str, Any] = {"groups": 1, "overlap": False}
    if not runtime.allow_oversubscription:
        most = available_cpus() if cpus is None else cpus
        for name in ("threads", "threads_per_shard", "learner_threads"):
            values[name] = _at_most(getattr(runtime, name), most)
        per_shard = values["threads_per_shard"]
        workers = most // (1 if per_shard == "auto" else per_shard)
        values["shards"] = _at_most(runtime.shards, workers)
    return make_plan(runtime.model_copy(update=values), num_envs, cpus=cpus)


def _at_most(count: int | str, most: int) -> int | str:
    return count if isinstance(count, str) else min(count, most)


def _most_threads(cpus: int) -> int:
    return max(MOST_THREADS, MOST_THREADS_PER_CPU * cpus)


def _check_layer(plan: ThreadPlan, runtime: RuntimeConfig) -> None:
    if plan.threads_per_shard > 1 and runtime.threading_layer == "workqueue":
        raise ConfigError(
            "runtime.threading_layer=workqueue cannot run parallel kernels from shards: it aborts "
            "the process. Use runtime.threading_layer=omp (or tbb), or runtime.threads_per_shard=1"
        )


def _check_cpus(plan: ThreadPlan, runtime: RuntimeConfig) -> None:
    if runtime.allow_oversubscription:
        most = _most_threads(plan.cpus)
        if plan.started > most:
            raise ConfigError(
                f"{_pools(plan)} are more threads than the {most} that "
                f"runtime.allow_oversubscription allows on {plan.cpus} CPU(s); lower them"
            )
        return
    if plan.together <= plan.cpus:
        return
    if plan.overlap and plan.physics + plan.kernel > plan.cpus:
        text = (
            f"runtime.threads={plan.physics} + runtime.shards={plan.shards} x "
            f"runtime.threads_per_shard={plan.threads_per_shard} = {plan.physics + plan.kernel} "
            f"threads at the same time (runtime.overlap is on)"
        )
    else:
        text = (
            f"the largest of runtime.threads={plan.physics}, runtime.shards={plan.shards} x "
            f"runtime.threads_per_shard={plan.threads_per_shard} = {plan.kernel} and "
            f"runtime.learner_threads={plan.learner}"
        )
    raise ConfigError(
        f"{text} is more than the {plan.cpus} CPU(s) this process may use; lower them, leave "
        "them at auto, or set runtime.allow_oversubscription=true"
    )


def _check_here(plan: ThreadPlan, runtime: RuntimeConfig) -> None:
    """Refuse what this process cannot run: its container's limit, and Numba's threading layer."""
    free = free_threads()
    more = plan.started - _own_threads()
    if free is not None and more > free:
        raise ConfigError(
            f"{_pools(plan)} are {more} threads more than now, and this container allows "
            f"{free:.0f} (pids.max); lower them, or raise the container's limit"
        )
    if plan.threads_per_shard > 1:
        start_layer(runtime.threading_layer, plan.threads_per_shard)
    else:
        check_installed(runtime.threading_layer)


def _pools(plan: ThreadPlan) -> str:
    return (
        f"runtime.threads={plan.physics} + runtime.shards={plan.shards} x "
        f"runtime.threads_per_shard={plan.threads_per_shard} + "
        f"runtime.learner_threads={plan.learner} = {plan.started}"
    )


def _own_threads() -> int:
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:  # not on Linux
        return 1
