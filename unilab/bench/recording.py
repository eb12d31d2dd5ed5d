"""Real inputs of the host step, recorded from the running task.

Physics of a large batch takes long, so a part of it is recorded for several stretches of time, and
the batch is made of these stretches: each env goes through states that follow each other, episodes
end, commands and pushes fall due as they do in a run.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unilab.learners.base import Learner
from unilab.runtime.pipeline import Pipeline
from unilab.runtime.threads import ENVS_PER_BLOCK

MOST_ENVS = 16 * ENVS_PER_BLOCK  # recorded at a time
WARM_UP_STEPS = 32  # robots leave their first pose, some fall


@dataclass(frozen=True)
class Recording:
    """S control steps of N envs.

    Attributes:
      start: `Pipeline.state_dict` at the first step.
      action: (S, N, A) f32, what the policy asked for.
      state, sensors, failures: (S, N, ...), what physics answered.
      done_per_step: episodes that ended.
      physics_s_per_env_step: wall time of physics.
    """

    start: Mapping[str, Any]
    action: NDArray[np.float32]
    state: NDArray[np.float64]
    sensors: NDArray[np.float64]
    failures: NDArray[np.uint8]
    done_per_step: float
    physics_s_per_env_step: float

    @property
    def num_steps(self) -> int:
        """S."""
        return len(self.action)

    @property
    def num_envs(self) -> int:
        """N."""
        return int(self.action.shape[1])

    def save(self, path: Path) -> None:
        """Write it for another process of this benchmark to read."""
        path.write_bytes(pickle.dumps(self, protocol=5))

    @staticmethod
    def load(path: Path) -> Recording:
        """Read what `save` wrote."""
        recording = pickle.loads(path.read_bytes())
        assert isinstance(recording, Recording)
        return recording


def recorded_envs(num_envs: int) -> int:
    """Return how many envs to run for a batch of `num_envs`."""
    return min(num_envs, MOST_ENVS)


def record(pipeline: Pipeline, learner: Learner, num_envs: int, num_steps: int) -> Recording:
    """Run a task and keep its inputs.

    Args:
      pipeline: `recorded_envs(num_envs)` envs in one group, without overlap.
      learner: acts, exploring.
      num_envs: N of the recording.
      num_steps: S.
    """
    assert len(pipeline.groups) == 1
    assert not pipeline.plan.overlap
    pipeline.reset(random_start=True)
    draw = np.random.default_rng(0)
    for name in pipeline.built.kernel.carried_slices:
        if name.endswith("_timer"):  # as if the run had gone on for long: due at any time
            timer = pipeline.field(name)
            timer *= draw.uniform(0.0, 1.0, timer.shape).astype(np.float32)
    watch = _Watch(pipeline, learner)
    for _ in range(WARM_UP_STEPS):
        watch.step()
    stretches, starts = [], []
    watch.done, watch.physics_s, watch.steps = 0, 0.0, 0
    for _ in range(-(-num_envs // pipeline.num_envs)):
        starts.append(pipeline.state_dict())
        stretches.append([watch.step() for _ in range(num_steps)])
    blocks = -(-num_envs // ENVS_PER_BLOCK)

    def joined(part: int) -> NDArray[Any]:
        steps = [
            np.concatenate([stretch[t][part] for stretch in stretches]) for t in range(num_steps)
        ]
        return np.stack(steps)[:, :num_envs]

    start = {
        "arrays": {
            name: np.concatenate([s["arrays"][name] for s in starts])[
                : blocks if name == "log_io" else num_envs
            ]
            for name in starts[0]["arrays"]
        },
        "physics": {
            name: np.concatenate([s["physics"][name] for s in starts])[:num_envs]
            for name in starts[0]["physics"]
        },
    }
    env_steps = watch.steps * pipeline.num_envs
    return Recording(
        start=start,
        action=joined(0),
        state=joined(1),
        sensors=joined(2),
        failures=joined(3),
        done_per_step=watch.done / env_steps * num_envs,
        physics_s_per_env_step=watch.physics_s / env_steps,
    )


class _Watch:
    """Steps a pipeline and keeps what goes in and out of physics."""

    def __init__(self, pipeline: Pipeline, learner: Learner) -> None:
        self.pipeline, self.learner = pipeline, learner
        self.done, self.physics_s, self.steps = 0, 0.0, 0

    def step(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
        """One control step; returns action, state, sensors, failures."""
        pipeline = self.pipeline
        obs = torch.from_numpy(pipeline.observe(0)[0])
        action = self.learner.act(obs).action.numpy()
        begin = perf_counter()
        pipeline.submit(0, action)  # without overlap, physics has run when this returns
        self.physics_s += perf_counter() - begin
        physics = pipeline.physics
        failures = np.array(getattr(physics, "failures", np.zeros(pipeline.num_envs, np.uint8)))
        kept = (action.copy(), physics.state.copy(), physics.sensors.copy(), failures)
        self.done += len(pipeline.finish(0).done_ids)
        self.steps += 1
        return kept
