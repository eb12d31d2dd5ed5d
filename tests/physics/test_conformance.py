"""What holds for physics on every backend: MuJoCo C, and mujoco-warp on Warp's CPU device."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest

from tests.physics.backends import BACKENDS, F64, begin, physics, reduced, task
from unilab.errors import PhysicsError
from unilab.selfcheck.parity import step

TOLERANCE = {"mujoco_cpu": 1e-12, "mujoco_warp": 2e-3}
REST = np.zeros((1, 1, 12))


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def go1() -> Any:
    return task("go1_walk")


def states(built: Any, count: int, seed: int = 0) -> tuple[F64, F64]:
    """Poses a little off the default, each with a velocity of its own."""
    random = np.random.default_rng(seed)
    model, qpos = built.robot.model, np.tile(built.robot.default_qpos, (count, 1))
    qpos[:, 7:] += random.uniform(-0.1, 0.1, (count, 12))
    qpos[:, 2] += random.uniform(0.0, 0.05, count)
    return qpos, random.uniform(-0.2, 0.2, (count, model.nv))


def ctrl(built: Any, count: int, phase: float = 0.0) -> F64:
    wave = 0.2 * np.sin(phase + np.arange(count)[:, None] + np.arange(12))
    return built.model.ctrl_offset + wave


def by_mujoco(built: Any, qpos: F64, qvel: F64, ctrl: F64) -> tuple[F64, F64, F64]:
    """Step one env with plain mj_step: state after each, sensors of each, forces of none."""
    model, data = built.robot.model, mujoco.MjData(built.robot.model)
    data.qpos[:], data.qvel[:], data.ctrl[:] = qpos, qvel, ctrl
    sensors = []
    for _ in range(built.config.physics.substeps):
        mujoco.mj_step(model, data)
        sensors.append(data.sensordata.copy())
    return data.qpos.copy(), data.qvel.copy(), np.array(sensors)


# -- stepping -----------------------------------------------------------------------------------


def test_a_control_step_equals_a_plain_loop_of_mj_step(backend: str, go1: Any) -> None:
    qpos, qvel = states(go1, 4)
    with physics(backend, go1) as made:
        begin(made, qpos, qvel)
        step(made, ctrl(go1, 4))
        for env in range(4):
            q, v, sensors = by_mujoco(go1, qpos[env], qvel[env], ctrl(go1, 4)[env])
            state = made.state[env, -1]
            np.testing.assert_allclose(state[1 : 1 + len(q)], q, atol=TOLERANCE[backend])
            np.testing.assert_allclose(state[1 + len(q) :], v, atol=50 * TOLERANCE[backend])
            where = go1.robot.sensors["feet_pos_w"]
            columns = slice(where.start, where.stop)
            np.testing.assert_allclose(
                made.sensors[env, -1, columns], sensors[-1, columns], atol=TOLERANCE[backend]
            )


def test_sensors_are_reduced_over_the_substeps(backend: str, go1: Any) -> None:
    qpos, qvel = states(go1, 4)
    qpos[:, 2] += np.linspace(0.0, 0.02, 4)  # some feet touch the ground within the step
    where = go1.robot.sensors["feet_contact"]
    columns = slice(where.start, where.stop)
    with physics(backend, go1) as made:
        begin(made, qpos, qvel)
        found, before = [], np.hstack([np.zeros((4, 1)), qpos, qvel])
        for _ in range(6):
            step(made, ctrl(go1, 4))
            found.append(reduced(made, go1)[:, columns])
            for env in range(4):
                q, v = before[env, 1 : 1 + 19], before[env, 20 : 20 + 18]
                _, _, sensors = by_mujoco(go1, q, v, ctrl(go1, 4)[env])
                wanted = sensors[:, columns]
                wanted = wanted.max(axis=0) if where.reduce != "last" else wanted[-1]
                np.testing.assert_array_equal(found[-1][env] > 0, wanted > 0)
            before = made.state[:, -1].copy()
        assert 0 < np.mean(np.array(found) > 0) < 1


def test_the_floor_pushes_a_standing_robot_up_with_its_weight(backend: str, go1: Any) -> None:
    """The sign of a contact sensor: what the floor does to the foot."""
    from unilab.physics.model import ContactSensorSpec, compile_robot
    from unilab.tasks.base import ASSETS

    feet = tuple(f"{leg}_foot_collision" for leg in ("FR", "FL", "RR", "RL"))
    robot = compile_robot(
        ASSETS / "go1.xml",
        sensors=(ContactSensorSpec("force", geoms=feet, against="floor", data="force"),),
        timestep_s=go1.config.physics.timestep_s,
        collision_geoms=go1.task.collision_geoms,
        contact=go1.task.contact,
    )
    standing = type(go1)(**{**vars(go1), "robot": robot})
    qpos = np.array(robot.default_qpos)[None]
    with physics(backend, standing, 1) as made:
        begin(made, qpos, np.zeros((1, robot.model.nv)))
        for _ in range(50):
            step(made, go1.model.ctrl_offset[None])
        forces = made.sensors[0, -1].reshape(4, 3)
    weight = 9.81 * float(robot.model.body_subtreemass[1])
    assert forces[:, 2].min() > 0
    assert forces[:, 2].sum() == pytest.approx(weight, rel=0.05)


# -- resets -------------------------------------------------------------------------------------


def test_a_reset_touches_its_rows_only_and_its_sensors_are_those_of_the_new_state(
    backend: str, go1: Any
) -> None:
    qpos, qvel = states(go1, 4)
    with physics(backend, go1) as made:
        begin(made, qpos, qvel)
        step(made, ctrl(go1, 4))
        state, sensors = made.state.copy(), made.sensors.copy()
        ids, new_qpos, new_qvel = np.array([2], np.int32), *states(go1, 1, seed=5)
        rest = np.array(go1.model.ctrl_offset)[None, None]
        made.write_state(ids, new_qpos, new_qvel)
        made.reset_sensors(ids, rest)
        others = [0, 1, 3]
        np.testing.assert_array_equal(made.state[others], state[others])
        np.testing.assert_array_equal(made.sensors[others], sensors[others])
        model, data = go1.robot.model, mujoco.MjData(go1.robot.model)
        data.qpos[:], data.qvel[:], data.ctrl[:] = new_qpos[0], new_qvel[0], rest[0, 0]
        mujoco.mj_forward(model, data)
        np.testing.assert_allclose(made.state[2, -1, 1:20], new_qpos[0], rtol=1e-6)
        np.testing.assert_allclose(made.sensors[2, -1], data.sensordata, rtol=1e-4, atol=1e-3)


def test_an_episode_knows_nothing_of_the_one_before(backend: str, go1: Any) -> None:
    qpos, qvel = states(go1, 2)
    with physics(backend, go1, 2) as made:
        begin(made, qpos, qvel)
        for k in range(5):
            step(made, ctrl(go1, 2, phase=k))
        begin(made, qpos, qvel)
        step(made, ctrl(go1, 2))
        second = made.state.copy()
    with physics(backend, go1, 2) as made:
        begin(made, qpos, qvel)
        step(made, ctrl(go1, 2))
        np.testing.assert_array_equal(second, made.state)


def test_a_push_changes_velocities_and_not_a_bit_of_the_position(backend: str, go1: Any) -> None:
    qpos, qvel = states(go1, 2)
    with physics(backend, go1, 2) as made:
        begin(made, qpos, qvel)
        step(made, ctrl(go1, 2))
        pushed = made.state[1:, -1, 20:].astype(np.float64) + 0.5
        made.write_state(np.array([1], np.int32), None, pushed)
        snapshot = made.snapshot()
        rows = snapshot.get("rows")
        q = rows[:, 1:20] if rows is not None else snapshot["qpos"]
        v = rows[:, 20:38] if rows is not None else snapshot["qvel"]
        np.testing.assert_array_equal(q, made.state[:, -1, 1:20])
        np.testing.assert_allclose(v[1], pushed[0], rtol=1e-6)
        np.testing.assert_array_equal(v[0], made.state[0, -1, 20:])


# -- groups, overlap, restart -------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True], ids=["in turn", "overlap"])
def test_groups_and_overlap_change_no_bit(backend: str, go1: Any, overlap: bool) -> None:
    qpos, qvel = states(go1, 6)
    found = []
    for groups in ((slice(0, 6),), (slice(0, 2), slice(2, 6))):
        with physics(backend, go1, 6, groups=groups, overlap=overlap) as made:
            begin(made, qpos, qvel)
            for k in range(4):
                made.ctrl[:] = ctrl(go1, 6, phase=k)[:, None]
                tickets = [made.submit(g, made.ctrl[e]) for g, e in enumerate(made.groups)]
                for ticket in tickets:
                    made.wait(ticket)
                    begin_ns, end_ns = ticket.span_ns
                    assert 0 < begin_ns <= end_ns
            found.append((made.state.copy(), made.sensors.copy()))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_a_restored_snapshot_goes_on_bit_for_bit(backend: str, go1: Any) -> None:
    qpos, qvel = states(go1, 3)
    with physics(backend, go1, 3) as made:
        begin(made, qpos, qvel)
        for k in range(3):
            step(made, ctrl(go1, 3, phase=k))
        snapshot = {name: np.array(value) for name, value in made.snapshot().items()}
        step(made, ctrl(go1, 3, phase=9))
        wanted = made.state.copy()
    with physics(backend, go1, 3) as made:
        made.restore(snapshot)
        step(made, ctrl(go1, 3, phase=9))
        np.testing.assert_array_equal(made.state, wanted)


def test_a_snapshot_of_the_other_backend_is_refused(go1: Any) -> None:
    with physics("mujoco_cpu", go1, 2) as cpu, physics("mujoco_warp", go1, 2) as gpu:
        for made, other in ((cpu, gpu), (gpu, cpu)):
            with pytest.raises(PhysicsError, match="another physics backend"):
                made.restore(other.snapshot())


def test_a_state_that_is_not_finite_stays_in_its_env(backend: str, go1: Any) -> None:
    qpos, qvel = states(go1, 3)
    with physics(backend, go1, 3) as made:
        begin(made, qpos, qvel)
        step(made, ctrl(go1, 3))
        fine = made.state[[0, 2], -1].copy()
        begin(made, qpos, qvel)
        made.write_state(np.array([1], np.int32), np.full((1, 19), np.nan), np.zeros((1, 18)))
        step(made, ctrl(go1, 3))
        np.testing.assert_array_equal(made.state[[0, 2], -1], fine)
        # MuJoCo C resets such an env and says so; on the other backend the numbers stay.
        assert made.failures[1] or not np.isfinite(made.state[1, -1]).all()  # type: ignore[attr-defined]


def test_sensors_of_many_resets_are_the_same_on_several_threads(go1: Any) -> None:
    qpos, qvel = states(go1, 24)
    ids, rest = np.arange(24, dtype=np.int32), np.tile(go1.model.ctrl_offset, (24, 1, 1))
    found = []
    for threads in (1, 3):
        with physics("mujoco_warp", go1, 24, reset_threads=threads) as made:
            begin(made, qpos, qvel)
            made.reset_sensors(ids, rest)
            found.append(made.sensors.copy())
    np.testing.assert_array_equal(*found)


def test_closing_twice_is_fine(backend: str, go1: Any) -> None:
    with physics(backend, go1, 1) as made:
        made.close()
