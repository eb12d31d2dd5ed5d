"""Where a group's work is queued: streams and graphs of a GPU, or plain calls on the CPU.

All that only CUDA can do is in `CudaLane`; `HostLane` is its twin, and everything else of the
backend runs on both.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any, Protocol

import torch
import warp as wp
from torch import Tensor

from unilab.errors import ConfigError

Launch = Callable[[], None]


class Lane(Protocol):
    """The queue of one group.

    Attributes:
      device: Warp's name of the device, "cpu" or "cuda:0".
    """

    device: str

    def active(self) -> Any:
        """Context in which everything that is launched goes to this lane."""

    def host_rows(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return zeroed host memory that copies to and from the device can use."""

    def upload(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy from the host to the device."""

    def begin(self) -> None:
        """Note that the physics of a step begins."""

    def download(self, copies: list[tuple[Tensor, Tensor]]) -> None:
        """Queue copies (target, source) to the host, beside what the lane does next."""

    def wait(self) -> tuple[int, int]:
        """Wait until the last download is complete. Returns the span of the step's physics, ns."""

    def mark(self) -> Any:
        """Return a mark that `passed` waits for: all that is queued now."""

    def passed(self, mark: Any) -> None:
        """Wait until the lane has come by a mark; None is always passed."""

    def finish(self) -> None:
        """Wait until nothing is queued any more."""


def capture(lane: Lane, work: Launch) -> Launch:
    """Record work as a graph and return what launches it.

    Python's garbage collector is off meanwhile: a finaliser that frees an old graph or array would
    be recorded too.

    Raises:
      RuntimeError: the device or its driver refuses.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        with lane.active(), wp.ScopedCapture() as recording:
            work()
    finally:
        if was_on:
            gc.enable()
    graph = recording.graph

    def launch() -> None:
        with lane.active():
            wp.capture_launch(graph)

    return launch


class HostLane:
    """Warp's CPU device: everything is done when its call returns."""

    device = "cpu"

    def __init__(self) -> None:
        self._begin_ns = self._end_ns = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Work goes to Warp's CPU device."""
        with wp.ScopedDevice("cpu"):
            yield

    def host_rows(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return zeroed memory."""
        return torch.zeros(shape, dtype=dtype)

    def upload(self, target: Tensor, source: Tensor) -> None:
        """Copy."""
        target.copy_(source)

    def begin(self) -> None:
        """Note the time."""
        self._begin_ns = perf_counter_ns()

    def download(self, copies: list[tuple[Tensor, Tensor]]) -> None:
        """Copy."""
        for target, source in copies:
            target.copy_(source)
        self._end_ns = perf_counter_ns()

    def wait(self) -> tuple[int, int]:
        """Return the span of the last step."""
        return self._begin_ns, self._end_ns

    def mark(self) -> None:
        """Nothing is ever in flight."""

    def passed(self, mark: None) -> None:
        """Nothing to wait for."""

    def finish(self) -> None:
        """Nothing to wait for."""


class CudaLane:
    """A CUDA device: one stream that works, one that brings results to the host.

    Both are torch's, so that copies between pinned tensors and Warp's kernels are in one order.
    The default stream is not used: it cannot be captured, and waits for all others.
    """

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = f"cuda:{index}"
        if index >= wp.get_cuda_device_count():
            raise ConfigError(
                f"physics.backend=mujoco_warp: torch sees {self.device}, Warp {wp.config.version} "
                "does not: its CUDA driver is too old for this Warp, or Warp was built without "
                "CUDA. Update the driver, or use physics.backend=mujoco_cpu"
            )
        self._torch_device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._torch_device)
        self._copies = torch.cuda.Stream(self._torch_device)
        self._warp_stream = wp.stream_from_torch(self._stream)
        self._begun = torch.cuda.Event(enable_timing=True)
        self._stepped = torch.cuda.Event(enable_timing=True)
        self._arrived = torch.cuda.Event()
        self._queued_ns = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Work of torch and of Warp goes to this lane's stream."""
        with (
            torch.cuda.stream(self._stream),
            wp.ScopedDevice(self.device),
            wp.ScopedStream(self._warp_stream, sync_enter=False),
        ):
            yield

    def host_rows(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return zeroed pinned memory: copies of pageable memory would make the host wait."""
        return torch.zeros(shape, dtype=dtype, pin_memory=True)

    def upload(self, target: Tensor, source: Tensor) -> None:
        """Queue a copy on the working stream."""
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def begin(self) -> None:
        """Record where the physics of a step begins."""
        self._queued_ns = perf_counter_ns()
        self._begun.record(self._stream)

    def download(self, copies: list[tuple[Tensor, Tensor]]) -> None:
        """Queue copies on the second stream, behind what the first one holds now."""
        self._stepped.record(self._stream)
        self._copies.wait_event(self._stepped)
        with torch.cuda.stream(self._copies):
            for target, source in copies:
                target.copy_(source, non_blocking=True)
        self._arrived.record(self._copies)

    def wait(self) -> tuple[int, int]:
        """Wait for the results.

        The device's clock gives how long physics took. Where it lies on the host's clock is known
        when the host had to wait: it ended just then. Else it began when it was queued.
        """
        waits = not self._arrived.query()
        self._arrived.synchronize()
        now = perf_counter_ns()
        took = int(1e6 * self._begun.elapsed_time(self._stepped))
        end = now if waits else min(now, self._queued_ns + took)
        return max(end - took, self._queued_ns), end

    def mark(self) -> torch.cuda.Event:
        """Record an event on the working stream."""
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def passed(self, mark: torch.cuda.Event | None) -> None:
        """Wait for an event; nearly always it lies behind already."""
        if mark is not None:
            mark.synchronize()

    def finish(self) -> None:
        """Wait for both streams."""
        self._stream.synchronize()
        self._copies.synchronize()


def make_lane(device: torch.device) -> Lane:
    """Return the lane of a device, "cpu" or "cuda"."""
    return CudaLane(device) if device.type == "cuda" else HostLane()
