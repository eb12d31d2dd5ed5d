"""The few Warp kernels between mujoco-warp's arrays and the rows that the host reads and writes."""

# mypy: ignore-errors

import warp as wp

wp.set_module_options({"enable_backward": False})


@wp.kernel
def load_ctrl(step: int, ctrl_in: wp.array3d[float], ctrl_out: wp.array2d[float]):
    """Give the actuators (Ng, A) what substep `step` of ctrl_in (Ng, T, A) asks for."""
    world, actuator = wp.tid()
    ctrl_out[world, actuator] = ctrl_in[world, step, actuator]


@wp.kernel
def gather_sensors(
    is_first: bool,
    takes_max: wp.array[bool],
    sensordata_in: wp.array2d[float],
    nefc_in: wp.array[int],
    nacon_in: wp.array[int],
    sensors_io: wp.array2d[float],
    worst_io: wp.array[int],
):
    """Reduce the sensors over the substeps, and keep the worst counts of this control step.

    Args:
      takes_max: (S,) True: the largest value of all substeps; False: the last one.
      sensors_io: (Ng, S); a NaN stays, as it would in a loop over all substeps.
      worst_io: (2,) most constraint rows of an env, contacts of all envs.
    """
    world, column = wp.tid()
    if column == 0:
        wp.atomic_max(worst_io, 0, nefc_in[world])
        if world == 0:
            wp.atomic_max(worst_io, 1, nacon_in[0])
    if column < sensordata_in.shape[1]:
        value = sensordata_in[world, column]
        is_new = is_first or not takes_max[column]
        if is_new or value > sensors_io[world, column] or wp.isnan(value):
            sensors_io[world, column] = value


@wp.kernel
def gather_state(
    time_in: wp.array[float],
    qpos_in: wp.array2d[float],
    qvel_in: wp.array2d[float],
    state_out: wp.array2d[float],
):
    """Pack time, qpos and qvel into state rows (Ng, 1 + nq + nv)."""
    world, column = wp.tid()
    nq = qpos_in.shape[1]
    if column == 0:
        state_out[world, 0] = time_in[world]
    elif column <= nq:
        state_out[world, column] = qpos_in[world, column - 1]
    else:
        state_out[world, column] = qvel_in[world, column - 1 - nq]


@wp.kernel
def begin_worlds(
    worlds: wp.array[int],
    start_s: float,
    qpos_in: wp.array2d[float],
    qvel_in: wp.array2d[float],
    time_out: wp.array[float],
    qpos_out: wp.array2d[float],
    qvel_out: wp.array2d[float],
    warmstart_out: wp.array2d[float],
):
    """Begin new episodes in the worlds listed: state, clock, and nothing of the solver's past."""
    row, column = wp.tid()
    world = worlds[row]
    if column == 0:
        time_out[world] = start_s
    if column < qpos_in.shape[1]:
        qpos_out[world, column] = qpos_in[row, column]
    if column < qvel_in.shape[1]:
        qvel_out[world, column] = qvel_in[row, column]
        warmstart_out[world, column] = 0.0


@wp.kernel
def set_qvel(worlds: wp.array[int], qvel_in: wp.array2d[float], qvel_out: wp.array2d[float]):
    """Set the velocities of the worlds listed."""
    row, column = wp.tid()
    qvel_out[worlds[row], column] = qvel_in[row, column]
