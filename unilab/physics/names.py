"""Names of the things in a compiled model, and one clear error for a name that is not there."""

from __future__ import annotations

from typing import Any

import mujoco

from unilab.errors import ConfigError, nearest

# Plain ints: a NumPy integer never equals a member of MuJoCo's enums.
ONE_DOF_JOINTS = (int(mujoco.mjtJoint.mjJNT_SLIDE), int(mujoco.mjtJoint.mjJNT_HINGE))
OBJECT_TYPES = {
    "site": mujoco.mjtObj.mjOBJ_SITE,
    "body": mujoco.mjtObj.mjOBJ_BODY,
    "geom": mujoco.mjtObj.mjOBJ_GEOM,
    "joint": mujoco.mjtObj.mjOBJ_JOINT,
    "actuator": mujoco.mjtObj.mjOBJ_ACTUATOR,
    "camera": mujoco.mjtObj.mjOBJ_CAMERA,
}
_COUNTS = {"actuator": "nu", "joint": "njnt", "camera": "ncam"}


def find(model: Any, kind: str, name: str, where: str) -> int:
    """Return the id of a named object.

    Args:
      model: a compiled MjModel.
      kind: site, body, geom, joint, actuator or camera.
      name: what is looked for.
      where: how the error begins, e.g. the path of the file.

    Raises:
      ConfigError: no object of that kind has the name; the nearest names are listed.
    """
    found = int(mujoco.mj_name2id(model, OBJECT_TYPES[kind], name))
    if found < 0:
        count = int(getattr(model, _COUNTS.get(kind, f"n{kind}")))
        ids = (mujoco.mj_id2name(model, OBJECT_TYPES[kind], i) for i in range(count))
        names = [name for name in ids if name]
        raise ConfigError(f"{where}: no {kind} is named '{name}'; {nearest(name, names)}")
    return found


def name_of(model: Any, kind: str, i: int) -> str:
    """Return an object's name, or a readable stand-in like `#2` for one without."""
    return mujoco.mj_id2name(model, OBJECT_TYPES[kind], i) or f"#{i}"


def one_dof_joint_names(model: Any) -> list[str]:
    """Return the names of the hinge and slide joints, in the order of the model."""
    types = model.jnt_type
    return [name_of(model, "joint", j) for j in range(model.njnt) if types[j] in ONE_DOF_JOINTS]
