"""What mujoco-warp says when a size was too small, and which key of the config makes it larger."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco_warp as mjw
import numpy as np
from numpy.typing import NDArray

from unilab.physics.base import I32, U8
from unilab.physics.contact_sizes import GRAIN, ContactSizes

_BITS = mjw.OverflowType
# A solver that used all its iterations is a setting of the model, not a memory that was too small.
_NOT_MEMORY = int(_BITS.ITERATIONS | _BITS.LS_ITERATIONS)
# The pool of contacts is shared: these bits are raised in every world, whoever filled it.
SHARED = int(_BITS.BROADPHASE | _BITS.NARROWPHASE | _BITS.CCD)
_WHAT = {
    _BITS.NEFC: ("more constraint rows than", "physics.constraints_per_env"),
    _BITS.NJMAX_NNZ: ("more Jacobian entries than fit", "physics.constraints_per_env"),
    _BITS.BROADPHASE: ("more pairs of near geoms than", "physics.contacts_per_env"),
    _BITS.NARROWPHASE: ("more contacts than", "physics.contacts_per_env"),
    _BITS.HFIELD: ("a geom lies on more cells than mujoco-warp looks at: raise terrain.cell_m", ""),
    _BITS.CONTACT_MATCH: ("a contact sensor watches a geom with more than 64 contacts", ""),
    _BITS.CCD: ("more convex contacts than", "physics.contacts_per_env"),
}


@dataclass(frozen=True)
class Overflow:
    """What overflowed in one control step of a group.

    Attributes:
      failed: (Ng,) u8, 1 where an env itself asked for too much: its physics is wrong.
      message: for a person; names the bit, the envs, the worst count and the key to raise.
      bits: all bits that were raised.
    """

    failed: U8
    message: str
    bits: int


def read_overflow(
    bits: NDArray[np.int32], worst: I32, sizes: ContactSizes, first_env: int
) -> Overflow | None:
    """Say what overflowed; None where nothing did.

    Args:
      bits: (Ng,) `mujoco_warp.OverflowType` of each env in this control step.
      worst: (2,) most constraint rows of an env, contacts of all envs together.
      sizes: the capacities.
      first_env: global id of the group's first env.
    """
    memory = bits & ~_NOT_MEMORY
    if not memory.any():
        return None
    raised = int(np.bitwise_or.reduce(memory))
    failed = (memory & ~SHARED) != 0
    lines = [
        _line(bit, np.flatnonzero(memory & int(bit)) + first_env, worst, sizes, len(bits))
        for bit in _BITS
        if bit.value and raised & int(bit) and bit is not _BITS.ALL
    ]
    return Overflow(failed.astype(np.uint8), "; ".join(lines), raised)


def _line(
    bit: mjw.OverflowType, env_ids: NDArray[np.int64], worst: I32, sizes: ContactSizes, total: int
) -> str:
    what, key = _WHAT.get(bit, ("more than mujoco-warp holds; no setting raises it", ""))
    if bit == _BITS.NEFC:
        needed = int(worst[0])
        size = f" {key}={sizes.constraints} (the worst env has {needed})"
    elif int(bit) & SHARED:
        needed = -(-int(worst[1]) // total)
        size = f" {key}={sizes.contacts} an env (all envs together have {int(worst[1])})"
    else:
        needed, size = 2 * sizes.constraints, ""
    who = (
        f"all {total} envs of a group, which share the memory"
        if int(bit) & SHARED
        else f"env {', '.join(map(str, env_ids[:8]))}{' ...' if len(env_ids) > 8 else ''}"
    )
    fix = f"; raise {key} to {GRAIN * (1 + int(1.5 * needed) // GRAIN)} or more" if key else ""
    return f"{bit.name}: {who}: {what}{size}{fix}"
