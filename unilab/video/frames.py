"""What one picture of a video shows, and the job that a render process is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Arrow(NamedTuple):
    """An arrow drawn into the scene, for example a commanded velocity above the robot."""

    start_w: tuple[float, float, float]  # m, world frame
    stop_w: tuple[float, float, float]  # m, world frame, where the tip is
    rgba: tuple[float, float, float, float]  # 0 to 1


@dataclass(frozen=True)
class Frame:
    """One picture: the robot's configuration, and what is drawn over it.

    Args:
      qpos: (nq,) f64, joint positions of the model that is rendered.
      lines: text for the upper left corner, one string a line.
      arrows: drawn into the scene; an arrow shorter than 1 mm is left out.
    """

    qpos: NDArray[np.float64]
    lines: tuple[str, ...] = ()
    arrows: tuple[Arrow, ...] = ()


class RenderJob(NamedTuple):
    """What the render process needs besides the frames."""

    model_path: str  # compiled model, .mjb
    video_path: str  # .mp4, overwritten
    camera_id: int  # a camera of the model, or -1: follow the robot
    fps: float
    width: int  # pixels, even
    height: int  # pixels, even
