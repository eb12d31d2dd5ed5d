"""What the actuators of a compiled model are, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from unilab.physics.names import ONE_DOF_JOINTS, name_of

SUPPORTED_ACTUATORS = ("motor", "position", "velocity", "general")


@dataclass(frozen=True)
class ActuatorRow:
    """What one actuator is, as found in the compiled model.

    `kind` follows MuJoCo's shortcuts: motor, position, velocity, general (another stateless affine
    law), or the name of a type that is not supported. kp is torque per rad (or N/m), kd torque per
    rad/s, both before `gear`. An unlimited range reads (-inf, inf).
    """

    name: str
    joint: str
    kind: str
    kp: float
    kd: float
    gear: float
    ctrl_range: tuple[float, float]
    force_range: tuple[float, float]

    @property
    def supported(self) -> bool:
        """True where an action can be mapped to this actuator's ctrl."""
        return self.kind in SUPPORTED_ACTUATORS


def actuator_table(model: Any) -> tuple[ActuatorRow, ...]:
    """Classify every actuator by the gain, bias and dynamics types of the compiled model.

    Args:
      model: a compiled MjModel.

    Returns:
      One row an actuator, in ctrl order.
    """
    return tuple(_actuator_row(model, i) for i in range(model.nu))


def format_actuator_table(rows: Sequence[ActuatorRow]) -> str:
    """Return the rows as aligned text for a person, one line an actuator under a header."""
    cells = [("actuator", "joint", "type", "kp", "kd", "ctrl range", "force range")]
    for row in rows:
        kind = row.kind if row.supported else f"{row.kind} (not supported)"
        ranges = [f"{low:g} {high:g}" for low, high in (row.ctrl_range, row.force_range)]
        cells.append((row.name, row.joint, kind, f"{row.kp:g}", f"{row.kd:g}", *ranges))  # type: ignore[arg-type]
    widths = [max(len(line[i]) for line in cells) for i in range(7)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def _actuator_row(model: Any, i: int) -> ActuatorRow:
    gain, bias = model.actuator_gainprm[i], model.actuator_biasprm[i]
    gain_type = _tag(mujoco.mjtGain, model.actuator_gaintype[i])
    bias_type = _tag(mujoco.mjtBias, model.actuator_biastype[i])
    transmission = _tag(mujoco.mjtTrn, model.actuator_trntype[i])
    law = f"{gain_type} gain"
    if (gain_type, bias_type) == ("fixed", "none"):
        law = "motor"
    elif (gain_type, bias_type) == ("fixed", "affine"):
        law = "general"
        if gain[0] != 0 and bias[0] == 0 and bias[1] == -gain[0]:
            law = "position"
        elif gain[0] != 0 and bias[0] == bias[1] == 0 and bias[2] == -gain[0]:
            law = "velocity"
    joint_id = int(model.actuator_trnid[i, 0]) if "joint" in transmission else -1

    def limits(limited: Any, bounds: Any) -> tuple[float, float]:
        return (float(bounds[0]), float(bounds[1])) if limited else (-np.inf, np.inf)

    return ActuatorRow(
        name=name_of(model, "actuator", i),
        joint=name_of(model, "joint", joint_id) if joint_id >= 0 else "",
        kind=_actuator_kind(model, i, law, transmission),
        kp=float(-bias[1]) if bias_type == "affine" else 0.0,
        kd=float(-bias[2]) if bias_type == "affine" else 0.0,
        gear=float(model.actuator_gear[i, 0]),
        ctrl_range=limits(model.actuator_ctrllimited[i], model.actuator_ctrlrange[i]),
        force_range=limits(model.actuator_forcelimited[i], model.actuator_forcerange[i]),
    )


def _actuator_kind(model: Any, i: int, law: str, transmission: str) -> str:
    """Name actuator i: its force law, or what keeps it out of SUPPORTED_ACTUATORS."""
    dynamics = _tag(mujoco.mjtDyn, model.actuator_dyntype[i])
    if model.actuator_plugin[i] >= 0:
        return "plugin"
    if dynamics == "integrator":
        return "intvelocity" if law == "position" else f"integrated {law}"
    if dynamics.startswith("filter"):
        return f"filtered {law}"
    if dynamics != "none":
        return dynamics  # muscle, pid, dcmotor, user
    if transmission == "body":
        return "adhesion"
    if "joint" not in transmission:
        return f"{law} on a {transmission}"
    if model.jnt_type[model.actuator_trnid[i, 0]] not in ONE_DOF_JOINTS:
        return f"{law} on a ball or free joint"
    return law


def _tag(enum: Any, value: Any) -> str:
    """Return MuJoCo's short name of an enum's value: mjGAIN_FIXED gives `fixed`."""
    return str(enum(int(value)).name).split("_", 1)[1].lower()
