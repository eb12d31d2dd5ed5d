"""The counters of an NVIDIA GPU, through NVML. All that needs a GPU is in `NvmlGpu`.

NVML's "GPU utilisation" is the share of time in which any kernel ran, be it on one of 132
multiprocessors. How many of them worked is counted by GPM, on Hopper and later.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

EXTRA = "pip install 'unilab-engine[gpu]'"
_MIB = float(2**20)


@dataclass(frozen=True)
class GpuReading:
    """The GPU at one moment; fractions and rates are over the time since the last reading, or what
    the driver averages over. None is what the GPU or the driver does not count.

    Attributes:
      busy_fraction: share of time in which any kernel ran.
      sm_active_fraction: multiprocessors at work, averaged over them and over time.
      sm_occupancy_fraction: warps resident, of the most there could be.
      tensor_fraction: use of the tensor cores.
      dram_fraction: use of the memory's bandwidth.
      memory_used_bytes, memory_total_bytes: of the device, all processes.
      power_w, power_limit_w: drawn, and allowed.
      sm_clock_mhz, sm_clock_max_mhz: clock of the multiprocessors.
      to_device_mb_s, to_host_mb_s: over PCIe, MB (1e6 bytes) a second.
    """

    busy_fraction: float | None = None
    sm_active_fraction: float | None = None
    sm_occupancy_fraction: float | None = None
    tensor_fraction: float | None = None
    dram_fraction: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: float | None = None
    sm_clock_max_mhz: float | None = None
    to_device_mb_s: float | None = None
    to_host_mb_s: float | None = None


READING_NAMES = tuple(field.name for field in fields(GpuReading))


class Gpu(Protocol):
    """A GPU whose counters can be read."""

    name: str

    def read(self) -> GpuReading:
        """Return the counters of this moment. One that cannot be read is None."""

    def close(self) -> None:
        """Let go of the device."""


def open_gpu(uuid: str | None) -> tuple[Gpu | None, str | None]:
    """Return the GPU that a run learns on, or None and a line that says why there is none.

    Args:
      uuid: of the device, as torch gives it; None is a run that learns on the CPU.
    """
    if uuid is None:
        return None, None
    try:
        import pynvml
    except ImportError:
        return None, f"GPU counters: nvidia-ml-py is not installed; {EXTRA}"
    try:
        return NvmlGpu(pynvml, uuid), None
    except pynvml.NVMLError as error:
        return None, f"GPU counters: NVML cannot be used: {error}"


class NvmlGpu:
    """One GPU, read through NVML.

    Args:
      nvml: the module `pynvml`.
      uuid: of the device, with or without "GPU-" before it.

    Raises:
      nvml.NVMLError: no driver, no such device, or no permission.
    """

    def __init__(self, nvml: Any, uuid: str) -> None:
        self._nvml = nvml
        nvml.nvmlInit()
        try:
            full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            self._handle = nvml.nvmlDeviceGetHandleByUUID(full)
            name = nvml.nvmlDeviceGetName(self._handle)
        except nvml.NVMLError:
            nvml.nvmlShutdown()
            raise
        self.name = name.decode() if isinstance(name, bytes) else str(name)
        self._gpm = _Gpm(nvml, self._handle)

    def read(self) -> GpuReading:
        nvml, handle = self._nvml, self._handle
        values = self._gpm.read()
        memory = self._try(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        if "to_device_mb_s" not in values:  # averaged over 20 ms, and takes as long
            for name, counter in (
                ("to_device_mb_s", nvml.NVML_PCIE_UTIL_RX_BYTES),  # the device receives
                ("to_host_mb_s", nvml.NVML_PCIE_UTIL_TX_BYTES),
            ):
                values[name] = self._number(nvml.nvmlDeviceGetPcieThroughput, counter, scale=1e-3)
        return GpuReading(
            busy_fraction=self._number(
                lambda h: nvml.nvmlDeviceGetUtilizationRates(h).gpu, scale=1e-2
            ),
            memory_used_bytes=None if memory is None else float(memory.used),
            memory_total_bytes=None if memory is None else float(memory.total),
            power_w=self._number(nvml.nvmlDeviceGetPowerUsage, scale=1e-3),
            power_limit_w=self._number(nvml.nvmlDeviceGetEnforcedPowerLimit, scale=1e-3),
            sm_clock_mhz=self._number(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
            sm_clock_max_mhz=self._number(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
            **values,
        )

    def close(self) -> None:
        self._gpm.close()
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _number(
        self, function: Callable[..., Any], *arguments: Any, scale: float = 1.0
    ) -> float | None:
        value = self._try(lambda: function(self._handle, *arguments))
        return None if value is None else float(value) * scale

    def _try(self, read: Callable[[], Any]) -> Any:
        """What NVML gives, or None where this device or this user does not get it."""
        try:
            return read()
        except self._nvml.NVMLError:
            return None


class _Gpm:
    """GPU performance monitoring: counters between two samples. Empty where there is none."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self._samples: list[Any] = []
        self._metrics = {
            nvml.NVML_GPM_METRIC_SM_UTIL: ("sm_active_fraction", 1e-2),
            nvml.NVML_GPM_METRIC_SM_OCCUPANCY: ("sm_occupancy_fraction", 1e-2),
            nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: ("tensor_fraction", 1e-2),
            nvml.NVML_GPM_METRIC_DRAM_BW_UTIL: ("dram_fraction", 1e-2),
            nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: ("to_device_mb_s", _MIB * 1e-6),
            nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: ("to_host_mb_s", _MIB * 1e-6),
        }
        with contextlib.suppress(nvml.NVMLError):
            if nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                for _ in range(2):
                    self._samples.append(nvml.nvmlGpmSampleAlloc())
                nvml.nvmlGpmSampleGet(handle, self._samples[0])
                return
        self.close()

    def read(self) -> dict[str, float | None]:
        """Return the metrics since the last call by their names in `GpuReading`."""
        if not self._samples:
            return {}
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = self._samples
        for i, metric in enumerate(self._metrics):
            request.metrics[i].metricId = metric
        try:
            nvml.nvmlGpmSampleGet(self._handle, self._samples[1])
            nvml.nvmlGpmMetricsGet(request)
        except nvml.NVMLError:
            return {}
        self._samples.reverse()
        found: dict[str, float | None] = {}
        for i, (name, scale) in enumerate(self._metrics.values()):
            if request.metrics[i].nvmlReturn == nvml.NVML_SUCCESS:
                found[name] = float(request.metrics[i].value) * scale
        return found

    def close(self) -> None:
        """Free the samples."""
        for sample in self._samples:
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlGpmSampleFree(sample)
        self._samples.clear()


def average(readings: Sequence[GpuReading]) -> GpuReading | None:
    """Return the mean of each counter over the readings that have it."""
    if not readings:
        return None
    means = {}
    for name in READING_NAMES:
        values = [v for reading in readings if (v := getattr(reading, name)) is not None]
        means[name] = sum(values) / len(values) if values else None
    return GpuReading(**means)
