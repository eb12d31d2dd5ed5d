"""Videos of a policy, rendered off screen by a process of its own."""

from unilab.video.frames import Arrow, Frame
from unilab.video.render import RenderUnavailable, VideoReport, render_video

__all__ = ["Arrow", "Frame", "RenderUnavailable", "VideoReport", "render_video"]
