"""Physics with mujoco-warp, on a CUDA GPU or on Warp's CPU device. Importing it imports Warp."""

import warp as wp

wp.config.log_level = wp.LOG_ERROR  # before anything starts Warp: no greeting between our lines

from unilab.physics.mujoco_warp.backend import MujocoWarp  # noqa: E402

__all__ = ["MujocoWarp"]
