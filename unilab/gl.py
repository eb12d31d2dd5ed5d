"""Keeps OpenGL out of a process that simulates and learns.

`import mujoco` loads an OpenGL binding, the one that MUJOCO_GL names, and fails where that one does
not work: with MUJOCO_GL=osmesa and no OSMesa installed it raises AttributeError, with an unknown
value RuntimeError. Only the process that renders should meet that.
"""

from __future__ import annotations

import os

# Where the user's choice is kept while MUJOCO_GL is switched off.
REQUESTED = "UNILAB_GL"


def keep_gl_out() -> None:
    """Switch MuJoCo's OpenGL off in this process. Call before the first `import mujoco`.

    Videos are not affected: their process takes what MUJOCO_GL asked for. Calling twice changes
    nothing.
    """
    os.environ.setdefault(REQUESTED, os.environ.get("MUJOCO_GL", ""))
    os.environ["MUJOCO_GL"] = "disabled"


def requested_gl() -> str:
    """The OpenGL platform that the user asked for with MUJOCO_GL, in lower case; "" for none."""
    value = os.environ.get(REQUESTED, os.environ.get("MUJOCO_GL", ""))
    return value.strip().lower()
