"""What a peer needs to run our task: files that any interpreter with NumPy can read.

A bundle is a folder: the compiled robot (`model.mjb`, exact, for the same MuJoCo version, and
`model.xml`, for any), `facts.json` with every number of the task, `arrays.npz` with the constants
of the robot, and `check.npz`, some steps of ours that a peer must give again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]

# Standard deviation of the actions that every contender is driven with, as an untrained policy's.
ACTION_STD = 0.8
ACTION_ROWS = 64  # batches of actions drawn in advance and used in turn


@dataclass(frozen=True)
class Facts:
    """The task in numbers.

    Attributes:
      folder: of the bundle.
      substeps, max_steps: solver steps a control step, control steps an episode.
      control_dt: s.
      action_clip: |action| limit.
      rewards: term -> its weight and parameters; terms of weight 0 are left out.
      terminations, commands, events: term -> its parameters.
      noise, scale: observation term of the actor -> amplitude, in its unit; of any -> factor.
      qpos_start, qvel_start: where the free joint starts.
      sensors: sensor -> [start, stop) in sensordata.
      arrays: default_qpos (nq,), joint_qpos_ids and joint_qvel_ids (A,), default_joint_pos,
        soft_lower, soft_upper, pose_weights, kp, kd, effort_limit, ctrl_offset, ctrl_scale (A,).
    """

    folder: Path
    substeps: int
    max_steps: int
    control_dt: float
    action_clip: float
    rewards: dict[str, dict[str, float]]
    terminations: dict[str, dict[str, float]]
    commands: dict[str, dict[str, float]]
    events: dict[str, dict[str, float]]
    noise: dict[str, float]
    scale: dict[str, float]
    qpos_start: int
    qvel_start: int
    sensors: dict[str, list[int]]
    arrays: dict[str, NDArray[Any]]

    @classmethod
    def read(cls, folder: str | Path) -> Facts:
        """Read a bundle."""
        folder = Path(folder)
        plain = json.loads((folder / "facts.json").read_text())
        with np.load(folder / "arrays.npz") as file:
            arrays = {name: file[name] for name in file.files}
        return cls(folder=folder, arrays=arrays, **plain)

    @property
    def num_actions(self) -> int:
        """A."""
        return len(self.arrays["ctrl_offset"])


def draw_actions(num_envs: int, num_actions: int) -> F32:
    """Return the actions that drive a contender, (ACTION_ROWS, N, A) f32."""
    generator = np.random.default_rng(0)
    shape = (ACTION_ROWS, num_envs, num_actions)
    return (ACTION_STD * generator.standard_normal(shape)).astype(np.float32)
