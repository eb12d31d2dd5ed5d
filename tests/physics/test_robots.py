"""The robots in `unilab/assets` against tables of published numbers, kept here as plain data."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import mujoco
import numpy as np
import pytest

import unilab
from tests.physics.robots import assert_geom, forward, full_inertia
from unilab.physics.model import Robot, compile_robot

ASSETS = Path(unilab.__file__).parent / "assets"
LEGS = ("FR", "FL", "RR", "RL")
JOINTS = tuple(f"{leg}_{part}_joint" for leg in LEGS for part in ("hip", "thigh", "calf"))

# body: parent, pos, mass, com, iquat (wxyz), diagonal inertia
BODIES = """
trunk    world    0 0 0.445           5.204    0.0223 0.002 -0.0005               -0.00342088 0.705204 0.000106698 0.708996  0.0716565 0.0630105 0.0168101
FR_hip   trunk    0.1881 -0.04675 0   0.68     -0.0049166 0.00762615 -8.865e-05   0.507341 0.514169 0.495027 0.482891        0.000734064 0.000468438 0.000398719
FR_thigh FR_hip   0 -0.08 0           1.009    -0.00304722 0.019315 -0.0305004    0.65243 -0.0272313 0.0775126 0.753383      0.00478717 0.00460903 0.000709268
FR_calf  FR_thigh 0 0 -0.213          0.195862 0.00429862 0.000976676 -0.146197   0.691246 0.00357467 0.00511118 0.722592    0.00149767 0.00148468 3.58427e-05
FL_hip   trunk    0.1881 0.04675 0    0.68     -0.0049166 -0.00762615 -8.865e-05  0.482891 0.495027 0.514169 0.507341        0.000734064 0.000468438 0.000398719
FL_thigh FL_hip   0 0.08 0            1.009    -0.00304722 -0.019315 -0.0305004   0.753383 0.0775126 -0.0272313 0.65243      0.00478717 0.00460903 0.000709268
FL_calf  FL_thigh 0 0 -0.213          0.195862 0.00429862 0.000976676 -0.146197   0.691246 0.00357467 0.00511118 0.722592    0.00149767 0.00148468 3.58427e-05
RR_hip   trunk    -0.1881 -0.04675 0  0.68     0.0049166 0.00762615 -8.865e-05    0.495027 0.482891 0.507341 0.514169        0.000734064 0.000468438 0.000398719
RR_thigh RR_hip   0 -0.08 0           1.009    -0.00304722 0.019315 -0.0305004    0.65243 -0.0272313 0.0775126 0.753383      0.00478717 0.00460903 0.000709268
RR_calf  RR_thigh 0 0 -0.213          0.195862 0.00429862 0.000976676 -0.146197   0.691246 0.00357467 0.00511118 0.722592    0.00149767 0.00148468 3.58427e-05
RL_hip   trunk    -0.1881 0.04675 0   0.68     0.0049166 -0.00762615 -8.865e-05   0.514169 0.507341 0.482891 0.495027        0.000734064 0.000468438 0.000398719
RL_thigh RL_hip   0 0.08 0            1.009    -0.00304722 -0.019315 -0.0305004   0.753383 0.0775126 -0.0272313 0.65243      0.00478717 0.00460903 0.000709268
RL_calf  RL_thigh 0 0 -0.213          0.195862 0.00429862 0.000976676 -0.146197   0.691246 0.00357467 0.00511118 0.722592    0.00149767 0.00148468 3.58427e-05
"""  # noqa: E501

# part of a leg: axis, range (rad), armature, kp, kd, effort (Nm)
PARTS = {
    "hip": ((1, 0, 0), (-0.863, 0.863), 0.004026312, 15.895243, 1.011923, 23.7),
    "thigh": ((0, 1, 0), (-0.686, 4.501), 0.004026312, 15.895243, 1.011923, 23.7),
    "calf": ((0, 1, 0), (-2.818, -0.888), 0.009059202, 35.764296, 2.276826, 35.55),
}
DEFAULT_POSE = (0.1, 0.9, -1.8, -0.1, 0.9, -1.8, 0.1, 0.9, -1.8, -0.1, 0.9, -1.8)

# geom (left and right legs differ by the sign of y only): type, size, pos or both ends of a capsule
LEG_GEOMS = {
    "hip_collision": ("capsule", (0.05,), (0, 0.02, 0), (0, 0.04, 0)),
    "thigh_collision1": ("capsule", (0.015,), (-0.02, 0, 0), (-0.02, 0, -0.16)),
    "thigh_collision2": ("capsule", (0.015,), (0, 0, 0), (-0.02, 0, -0.1)),
    "thigh_collision3": ("capsule", (0.015,), (-0.02, 0, -0.16), (0, 0, -0.2)),
    "calf_collision1": ("capsule", (0.01,), (0, 0, 0), (0.02, 0, -0.13)),
    "calf_collision2": ("capsule", (0.01,), (0.02, 0, -0.13), (0, 0, -0.2)),
    "foot_collision": ("sphere", (0.023,), (0, 0, -0.213), None),
}
TRUNK_GEOMS = {
    "trunk_collision": ("box", (0.13, 0.09, 0.05), (0, 0, 0), None),
    "head_collision": ("sphere", (0.06,), (0.24, 0, 0), None),
}
SITES = {  # world position at the default pose with the base at z 0.278
    "head": (0.3, 0, 0.278),
    "imu": (-0.01592, -0.06659, 0.27183),
    "FR": (0.1881, -0.099914, 0.00653),
    "FL": (0.1881, 0.099914, 0.00653),
    "RR": (-0.1881, -0.099914, 0.00653),
    "RL": (-0.1881, 0.099914, 0.00653),
}
BIAS_NM = (-0.6395, 0.3489, -0.2240, 0.6433, 0.3489, -0.2240) * 2
INERTIA = (
    *(12.7434, 12.7434, 12.7434, 0.129076, 0.402218, 0.417046),
    *(0.0218235, 0.0211164, 0.0147467, 0.0218847, 0.0211164, 0.0147467) * 2,
)


@cache
def go1() -> Robot:
    return compile_robot(ASSETS / "go1.xml")


def body_rows() -> list[tuple[str, str, np.ndarray]]:
    lines = (line.split() for line in BODIES.strip().splitlines())
    return [(line[0], line[1], np.array(line[2:], float)) for line in lines]


def test_go1_has_the_published_sizes_and_mass() -> None:
    model = go1().model
    assert (model.nq, model.nv, model.nu, model.nbody) == (19, 18, 12, 14)
    assert model.body_subtreemass[1] == pytest.approx(12.743448, abs=1e-9)
    assert go1().root_joint == "floating_base_joint"
    assert go1().joint_names == JOINTS
    assert model.nmesh == 0


@pytest.mark.parametrize(("name", "parent", "row"), body_rows())
def test_go1_body_matches_the_table(name: str, parent: str, row: np.ndarray) -> None:
    model = go1().model
    body = model.body(name)
    assert body.id == [r[0] for r in body_rows()].index(name) + 1
    assert model.body(body.parentid[0]).name == parent
    np.testing.assert_allclose(body.pos, row[0:3], atol=1e-12)
    np.testing.assert_allclose(body.quat, (1, 0, 0, 0), atol=1e-12)
    assert body.mass[0] == pytest.approx(row[3], rel=1e-12)
    np.testing.assert_allclose(body.ipos, row[4:7], atol=1e-12)
    np.testing.assert_allclose(body.iquat, row[7:11], atol=2e-6)
    np.testing.assert_allclose(body.inertia, row[11:14], rtol=1e-12)


@pytest.mark.parametrize("index", range(12))
def test_go1_joint_and_servo_match_the_table(index: int) -> None:
    robot, name = go1(), JOINTS[index]
    axis, limits, armature, kp, kd, effort = PARTS[name.split("_")[1]]
    joint = robot.model.joint(name)
    assert joint.qposadr[0] == 7 + index
    assert joint.dofadr[0] == 6 + index
    np.testing.assert_array_equal(joint.axis, axis)
    np.testing.assert_array_equal(joint.range, limits)
    assert joint.limited[0]
    np.testing.assert_array_equal(joint.armature, armature)
    assert joint.damping.ravel()[0] == 0
    assert joint.frictionloss[0] == 0
    row = robot.actuator_table()[index]
    assert (row.joint, row.kind, row.gear) == (name, "position", 1.0)
    assert (row.kp, row.kd) == (kp, kd)
    assert row.force_range == (-effort, effort)
    assert row.ctrl_range == (-np.inf, np.inf)
    assert robot.default_qpos[7 + index] == DEFAULT_POSE[index]


@pytest.mark.parametrize("part", PARTS)
def test_go1_gains_follow_from_armature_at_10_hz_and_damping_ratio_2(part: str) -> None:
    _, _, armature, kp, kd, _ = PARTS[part]
    omega = 2 * np.pi * 10
    assert kp == pytest.approx(armature * omega**2, rel=1e-6)
    assert kd == pytest.approx(2 * 2.0 * armature * omega, rel=1e-6)


def test_go1_geoms_match_the_table_and_only_they_collide() -> None:
    model = go1().model
    expected = dict(TRUNK_GEOMS)
    for leg in LEGS:
        y = np.array([1, -1 if leg[1] == "R" else 1, 1])
        for name, (kind, size, start, end) in LEG_GEOMS.items():
            expected[f"{leg}_{name}"] = (kind, size, start * y, None if end is None else end * y)
    for name, (kind, size, start, end) in expected.items():
        assert_geom(model.geom(name), kind, size, start, end)
    colliding = {model.geom(g).name for g in range(model.ngeom) if model.geom_contype[g] and g > 0}
    assert colliding == set(expected)
    assert model.geom(0).name == "floor"


def test_go1_contact_parameters() -> None:
    model = go1().model
    for g in range(model.ngeom):
        geom = model.geom(g)
        if geom.name.endswith("foot_collision"):
            assert (geom.condim[0], geom.priority[0]) == (6, 1)
            np.testing.assert_array_equal(geom.friction, (1, 5e-3, 5e-4))
        elif geom.name.endswith("collision"):
            assert (geom.condim[0], geom.priority[0]) == (1, 0)
        if geom.name != "floor":
            np.testing.assert_array_equal(geom.solref, (0.01, 1))


def test_go1_options() -> None:
    option = go1().model.opt
    assert option.timestep == 0.005
    assert option.integrator == mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    assert option.solver == mujoco.mjtSolver.mjSOL_NEWTON
    assert option.cone == mujoco.mjtCone.mjCONE_ELLIPTIC
    assert (option.iterations, option.ls_iterations, option.impratio) == (10, 20, 10)


def test_go1_static_acceptance_values_at_the_default_pose() -> None:
    robot = go1()
    data = forward(robot, base_z=0.278)
    np.testing.assert_allclose(data.subtree_com[1], (-0.002113, 0.000876, 0.256855), atol=1e-6)
    for name, position in SITES.items():
        np.testing.assert_allclose(data.site(name).xpos, position, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(data.qfrc_bias[6:], BIAS_NM, atol=6e-5)
    inertia = np.zeros((18, 18))
    mujoco.mj_fullM(robot.model, data, inertia)
    np.testing.assert_allclose(np.diag(inertia), INERTIA, rtol=5e-6)
    masses = (12.743, *(1.8849, 1.2049, 0.19586) * 4)
    np.testing.assert_allclose(robot.model.body_subtreemass[1:], masses, rtol=5e-5)


def test_go1_right_legs_mirror_the_left_legs() -> None:
    model = go1().model
    flip = np.array([1, -1, 1])
    mirror = np.diag(flip)
    for end in "FR":
        for part in ("hip", "thigh"):
            left, right = model.body(f"{end}L_{part}"), model.body(f"{end}R_{part}")
            np.testing.assert_allclose(left.pos * flip, right.pos, atol=1e-12)
            np.testing.assert_allclose(left.ipos * flip, right.ipos, atol=1e-12)
            tensors = [full_inertia(body) for body in (left, right)]
            np.testing.assert_allclose(mirror @ tensors[0] @ mirror, tensors[1], atol=2e-8)
        left, right = model.joint(f"{end}L_hip_joint"), model.joint(f"{end}R_hip_joint")
        np.testing.assert_array_equal(-left.range[::-1], right.range)
        for part in ("thigh", "calf"):
            left, right = (model.joint(f"{end}{side}_{part}_joint") for side in "LR")
            np.testing.assert_array_equal(left.range, right.range)
    signs = np.array([-1, 1, 1])
    pose = np.array(DEFAULT_POSE).reshape(4, 3)
    np.testing.assert_array_equal(pose[[0, 2]], pose[[1, 3]] * signs)


def test_go1_home_keyframe_touches_the_floor_without_penetration() -> None:
    robot = go1()
    assert robot.default_qpos[2] == 0.2945
    assert forward(robot).ncon == 0
    assert forward(robot, base_z=0.2945 - 4e-5).ncon == 4
    np.testing.assert_array_equal(robot.model.key("home").ctrl, DEFAULT_POSE)


def test_go1_stands_ten_seconds_on_its_default_targets() -> None:
    robot = go1()
    data = forward(robot)
    data.ctrl[:] = DEFAULT_POSE
    heights, cosines, torques = [], [], []
    for _ in range(2000):
        mujoco.mj_step(robot.model, data)
        heights.append(data.qpos[2])
        cosines.append(data.body("trunk").xmat[8])
        torques.append(np.abs(data.actuator_force).max())
    lowest = int(np.argmin(heights))
    assert heights[lowest] == pytest.approx(0.2515, abs=5e-4)
    assert lowest * 0.005 == pytest.approx(0.8, abs=0.1)
    assert 0.2555 < min(heights[600:]) <= max(heights[600:]) < 0.2605
    assert min(cosines) >= 0.998 - 5e-4  # given to three digits
    # Rear knees 8.9 Nm, front knees 6.5 Nm while settling (7.7 on average).
    assert max(torques[:600]) == pytest.approx(8.9, abs=0.2)
    assert (data.ncon, data.nefc) == (4, 24)


def test_go1_servo_torque_is_proportional_derivative_and_cut_at_the_effort() -> None:
    robot = go1()
    data = forward(robot)
    data.qvel[6:] = 0.5
    data.ctrl[:] = np.array(DEFAULT_POSE) + 0.1
    mujoco.mj_forward(robot.model, data)
    expected = [PARTS[n.split("_")[1]][3] * 0.1 - PARTS[n.split("_")[1]][4] * 0.5 for n in JOINTS]
    np.testing.assert_allclose(data.actuator_force, expected, rtol=1e-6)
    data.ctrl[:] = 100.0
    mujoco.mj_forward(robot.model, data)
    np.testing.assert_allclose(data.actuator_force, [PARTS[n.split("_")[1]][5] for n in JOINTS])


def test_cartpole_matches_the_table() -> None:
    robot = compile_robot(ASSETS / "cartpole.xml")
    model = robot.model
    assert (model.nq, model.nv, model.nu, model.nbody) == (2, 2, 1, 3)
    assert robot.root_joint is None
    assert robot.joint_names == ("slider",)
    np.testing.assert_array_equal(model.body("cart").pos, (0, 0, 1))
    np.testing.assert_allclose([model.body("cart").mass[0], model.body("pole").mass[0]], (1, 0.1))
    slider, hinge = model.joint("slider"), model.joint("hinge")
    np.testing.assert_array_equal(slider.axis, (1, 0, 0))
    np.testing.assert_array_equal(hinge.axis, (0, 1, 0))
    np.testing.assert_array_equal(robot.joint_ranges(["slider"]), [(-1.8, 1.8)])
    np.testing.assert_array_equal(robot.joint_ranges(["hinge"]), [(-np.inf, np.inf)])
    assert (slider.damping.ravel()[0], hinge.damping.ravel()[0]) == (5e-4, 2e-6)
    np.testing.assert_array_equal(model.jnt_solref[slider.id], (0.08, 1))
    np.testing.assert_array_equal(model.geom("cart").size, (0.2, 0.15, 0.1))
    np.testing.assert_allclose(model.geom("pole").size[:2], (0.045, 0.5))
    np.testing.assert_array_equal(model.geom("pole").pos, (0, 0, 0.5))
    assert model.opt.timestep == 0.01
    row = robot.actuator_table()[0]
    assert (row.kind, row.gear, row.ctrl_range) == ("motor", 10.0, (-1.0, 1.0))
    np.testing.assert_array_equal(robot.require_ctrlrange(), [(-1, 1)])


def test_cartpole_home_is_upright_and_unstable() -> None:
    robot = compile_robot(ASSETS / "cartpole.xml")
    np.testing.assert_array_equal(robot.default_qpos, (0, 0))
    data = forward(robot)
    np.testing.assert_allclose(data.site("tip").xpos, (0, 0, 2), atol=1e-12)
    data.qpos[1] = 0.01
    for _ in range(100):
        mujoco.mj_step(robot.model, data)
    assert data.qpos[1] > 0.1  # it falls the way it leans
    assert data.ncon == 0


def test_cartpole_motor_accelerates_both_masses() -> None:
    """Upright and at rest, the hinge cannot push the pole's centre sideways: solve by hand.

    (M + m) a + m l b = F and m l a + (I + m l^2) b = 0, with l to the pole's centre, I about it.
    """
    robot = compile_robot(ASSETS / "cartpole.xml")
    data = forward(robot)
    data.ctrl[:] = 1.0
    mujoco.mj_forward(robot.model, data)
    length, mass, inertia = 0.5, 0.1, robot.model.body("pole").inertia[0]
    matrix = [[1.1, mass * length], [mass * length, inertia + mass * length**2]]
    np.testing.assert_allclose(data.qacc, np.linalg.solve(matrix, [10, 0]), rtol=1e-9)
