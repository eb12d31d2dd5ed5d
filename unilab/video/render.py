"""Write a video: frames go one by one to a render process, which streams them into an .mp4.

OpenGL lives in that process alone. Its platform is chosen by an environment variable that MuJoCo
reads once at import, its drivers may abort, and its memory is hard to give back; none of that can
touch a training process this way.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import mujoco
import numpy as np
import psutil

from unilab.errors import ConfigError, UnilabError, nearest
from unilab.gl import requested_gl
from unilab.video.frames import Frame, RenderJob

# A software renderer needs about a second to start; a broken display can hang for ever.
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0  # for a process that was killed to be gone
INSTALL_HINT = "install one with: apt install libegl1 libgl1-mesa-dri (or: libosmesa6)"


class RenderUnavailable(UnilabError):  # noqa: N818 (a state of the machine)
    """No picture can be made on this machine. The message is one line and says what to install."""


@dataclass(frozen=True)
class VideoReport:
    """What was written."""

    path: Path
    num_frames: int
    wall_s: float
    backend: str  # egl, osmesa, glfw, or "default" where the system has only one
    # Growth of the render process's largest memory use from its 10th frame to its last.
    memory_growth_bytes: int


def render_video(
    model: mujoco.MjModel,
    frames: Iterable[Frame],
    out_mp4: Path | str,
    *,
    camera: str | int | None = None,
    fps: float = 25.0,
    width: int = 640,
    height: int = 480,
) -> VideoReport:
    """Render `frames` into an H.264 video; needs neither a screen nor a GPU.

    `frames` is consumed lazily and never held. The OpenGL platform is MUJOCO_GL where that is set,
    else the first that works of egl, osmesa and, with a display, glfw. The file appears under its
    name only when it is complete.

    Args:
      model: what to draw.
      frames: the pictures, 1 / fps apart.
      out_mp4: file to write; its directory is made.
      camera: name or index of a camera of the model; None takes the one named "track", else
        follows the first free body from the side.
      fps: frames a second.
      width, height: pixels, both even.

    Raises:
      ConfigError: no such camera, or a size that the format does not allow.
      ValueError: no frame at all, or a qpos of another shape or with undefined entries.
      RenderUnavailable: no OpenGL platform works, or the renderer died.
    """
    start = time.perf_counter()
    out = Path(out_mp4)
    if width < 2 or height < 2 or width % 2 or height % 2 or not fps > 0:
        raise ConfigError(
            f"video: size {width}x{height} at {fps:g} frames/s; width and height must be even "
            "and positive, and so must be the frame rate"
        )
    camera_id = _camera_id(model, camera)
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.stem}.partial.mp4")
    with tempfile.TemporaryDirectory(prefix="unilab_video_") as folder:
        model_path = str(Path(folder) / "model.mjb")
        mujoco.mj_saveModel(model, model_path)
        job = RenderJob(model_path, str(partial), camera_id, fps, width, height)
        worker = _start_worker(job, Path(folder))
        try:
            count, growth = worker.render(frames, model.nq)
            os.replace(partial, out)
        finally:
            worker.stop()
            partial.unlink(missing_ok=True)
    return VideoReport(out, count, time.perf_counter() - start, worker.backend, growth)


def _camera_id(model: mujoco.MjModel, camera: str | int | None) -> int:
    if camera is None:
        return int(mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track"))
    if isinstance(camera, int):
        if -1 <= camera < model.ncam:
            return camera
        raise ConfigError(f"video: camera {camera} is not there; the model has {model.ncam}")
    camera_id = int(mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera))
    if camera_id < 0:
        names = [model.camera(i).name for i in range(model.ncam)]
        raise ConfigError(f"video: no camera '{camera}' in the model; {nearest(camera, names)}")
    return camera_id


def _backends() -> list[str]:
    """OpenGL platforms to try, in order; "" leaves the choice to MuJoCo."""
    forced = requested_gl()
    if forced:
        return [forced]
    if not sys.platform.startswith("linux"):
        return [""]
    return ["egl", "osmesa", *(["glfw"] if os.environ.get("DISPLAY") else [])]


def _start_worker(job: RenderJob, folder: Path) -> _Worker:
    failures = []
    for backend in _backends():
        worker = _Worker(backend, folder)
        if worker.begin(job):
            return worker
        worker.stop()
        failures.append(f"{worker.backend}: {worker.last_words()}")
    forced = " (MUJOCO_GL asks for it)" if requested_gl() else ""
    raise RenderUnavailable(
        f"no video: OpenGL does not work here [{'; '.join(failures)}]{forced}; {INSTALL_HINT}"
    )


class _Worker:
    """One render process: started, fed through its stdin, stopped."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.backend = backend or "default"
        self._log_path = folder / f"{self.backend}.log"
        env = {k: v for k, v in os.environ.items() if k != "MUJOCO_GL"}
        if backend:
            env["MUJOCO_GL"] = backend
        package_root = str(Path(__file__).parents[2])
        env["PYTHONPATH"] = os.pathsep.join(
            p for p in (package_root, env.get("PYTHONPATH")) if p is not None
        )
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "unilab.video.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=env,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to: IO[bytes] = self._process.stdin
        self._from: IO[bytes] = self._process.stdout

    def begin(self, job: RenderJob) -> bool:
        """Hand over the job; True once the process has drawn a first picture."""
        timer = threading.Timer(START_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            pickle.dump(tuple(job), self._to)
            self._to.flush()
            return bool(self._from.readline())
        except BrokenPipeError:
            return False
        finally:
            timer.cancel()

    def render(self, frames: Iterable[Frame], nq: int) -> tuple[int, int]:
        """Send every frame; returns their number and the memory growth in bytes."""
        count = 0
        try:
            for frame in frames:
                qpos = np.ascontiguousarray(frame.qpos, dtype=np.float64)
                if qpos.shape != (nq,) or not np.isfinite(qpos).all():
                    raise ValueError(f"frame {count}: qpos must be ({nq},) and finite, got {qpos}")
                message = (qpos.tobytes(), tuple(frame.lines), tuple(map(tuple, frame.arrows)))
                pickle.dump(message, self._to)
                self._to.flush()
                count += 1
            if not count:
                raise ValueError("a video needs at least one frame")
            pickle.dump(None, self._to)
            self._to.flush()
        except BrokenPipeError:
            raise self._died(count) from None
        answer = self._from.readline()
        if self._process.wait() or not answer:
            raise self._died(count)
        report: dict[str, Any] = json.loads(answer)
        return count, int(report["memory_growth_bytes"])

    def _died(self, count: int) -> RenderUnavailable:
        self._process.wait()
        return RenderUnavailable(
            f"no video: the renderer ({self.backend}) stopped after {count} frames had been sent: "
            f"{self.last_words()}"
        )

    def last_words(self) -> str:
        """The last line the process wrote to stderr, or how it ended."""
        text = self._log_path.read_text(encoding="utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {self._process.returncode}"

    def stop(self) -> None:
        """End the process and its encoder, whatever they are doing, and close the pipes."""
        if self._process.poll() is None:
            # The encoder would go on and write the file that the caller is about to remove. The
            # process is halted first, so that it starts no other.
            process = psutil.Process(self._process.pid)
            process.suspend()
            family = process.children(recursive=True)
            for member in (process, *family):
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.kill()
            psutil.wait_procs(family, timeout=STOP_TIMEOUT_S)
        self._process.wait()
        self._from.close()
        # What is still buffered for a process that is gone cannot be sent.
        with contextlib.suppress(BrokenPipeError):
            self._to.close()
