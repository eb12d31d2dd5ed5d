"""A machine in numbers: how long an iteration takes on it with a given thread plan.

Physics is divided over threads that share caches and sibling cores, kernels run into the memory's
bandwidth, handing work over costs, small matrix products do not scale, and more threads than CPUs
slow everything down. The figures are of the order of what walking robots need.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from unilab.runtime.threads import ThreadPlan
from unilab.tune.candidates import useful_shards
from unilab.tune.measuring import MeasureError


@dataclass(frozen=True)
class Workload:
    """What one env costs.

    Attributes:
      physics_us: of a control step, one thread alone.
      kernel_us: of the fused kernel, one thread alone.
      kernel_bytes: what the kernel moves.
      policy_mflop: of one action.
      num_steps: control steps of an iteration.
      passes: how often the update goes through all samples.
    """

    physics_us: float = 43.0
    kernel_us: float = 0.25
    kernel_bytes: float = 4000.0
    policy_mflop: float = 0.05
    num_steps: int = 24
    passes: int = 3


@dataclass(frozen=True)
class MachineModel:
    """A machine.

    Attributes:
      cpus: hardware threads.
      siblings: two hardware threads share a core.
      crowding: how much each further busy thread slows the others.
      bandwidth_gbs: of the memory, and of one thread.
      gpu: policy and learner run on a GPU.
    """

    cpus: int
    siblings: bool = True
    crowding: float = 0.001
    bandwidth_gbs: tuple[float, float] = (200.0, 12.0)
    gpu: bool = False

    def throughput(self, threads: int) -> float:
        """Work of `threads` in units of one thread alone."""
        cores = self.cpus // 2 if self.siblings and self.cpus > 1 else self.cpus
        full = min(threads, cores)
        return (full + 0.3 * (threads - full)) / (1.0 + self.crowding * (threads - 1))

    def physics_s(self, work: Workload, plan: ThreadPlan, envs: float) -> float:
        # The pool takes chunks of a tenth of a thread's share; the last ones leave threads idle.
        chunk = max(1.0, math.floor(0.1 * envs / plan.physics))
        rounds = math.ceil(envs / chunk / plan.physics) * chunk * plan.physics
        busy = rounds * work.physics_us / self.throughput(plan.physics)
        return 1e-6 * (busy + 20.0 + (1.5 * plan.physics if plan.physics > 1 else 0.0))

    def kernel_s(self, work: Workload, plan: ThreadPlan, envs: float, num_envs: int) -> float:
        shards = min(plan.shards, useful_shards(num_envs, plan.groups))
        threads = shards * plan.threads_per_shard
        whole, each = self.bandwidth_gbs
        moving = envs * work.kernel_bytes / (1e3 * min(whole, each * threads))
        handing = 25.0 + 6.0 * (shards - 1) if shards > 1 else 0.0
        if plan.threads_per_shard > 1:
            handing += 10.0 + 2.0 * plan.threads_per_shard
        return 1e-6 * (max(envs * work.kernel_us / self.throughput(threads), moving) + handing + 60)

    def products_s(self, mflop: float, threads: int, calls: int) -> float:
        """Matrix products: 40 GFLOP/s a thread, and a barrier a call that grows with threads."""
        if self.gpu:
            return 1e-6 * (mflop / 20.0 + calls * 8.0)
        barrier = 1.0 + 0.3 * threads if threads > 1 else 0.0
        return 1e-6 * (mflop / 0.04 / self.throughput(threads) + calls * barrier)

    def collect_s(self, work: Workload, plan: ThreadPlan, num_envs: int) -> float:
        """Seconds to collect one iteration."""
        envs = num_envs / plan.groups
        physics = self.physics_s(work, plan, envs)
        host = self.kernel_s(work, plan, envs, num_envs)
        host += self.products_s(envs * work.policy_mflop, plan.acting, calls=12)
        host += 1e-6 * (40.0 + envs * 0.05)
        groups = plan.groups
        if plan.overlap and groups > 1:
            step = max(groups * physics, groups * host, physics + host)
        else:
            step = groups * (physics + host + 30e-6 * plan.overlap)
        return (work.num_steps * step + host) * self._crowd(plan)

    def update_s(self, work: Workload, threads: int, num_envs: int) -> float:
        """Seconds of the learner's update."""
        samples = work.num_steps * num_envs
        return self.products_s(6.0 * samples * work.policy_mflop * work.passes, threads, 2000)

    def _crowd(self, plan: ThreadPlan) -> float:
        """What more threads than CPUs cost."""
        return 1.0 + 3.0 * max(0.0, plan.together / self.cpus - 1.0)

    def iteration_s(self, work: Workload, plan: ThreadPlan, num_envs: int) -> float:
        """Seconds of one iteration."""
        return self.collect_s(work, plan, num_envs) + self.update_s(work, plan.learner, num_envs)

    def every_plan(self, num_envs: int) -> Iterator[ThreadPlan]:
        """Yield every plan that does not oversubscribe, on a fine grid."""
        counts = _grid(self.cpus)
        blocks = math.ceil(num_envs / 64)
        for overlap, groups in [(False, 1), *((True, g) for g in (2, 3, 4, 8) if g <= blocks)]:
            for shards, per_shard in itertools.product(counts, _powers(self.cpus)):
                kernel = shards * per_shard
                if kernel > self.cpus or shards > useful_shards(num_envs, groups):
                    continue
                most = self.cpus - kernel if overlap else self.cpus
                learners = [self.cpus] if self.gpu else _powers(self.cpus)
                for physics, learner in itertools.product(counts, learners):
                    if physics <= most:
                        yield ThreadPlan(
                            self.cpus, physics, shards, per_shard, groups, overlap, learner
                        )


class SimulatedProbe:
    """A `Probe` on a model, with its own clock, noise, and a drift that is larger than the noise.

    Attributes:
      clock_s: time that the measurements took so far.
      asked: every plan that was measured.
    """

    def __init__(
        self, machine: MachineModel, work: Workload, *, noise: float = 0.02, seed: int = 0
    ) -> None:
        self.machine, self.work, self.noise = machine, work, noise
        self.random = random.Random(seed)
        self.clock_s = 0.0
        self.asked: list[ThreadPlan] = []
        self.failing: set[ThreadPlan] = set()

    def now(self) -> float:
        return self.clock_s

    def collect(self, plan: ThreadPlan, num_envs: int) -> float:
        if plan not in self.asked:
            self.clock_s += 0.1 + 2e-5 * num_envs  # builds the pipeline
        self.asked.append(plan)
        if plan in self.failing:
            raise MeasureError("made to fail")
        return self._burst(self.machine.collect_s(self.work, plan, num_envs))

    def update(self, threads: int, num_envs: int) -> float:
        seconds = self.machine.update_s(self.work, threads, num_envs)
        return self._burst(seconds, shortest_s=seconds / (4 * self.work.passes or 1))

    def _burst(self, seconds: float, shortest_s: float = 0.0) -> float:
        self.clock_s += max(0.25, shortest_s or min(seconds, 2.0))
        drift = 1.0 + 0.2 * math.sin(self.clock_s / 8.0)
        return seconds * drift * math.exp(self.random.gauss(0.0, self.noise))


def _powers(cpus: int) -> list[int]:
    return sorted({cpus, *(1 << k for k in range(cpus.bit_length()))})


def _grid(cpus: int) -> list[int]:
    if cpus <= 16:
        return list(range(1, cpus + 1))
    return sorted({1, 2, 4, 8, 16, *range(20, cpus + 1, 20), cpus - 16, cpus - 4, cpus - 1})
