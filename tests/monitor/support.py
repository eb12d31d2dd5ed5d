"""Numbers of made runs, and a small stand-in for the NVML library with recorded counters."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from unilab.monitor.cpu import CpuUse, PoolUse
from unilab.monitor.rows import Row, StageTotals
from unilab.monitor.run_state import Plan, Setup, Status

PLAN = Plan(cpus=2, physics=2, kernel=1, learner=2, groups=1, overlap=False)
SETUP = Setup(
    host="here", task="cartpole", learner="ppo", num_envs=64, num_steps=8, plan=PLAN,
    update_flops=2_000_000_000,
)  # fmt: skip
# A quiet machine: the run has both cores nearly to itself.
CPU = CpuUse(
    seconds=10.0,
    available=2,
    cores=1.8,
    other_cores=0.05,
    stolen_cores=0.0,
    runnable=1.85,
    wait_share=0.03,
    voluntary_per_s=2000.0,
    forced_per_s=20.0,
    per_core=(0.92, 0.9),
    pools={
        "main": PoolUse(1, 0.6, 0.01),
        "physics pool": PoolUse(2, 1.0, 0.02),
        "torch and unnamed": PoolUse(1, 0.2, 0.02),
    },
    rss_bytes=400 * 2**20,
    monitor_cores=0.004,
)


def totals(
    exposed_ms: Mapping[str, float], busy_ms: Mapping[str, float] | None = None, count: int = 10
) -> StageTotals:
    """Sums over `count` iterations of which each takes this."""
    return StageTotals(
        count,
        count * sum(exposed_ms.values()),
        {name: count * value for name, value in exposed_ms.items()},
        {name: count * value for name, value in (busy_ms or exposed_ms).items()},
    )


def status(**changes: Any) -> Status:
    """A run in its midst."""
    made = Status(
        state="running", pid=1, iteration=5, total_iterations=100, time_unix_s=1000.0,
        env_steps=5 * 512, env_steps_per_s=5000.0, eta_s=60.0, beats=20, beat_unix_s=1000.0,
        setup=SETUP,
    )  # fmt: skip
    return replace(made, **changes)


def row(iteration: int, *, iterations: int = 1, elapsed_s: float | None = None) -> Row:
    """A row of a run with 512 env steps and 100 ms an iteration."""
    return Row(
        iteration=iteration,
        iterations=iterations,
        unix_s=1000.0 + iteration,
        elapsed_s=0.1 * iteration if elapsed_s is None else elapsed_s,
        env_steps=512.0 * iteration,
        episode_return=1.0,
        iteration_ms=100.0 * iterations,
        exposed_ms={"physics": 60.0 * iterations, "learn": 40.0 * iterations},
        busy_ms={"physics": 59.0 * iterations, "learner": 40.0 * iterations},
    )


def write_run(folder: Path, *, state: str = "finished", iterations: int = 6, pid: int = 1) -> Path:
    """Write the files of a run as the recorder would."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [
        {
            "iteration": i,
            "time_unix_s": 1000.0 + i,
            "elapsed_s": 0.1 * i,
            "counter/env_steps": 512.0 * i,
            "stage/physics_ms": 60.0,
            "stage/learn_ms": 40.0,
            "iteration_ms": 100.0,
            "busy/physics_ms": 59.0,
            "busy/learner_ms": 40.0,
        }
        for i in range(1, iterations + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = {"cpus": 2, "physics": 2, "shards": 1, "threads_per_shard": 1, "groups": 1,
            "overlap": False, "learner": 2}  # fmt: skip
    stages = {
        "state": state,
        "pid": pid,
        "time_unix_s": 1000.0 + iterations,
        "iteration": iterations,
        "total_iterations": iterations,
        "env_steps": 512 * iterations,
        "env_steps_per_s": 5120.0,
        "setup": {"task": "cartpole", "num_envs": 64, "device": "cpu", "plan": plan},
    }
    (folder / "stages.json").write_text(json.dumps(stages))
    return folder


class NvmlError(Exception):
    """What NVML raises."""


def _refuse(*_arguments: Any) -> Any:
    raise NvmlError("Not Supported")


class RecordedNvml:
    """The part of NVML that is used, answering with the counters of an H200 written down here.

    Args:
      gpm: whether the device has performance monitoring.
      refused: functions that this device or user does not get.
    """

    NVMLError = NvmlError
    NVML_CLOCK_SM = 1
    NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES = 0, 1
    NVML_GPM_METRIC_SM_UTIL, NVML_GPM_METRIC_SM_OCCUPANCY = 2, 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL, NVML_GPM_METRIC_DRAM_BW_UTIL = 5, 10
    NVML_GPM_METRIC_PCIE_TX_PER_SEC, NVML_GPM_METRIC_PCIE_RX_PER_SEC = 20, 21
    NVML_GPM_METRICS_GET_VERSION, NVML_SUCCESS = 1, 0
    GPM: ClassVar = {2: 21.0, 3: 9.0, 5: 4.0, 10: 12.0, 20: 100.0, 21: 250.0}

    def __init__(self, *, gpm: bool, refused: tuple[str, ...] = ()) -> None:
        self.gpm, self.refused = gpm, refused
        self.open = 0
        self.samples: list[int] = []
        self.taken = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in object.__getattribute__(self, "refused"):
            return _refuse
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "GPU-1234":
            raise NvmlError("Not Found")
        return "device"

    def nvmlDeviceGetName(self, _handle: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetUtilizationRates(self, _handle: str) -> Any:
        return SimpleNamespace(gpu=93, memory=12)

    def nvmlDeviceGetMemoryInfo(self, _handle: str) -> Any:
        return SimpleNamespace(used=3 * 2**30, total=141 * 2**30)

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> int:
        return 182_000

    def nvmlDeviceGetEnforcedPowerLimit(self, _handle: str) -> int:
        return 700_000

    def nvmlDeviceGetClockInfo(self, _handle: str, _kind: int) -> int:
        return 1755

    def nvmlDeviceGetMaxClockInfo(self, _handle: str, _kind: int) -> int:
        return 1980

    def nvmlDeviceGetPcieThroughput(self, _handle: str, counter: int) -> int:
        return {0: 40_000, 1: 120_000}[counter]  # kB/s

    def nvmlGpmQueryDeviceSupport(self, _handle: str) -> Any:
        return SimpleNamespace(isSupportedDevice=int(self.gpm))

    def nvmlGpmSampleAlloc(self) -> int:
        self.samples.append(len(self.samples))
        return self.samples[-1]

    def nvmlGpmSampleFree(self, sample: int) -> None:
        self.samples.remove(sample)

    def nvmlGpmSampleGet(self, _handle: str, _sample: int) -> None:
        self.taken += 1

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=99, value=-1.0) for _ in range(64)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        if request.sample1 == request.sample2 or self.taken < 2:
            raise NvmlError("Invalid Argument")
        for metric in request.metrics[: request.numMetrics]:
            metric.value, metric.nvmlReturn = self.GPM[metric.metricId], 0
