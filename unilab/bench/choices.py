"""The rows of the table: ways to run a control step."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from unilab.config.schema import RuntimeConfig
from unilab.runtime.threads import ThreadPlan, make_plan

HOST, BUFFER, POLICY, STEP = "host step", "buffer", "policy", "control step"
STAGE_OF = {BUFFER: "buffer", POLICY: "policy", STEP: "step"}  # of a pass of the collector
LEAST_GAIN = 0.05  # of the whole step, for overlap to be chosen: less may be the machine's noise
NO_CUDA = "not run: no CUDA device"
BASELINE = "numpy"  # the key of the row that speed-ups refer to


@dataclass(frozen=True)
class Choice:
    """One way to run a control step.

    Attributes:
      key: short name, stable across versions.
      title: of the row.
      timed: what its ms per control step are of.
      kernel: "numba", "numpy" (parts that stay in cache) or "numpy_whole" (whole arrays).
      shards, threads_per_shard: of the kernel.
      groups, overlap: of the pipeline.
      bf16: the policy's layers run in bfloat16.
      device_buffer: the rollout is on the CUDA device.
      against: key of the row that its speed-up refers to.
      absent: why it cannot run here; empty where it can.
    """

    key: str
    title: str
    timed: str = HOST
    kernel: str = "numba"
    shards: int = 1
    threads_per_shard: int = 1
    groups: int = 1
    overlap: bool = False
    bf16: bool = False
    device_buffer: bool = False
    against: str = BASELINE
    absent: str = ""

    def plan(self, num_envs: int) -> ThreadPlan:
        """Return the threads: MuJoCo and torch get what `auto` gives them beside this kernel."""
        runtime = RuntimeConfig(
            shards=self.shards,
            threads_per_shard=self.threads_per_shard,
            groups=self.groups,
            overlap=self.overlap,
            allow_oversubscription=True,  # 2 x 2 threads on 2 CPUs; physics keeps to auto
        )
        return make_plan(runtime, num_envs)


def make_choices(cpus: int, num_envs: int, *, cuda: bool, numpy: str = "") -> list[Choice]:
    """Return the rows that lead to the last, "all combined", in order.

    Args:
      cpus: CPUs of this process.
      num_envs: N.
      cuda: there is a CUDA device.
      numpy: why there is no NumPy baseline for this task; empty where there is one.
    """
    workers = max(1, cpus)
    one_cpu = "" if cpus > 1 else "not run: 1 CPU"
    nested_shards, nested_threads = max(2, cpus // 2), 2
    one_block = "" if num_envs > 64 else "not run: one block of envs"
    choices = [
        Choice("numpy", "NumPy, one thread", kernel="numpy", absent=numpy),
        Choice("numpy_whole", "NumPy, one thread, whole arrays", kernel="numpy_whole",
               absent=numpy),
        Choice(
            "numpy_shards", f"NumPy in {workers} ThreadPoolExecutor shards", kernel="numpy",
            shards=workers, absent=numpy or one_cpu,
        ),
        Choice("numba", "Numba, serial"),
        Choice("prange", f"Numba, prange on {workers} threads", threads_per_shard=workers,
               absent=one_cpu),
        Choice("shards", f"Numba in {workers} ThreadPoolExecutor shards", shards=workers,
               absent=one_cpu),
        Choice("nested", f"Numba, prange in shards, {nested_shards} x {nested_threads}",
               shards=nested_shards, threads_per_shard=nested_threads, absent=one_cpu),
        Choice("host_buffer", "host buffer", BUFFER, shards=workers, against="host_buffer"),
        Choice("device_buffer", "device buffer", BUFFER, shards=workers, against="host_buffer",
               absent="" if cuda else NO_CUDA),
        Choice("fp32", "mixed precision off", POLICY, shards=workers, against="fp32"),
        Choice("bf16", "mixed precision on (policy in bf16)", POLICY, shards=workers, bf16=True,
               against="fp32"),
        Choice("overlap_off", "overlap off, 2 groups", STEP, groups=2, against="overlap_off",
               absent=one_block),
        Choice("overlap_on", "overlap on, 2 groups", STEP, groups=2, overlap=True,
               against="overlap_off", absent=one_cpu or one_block),
    ]  # fmt: skip
    # Where there is a device, the rollout is on it, as in training.
    return [replace(c, device_buffer=cuda and c.key != "host_buffer") for c in choices]


def combine(choices: list[Choice], times_ms: dict[str, float], step_ms: dict[str, float]) -> Choice:
    """Return the last row: of each group above, the quickest.

    Kernel, buffer and precision are chosen by the time of their own stage, which is a small part of
    a control step; overlap by the whole step, since it moves work from one stage to another.

    Args:
      choices: the rows above it.
      times_ms: key -> what the row is about, of those that ran.
      step_ms: key -> whole control step, end to end.
    """
    by_key = {choice.key: choice for choice in choices}

    def best(*keys: str) -> Choice:
        ran = [key for key in keys if key in times_ms]
        return by_key[min(ran, key=lambda key: times_ms[key])] if ran else by_key[keys[0]]

    kernel = best("numba", "prange", "shards", "nested")
    bf16 = best("fp32", "bf16").bf16
    on_device = best("host_buffer", "device_buffer").device_buffer
    alone = step_ms.get(kernel.key, math.inf)
    overlaps = step_ms.get("overlap_on", math.inf) < (1.0 - LEAST_GAIN) * alone
    start = by_key["overlap_on"] if overlaps else kernel
    threads = f"{start.shards} shard{'s' if start.shards > 1 else ''}"
    if start.threads_per_shard > 1:
        threads = f"{start.shards} x {start.threads_per_shard} threads"
    parts = [threads, *(["overlap"] if overlaps else []), "bf16" if bf16 else "fp32"]
    parts.append("device buffer" if on_device else "host buffer")
    return replace(
        start,
        key="combined",
        title=f"all combined (host step): {', '.join(parts)}",
        timed=HOST,
        bf16=bf16,
        device_buffer=on_device,
        against=BASELINE,
        absent="",
    )
