"""A task meets a robot that is not its own: it builds, or one line says what the robot lacks."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from unilab.config import load_config
from unilab.errors import ConfigError
from unilab.physics.model import compile_robot
from unilab.tasks import cartpole
from unilab.tasks.base import ASSETS, BuiltTask, Task, build_task, joint_constants, sensor_field

CAMERA = '<camera name="track"'
SLIDER_RANGE = ' range="-1.8 1.8"'
MOTOR = '<motor name="slide" joint="slider" gear="10" ctrllimited="true" ctrlrange="-1 1"/>'
HIP_FORCE = ' forcerange="-23.7 23.7"'


def build(task: str, model: Path) -> BuiltTask:
    return build_task(load_config(task, [f"physics.model={model}"]).config)


def variant(folder: Path, task: str, *replacements: tuple[str, str]) -> Path:
    """Write the task's own robot with some of its text replaced."""
    text = (ASSETS / f"{task.removesuffix('_walk')}.xml").read_text()
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new)
    file = folder / "mine.xml"
    file.write_text(text)
    return file


def error_of(task: str, model: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        build(task, model)
    message = str(caught.value)
    assert message.startswith(f"{model}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("task", "robot", "parts"),
    [
        ("go1_walk", "cartpole.xml", ("'*_foot_collision' matches no geom", "valid: cart")),
        ("cartpole", "go1.xml", ("no joint is named 'slider'", "FL_hip_joint")),
        ("g1_walk", "go1.xml", ("'left_foot_collision'", "did you mean")),
    ],
)
def test_the_robot_of_another_task_is_refused(
    task: str, robot: str, parts: tuple[str, ...]
) -> None:
    message = error_of(task, ASSETS / robot)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"FL_foot_collision"', '"FL_foot_colision"', ("'FL_foot_collision'", "did you mean")),
        ('"floor"', '"ground"', ("no geom is named 'floor'",)),
        ('<site name="RL"', '<site name="RL_foot"', ("no site is named 'RL'",)),
        ('"FL_hip_joint"', '"FL_hp_joint"', ("'FL_hp_joint'", "hip, thigh, calf")),
        ('"FL_hip_joint"', '"XX_hip_joint"', ("'XX_hip_joint'", "FR, FL, RR, RL")),
        (
            '"FL_hip_joint"',
            '"FL_hip_jont"',
            ("'FL_hip_joint', the mirror image of 'FR_hip_joint'", "did you mean 'FL_hip_jont'"),
        ),
        (HIP_FORCE, "", ("'FR_hip' on joint 'FR_hip_joint' has no forcerange", "position servos")),
        (
            'biasprm="0 -35.764296 -2.276826"',
            'biasprm="0 0 0"',
            ("'FR_calf' on joint 'FR_calf_joint' has the type general", "position servos"),
        ),
    ],
)
def test_go1_walk_says_what_a_robot_lacks(
    tmp_path: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    message = error_of("go1_walk", variant(tmp_path, "go1_walk", (old, new)))
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"right_foot_collision"', '"right_sole"', ("'right_foot_collision'",)),
        ('<site name="left_foot"', '<site name="left_toe"', ("no site is named 'left_foot'",)),
        ('"left_elbow_joint"', '"left_ellbow_joint"', ("'left_ellbow_joint'", "elbow, wrist_roll")),
        (
            '"left_elbow_joint"',
            '"lefft_elbow_joint"',
            ("'lefft_elbow_joint' is of no part", "after left_, right_ or nothing"),
        ),
        (
            '"right_knee_joint" class="knee_motor" axis="0 1 0"',
            '"right_knee_joint" class="knee_motor" axis="1 0 0"',
            ("'right_knee_joint' turns about [1.0, 0.0, 0.0]", "mirror image of 'left_knee_joint'"),
        ),
    ],
)
def test_g1_walk_says_what_a_robot_lacks(
    tmp_path: Path, old: str, new: str, parts: tuple[str, ...]
) -> None:
    message = error_of("g1_walk", variant(tmp_path, "g1_walk", (old, new)))
    for part in parts:
        assert part in message


def test_go1_walk_needs_a_free_base(tmp_path: Path) -> None:
    spec = mujoco.MjSpec.from_file(str(ASSETS / "go1.xml"))
    spec.delete(spec.joint("floating_base_joint"))
    spec.delete(spec.key("home"))
    file = tmp_path / "mine.xml"
    file.write_text(spec.to_xml())
    assert "free joint" in error_of("go1_walk", file)


@pytest.mark.parametrize(
    ("new", "parts"),
    [
        (MOTOR.replace('"slider"', '"hinge"'), ("no actuator drives the joint 'slider'", "hinge")),
        (
            MOTOR + '<motor name="extra" joint="hinge" ctrlrange="-1 1"/>',
            ("drive slider, hinge", "needs exactly: slider"),
        ),
        ('<position name="servo" joint="slider" kp="10"/>', ("'servo' (position", "ctrlrange")),
    ],
)
def test_cartpole_says_what_its_actuators_lack(
    tmp_path: Path, new: str, parts: tuple[str, ...]
) -> None:
    no_ctrl = (' ctrl="0"', "")  # its length would be what is refused
    message = error_of("cartpole", variant(tmp_path, "cartpole", (MOTOR, new), no_ctrl))
    for part in parts:
        assert part in message


@pytest.mark.parametrize("task", ["cartpole", "go1_walk", "g1_walk"])
def test_a_robot_without_the_camera_is_as_good(tmp_path: Path, task: str) -> None:
    model = variant(tmp_path, task, (CAMERA, '<camera name="other"'))
    built = build(task, model)
    assert built.robot.path == model
    np.testing.assert_array_equal(built.ctrl_scale, build_task(load_config(task).config).ctrl_scale)


def test_a_camera_that_the_task_names_must_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(robot="cartpole.xml", describe=cartpole.describe, camera="trak")
    monkeypatch.setattr(cartpole, "TASK", task)
    message = error_of("cartpole", ASSETS / "cartpole.xml")
    assert "no camera is named 'trak'; did you mean 'track'?" in message


def test_a_joint_without_limits_has_infinite_soft_limits(tmp_path: Path) -> None:
    own = joint_constants(compile_robot(ASSETS / "cartpole.xml"))
    np.testing.assert_allclose((own["soft_lower"], own["soft_upper"]), [[-1.62], [1.62]])
    free = joint_constants(compile_robot(variant(tmp_path, "cartpole", (SLIDER_RANGE, ""))))
    assert (free["soft_lower"].item(), free["soft_upper"].item()) == (-np.inf, np.inf)


def test_a_sensor_that_the_task_does_not_declare_is_named() -> None:
    robot = compile_robot(ASSETS / "cartpole.xml")
    with pytest.raises(ConfigError, match="declares no sensor 'feet'"):
        sensor_field(robot, "feet")
