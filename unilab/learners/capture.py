"""A learner's whole cycle as one recorded graph, checked against the cycle itself before its use.

Launching kernels one by one takes a GPU longer than the small networks of a robot policy take to
compute. A cycle has static shapes, draws from one generator and never waits for the device, so it
can be recorded once and launched as one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from unilab.buffers.batch import Batch

Metrics = dict[str, Tensor]
Cycle = Callable[[Batch], Metrics]
WARM_UP, TIMED = 3, 5  # cycles before recording, and of each kind that are timed
SLOWER = 1.1  # times as long as the cycle itself: not used
TOLERANCE = 1e-5  # relative to the largest entry of a tensor


class Capturable(Protocol):
    """A learner whose cycle can be recorded.

    Attributes:
      updates: counted by `cycle` on the host; a recording does not count.
      updates_per_step: what a cycle adds to it.
      phase: a cycle does the same operations whenever this is the same.
      generator: all that a cycle draws comes from it.
    """

    updates: int
    updates_per_step: int
    generator: torch.Generator
    device: torch.device

    @property
    def phase(self) -> int: ...

    def cycle(self, batch: Batch) -> Metrics: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Recorder(Protocol):
    """Records work that is queued on a device."""

    def record(self, work: Callable[[], Metrics]) -> Callable[[], Metrics]:
        """Return what does the work again, in the same memory."""

    def wait(self) -> None:
        """Wait for all that is queued."""


class CudaRecorder:
    """Records a CUDA graph; the generator's state goes on with every replay."""

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def record(self, work: Callable[[], Metrics]) -> Callable[[], Metrics]:
        """Record work. Raises RuntimeError: the device or its driver refuses."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._generator)
        self.wait()
        with torch.cuda.graph(graph):
            metrics = work()

        def replay() -> Metrics:
            graph.replay()
            return metrics

        return replay

    def wait(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._generator.device)


class CycleRunner:
    """Runs a learner's cycles: recorded where that is right and faster, else as they are.

    A recording is made for each phase when it first comes. The learner is as before it afterwards.

    Args:
      learner: whose cycles are run, from batches that are always in the same memory.
      mode: auto records on a GPU; off never.
      recorder: records; None takes CUDA's.

    Attributes:
      why_not: why cycles are not recorded; empty while they are.
    """

    def __init__(
        self,
        learner: Capturable,
        mode: Literal["auto", "off"] = "auto",
        recorder: Recorder | None = None,
    ) -> None:
        self._learner, self._replays = learner, dict[int, Callable[[], Metrics]]()
        self.why_not = ""
        if mode == "off":
            self.why_not = "switched off"
        elif recorder is None and learner.device.type != "cuda":
            self.why_not = f"{learner.device} has no graphs"
        elif recorder is None:
            recorder = CudaRecorder(learner.generator)
        self._recorder = recorder

    @property
    def records_next(self) -> bool:
        """Whether the next call makes a recording: nothing else may use learner or device then."""
        return not self.why_not and self._learner.phase not in self._replays

    def __call__(self, batch: Batch) -> Metrics:
        """Run one cycle. Returns its metrics, views that the next one overwrites."""
        learner = self._learner
        if self.why_not or self._recorder is None:
            return learner.cycle(batch)
        phase = learner.phase
        if phase not in self._replays:
            self._prepare(batch, phase, self._recorder)
            if self.why_not:
                return learner.cycle(batch)
        metrics = self._replays[phase]()
        learner.updates += learner.updates_per_step
        return metrics

    def _prepare(self, batch: Batch, phase: int, recorder: Recorder) -> None:
        """Record a phase and compare it with the cycle itself; on a doubt, never record again."""
        learner = self._learner
        begin = learner.state_dict()

        def once(run: Callable[[], Metrics]) -> dict[str, Any]:
            learner.load_state_dict(begin)
            run()
            return learner.state_dict()

        def eager() -> Metrics:
            return learner.cycle(batch)

        for _ in range(WARM_UP):
            wanted = once(eager)
        try:
            learner.load_state_dict(begin)
            replay = recorder.record(eager)
            found = once(replay)
            self.why_not = _difference(found, wanted)
            if not self.why_not:
                self.why_not = _slower(replay, eager, recorder)
        except RuntimeError as error:
            self.why_not = f"{learner.device} refuses: {str(error).strip().splitlines()[0]}"
        learner.load_state_dict(begin)
        if self.why_not:
            warnings.warn(
                f"updates of the learner are launched one by one: {self.why_not}", stacklevel=4
            )
            return
        self._replays[phase] = replay


def _difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Name the first tensor of a state in which a recording and the cycle itself differ."""
    for name, value in wanted.items():
        if isinstance(value, Mapping):
            inner = _difference(found[name], value)
            if inner:
                return inner
        elif isinstance(value, Tensor) and value.is_floating_point():
            worst = (found[name] - value).abs().max() if value.numel() else torch.zeros(())
            if not worst <= TOLERANCE * value.abs().max().clamp_min(1.0):
                return f"the recorded cycle gives another '{name}' (off by {float(worst):.1e})"
    return ""


def _slower(replay: Callable[[], Metrics], eager: Callable[[], Metrics], recorder: Recorder) -> str:
    """Say so where the recording takes longer than the cycle itself."""
    times = []
    for run in (replay, eager):
        recorder.wait()
        start = perf_counter()
        for _ in range(TIMED):
            run()
        recorder.wait()
        times.append((perf_counter() - start) / TIMED)
    if times[0] <= SLOWER * times[1]:
        return ""
    return f"a recorded cycle takes {1e3 * times[0]:.2f} ms, launched {1e3 * times[1]:.2f} ms"
