"""Recorded cycles: the same learning, and a fall back that is said. The recorder here replays the
work itself, as a graph would; a CUDA graph needs a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from unilab.buffers.batch import Batch
from unilab.config.off_policy import SACConfig
from unilab.learners import capture
from unilab.learners.base import LearnerSpec
from unilab.learners.capture import CycleRunner, Metrics
from unilab.learners.sac import SAC

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is replayed here is the work itself, so which is faster is chance."""
    monkeypatch.setattr(capture, "SLOWER", 1e9)


class Again:
    """Does the work anew at every replay; like a graph, it does not count updates on the host."""

    def __init__(self, learner: SAC, spoil: Callable[[], None] | None = None) -> None:
        self.learner, self.spoil, self.recorded = learner, spoil, 0

    def record(self, work: Callable[[], Metrics]) -> Callable[[], Metrics]:
        self.recorded += 1

        def replay() -> Metrics:
            before = self.learner.updates
            metrics = work()
            self.learner.updates = before
            if self.spoil is not None:
                self.spoil()
            return metrics

        return replay

    def wait(self) -> None:
        pass


def make(updates: int = 2) -> SAC:
    config = SACConfig(
        batch_size=8, updates_per_step=updates, actor_every=2, actor_hidden=(8,),
        critic_hidden=(8,), atoms=5, replay_capacity=16,
    )  # fmt: skip
    return SAC(config, LearnerSpec(3, 4, 2), CPU, 1)


def batch(learner: SAC) -> Batch:
    count, random = learner.batch_size * learner.updates_per_step, torch.Generator().manual_seed(2)

    def rows(*size: int) -> torch.Tensor:
        return torch.randn(count, *size, generator=random)

    return Batch(
        rows(3), rows(4), rows(2).tanh(), rows(), torch.full((count,), 0.9), rows(3), rows(4),
        torch.ones(count),
    )  # fmt: skip


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("updates", [2, 3])
def test_recorded_cycles_learn_as_cycles_do(updates: int) -> None:
    plain, recorded = make(updates), make(updates)
    recorder = Again(recorded)
    run = CycleRunner(recorded, recorder=recorder)
    for turn in range(4):
        plain.cycle(batch(plain))
        assert run.records_next == (turn < (1 if updates == 2 else 2))
        run(batch(recorded))
    assert run.why_not == ""
    assert recorder.recorded == (1 if updates == 2 else 2)  # one for each phase
    assert recorded.updates == plain.updates == 4 * updates
    assert same(recorded.state_dict(), plain.state_dict())


def test_a_recording_that_gives_other_numbers_is_not_used_and_that_is_said() -> None:
    plain, learner = make(), make()

    def spoil() -> None:
        with torch.no_grad():
            next(learner.actor.parameters()).add_(0.1)

    run = CycleRunner(learner, recorder=Again(learner, spoil))
    with pytest.warns(UserWarning, match="launched one by one: the recorded cycle gives another"):
        run(batch(learner))
    run(batch(learner))  # said once
    for _ in range(2):
        plain.cycle(batch(plain))
    assert same(learner.state_dict(), plain.state_dict())


def test_a_recording_that_is_slower_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "SLOWER", 0.0)
    learner = make()
    run = CycleRunner(learner, recorder=Again(learner))
    with pytest.warns(UserWarning, match="a recorded cycle takes"):
        run(batch(learner))
    assert learner.updates == 2


def test_a_device_that_refuses_is_named() -> None:
    learner = make()
    recorder = Again(learner)
    recorder.record = lambda work: (_ for _ in ()).throw(RuntimeError("capture\nnot permitted"))  # type: ignore[method-assign]
    run = CycleRunner(learner, recorder=recorder)
    with pytest.warns(UserWarning, match="cpu refuses: capture"):
        run(batch(learner))
    assert learner.updates == 2


def test_without_a_gpu_cycles_run_as_they_are() -> None:
    learner = make()
    run = CycleRunner(learner)
    run(batch(learner))
    assert "no graphs" in run.why_not
    assert not run.records_next
    assert CycleRunner(learner, "off").why_not == "switched off"
