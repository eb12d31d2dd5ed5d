"""go1_rough: where robots begin, what they see of the ground, and when they change their level."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
import pytest

from tests.runtime.support import built_task, running, step_all
from unilab.config import load_config
from unilab.errors import ConfigError
from unilab.runtime.pipeline import Pipeline
from unilab.tasks.base import build_task

QUIET = (
    "episode.random_start=false",
    "events.push=null",
    "observations.actor.height_scan.noise=0",
)
LEVELS, COLUMNS, TILE_M, PLATFORM_M = 8, 7, 6.0, 1.6
NUM_ENVS = 70


@pytest.fixture
def pipeline() -> Iterator[Pipeline]:
    with running(built_task("go1_rough", *QUIET), NUM_ENVS) as made:
        yield made


def middles(pipeline: Pipeline) -> tuple[np.ndarray, np.ndarray]:
    """Middle of the tile that each env is on, m."""
    level, column = (pipeline.field(f"terrain_{n}")[:, 0] for n in ("level", "column"))
    x = (level - 0.5 * (LEVELS - 1)) * TILE_M
    y = (column - 0.5 * (COLUMNS - 1)) * TILE_M
    return x, y


def height_by_ray(pipeline: Pipeline, x: float, y: float) -> float:
    """Height of the ground by MuJoCo's ray, the robot left out."""
    model = pipeline.built.robot.model
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    only_world = np.zeros(6, np.uint8)
    only_world[model.geom("floor").group[0]] = 1
    hit = np.zeros(1, np.int32)
    start, down = np.array([x, y, 10.0]), np.array([0.0, 0.0, -1.0])
    distance = mujoco.mj_ray(model, data, start, down, only_world, 1, model.body("trunk").id, hit)
    assert hit[0] == model.geom("floor").id
    return 10.0 - distance


def test_first_episodes_begin_on_the_platforms_of_the_easiest_level(pipeline):
    assert not pipeline.field("terrain_level").any()
    np.testing.assert_array_equal(pipeline.field("terrain_column")[:, 0], np.arange(NUM_ENVS) % 7)
    qpos = pipeline.qpos()
    for axis, middle in enumerate(middles(pipeline)):
        offset = qpos[:, axis] - middle
        assert np.abs(offset).max() <= 0.3 + 1e-6
        assert offset.std() > 0.1
    np.testing.assert_allclose(pipeline.field("terrain_start"), qpos[:, :2], atol=1e-5)
    default = pipeline.built.robot.default_qpos[2]
    for i in range(14):
        above = qpos[i, 2] - height_by_ray(pipeline, *qpos[i, :2])
        assert default - 1e-5 <= above <= default + 0.03 + 1e-5


def test_first_episodes_spread_over_as_many_levels_as_asked():
    built = built_task("go1_rough", *QUIET, "events.terrain_spawn.first_levels=4.0")
    with running(built, NUM_ENVS) as pipeline:
        levels = pipeline.field("terrain_level")[:, 0]
        assert set(levels) == {0, 1, 2, 3}


def test_the_height_scan_is_that_of_rays(pipeline):
    """At many places of all tiles, tilted and turned: base height less the ray's, clipped."""
    built, rng = pipeline.built, np.random.default_rng(0)
    count, model = 12, built.robot.model
    qpos = np.tile(built.robot.default_qpos, (count, 1))
    qpos[:, 0] = rng.uniform(-24.0, 24.0, count)
    qpos[:, 1] = rng.uniform(-21.0, 21.0, count)
    qpos[:, 2] = rng.uniform(-1.0, 1.5, count)
    quat = rng.normal([1.0, 0.0, 0.0, 0.0], 0.15, (count, 4))
    yaw = rng.uniform(-np.pi, np.pi, count)
    for i in range(count):
        turn = np.array([np.cos(yaw[i] / 2), 0.0, 0.0, np.sin(yaw[i] / 2)])
        mujoco.mju_mulQuat(qpos[i, 3:7], turn, quat[i] / np.linalg.norm(quat[i]))
    ids = np.arange(count, dtype=np.int32)
    pipeline.physics.write_state(ids, qpos, np.zeros((count, model.nv)))
    pipeline.physics.reset_sensors(ids, np.zeros((count, 1, model.nu)))
    pipeline._kernels.observe_resets(ids, *pipeline._ordered)
    part = next(p for p in built.kernel.critic_layout if p.name == "height_scan")
    seen = pipeline.arrays["critic_obs_out"][:count, part.start : part.stop] / 2.0  # its scale
    assert seen.shape[1] == 9 * 7
    for i in range(count):
        matrix = np.zeros(9)
        mujoco.mju_quat2Mat(matrix, qpos[i, 3:7])
        heading = np.arctan2(matrix[3], matrix[0])
        wanted = []
        for row in range(9):
            for column in range(7):
                ahead, left = (row - 4) * 0.15, (column - 3) * 0.15
                x = qpos[i, 0] + np.cos(heading) * ahead - np.sin(heading) * left
                y = qpos[i, 1] + np.sin(heading) * ahead + np.cos(heading) * left
                wanted.append(np.clip(qpos[i, 2] - height_by_ray(pipeline, x, y), -1.0, 1.0))
        np.testing.assert_allclose(seen[i], wanted, atol=1e-4)


# -- the curriculum -----------------------------------------------------------------------------


def end_episodes(pipeline: Pipeline, walk: np.ndarray, level: float) -> np.ndarray:
    """End all episodes with this `terrain_walk` (6,) on a level; return the levels that follow."""
    pipeline.field("terrain_level")[:] = level
    pipeline.field("terrain_walk")[:] = walk
    pipeline._begin_episodes(np.arange(NUM_ENVS, dtype=np.int32))
    assert not pipeline.field("terrain_walk").any()
    return pipeline.field("terrain_level")[:, 0].copy()


@pytest.mark.parametrize(
    ("walk", "level", "follows"),
    [
        # came (x, y), asked for (x, y), left undone by a failure, time
        ((3.0, 0.1, 9.0, 9.0, 5.0, 9.0), 2.0, 3.0),  # further than half of 6 m: up, whatever else
        ((0.0, -3.1, 0.0, 0.0, 0.0, 9.0), 0.0, 1.0),
        ((2.9, 0.0, 5.7, 0.0, 0.0, 9.0), 2.0, 2.0),  # more than half of what was asked
        ((2.9, 0.0, 5.9, 0.0, 0.0, 9.0), 2.0, 1.0),  # less
        ((1.0, 0.0, 1.5, 0.0, 0.0, 2.0), 2.0, 2.0),  # fell, with nothing left to do
        ((1.0, 0.0, 1.5, 0.0, 6.0, 2.0), 2.0, 1.0),  # fell, with a long way to go
        ((0.0, 0.0, 4.0, 0.0, 0.0, 9.0), 0.0, 0.0),  # none is easier
        ((0.0, 0.0, 0.0, 0.0, 0.0, 9.0), 5.0, 5.0),  # told to stand
        ((3.1, 0.0, 3.1, 0.0, 0.0, 9.0), 6.0, 7.0),
    ],
)
def test_a_level_follows_from_how_far_the_robot_came(pipeline, walk, level, follows):
    np.testing.assert_array_equal(end_episodes(pipeline, np.array(walk), level), follows)


def test_beyond_the_last_level_one_is_drawn_from_all(pipeline):
    levels = end_episodes(pipeline, np.array([4.0, 0.0, 4.0, 0.0, 0.0, 9.0]), 7.0)
    assert set(levels) <= set(range(8))
    assert len(set(levels)) >= 5
    x, y = middles(pipeline)
    assert np.abs(pipeline.qpos()[:, 0] - x).max() <= 0.3 + 1e-5
    assert np.abs(pipeline.qpos()[:, 1] - y).max() <= 0.3 + 1e-5


def test_the_way_walked_and_the_way_asked_for_are_added_up(pipeline):
    pipeline.field("fixed_command")[:] = [1.0, 0.5, 0.2, 0.0]
    start = pipeline.field("terrain_start").copy()
    # The first command of an episode is drawn; from its first step on it is the fixed one.
    drawn = pipeline.field("command").copy() @ [1.0, 1.0j, 0.0]
    asked = np.zeros(NUM_ENVS, complex)
    for step in range(5):
        step_all(pipeline, np.zeros((NUM_ENVS, 12), np.float32))
        w, x, y, z = pipeline.qpos()[:, 3:7].T
        heading = np.arctan2(2 * (x * y + w * z), 1 - 2 * (y * y + z * z))
        asked += np.exp(1j * heading) * (drawn if step == 0 else 0.5 + 0.2j) * 0.02
    walk = pipeline.field("terrain_walk")
    np.testing.assert_allclose(walk[:, :2], pipeline.qpos()[:, :2] - start, atol=1e-5)
    np.testing.assert_allclose(walk[:, 2] + 1j * walk[:, 3], asked, atol=1e-5)
    np.testing.assert_allclose(walk[:, 5], 0.1, atol=1e-6)
    assert not walk[:, 4].any()


def test_a_robot_that_falls_is_charged_for_the_time_left():
    built = built_task("go1_rough", *QUIET, "terminations.tilted.limit_cos=1.1")
    with running(built, NUM_ENVS) as pipeline:  # every step is a failure
        pipeline.field("terrain_level")[:] = 3.0
        moving = pipeline.field("command")[:, :2].any(axis=1)
        step_all(pipeline, np.zeros((NUM_ENVS, 12), np.float32))
        levels = pipeline.field("terrain_level")[:, 0]
        assert set(levels[moving]) == {2.0}
        assert set(levels[~moving]) == {3.0}


def test_leaving_the_terrain_cuts_the_episode_without_a_failure(pipeline):
    qpos = pipeline.qpos().copy()
    width = 0.5 * (LEVELS * TILE_M + 6.0)
    qpos[0, :3] = [width - 0.4, 0.0, 0.45]  # the margin is 0.5 m
    qpos[1, :3] = [width - 0.7, 0.0, 0.45]
    ids = np.arange(NUM_ENVS, dtype=np.int32)
    pipeline.physics.write_state(ids, qpos, np.zeros((NUM_ENVS, pipeline.built.robot.model.nv)))
    (step,) = step_all(pipeline, np.zeros((NUM_ENVS, 12), np.float32))
    assert step.truncated[:2].tolist() == [1, 0]
    assert step.terminated[:2].tolist() == [0, 0]
    log = pipeline.take_log()
    assert log["termination/terrain_left"] == log["termination/timeout"] == 1.0


def test_the_mean_level_is_logged(pipeline):
    pipeline.field("terrain_level")[:, 0] = np.arange(NUM_ENVS) % 4
    mean = np.mean(np.arange(NUM_ENVS) % 4)
    assert pipeline.take_log()["curriculum/terrain_level"] == pytest.approx(mean)


# -- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("terrain.kinds=[]", ("terrain.kinds", "uneven ground", "go1_walk")),
        ("events.terrain_spawn=null", ("terrain.kinds", "add terrain_spawn to events")),
        ("terrain.kinds=[stair]", ("terrain.kinds", "stairs_up")),
        ("terrain.cell_m=0.07", ("terrain.tile_m=6", "whole number", "terrain.cell_m=0.07")),
        ("terrain.cell_m=2.0", ("terrain.cell_m=2", "too coarse", "1.5")),
        ("terrain.platform_m=5.9", ("terrain.platform_m=5.9", "at most", "5.8")),
        ("terrain.rough_m=[0.1]", ("terrain.rough_m",)),
        ("terrain.slope=[0.0, -0.5]", ("terrain.slope", "two numbers >= 0")),
        ("terrain.levels=0", ("terrain.levels", ">= 1")),
        ("terrain.cell_m=0.02", ("terrain.cell_m=0.02", "trunk_collision", "50 contacts")),
    ],
)
def test_a_terrain_that_does_not_fit_is_refused_with_its_key(override, words):
    with pytest.raises(ConfigError) as caught:
        build_task(load_config("go1_rough", [override]).config)
    for word in words:
        assert word in str(caught.value)


def test_flat_ground_can_be_made_uneven_from_the_command_line():
    built = build_task(
        load_config("go1_walk", ["terrain.kinds=[waves]", "events.terrain_spawn={}"]).config
    )
    assert built.robot.terrain is not None
