"""GPU counters from recorded answers of NVML, with and without what some devices lack."""

from __future__ import annotations

import sys

import pytest

from tests.monitor.support import NvmlError, RecordedNvml
from unilab.monitor.gpu import GpuReading, NvmlGpu, average, open_gpu


def test_every_counter_is_read_in_its_unit():
    nvml = RecordedNvml(gpm=True)
    gpu = NvmlGpu(nvml, "1234")
    reading = gpu.read()
    assert gpu.name == "NVIDIA H200"
    assert reading.busy_fraction == pytest.approx(0.93)
    assert reading.sm_active_fraction == pytest.approx(0.21)
    assert reading.sm_occupancy_fraction == pytest.approx(0.09)
    assert reading.tensor_fraction == pytest.approx(0.04)
    assert reading.dram_fraction == pytest.approx(0.12)
    assert reading.memory_used_bytes == 3 * 2**30
    assert reading.memory_total_bytes == 141 * 2**30
    assert reading.power_w == pytest.approx(182.0)
    assert reading.power_limit_w == pytest.approx(700.0)
    assert (reading.sm_clock_mhz, reading.sm_clock_max_mhz) == (1755.0, 1980.0)
    assert reading.to_device_mb_s == pytest.approx(250 * 2**20 * 1e-6)
    assert reading.to_host_mb_s == pytest.approx(100 * 2**20 * 1e-6)
    assert gpu.read() == reading
    gpu.close()
    assert (nvml.open, nvml.samples) == (0, [])


def test_a_device_without_performance_monitoring_gives_the_older_counters():
    reading = NvmlGpu(RecordedNvml(gpm=False), "GPU-1234").read()
    assert reading.sm_active_fraction is None
    assert reading.to_device_mb_s == pytest.approx(120.0)
    assert reading.to_host_mb_s == pytest.approx(40.0)
    assert reading.busy_fraction == pytest.approx(0.93)


@pytest.mark.parametrize(
    ("refused", "name"),
    [
        ("nvmlDeviceGetPowerUsage", "power_w"),
        ("nvmlDeviceGetUtilizationRates", "busy_fraction"),
        ("nvmlDeviceGetMemoryInfo", "memory_used_bytes"),
        ("nvmlGpmMetricsGet", "sm_active_fraction"),
        ("nvmlGpmQueryDeviceSupport", "sm_active_fraction"),
    ],
)
def test_a_counter_that_is_refused_is_none_and_the_others_are_read(refused, name):
    reading = NvmlGpu(RecordedNvml(gpm=True, refused=(refused,)), "1234").read()
    assert getattr(reading, name) is None
    assert reading.power_limit_w == pytest.approx(700.0)


def test_an_unknown_device_is_an_error_that_lets_go_of_the_library():
    nvml = RecordedNvml(gpm=True)
    with pytest.raises(NvmlError):
        NvmlGpu(nvml, "other")
    assert nvml.open == 0


def test_a_run_on_the_cpu_asks_for_no_gpu():
    assert open_gpu(None) == (None, None)


def test_a_missing_package_is_said_in_one_line_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    gpu, problem = open_gpu("1234")
    assert gpu is None
    assert "pip install" in problem
    assert "\n" not in problem


def test_nvml_that_cannot_be_used_is_said_in_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", RecordedNvml(gpm=True, refused=("nvmlInit",)))
    gpu, problem = open_gpu("1234")
    assert gpu is None
    assert problem == "GPU counters: NVML cannot be used: Not Supported"


def test_means_leave_out_what_is_not_known():
    readings = [GpuReading(busy_fraction=0.5, power_w=100.0), GpuReading(busy_fraction=0.7)]
    mean = average(readings)
    assert mean == GpuReading(busy_fraction=pytest.approx(0.6), power_w=100.0)
    assert average([]) is None


def test_the_real_library_has_every_name_that_is_used():
    nvml = pytest.importorskip("pynvml")
    names = [n for n in dir(RecordedNvml) if n.startswith(("nvml", "NVML", "c_nvml"))]
    assert len(names) > 20
    for name in names:
        assert hasattr(nvml, name), name
        if name.startswith("NVML_"):
            assert getattr(nvml, name) == getattr(RecordedNvml, name), name
    request = nvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
    request.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
    assert request.metrics[0].nvmlReturn == nvml.NVML_SUCCESS
