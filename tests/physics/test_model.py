"""Loading of MJCF: facts by name, declared sensors, and one clear error for each user mistake."""

from __future__ import annotations

import struct
from itertools import combinations
from pathlib import Path

import mujoco
import numpy as np
import pytest

import unilab
from unilab.errors import ConfigError
from unilab.physics.model import (
    ContactModel,
    ContactSensorSpec,
    SensorSpec,
    actuator_table,
    compile_robot,
    format_actuator_table,
    load_spec,
)

GO1 = Path(unilab.__file__).parent / "assets" / "go1.xml"
FEET = tuple(f"{leg}_foot_collision" for leg in ("FR", "FL", "RR", "RL"))
ARM = """<body name="arm"><joint name="j" type="hinge" axis="0 1 0"/>
  <geom name="arm" type="capsule" size="0.05" fromto="0 0 0 0.5 0 0"/></body>"""
BALL = """<body name="ball" pos="1 0 1"><freejoint name="ball_free"/>
  <geom name="ball" size="0.1"/></body>"""
MOTOR = '<motor name="m" joint="j" ctrllimited="true" ctrlrange="-2 2"/>'


def mjcf(world: str, actuators: str = MOTOR, rest: str = "") -> str:
    return (
        f"<mujoco>\n<worldbody>\n{world}\n</worldbody>\n"
        f"<actuator>{actuators}</actuator>\n{rest}\n</mujoco>"
    )


def write(folder: Path, text: str, name: str = "robot.xml") -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def error_of(file: Path, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        compile_robot(file, **options)  # type: ignore[arg-type]
    assert str(file.name) in str(caught.value)
    return str(caught.value)


def tetrahedron() -> bytes:
    corners = np.array([[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0], [0, 0, 0.1]], "<f4")
    faces = ((0, 2, 1), (0, 1, 3), (0, 3, 2), (1, 2, 3))
    rows = (bytes(12) + corners[list(face)].tobytes() + bytes(2) for face in faces)
    return bytes(80) + struct.pack("<I", 4) + b"".join(rows)


EDGES = [0.1] * 3 + [0.1 * 2**0.5] * 3


def edges(model: mujoco.MjModel) -> list[float]:
    """Return the sorted edge lengths of the tetrahedron, whatever frame MuJoCo moved it to."""
    corners = np.unique(model.mesh_vert, axis=0)
    return sorted(float(np.linalg.norm(a - b)) for a, b in combinations(corners, 2))


def mesh_robot(folder: Path, meshdir: str = "assets") -> Path:
    """Write robot/robot.xml with one mesh in robot/assets, and robot/scene.xml including it."""
    robot = folder / "robot"
    (robot / "assets").mkdir(parents=True)
    (robot / "assets" / "l.stl").write_bytes(tetrahedron())
    body = f'<body name="b"><freejoint/><geom type="mesh" mesh="l"/>{ARM}</body>'
    text = mjcf(body, rest='<asset><mesh name="l" file="l.stl"/></asset>')
    write(robot, text.replace("<mujoco>", f'<mujoco><compiler meshdir="{meshdir}"/>'))
    plane = '<worldbody><geom type="plane" size="1 1 1"/></worldbody>'
    return write(robot, f'<mujoco><include file="robot.xml"/>{plane}</mujoco>', "scene.xml")


# --- files ---------------------------------------------------------------------------------------


def test_missing_file_names_the_nearest_file(tmp_path: Path) -> None:
    write(tmp_path, mjcf(ARM), "robot.xml")
    message = error_of(tmp_path / "robt.xml")
    assert "not found" in message
    assert "'robot.xml'" in message


def test_folder_empty_file_and_other_suffix_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "folder", mjcf(ARM), "inside.xml")
    assert "inside.xml" in error_of(tmp_path / "folder")
    assert "empty" in error_of(write(tmp_path, " \n", "blank.xml"))
    assert ".urdf" in error_of(write(tmp_path, "<robot/>", "robot.urdf"))


def test_broken_xml_keeps_the_line_and_the_mujoco_version(tmp_path: Path) -> None:
    text = mjcf(ARM).replace('name="j"', 'nmae="j"')
    message = error_of(write(tmp_path, text))
    assert "nmae" in message
    assert "line 3" in message
    assert mujoco.__version__ in message
    assert "Line number" in error_of(write(tmp_path, "<mujoco>\n<worldbody>\n</mujoco>"))


def test_an_error_found_by_the_compiler_keeps_its_line(tmp_path: Path) -> None:
    message = error_of(write(tmp_path, mjcf(ARM.replace("<geom", '<geom material="gold"'))))
    assert "material 'gold' not found" in message
    assert "line 4" in message


def test_every_attribute_mujoco_knows_is_accepted(tmp_path: Path) -> None:
    text = mjcf(ARM.replace('name="j"', 'name="j" actuatorfrcrange="-10 10"'))
    assert compile_robot(write(tmp_path, text)).model.jnt_actfrclimited[0]


# --- meshes and includes -------------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("folder", ["plain", "name with space é機"])
def test_meshes_of_an_included_file_load(tmp_path: Path, absolute: bool, folder: str) -> None:
    base = tmp_path / folder
    scene = mesh_robot(base, str(base / "robot" / "assets") if absolute else "assets")
    for file in (scene, scene.with_name("robot.xml")):
        assert compile_robot(file).model.nmesh == 1
    np.testing.assert_allclose(edges(compile_robot(scene).model), EDGES, atol=1e-6)


def test_mesh_lost_by_a_scene_one_folder_up_names_folder_include_line_and_fix(
    tmp_path: Path,
) -> None:
    mesh_robot(tmp_path)
    include = '<mujoco>\n<include file="robot/robot.xml"/>\n</mujoco>'
    scene = write(tmp_path, include, "scene_up.xml")
    message = error_of(scene)
    for folder in ("robot", "assets"):
        assert f"tried: {tmp_path / folder / 'l.stl'}" in message
    assert f"included: {tmp_path / 'robot' / 'robot.xml'} (line 2 of scene_up.xml)" in message
    fix = '<compiler meshdir="robot/assets"/>'
    assert fix in message
    assert "after its <include>" in message
    scene.write_text(include.replace("\n</mujoco>", f"{fix}</mujoco>"))
    assert compile_robot(scene).model.nmesh == 1


def test_mesh_in_no_folder_at_all_names_every_place(tmp_path: Path) -> None:
    scene = mesh_robot(tmp_path)
    (tmp_path / "robot" / "assets" / "l.stl").unlink()
    message = error_of(scene)
    assert f"tried: {tmp_path / 'robot' / 'assets' / 'l.stl'}" in message
    assert "meshdir" in message


@pytest.mark.parametrize(
    ("asset", "key"),
    [
        ('<texture name="t" type="2d" file="x.png"/>', "texturedir"),
        ('<hfield name="h" size="1 1 1 1" file="x.png"/>', "meshdir"),
    ],
)
def test_a_missing_image_names_the_setting_that_finds_it(
    tmp_path: Path, asset: str, key: str
) -> None:
    message = error_of(write(tmp_path, mjcf(ARM, rest=f"<asset>{asset}</asset>")))
    assert f"tried: {tmp_path / 'x.png'}" in message
    assert f"<compiler {key}=" in message


def test_the_same_file_included_twice_is_refused(tmp_path: Path) -> None:
    mesh_robot(tmp_path)
    twice = '<include file="robot/robot.xml"/>' * 2
    message = error_of(write(tmp_path, f"<mujoco>{twice}</mujoco>", "twice.xml"))
    assert "already included" in message


def test_a_mesh_default_without_a_file_is_legal_inside_an_include(tmp_path: Path) -> None:
    write(tmp_path, '<mujoco><default><mesh maxhullvert="64"/></default></mujoco>', "d.xml")
    text = mjcf(ARM).replace("<mujoco>", '<mujoco><include file="d.xml"/>')
    assert compile_robot(write(tmp_path, text)).joint_names == ("j",)


def test_compiler_assets_and_bodies_may_come_from_three_includes(tmp_path: Path) -> None:
    mesh_robot(tmp_path)
    parts = {
        "compiler.xml": '<mujoco><compiler meshdir="robot/assets"/></mujoco>',
        "asset.xml": '<mujoco><asset><mesh name="l" file="l.stl"/></asset></mujoco>',
        "world.xml": mjcf(ARM + '<geom name="shape" type="mesh" mesh="l"/>'),
    }
    for name, text in parts.items():
        write(tmp_path, text, name)
    includes = "".join(f'<include file="{name}"/>' for name in parts)
    robot = compile_robot(write(tmp_path, f"<mujoco>{includes}</mujoco>", "top.xml"))
    model = robot.model
    assert model.geom_type[model.geom("shape").id] == mujoco.mjtGeom.mjGEOM_MESH
    np.testing.assert_allclose(edges(model), EDGES, atol=1e-6)


# --- joints, keyframes ---------------------------------------------------------------------------


@pytest.mark.parametrize("ball_first", [True, False])
def test_joint_addresses_and_home_pose_go_by_name(tmp_path: Path, ball_first: bool) -> None:
    ball_pose = "1 0 1 1 0 0 0"
    qpos = f"{ball_pose} 0.3" if ball_first else f"0.3 {ball_pose}"
    world = BALL + ARM if ball_first else ARM + BALL
    key = f'<keyframe><key name="home" qpos="{qpos}"/></keyframe>'
    robot = compile_robot(write(tmp_path, mjcf(world, rest=key)))
    assert robot.root_joint == "ball_free"
    ids = robot.qpos_ids(["j"])
    assert ids.dtype == np.int32
    assert ids.tolist() == [7 if ball_first else 0]
    assert robot.qvel_ids(["j"]).tolist() == [6 if ball_first else 0]
    assert robot.default_qpos[ids].tolist() == [0.3]


@pytest.mark.parametrize("world", [BALL + ARM, ARM + BALL])
def test_robot_keyframe_left_short_by_an_added_object_is_refused(
    tmp_path: Path, world: str
) -> None:
    key = '<keyframe><key name="home" qpos="0.3"/></keyframe>'
    message = error_of(write(tmp_path, mjcf(world, rest=key)))
    assert "keyframe 'home' has 1 numbers in qpos, this model needs 8" in message
    assert "ball_free: 7" in message
    assert "j: 1" in message


@pytest.mark.parametrize(("qpos", "came"), [("0 0 1", 3), ("0 0 1 1 0 0 0 5", 8)])
def test_keyframe_too_short_or_too_long_for_a_free_body(
    tmp_path: Path, qpos: str, came: int
) -> None:
    key = f'<keyframe><key name="spot" qpos="{qpos}"/></keyframe>'
    message = error_of(write(tmp_path, mjcf(BALL, "", key)))
    assert f"keyframe 'spot' has {came} numbers in qpos, this model needs 7" in message


@pytest.mark.parametrize("count", [1, 2])
def test_keyframe_lengths_are_checked_with_replicate(tmp_path: Path, count: int) -> None:
    world = f'<replicate count="{count}" offset="0 1 0">{ARM}</replicate>'
    motor = '<motor joint="j{}" ctrllimited="true" ctrlrange="-1 1"/>'
    motors = "".join(motor.format(i) for i in range(count))
    for size in (1, 2, 3):
        key = f'<keyframe><key name="home" qpos="{"0.5 " * size}"/></keyframe>'
        file = write(tmp_path, mjcf(world, motors, key))
        if size == count:
            assert compile_robot(file).default_qpos.tolist() == [0.5] * count
        else:
            assert f"has {size} numbers in qpos, this model needs {count}" in error_of(file)


@pytest.mark.parametrize("part", ["qvel", "ctrl"])
def test_keyframe_velocity_and_ctrl_lengths_are_checked(tmp_path: Path, part: str) -> None:
    two = ARM.replace('"arm"', '"a"').replace('"j"', '"k"') + ARM
    motors = MOTOR + MOTOR.replace('"m"', '"n"').replace('"j"', '"k"')
    for values in ("0", "0 0 0"):
        key = f'<keyframe><key name="home" {part}="{values}"/></keyframe>'
        message = error_of(write(tmp_path, mjcf(two, motors, key)))
        assert f"has {len(values.split())} numbers in {part}, this model needs 2" in message


def test_without_a_home_keyframe_the_default_is_qpos0(tmp_path: Path) -> None:
    key = '<keyframe><key name="other" qpos="0.3"/></keyframe>'
    robot = compile_robot(write(tmp_path, mjcf(ARM, rest=key)))
    assert robot.default_qpos.tolist() == [0.0]
    with pytest.raises(ValueError, match="read-only"):
        robot.default_qpos[0] = 1.0


def test_two_free_joints_are_refused_and_both_are_named(tmp_path: Path) -> None:
    base = f'<body name="base"><freejoint name="root"/><geom size="0.1"/>{ARM}</body>'
    message = error_of(write(tmp_path, mjcf(BALL + base)))
    assert "'ball_free' (body 'ball') and 'root' (body 'base')" in message


def test_a_model_that_cannot_move_or_act_is_refused(tmp_path: Path) -> None:
    still = write(tmp_path, mjcf('<geom size="1"/>', ""))
    assert "nothing in this model can move" in error_of(still)
    message = error_of(write(tmp_path, mjcf(ARM, "")))
    assert "no actuator" in message
    assert "Joints: j" in message


def test_unknown_or_wrong_joint_names_are_refused() -> None:
    robot = compile_robot(GO1)
    with pytest.raises(ConfigError, match="did you mean 'FR_hip_joint'"):
        robot.qpos_ids(["FR_hipjoint"])
    with pytest.raises(ConfigError, match="not a hinge or slide"):
        robot.joint_ranges(["floating_base_joint"])


# --- actuators -----------------------------------------------------------------------------------


def test_actuators_of_the_file_are_used_as_they_are(tmp_path: Path) -> None:
    two = ARM.replace('"arm"', '"a"').replace('"j"', '"k"') + ARM
    servos = '<position name="s1" joint="j" kp="5"/><position name="s2" joint="k" kp="7"/>'
    robot = compile_robot(write(tmp_path, mjcf(two, servos)))
    assert robot.actuator_names == ("s1", "s2")
    assert robot.joint_names == ("j", "k")  # in actuator order, though k comes first in qpos
    assert robot.qpos_ids(robot.joint_names).tolist() == [1, 0]
    data = mujoco.MjData(robot.model)
    data.ctrl[:] = (0.1, -0.2)
    mujoco.mj_forward(robot.model, data)
    np.testing.assert_allclose(data.actuator_force, (0.5, -1.4))


def test_motor_without_ctrlrange_loads_but_gives_no_action_scale(tmp_path: Path) -> None:
    robot = compile_robot(write(tmp_path, mjcf(ARM, '<motor name="bare" joint="j"/>')))
    with pytest.raises(ConfigError, match="'bare' \\(motor on joint 'j'\\) has no ctrlrange"):
        robot.require_ctrlrange()
    servo = compile_robot(write(tmp_path, mjcf(ARM, '<position name="servo" joint="j" kp="1"/>')))
    with pytest.raises(ConfigError, match="'servo' \\(position on joint 'j'\\) has no ctrlrange"):
        servo.require_ctrlrange()
    limited = compile_robot(write(tmp_path, mjcf(ARM)))
    assert limited.require_ctrlrange().tolist() == [[-2, 2]]


ZOO = """
<motor name="motor" joint="j"/>
<position name="position" class="servo" joint="j"/>
<velocity name="velocity" joint="j" kv="3"/>
<general name="affine" joint="j" gainprm="5" biastype="affine" biasprm="1 -4 -2"/>
<intvelocity name="intvelocity" joint="j" kp="3" actrange="-1 1"/>
<muscle name="muscle" joint="j"/>
<position name="slow" joint="j" kp="2" timeconst="0.1"/>
<damper name="damper" joint="j" kv="1" ctrlrange="0 1"/>
<adhesion name="sticky" body="arm" ctrlrange="0 1"/>
"""
ZOO_KINDS = {
    "motor": "motor",
    "position": "position",
    "velocity": "velocity",
    "affine": "general",
    "intvelocity": "intvelocity",
    "muscle": "muscle",
    "slow": "filtered position",
    "damper": "affine gain",
    "sticky": "adhesion",
}
SERVO = '<default><default class="servo"><position kp="20" inheritrange="1"/></default></default>'
RANGED = ARM.replace('name="j"', 'name="j" limited="true" range="-90 90"')


def test_actuators_are_classified_from_the_compiled_model(tmp_path: Path) -> None:
    model = load_spec(write(tmp_path, mjcf(RANGED, ZOO, SERVO))).compile()
    rows = {row.name: row for row in actuator_table(model)}
    assert {name: row.kind for name, row in rows.items()} == ZOO_KINDS
    assert (rows["position"].kp, rows["position"].kd) == (20, 0)
    np.testing.assert_allclose(rows["position"].ctrl_range, (-np.pi / 2, np.pi / 2))
    assert (rows["velocity"].kp, rows["velocity"].kd) == (0, 3)
    assert (rows["affine"].kp, rows["affine"].kd) == (4, 2)
    assert (rows["motor"].kp, rows["motor"].kd) == (0, 0)
    supported = {name for name, row in rows.items() if row.supported}
    assert supported == {"motor", "position", "velocity", "affine"}


def test_unsupported_actuators_are_named_with_the_table_of_what_was_found(tmp_path: Path) -> None:
    message = error_of(write(tmp_path, mjcf(RANGED, ZOO, SERVO)))
    head, table = message.split("Found:\n")
    assert "'muscle' (muscle)" in head
    assert "'motor'" not in head
    assert len(table.splitlines()) == 1 + len(ZOO_KINDS)
    assert "intvelocity (not supported)" in table


def test_actuators_on_tendons_and_free_joints_are_not_supported(tmp_path: Path) -> None:
    tendon = '<tendon><fixed name="t"><joint joint="j" coef="1"/></fixed></tendon>'
    on_tendon = '<motor name="m" tendon="t"/>'
    assert "'m' (motor on a tendon)" in error_of(write(tmp_path, mjcf(ARM, on_tendon, tendon)))
    on_free = '<motor name="m" joint="ball_free"/>'
    assert "on a ball or free joint" in error_of(write(tmp_path, mjcf(BALL, on_free)))


def test_actuator_table_prints_one_aligned_line_each() -> None:
    lines = format_actuator_table(compile_robot(GO1).actuator_table()).splitlines()
    assert len(lines) == 13
    assert lines[0].split()[:3] == ["actuator", "joint", "type"]
    words = ["FR_calf", "FR_calf_joint", "position", "35.7643", "2.27683"]
    assert lines[3].split() == [*words, "-inf", "inf", "-35.55", "35.55"]


# --- sensors -------------------------------------------------------------------------------------


def resting_ball(tmp_path: Path, tilt: float = 0.0) -> Path:
    floor = f'<geom name="floor" type="plane" size="9 9 1" euler="0 {tilt} 0" condim="3"/>'
    ball = '<body name="ball" pos="0 0 0.1"><freejoint/><geom name="ball" size="0.1" mass="2"/>'
    far_arm = ARM.replace('name="arm">', 'name="arm" pos="0 3 5">')
    return write(tmp_path, mjcf(floor + ball + "</body>" + far_arm))


def test_contact_force_is_that_on_the_listed_geom_in_the_world_frame(tmp_path: Path) -> None:
    force = ContactSensorSpec("force", ("ball",), "floor", data="force", reduce="max")
    reverse = ContactSensorSpec("reverse", ("floor",), "ball", data="force")
    found = ContactSensorSpec("found", ("ball", "arm"), "floor", reduce="any")
    robot = compile_robot(resting_ball(tmp_path), sensors=[force, reverse, found])
    data = mujoco.MjData(robot.model)
    for _ in range(1500):
        mujoco.mj_step(robot.model, data)
    read = {n: data.sensordata[s.start : s.stop].copy() for n, s in robot.sensors.items()}
    np.testing.assert_allclose(read["force"], (0, 0, 2 * 9.81), atol=1e-2)
    np.testing.assert_allclose(read["reverse"], (0, 0, -2 * 9.81), atol=1e-2)
    np.testing.assert_array_equal(read["found"], (1, 0))
    assert robot.sensors["force"].reduce == "max"
    assert robot.sensors["found"].reduce == "any"


def test_contact_force_on_a_slope_balances_weight_along_the_normal(tmp_path: Path) -> None:
    force = ContactSensorSpec("force", ("ball",), "floor", data="force")
    robot = compile_robot(resting_ball(tmp_path, tilt=20), sensors=[force])
    data = mujoco.MjData(robot.model)
    for _ in range(300):
        mujoco.mj_step(robot.model, data)
    normal = np.array([np.sin(np.radians(20)), 0, np.cos(np.radians(20))])
    assert data.sensordata @ normal == pytest.approx(2 * 9.81 * normal[2], rel=2e-2)
    friction = data.sensordata - (data.sensordata @ normal) * normal
    assert friction[0] < -0.5  # uphill: it slows a ball that rolls towards +x


def test_sensors_are_contiguous_blocks_in_the_declared_order() -> None:
    robot = compile_robot(
        GO1,
        sensors=[
            SensorSpec("gyro", "gyro", site="imu"),
            ContactSensorSpec("touch", FEET, "floor"),
            SensorSpec("feet_vel", "framelinvel", site=("FR", "FL", "RR", "RL"), reduce="max"),
            SensorSpec("torque", "actuatorfrc", actuator=("FR_calf", "FR_hip")),
            SensorSpec("angle", "jointpos", joint="FR_calf_joint"),
            SensorSpec("com", "subtreecom", body="trunk"),
        ],
    )
    spans = {name: (s.start, s.stop) for name, s in robot.sensors.items()}
    assert spans == {
        "gyro": (0, 3),
        "touch": (3, 7),
        "feet_vel": (7, 19),
        "torque": (19, 21),
        "angle": (21, 22),
        "com": (22, 25),
    }
    assert robot.model.nsensordata == 25
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.default_qpos
    data.qvel[:3] = (0.5, 0, 0)
    data.ctrl[:] = robot.default_qpos[7:] + 0.1
    mujoco.mj_forward(robot.model, data)
    read = {name: data.sensordata[a:b] for name, (a, b) in spans.items()}
    np.testing.assert_allclose(read["feet_vel"].reshape(4, 3), [(0.5, 0, 0)] * 4, atol=1e-9)
    np.testing.assert_allclose(read["torque"], (3.5764296, 1.5895243), rtol=1e-6)
    np.testing.assert_allclose(read["angle"], -1.8)
    np.testing.assert_allclose(read["com"], data.subtree_com[1])


def test_frame_sensors_see_the_body_frame_and_a_reference_frame() -> None:
    up = SensorSpec("up_b", "framezaxis", body="world", reference_site="imu")
    place = SensorSpec("place", "framepos", body="trunk")
    away = SensorSpec("away", "framepos", site="head", reference_body="trunk")
    robot = compile_robot(GO1, sensors=[up, place, away])
    data = mujoco.MjData(robot.model)
    data.qpos[:] = robot.default_qpos
    data.qpos[3:7] = (np.cos(0.25), 0, np.sin(0.25), 0)  # nose down by 0.5 rad
    mujoco.mj_forward(robot.model, data)
    np.testing.assert_allclose(data.sensordata[:3], (-np.sin(0.5), 0, np.cos(0.5)), atol=1e-9)
    np.testing.assert_allclose(data.sensordata[3:6], robot.default_qpos[:3], atol=1e-12)
    np.testing.assert_allclose(data.sensordata[6:9], (0.3, 0, 0), atol=1e-12)


def test_sensors_of_the_file_are_left_out(tmp_path: Path) -> None:
    own = '<sensor><jointpos name="angle" joint="j"/><clock/></sensor>'
    file = write(tmp_path, mjcf(ARM, rest=own))
    robot = compile_robot(file, sensors=[SensorSpec("angle", "jointvel", joint="j")])
    assert robot.model.nsensordata == 1
    assert robot.model.sensor_type[0] == mujoco.mjtSensor.mjSENS_JOINTVEL
    assert compile_robot(file).model.nsensordata == 0


@pytest.mark.parametrize(
    ("sensor", "words"),
    [
        (SensorSpec("s", "gyro", site="imuu"), "no site is named 'imuu'; did you mean 'imu'"),
        (SensorSpec("s", "gyroo", site="imu"), "unknown kind 'gyroo'; did you mean 'gyro'"),
        (SensorSpec("s", "subtreecom", body="trnk"), "did you mean 'trunk'"),
        (SensorSpec("s", "gyro", body="trunk"), "gyro needs one of: site; got body"),
        (SensorSpec("s", "gyro"), "got nothing"),
        (SensorSpec("s", "framepos", site="imu", body="trunk"), "got site, body"),
        (SensorSpec("s", "gyro", site="imu", reference_site="FR"), "one reference"),
        (SensorSpec("s", "framepos", site="imu", reference_site="FFR"), "named 'FFR'"),
        (SensorSpec("s", "gyro", site="imu", reduce="mean"), "valid: last, max, any"),  # type: ignore[arg-type]
        (
            ContactSensorSpec("s", ("FR_foot_colision",), "floor"),
            "did you mean 'FR_foot_collision'",
        ),
        (ContactSensorSpec("s", FEET, "ground"), "no geom is named 'ground'"),
        (ContactSensorSpec("s", (), "floor"), "no geom listed"),
        (ContactSensorSpec("s", FEET, "floor", data="torque"), "valid: found, force"),  # type: ignore[arg-type]
    ],
)
def test_a_sensor_that_cannot_be_built_says_what_is_valid(
    sensor: SensorSpec | ContactSensorSpec, words: str
) -> None:
    message = error_of(GO1, sensors=[sensor])
    assert "sensor 's'" in message
    assert words in message


def test_two_sensors_of_one_name_are_refused() -> None:
    twice = [SensorSpec("a", "gyro", site="imu"), SensorSpec("a", "framepos", site="imu")]
    assert "declared twice" in error_of(GO1, sensors=twice)


# --- options -------------------------------------------------------------------------------------


def test_timestep_is_the_files_unless_given() -> None:
    assert compile_robot(GO1).model.opt.timestep == 0.005
    assert compile_robot(GO1, timestep_s=0.01).model.opt.timestep == 0.01
    assert "above 0" in error_of(GO1, timestep_s=0.0)


def colliding(model: mujoco.MjModel) -> set[str]:
    return {model.geom(g).name for g in range(model.ngeom) if model.geom_contype[g]}


def test_collision_geoms_keeps_those_and_whatever_is_fixed_to_the_world() -> None:
    robot = compile_robot(GO1, collision_geoms=("*_foot_collision", "trunk_collision"))
    assert colliding(robot.model) == {"floor", "trunk_collision", *FEET}
    message = error_of(GO1, collision_geoms=("*_foot_colision",))
    assert "'*_foot_colision' matches no geom" in message


def test_collision_geoms_drops_explicit_pairs_of_other_geoms(tmp_path: Path) -> None:
    floor = '<geom name="floor" type="plane" size="1 1 1"/>'
    pairs = '<contact><pair geom1="arm" geom2="floor"/><pair geom1="ball" geom2="floor"/></contact>'
    file = write(tmp_path, mjcf(floor + ARM + BALL, rest=pairs))
    robot = compile_robot(file, collision_geoms=("ball",))
    assert robot.model.npair == 1
    assert robot.model.geom(robot.model.pair_geom1[0]).name in ("ball", "floor")


def differences(one: object, other: object) -> set[str]:
    """Return the names of the fields of two MuJoCo structs that differ."""
    values = {name: getattr(one, name) for name in dir(one) if not name.startswith("_")}
    return {
        name
        for name, value in values.items()
        if isinstance(value, np.ndarray | int | float)
        and not np.array_equal(value, getattr(other, name))
    }


def test_contact_model_changes_cone_impratio_and_condim_and_nothing_else() -> None:
    own = compile_robot(GO1).model
    contact = ContactModel("pyramidal", impratio=2.5, condim={"*_foot_collision": 3})
    model = compile_robot(GO1, contact=contact).model
    assert (own.opt.cone, own.opt.impratio) == (mujoco.mjtCone.mjCONE_ELLIPTIC, 10)
    assert (model.opt.cone, model.opt.impratio) == (mujoco.mjtCone.mjCONE_PYRAMIDAL, 2.5)
    assert differences(own.opt, model.opt) == {"cone", "impratio"}
    assert differences(own, model) == {"geom_condim"}
    changed = np.flatnonzero(own.geom_condim != model.geom_condim)
    assert {model.geom(g).name for g in changed} == set(FEET)
    assert set(model.geom_condim[changed]) == {3}


def test_a_later_condim_pattern_wins_and_no_pattern_keeps_the_files() -> None:
    patterns = {"*_foot_collision": 3, "F?_foot_collision": 4}
    robot = compile_robot(GO1, contact=ContactModel("elliptic", condim=patterns))
    condims = [int(robot.model.geom(foot).condim[0]) for foot in FEET]
    assert condims == [4, 4, 3, 3]
    own = compile_robot(GO1).model
    assert differences(own, compile_robot(GO1, contact=ContactModel("elliptic")).model) == set()


@pytest.mark.parametrize(
    ("contact", "words"),
    [
        (
            ContactModel("pyramidal", condim={"*_foot_colision": 3}),
            "contact geom '*_foot_colision' matches no geom; did you mean",
        ),
        (ContactModel("pyramidal", condim={"floor": 2}), "'floor' is 2; valid: 1, 3, 4, 6."),
        (ContactModel("pyramidal", condim={"floor": 0}), "'floor' is 0; valid: 1, 3, 4, 6."),
        (ContactModel("round"), "contact cone 'round'; valid: pyramidal, elliptic."),  # type: ignore[arg-type]
        (ContactModel("elliptic", impratio=0.0), "impratio is 0.0; it must be above 0"),
        (ContactModel("elliptic", impratio=float("nan")), "impratio is nan"),
    ],
)
def test_a_contact_model_that_is_not_valid_says_what_is(contact: ContactModel, words: str) -> None:
    assert words in error_of(GO1, contact=contact)
