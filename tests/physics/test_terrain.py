"""Uneven ground in MuJoCo: it is where the grid says, under contacts, rays and balls."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest

from tests.reference.terms_reference import Envs, ground_at
from unilab.config.terrain import TerrainConfig
from unilab.errors import ConfigError
from unilab.physics.model import ContactSensorSpec, Robot, compile_robot
from unilab.physics.terrain import check_memory

CONFIG = TerrainConfig(
    kinds=("rough", "stairs_up", "slope_down"), levels=2, tile_m=4.0, cell_m=0.2, border_m=1.0,
    platform_m=1.0, rough_m=(0.1, 0.3),
)  # fmt: skip
BALLS = """<body name="{0}" pos="{1} 0 1"><joint name="{0}_z" type="slide" axis="0 0 1"/>
  <geom name="{0}" type="sphere" size="{2}" mass="1"/></body>"""
SLIDER = '<motor name="m" joint="a_z" ctrllimited="true" ctrlrange="-2 2"/>'
FLOOR = '<geom name="floor" type="plane" size="0 0 0.05"/>'


def robot_on(
    folder: Path, config: TerrainConfig, world: str = FLOOR, radius: float = 0.1, **options: object
) -> Robot:
    file = folder / "robot.xml"
    file.write_text(
        f"<mujoco><worldbody>{world}{BALLS.format('a', 0.0, radius)}</worldbody>"
        f"<actuator>{SLIDER}</actuator></mujoco>"
    )
    return compile_robot(file, terrain=config, **options)  # type: ignore[arg-type]


def surface(robot: Robot, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Heights by rays from above."""
    data = mujoco.MjData(robot.model)
    mujoco.mj_forward(robot.model, data)
    robot_body = robot.model.body("a").id
    found = np.zeros(1, np.int32)
    down = np.array([0.0, 0.0, -1.0])
    heights = []
    for point in zip(x, y, strict=True):
        start = np.array([*point, 5.0])
        distance = mujoco.mj_ray(robot.model, data, start, down, None, 1, robot_body, found)
        assert found[0] == robot.model.geom("floor").id
        heights.append(5.0 - distance)
    return np.array(heights)


def test_the_grid_is_mujocos_surface(tmp_path):
    robot = robot_on(tmp_path, CONFIG)
    terrain = robot.terrain
    assert terrain is not None
    draw = np.random.default_rng(2)
    rows, columns = terrain.heights.shape
    assert (rows, columns) == (71, 51)
    x, y = draw.uniform(-4.99, 4.99, 500), draw.uniform(-6.99, 6.99, 500)
    ground = Envs({"height_grid": terrain.heights.ravel(), "grid_frame": terrain.grid_frame})
    expected = ground_at(ground, x, y)
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(surface(robot, x, y), expected, atol=1e-6)


def test_tiles_are_where_the_frame_says(tmp_path):
    terrain = robot_on(tmp_path, CONFIG).terrain
    assert terrain is not None
    # 2 levels of 4 m along x and 3 kinds along y, around the origin.
    np.testing.assert_allclose(terrain.tile_frame, [-2.0, -4.0, 4.0, 2, 3])
    np.testing.assert_allclose(terrain.grid_frame, [-5.0, -7.0, 5.0, 51, 71])
    ground = Envs({"height_grid": terrain.heights.ravel(), "grid_frame": terrain.grid_frame})
    # 1.5 m are three steps of 0.4 m; stairs up begin in a pit, slopes down on a hill.
    pit = ground_at(ground, np.array([2.0]), np.array([0.0]))
    hill = ground_at(ground, np.array([2.0]), np.array([4.0]))
    assert pit[0] == pytest.approx(-3 * 0.15, abs=1e-6)
    assert hill[0] == pytest.approx(1.5 * 0.4, abs=1e-6)


def test_scan_points_are_centred_rows_ahead_and_columns_to_the_left(tmp_path):
    config = CONFIG.model_copy(update={"scan_rows": 3, "scan_columns": 2, "scan_spacing_m": 0.5})
    terrain = robot_on(tmp_path, config).terrain
    assert terrain is not None
    np.testing.assert_allclose(
        terrain.scan_points,
        [[-0.5, -0.5, 0.0, 0.0, 0.5, 0.5], [-0.25, 0.25, -0.25, 0.25, -0.25, 0.25]],
    )


def test_the_floor_keeps_its_name_and_contact_sensors_hold_against_it(tmp_path):
    touch = ContactSensorSpec("touch", geoms=("a",), against="floor")
    config = CONFIG.model_copy(update={"kinds": ("flat",), "levels": 1, "platform_m": 2.0})
    robot = robot_on(tmp_path, config, sensors=[touch])
    data = mujoco.MjData(robot.model)
    for z, touches in ((0.5, False), (-0.902, True)):  # the body is at 1 m, the ball's radius 0.1
        data.qpos[:] = z
        mujoco.mj_forward(robot.model, data)
        assert (data.sensordata[0] > 0) == touches


def rest_height(model: mujoco.MjModel, name: str) -> float:
    data = mujoco.MjData(model)
    for _ in range(4000):
        mujoco.mj_step(model, data)
    return float(data.body(name).xpos[2])


def test_a_ball_rests_on_ground_that_is_flat_all_over(tmp_path):
    config = CONFIG.model_copy(update={"kinds": ("flat",), "levels": 1})
    robot = robot_on(tmp_path, config)
    robot.model.dof_damping[:] = 5.0
    assert rest_height(robot.model, "a") == pytest.approx(0.1, abs=1e-3)


def test_balls_rest_on_each_of_two_height_fields_that_are_not_the_first_geom():
    """Heights taken by the id of a geom, not of its field, would sink one of them."""
    spec = mujoco.MjSpec()
    spec.worldbody.add_geom(name="plane", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1])
    for k, height in enumerate((0.1, 0.2)):
        data = np.zeros((11, 11))
        data[2:-2, 2:-2] = 1.0
        spec.add_hfield(
            name=f"h{k}", nrow=11, ncol=11, size=[1.0, 1.0, height, 0.1],
            userdata=data.ravel().tolist(),
        )  # fmt: skip
        spec.worldbody.add_geom(
            type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname=f"h{k}", pos=[3.0 * k, 0, 0]
        )
        body = spec.worldbody.add_body(name=f"b{k}", pos=[3.0 * k + 0.05, 0.03, 0.6])
        body.add_joint(type=mujoco.mjtJoint.mjJNT_SLIDE, axis=[0, 0, 1], damping=5.0)
        body.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.1, 0, 0], mass=1.0)
    model = spec.compile()
    assert rest_height(model, "b0") == pytest.approx(0.2, abs=1e-3)
    assert rest_height(model, "b1") == pytest.approx(0.3, abs=1e-3)


# -- what is refused ----------------------------------------------------------------------------


def test_cells_much_smaller_than_a_geom_are_refused(tmp_path):
    fine = CONFIG.model_copy(
        update={"cell_m": 0.01, "tile_m": 1.0, "platform_m": 0.5, "kinds": ("flat",), "levels": 1}
    )
    with pytest.raises(ConfigError) as caught:
        robot_on(tmp_path, fine, radius=0.3)
    for word in ("terrain.cell_m=0.01", "'a'", "0.20 x 0.20", "50 contacts", "valid: about 0.0"):
        assert word in str(caught.value)
    robot_on(tmp_path, fine, radius=0.02)


def test_a_floor_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="'floor', which is not among those"):
        robot_on(tmp_path, CONFIG, world=FLOOR.replace("floor", "flour"))
    with pytest.raises(ConfigError, match="did you mean 'floor'"):
        robot_on(tmp_path, CONFIG, floor="flor")


def test_a_grid_larger_than_memory_is_refused_before_it_is_made():
    huge = CONFIG.model_copy(update={"cell_m": 0.0001})
    with pytest.raises(ConfigError, match=r"heights need about .* GiB of memory"):
        check_memory(huge)
