"""Video: what is in it, that frames are streamed, and that a machine without OpenGL says so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import mujoco
import numpy as np
import pytest

from unilab.errors import ConfigError
from unilab.video import Arrow, Frame, RenderUnavailable, render_video
from unilab.video.render import _backends

MJCF = """
<mujoco>
  <worldbody>
    <light directional="true" pos="0 0 4" dir="0.2 0 -1"/>
    <camera name="front" pos="0 -3 0.6" xyaxes="1 0 0 0 0.1 1"/>
    <camera name="above" pos="0 0 4"/>
    <geom type="plane" size="5 5 0.1" rgba="0.3 0.35 0.4 1"/>
    <body name="box" pos="0 0 0.3">
      <joint name="slide" type="slide" axis="1 0 0"/>
      <geom type="box" size="0.2 0.2 0.2" rgba="1 0 0 1"/>
    </body>
  </worldbody>
</mujoco>
"""
SIZE = {"width": 320, "height": 240}


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(MJCF)


@pytest.fixture(scope="module")
def can_render(model: mujoco.MjModel, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where this machine has no OpenGL, with the reason that a user would read."""
    try:
        render_video(model, slide(1), tmp_path_factory.mktemp("probe") / "probe.mp4", **SIZE)
    except RenderUnavailable as reason:
        pytest.skip(str(reason))


def slide(count: int) -> Iterator[Frame]:
    """The box goes from 1 m left of the middle to 1 m right of it."""
    for x in np.linspace(-1.0, 1.0, count):
        yield Frame(np.array([x]))


def read_frames(path: Path) -> list[np.ndarray[Any, Any]]:
    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["size"]
    return [np.frombuffer(f, np.uint8).reshape(height, width, 3).astype(int) for f in reader]


def center_of(image: np.ndarray[Any, Any], channel: int) -> np.ndarray[Any, Any]:
    """(row, column) of the middle of the pixels where one colour stands out."""
    others = [c for c in range(3) if c != channel]
    mask = image[..., channel] > 60 + image[..., others].max(-1)
    assert mask.sum() > 20, "nothing of that colour in the picture"
    return np.argwhere(mask).mean(0)


@pytest.mark.usefixtures("can_render")
def test_video_shows_each_configuration_once(model: mujoco.MjModel, tmp_path: Path) -> None:
    out = tmp_path / "new" / "slide.mp4"
    report = render_video(model, slide(9), out, camera="front", fps=10, **SIZE)
    frames = read_frames(out)
    assert (report.num_frames, len(frames)) == (9, 9)
    assert frames[0].shape == (240, 320, 3)
    columns = [center_of(f, 0)[1] for f in frames]
    assert np.all(np.diff(columns) > 5)  # further right in each frame
    assert abs(columns[4] - 160) < 4  # in the middle at x = 0
    assert os.listdir(out.parent) == ["slide.mp4"]
    info = next(imageio_ffmpeg.read_frames(str(out)))
    assert (info["fps"], info["codec"]) == (10.0, "h264")


@pytest.mark.usefixtures("can_render")
def test_arrows_and_text_are_drawn(model: mujoco.MjModel, tmp_path: Path) -> None:
    arrow = Arrow((-1.0, 0.0, 1.0), (-0.4, 0.0, 1.0), (0.0, 1.0, 0.0, 1.0))
    frames = [Frame(np.zeros(1)), Frame(np.zeros(1), ("command 1.0",), (arrow,))]
    render_video(model, frames, tmp_path / "a.mp4", camera="front", **SIZE)
    bare, drawn = read_frames(tmp_path / "a.mp4")
    row, column = center_of(drawn, 1)
    assert row < 120
    assert column < 160
    corner = (slice(0, 40), slice(0, 120))
    assert (drawn[corner].min(-1) > 200).sum() > 40  # white letters
    assert (bare[corner].min(-1) > 200).sum() == 0


@pytest.mark.usefixtures("can_render")
def test_camera_follows_a_free_body(tmp_path: Path) -> None:
    joint = '<joint name="slide" type="slide" axis="1 0 0"/>'
    model = mujoco.MjModel.from_xml_string(MJCF.replace(joint, "<freejoint/>"))
    frames = [Frame(np.array([x, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0])) for x in (0.0, 3.0)]
    render_video(model, frames, tmp_path / "a.mp4", **SIZE)
    first, last = (center_of(f, 0) for f in read_frames(tmp_path / "a.mp4"))
    np.testing.assert_allclose(first, last, atol=4)


@pytest.mark.usefixtures("can_render")
def test_frames_are_streamed_not_kept(model: mujoco.MjModel, tmp_path: Path) -> None:
    report = render_video(model, slide(200), tmp_path / "long.mp4", **SIZE)
    assert report.num_frames == 200
    assert report.memory_growth_bytes < 10 * 320 * 240 * 3


@pytest.mark.usefixtures("can_render")
def test_error_in_the_frames_comes_through_and_leaves_no_file(
    model: mujoco.MjModel, tmp_path: Path
) -> None:
    def broken() -> Iterator[Frame]:
        yield from slide(3)
        raise RuntimeError("the policy failed")

    with pytest.raises(RuntimeError, match="the policy failed"):
        render_video(model, broken(), tmp_path / "a.mp4", **SIZE)
    with pytest.raises(ValueError, match="at least one frame"):
        render_video(model, [], tmp_path / "a.mp4", **SIZE)
    with pytest.raises(ValueError, match=r"frame 0: qpos must be \(1,\) and finite"):
        render_video(model, [Frame(np.array([np.nan]))], tmp_path / "a.mp4", **SIZE)
    assert list(tmp_path.iterdir()) == []


def test_forced_backend_that_does_not_work_gives_one_line(
    model: mujoco.MjModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UNILAB_GL", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    with pytest.raises(RenderUnavailable) as info:
        render_video(model, slide(2), tmp_path / "a.mp4", **SIZE)
    message = str(info.value)
    assert "\n" not in message
    assert "MUJOCO_GL asks for it" in message
    assert "apt install libegl1 libgl1-mesa-dri (or: libosmesa6)" in message
    assert list(tmp_path.iterdir()) == []


def test_broken_driver_cannot_touch_the_caller(
    model: mujoco.MjModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("UNILAB_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    # The OpenGL bindings of the render process are replaced by ones that abort it.
    (tmp_path / "OpenGL").mkdir()
    (tmp_path / "OpenGL" / "__init__.py").write_text("import os\nos.abort()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RenderUnavailable, match=r"egl: exit code -6; osmesa: exit code -6"):
        render_video(model, slide(2), tmp_path / "a.mp4", **SIZE)


def test_backends_are_tried_in_order_unless_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.delenv("UNILAB_GL", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    assert _backends() == ["egl", "osmesa"]
    monkeypatch.setenv("DISPLAY", ":0")
    assert _backends() == ["egl", "osmesa", "glfw"]
    monkeypatch.setenv("MUJOCO_GL", "OSMesa")
    assert _backends() == ["osmesa"]


def test_wrong_camera_and_size_are_errors_of_the_user(
    model: mujoco.MjModel, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no camera 'frnt'.*did you mean 'front'"):
        render_video(model, slide(1), tmp_path / "a.mp4", camera="frnt")
    with pytest.raises(ConfigError, match="camera 2 is not there; the model has 2"):
        render_video(model, slide(1), tmp_path / "a.mp4", camera=2)
    with pytest.raises(ConfigError, match="must be even"):
        render_video(model, slide(1), tmp_path / "a.mp4", width=321)


@pytest.mark.parametrize("asked", ["", "osmesa", "egl", "no_such_platform"])
def test_a_process_that_keeps_gl_out_never_loads_it_whatever_is_asked_for(
    tmp_path: Path, asked: str
) -> None:
    code = (
        "import sys\n"
        "from unilab.gl import keep_gl_out, requested_gl\n"
        "keep_gl_out()\n"
        "keep_gl_out()\n"
        "import mujoco, unilab.video\n"
        "m = mujoco.MjModel.from_xml_string('<mujoco/>')\n"
        "try: unilab.video.render_video(m, [unilab.video.Frame(m.qpos0)], sys.argv[1])\n"
        "except unilab.video.RenderUnavailable as error: print(error)\n"
        "names = ('OpenGL', 'glfw', 'imageio_ffmpeg', 'PIL')\n"
        "assert not [n for n in sys.modules if n.split('.')[0] in names]\n"
        "print('asked', requested_gl())\n"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("MUJOCO_GL", "UNILAB_GL")}
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.mp4")],
        check=True,
        capture_output=True,
        text=True,
        env=environment | ({"MUJOCO_GL": asked} if asked else {}),
    )
    *failure, last = result.stdout.splitlines()
    assert last.split(" ") == ["asked", asked]
    if asked == "no_such_platform":
        assert "no_such_platform" in failure[0]
        assert "MUJOCO_GL asks for it" in failure[0]
    assert len(failure) == (0 if (tmp_path / "a.mp4").exists() else 1)
