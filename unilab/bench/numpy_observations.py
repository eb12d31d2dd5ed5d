"""The observation terms of the library in NumPy, and how a whole observation is put together.

The critic's terms are written first; what the actor sees alike is copied from there, and
neighbouring terms with noise share one draw, one multiplication and one addition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unilab.bench.numpy_chunk import F32, Chunk
from unilab.bench.numpy_derived import TWINS, WIDE, feet_down, pose_offset, twin
from unilab_kernels.spec import ObservationSlice

Fill = Callable[[Chunk, F32, float], None]  # (chunk, out (m, k), scale)


def _put(values: NDArray[Any], out: F32, scale: float) -> None:
    """out = scale * values, in one pass."""
    if scale == 1.0:
        np.copyto(out, values)
    else:
        np.multiply(values, scale, out=out)


def _add(name: str, read: Callable[[Chunk], NDArray[Any]], *, wide: bool = False) -> None:
    """Register an observation term that is a field as it stands."""

    def fill(c: Chunk, out: F32, scale: float) -> None:
        _put(read(c), out, scale)

    TWINS["observation", name] = fill
    if wide:
        WIDE.add(("observation", name))


_add("base_ang_vel", lambda c: c.columns("ang_vel_b").T)
_add("base_lin_vel", lambda c: c.derived("lin_vel_b").T)
_add("gravity", lambda c: c.derived("projected_gravity").T)
_add("velocity_command", lambda c: c.carried("command"))
_add("feet_air", lambda c: c.carried("feet_air_time"))
_add("feet_contacts", lambda c: c.shared("feet_down", feet_down).T)
_add("base_height", lambda c: c.columns("base_pos")[2:].T)
_add("joint_pos_rel", lambda c: c.shared("pose_offset", pose_offset, wide=True), wide=True)
_add("joint_velocity", lambda c: c.rows("joint_vel"), wide=True)
_add("last_action", lambda c: c.carried("action"), wide=True)


@twin("observation")
def gait_phase(c: Chunk, out: F32, scale: float) -> None:
    """cos, sin of the gait clock."""
    angle, value = c.vector("t0"), c.vector("t1")
    np.multiply(c.scalar("gait_phase"), 2.0 * math.pi, out=angle)
    for column, function in ((0, np.cos), (1, np.sin)):
        _put(function(angle, out=value), out[:, column], scale)


@twin("observation")
def cart_state(c: Chunk, out: F32, scale: float) -> None:
    """x, v."""
    _put(c.scalar("cart_pos"), out[:, 0], scale)
    _put(c.scalar("cart_vel"), out[:, 1], scale)


@twin("observation")
def pole_state(c: Chunk, out: F32, scale: float) -> None:
    """cos, sin, rate."""
    angle, value = c.scalar("pole_angle"), c.vector("t0")
    _put(np.cos(angle, out=value), out[:, 0], scale)
    _put(np.sin(angle, out=value), out[:, 1], scale)
    _put(c.scalar("pole_vel"), out[:, 2], scale)


@dataclass(frozen=True)
class _Part:
    """One term written by its own function."""

    columns: slice
    scale: float
    fill: Fill

    def run(self, c: Chunk, array: F32) -> None:
        self.fill(c, array[:, self.columns], self.scale)


@dataclass(frozen=True)
class _Segment:
    """Neighbouring columns that are copied, or get noise, in one go.

    Attributes:
      target, source: array, first and last column; equal in size.
      streams: name and size of each term with noise; empty: a plain copy.
      widths: (size,) f32, what a draw is multiplied by.
    """

    target: tuple[str, int, int]
    source: tuple[str, int, int]
    streams: tuple[tuple[str, int], ...] = ()
    widths: tuple[float, ...] = ()

    def follows(self, other: _Segment) -> bool:
        """Say whether this one goes on where the other ends, in the same way."""
        touches = all(
            mine[0] == theirs[0] and mine[1] == theirs[2]
            for mine, theirs in ((self.target, other.target), (self.source, other.source))
        )
        return touches and bool(self.streams) == bool(other.streams)

    def joined(self, new: _Segment) -> _Segment:
        """Return both in one."""
        return _Segment(
            (*self.target[:2], new.target[2]),
            (*self.source[:2], new.source[2]),
            self.streams + new.streams,
            self.widths + new.widths,
        )

    def run(self, c: Chunk) -> None:
        target = c.arrays[self.target[0]][:, self.target[1] : self.target[2]]
        source = c.arrays[self.source[0]][:, self.source[1] : self.source[2]]
        if not self.streams:
            np.copyto(target, source)
            return
        size = len(self.widths)
        noise = c.matrix(f"noise of {size}", size)
        c.draws.noise(c.part, self.streams, noise)
        widths = c.tiled(self.streams[0][0], np.array(self.widths, np.float32))
        np.multiply(noise, widths, out=noise)
        np.add(source, noise, out=target)


class ObservePlan:
    """Fills ``obs_out`` and ``critic_obs_out``.

    Args:
      actor, critic: where each term goes.
      twin_of: (stage, name) -> the NumPy form of a term.
      unit: of the noise draws.
    """

    def __init__(
        self,
        actor: Sequence[ObservationSlice],
        critic: Sequence[ObservationSlice],
        twin_of: Callable[[str, str], Callable[..., Any]],
        unit: float,
    ) -> None:
        self._early: list[_Part] = []  # wide terms of the critic: their fields are in cache
        self._critic: list[_Part] = []
        self._actor: list[_Part] = []
        self._segments: list[_Segment] = []
        clean: dict[tuple[str, float], int] = {}
        for part in critic:
            entry = _Part(
                slice(part.start, part.stop), part.scale, twin_of("observation", part.name)
            )
            wide = ("observation", part.name) in WIDE
            (self._early if wide else self._critic).append(entry)
            if part.noise:
                self._join("critic", part, ("critic_obs_out", part.start, part.stop), unit)
            else:
                clean[part.name, part.scale] = part.start
        for part in actor:
            size, first = part.stop - part.start, clean.get((part.name, part.scale))
            source = ("obs_out", part.start, part.stop)
            if first is not None:
                source = ("critic_obs_out", first, first + size)
            else:
                fill = twin_of("observation", part.name)
                self._actor.append(_Part(slice(part.start, part.stop), part.scale, fill))
            if part.noise or first is not None:
                self._join("actor", part, source, unit)

    def _join(
        self, group: str, part: ObservationSlice, source: tuple[str, int, int], unit: float
    ) -> None:
        """Add a term's copy or noise to the list, to the last entry where they touch."""
        size, array = part.stop - part.start, "obs_out" if group == "actor" else "critic_obs_out"
        new = _Segment((array, part.start, part.stop), source)
        if part.noise:
            streams = ((f"noise/observations.{group}.{part.name}", size),)
            widths = (part.scale * part.noise * unit,) * size
            new = _Segment(new.target, new.source, streams, widths)
        if self._segments and new.follows(self._segments[-1]):
            self._segments[-1] = self._segments[-1].joined(new)
        else:
            self._segments.append(new)

    def run_early(self, c: Chunk) -> None:
        """Write the critic's terms of joint vectors."""
        for part in self._early:
            part.run(c, c.arrays["critic_obs_out"])

    def run(self, c: Chunk) -> None:
        """Write everything else."""
        for part in self._critic:
            part.run(c, c.arrays["critic_obs_out"])
        for part in self._actor:
            part.run(c, c.arrays["obs_out"])
        for segment in self._segments:
            segment.run(c)
