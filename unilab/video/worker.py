"""The render process: `python -m unilab.video.worker`, fed with pickled messages on stdin.

First the RenderJob as a tuple, then a (qpos bytes, lines, arrows) tuple a frame, then None. Answers
on stdout: one line once OpenGL works, one line of JSON when the video is complete.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
from collections.abc import Generator
from typing import Any

import imageio_ffmpeg  # type: ignore[import-untyped]
import mujoco
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from unilab.video.frames import RenderJob

# What a picture costs a software renderer. Measured with llvmpipe, CPU time on one shared core of a
# Xeon, the Go1 on its textured floor at 640x480: 204 ms as the model asks for it; 135 ms without
# multisampling; 99 ms without the floor's reflection; 48 ms with a 512 instead of a 4096 shadow
# map; 35 ms with coarser capsules and spheres. Of these, shadows are 14 ms and the texture 10 ms.
SHADOW_MAP = 512
NUM_SLICES, NUM_STACKS = 12, 6
LIGHT_HEIGHT_M = 3.0
MIN_ARROW_M = 1e-3
ARROW_RADIUS_M = 0.015


class SceneRenderer:
    """Draws configurations of one model into images (height, width, 3) u8."""

    def __init__(self, model: mujoco.MjModel, camera_id: int, width: int, height: int) -> None:
        _cheapen(model, width, height)
        self._model, self._data = model, mujoco.MjData(model)
        self._renderer = mujoco.Renderer(model, height, width)
        free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
        self._followed = int(model.jnt_bodyid[free[0]]) if free.size else -1
        self._camera: int | mujoco.MjvCamera = camera_id
        if camera_id < 0:
            self._camera = self._side_camera()
        self._text_size = max(10.0, height / 28)
        self._font = ImageFont.load_default(size=self._text_size)
        self._image = np.empty((height, width, 3), dtype=np.uint8)

    def draw(
        self, qpos: NDArray[np.float64], lines: tuple[str, ...], arrows: tuple[Any, ...]
    ) -> NDArray[np.uint8]:
        """Draw one frame. Returns an array that the next call overwrites."""
        model, data, scene = self._model, self._data, self._renderer.scene
        data.qpos[:] = qpos
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        mujoco.mj_tendon(model, data)
        self._renderer.update_scene(data, self._camera)
        self._place_lights()
        scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
        for start, stop, rgba in arrows:
            self._add_arrow(np.asarray(start, float), np.asarray(stop, float), rgba)
        self._renderer.render(out=self._image)
        return self._with_text(lines) if lines else self._image

    def _side_camera(self) -> mujoco.MjvCamera:
        camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(self._model, camera)
        if self._followed >= 0:
            camera.type = mujoco.mjtCamera.mjCAMERA_TRACKING
            camera.trackbodyid = self._followed
            camera.distance = 1.5 * float(self._model.stat.extent)
        return camera

    def _place_lights(self) -> None:
        # A shadow map covers little more than the robot: it has to go where the robot goes. From
        # straight above, shadows show which foot is on the ground, and never flicker at an angle.
        if self._followed < 0:
            return
        scene = self._renderer.scene
        below = self._data.xpos[self._followed]
        for light in scene.lights[: scene.nlight]:
            if light.castshadow and light.type == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL:
                light.pos[:] = (below[0], below[1], below[2] + LIGHT_HEIGHT_M)
                light.dir[:] = (0.0, 0.0, -1.0)

    def _add_arrow(
        self,
        start: NDArray[np.float64],
        stop: NDArray[np.float64],
        rgba: tuple[float, float, float, float],
    ) -> None:
        scene = self._renderer.scene
        if np.linalg.norm(stop - start) < MIN_ARROW_M or scene.ngeom >= scene.maxgeom:
            return
        geom = scene.geoms[scene.ngeom]
        kind = mujoco.mjtGeom.mjGEOM_ARROW
        mujoco.mjv_initGeom(
            geom, kind, np.zeros(3), np.zeros(3), np.zeros(9), np.asarray(rgba, np.float32)
        )
        mujoco.mjv_connector(geom, kind, ARROW_RADIUS_M, start, stop)
        geom.emission = 0.4
        scene.ngeom += 1

    def _with_text(self, lines: tuple[str, ...]) -> NDArray[np.uint8]:
        image = Image.fromarray(self._image)
        draw = ImageDraw.Draw(image, "RGBA")
        text, margin = "\n".join(lines), round(self._text_size * 0.6)
        left, top, right, bottom = draw.multiline_textbbox((0, 0), text, font=self._font)
        box = (margin, margin, round(right - left) + 3 * margin, round(bottom - top) + 3 * margin)
        draw.rounded_rectangle(box, radius=margin, fill=(12, 18, 26, 150))
        at = (2 * margin - left, 2 * margin - top)
        draw.multiline_text(at, text, font=self._font, fill=(255, 255, 255, 255))
        return np.asarray(image)


def _cheapen(model: mujoco.MjModel, width: int, height: int) -> None:
    model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
    model.vis.global_.offheight = max(height, model.vis.global_.offheight)
    quality = model.vis.quality
    quality.offsamples = 0
    quality.shadowsize = min(quality.shadowsize, SHADOW_MAP)
    quality.numslices = min(quality.numslices, NUM_SLICES)
    quality.numstacks = min(quality.numstacks, NUM_STACKS)


def _open_video(job: RenderJob) -> Generator[None, Any, None]:
    writer: Generator[None, Any, None] = imageio_ffmpeg.write_frames(
        job.video_path,
        (job.width, job.height),
        fps=job.fps,
        codec="libx264",
        quality=None,
        macro_block_size=2,
        ffmpeg_log_level="error",
        output_params=["-preset", "veryfast", "-crf", "20", "-movflags", "+faststart"],
    )
    next(writer)
    return writer


def _peak_memory_bytes() -> int:
    try:
        import resource
    except ImportError:  # not a Unix system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> int:
    """Render what stdin says. Returns the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a driver prints is not an answer
    job = RenderJob(*pickle.load(sys.stdin.buffer))
    model = mujoco.MjModel.from_binary_path(job.model_path)
    renderer = SceneRenderer(model, job.camera_id, job.width, job.height)
    renderer.draw(model.qpos0, (), ())
    video = _open_video(job)
    print("ready", file=answers, flush=True)
    count, memory = 0, 0
    while (message := pickle.load(sys.stdin.buffer)) is not None:
        qpos, lines, arrows = message
        video.send(renderer.draw(np.frombuffer(qpos), lines, arrows))
        count += 1
        if count == 10:
            memory = _peak_memory_bytes()
    video.close()
    growth = _peak_memory_bytes() - memory if memory else 0
    print(json.dumps({"memory_growth_bytes": growth}), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
