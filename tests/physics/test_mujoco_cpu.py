"""CPU physics against MuJoCo itself, and what it says about envs that failed."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from unilab.config.randomization import RandomizationConfig
from unilab.errors import ConfigError, PhysicsError
from unilab.physics.base import FROZEN, UNSTABLE
from unilab.physics.model import ContactSensorSpec, SensorSpec, compile_robot
from unilab.physics.mujoco_cpu import (
    CTRL_SIGNATURE,
    QPOS,
    STATE_SIGNATURE,
    TIME,
    MujocoCpu,
    make_pool,
)
from unilab.physics.randomize import make_variants
from unilab.physics.variants import Variants
from unilab.tasks.base import ASSETS

F64 = NDArray[np.float64]
SUBSTEPS = 4

# A hinge about y whose motor blows the state up at ctrl 1e6.
PENDULUM = """
<mujoco>
  <option timestep="0.01"/>
  <worldbody>
    <body>
      <joint name="hinge" type="hinge" axis="0 1 0"/>
      <geom type="capsule" fromto="0 0 0 0 0 -0.5" size="0.05"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge" gear="1e9"/></actuator>
</mujoco>
"""


def pile(memory: str) -> str:
    """48 overlapping boxes on a plane: more contacts than a small memory holds."""
    boxes = "".join(
        f'<body pos="{0.15 * (i % 4)} {0.15 * (i // 4 % 4)} {0.1 + 0.15 * (i // 16)}">'
        '<freejoint/><geom type="box" size="0.1 0.1 0.1"/></body>'
        for i in range(48)
    )
    return (
        f'<mujoco><size memory="{memory}"/><worldbody><geom type="plane" size="5 5 0.1"/>'
        f"{boxes}</worldbody></mujoco>"
    )


@pytest.fixture(scope="module")
def go1() -> Any:
    """The Go1 with sensors of several kinds."""
    feet = tuple(f"{leg}_foot_collision" for leg in ("FR", "FL", "RR", "RL"))
    robot = compile_robot(
        ASSETS / "go1.xml",
        sensors=(
            ContactSensorSpec("found", geoms=feet, against="floor"),
            ContactSensorSpec("force", geoms=feet, against="floor", data="force"),
            SensorSpec("gyro", "gyro", site="imu"),
            SensorSpec("accelerometer", "accelerometer", site="imu"),
            SensorSpec("vel", "framelinvel", site=("FR", "FL")),
        ),
        timestep_s=0.005,
    )
    return robot.model


@contextmanager
def physics(
    model: Any,
    num_envs: int = 4,
    *,
    groups: tuple[slice, ...] | None = None,
    threads: int = 1,
    overlap: bool = False,
    substeps: int = SUBSTEPS,
    variants: Variants | None = None,
) -> Iterator[MujocoCpu]:
    chosen = groups or (slice(0, num_envs),)
    made = MujocoCpu(
        model,
        num_envs=num_envs,
        groups=chosen,
        substeps=substeps,
        threads=threads,
        overlap=overlap,
        variants=variants,
    )
    made.state[:] = made.sensors[:] = np.nan  # outputs start poisoned
    try:
        yield made
    finally:
        made.close()


def table(model: Any, count: int = 3) -> Variants:
    """Variants of a model with masses far apart."""
    block = {"startup_variants": count, "body_mass": {"scale": [0.5, 2.0]}}
    made = make_variants(model, RandomizationConfig.model_validate(block), seed=1)
    assert made is not None
    return made


def ids(*env_ids: int) -> NDArray[np.int32]:
    return np.array(env_ids, np.int32)


def begin(made: MujocoCpu, seed: int = 0) -> None:
    """Start every env in a state of its own."""
    model, n = made.model, len(made.rows)
    rng = np.random.default_rng(seed)
    key = model.key_qpos[0] if model.nkey else model.qpos0
    qpos = key + rng.uniform(-0.05, 0.05, (n, model.nq))
    made.write_state(np.arange(n, dtype=np.int32), qpos, rng.uniform(-0.5, 0.5, (n, model.nv)))


def controls(made: MujocoCpu, step: int) -> F64:
    n, nu = len(made.rows), made.model.nu
    phase = 0.3 * step + np.arange(n)[:, None, None] + np.arange(nu)
    return np.repeat(0.5 * np.sin(phase), made.substeps, axis=1)


# -- the same as MuJoCo -------------------------------------------------------------------------


def test_steps_equal_a_plain_loop_of_mj_step(go1: Any) -> None:
    with physics(go1, 3, threads=2) as made:
        begin(made)
        datas = [mujoco.MjData(go1) for _ in range(3)]
        for env, data in enumerate(datas):
            mujoco.mj_setState(go1, data, made.rows[env], STATE_SIGNATURE)
        touched = False
        for step in range(30):
            ctrl = controls(made, step)
            view = made.wait(made.submit(0, ctrl))
            touched |= bool(view.sensors[:, :, :4].any())
            assert not view.failures.any()
            for env, data in enumerate(datas):
                data.qacc_warmstart[:] = 0.0
                for t in range(SUBSTEPS):
                    data.ctrl[:] = ctrl[env, t]
                    mujoco.mj_step(go1, data)
                    row = np.zeros(made.rows.shape[1])
                    mujoco.mj_getState(go1, data, row, STATE_SIGNATURE)
                    np.testing.assert_array_equal(view.state[env, t], row)
                    np.testing.assert_array_equal(view.sensors[env, t], data.sensordata)
                np.testing.assert_array_equal(made.rows[env], view.state[env, -1])
        assert touched  # feet on the floor


@pytest.mark.parametrize("threads", [1, 2])
def test_reset_sensors_equal_mj_forward_and_nothing_else_changes(go1: Any, threads: int) -> None:
    with physics(go1, 200, threads=threads) as made:
        begin(made)
        chosen = ids(*range(3, 190, 2))  # enough for the thread pool to take part
        rest = np.full((len(chosen), 1, go1.nu), 0.1)
        before = made.rows.copy()
        made.reset_sensors(chosen, rest)
        np.testing.assert_array_equal(made.rows, before)
        data = mujoco.MjData(go1)
        for env in range(200):
            if env not in chosen:
                assert np.isnan(made.state[env]).all()
                assert np.isnan(made.sensors[env]).all()
                continue
            mujoco.mj_resetData(go1, data)
            mujoco.mj_setState(go1, data, made.rows[env], STATE_SIGNATURE)
            mujoco.mj_setState(go1, data, np.full(go1.nu, 0.1), CTRL_SIGNATURE)
            mujoco.mj_forward(go1, data)
            for t in range(SUBSTEPS):
                np.testing.assert_array_equal(made.state[env, t], made.rows[env])
                np.testing.assert_array_equal(made.sensors[env, t], data.sensordata)


def test_threads_groups_and_overlap_give_the_same_bits(go1: Any) -> None:
    results = []
    for threads, cuts, overlap in (
        (1, (0, 30), False),
        (2, (0, 30), False),
        (2, (0, 7, 8, 30), False),
        (1, (0, 15, 30), True),
        (2, (0, 10, 30), True),
    ):
        groups = tuple(slice(a, b) for a, b in pairwise(cuts))
        with physics(go1, 30, groups=groups, threads=threads, overlap=overlap) as made:
            begin(made)
            for step in range(20):
                ctrl = controls(made, step)
                tickets = [made.submit(g, ctrl[envs]) for g, envs in enumerate(groups)]
                for ticket in tickets:
                    made.wait(ticket)
            results.append((made.rows.copy(), made.state.copy(), made.sensors.copy()))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


# -- states -------------------------------------------------------------------------------------


def test_a_new_episode_starts_as_mujoco_resets_but_for_its_clock(go1: Any) -> None:
    with physics(go1) as made:
        made.rows[:] = 7.0
        qpos, qvel = np.full((2, go1.nq), 0.5), np.full((2, go1.nv), 0.25)
        made.write_state(ids(1, 3), qpos, qvel)
        np.testing.assert_array_equal(made.rows[[0, 2]], 7.0)
        fresh = np.zeros(made.rows.shape[1])
        mujoco.mj_getState(go1, mujoco.MjData(go1), fresh, STATE_SIGNATURE)
        fresh[QPOS : QPOS + go1.nq] = 0.5
        fresh[QPOS + go1.nq : QPOS + go1.nq + go1.nv] = 0.25
        fresh[TIME] = made.rows[1, TIME]
        np.testing.assert_array_equal(made.rows[[1, 3]], [fresh, fresh])
        assert made.rows[1, TIME] >= 1.0


def test_the_clock_starts_later_than_any_step_is_long() -> None:
    model = mujoco.MjModel.from_xml_string(PENDULUM.replace('"0.01"', '"0.5"'))
    with physics(model, substeps=10) as made:
        begin(made)
        assert (made.rows[:, TIME] == 50.0).all()
        view = made.wait(made.submit(0, np.zeros((4, 10, 1))))
        np.testing.assert_allclose(view.state[:, -1, TIME], 55.0)
        assert not view.failures.any()


def test_a_push_never_touches_a_bit_of_qpos(go1: Any) -> None:
    with physics(go1) as made:
        begin(made)
        made.rows[:, QPOS : QPOS + 3] = np.nextafter(1.0 / 3.0, 1.0)  # not a float32
        made.rows[:, TIME] = 123.456
        before = made.rows.copy()
        made.write_state(ids(2), None, np.full((1, go1.nv), 0.1))
        expected = before.copy()
        expected[2, QPOS + go1.nq : QPOS + go1.nq + go1.nv] = 0.1
        np.testing.assert_array_equal(made.rows, expected)


def test_writing_no_env_changes_nothing(go1: Any) -> None:
    with physics(go1) as made:
        begin(made)
        before = made.rows.copy()
        made.write_state(ids(), np.zeros((0, go1.nq)), np.zeros((0, go1.nv)))
        made.reset_sensors(ids(), np.zeros((0, 1, go1.nu)))
        np.testing.assert_array_equal(made.rows, before)
        assert np.isnan(made.sensors).all()


def test_a_snapshot_restores_the_exact_continuation(go1: Any) -> None:
    def go_on(made: MujocoCpu) -> F64:
        for step in range(5, 10):
            made.wait(made.submit(0, controls(made, step)))
        return made.state.copy()

    with physics(go1, threads=2) as made:
        begin(made)
        for step in range(5):
            made.wait(made.submit(0, controls(made, step)))
        snapshot = {name: np.copy(value) for name, value in made.snapshot().items()}
        first = go_on(made)
        made.restore(snapshot)
        np.testing.assert_array_equal(made.state[:, -1], snapshot["rows"])
        np.testing.assert_array_equal(go_on(made), first)
    with physics(go1) as other:
        other.restore(snapshot)
        np.testing.assert_array_equal(go_on(other), first)


def test_a_snapshot_is_a_copy(go1: Any) -> None:
    with physics(go1) as made:
        begin(made)
        snapshot = made.snapshot()
        before = snapshot["rows"].copy()
        made.wait(made.submit(0, controls(made, 0)))
        np.testing.assert_array_equal(snapshot["rows"], before)


def test_a_snapshot_of_another_size_is_refused(go1: Any) -> None:
    with physics(go1, 3) as made:
        snapshot = made.snapshot()
    with physics(go1, 4) as made, pytest.raises(PhysicsError, match=r"\(3, .*\(4, "):
        made.restore(snapshot)


# -- failures -----------------------------------------------------------------------------------


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_an_env_that_blows_up_is_unstable_and_the_others_are_as_without_it(
    threads: int, overlap: bool, in_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = mujoco.MjModel.from_xml_string(PENDULUM)
    states = []
    for bad in (0.0, 1e6):
        with physics(model, threads=threads, overlap=overlap) as made:
            begin(made)
            ctrl = np.zeros((4, SUBSTEPS, 1))
            ctrl[2] = bad
            view = made.wait(made.submit(0, ctrl))
            assert view.failures.tolist() == [0, 0, UNSTABLE if bad else 0, 0]
            assert np.isfinite(view.state).all()
            states.append(view.state.copy())
    np.testing.assert_array_equal(states[0][[0, 1, 3]], states[1][[0, 1, 3]])
    assert states[1][2, -1, TIME] < 1.0
    assert list(in_tmp.iterdir()) == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("field", ["qpos", "qvel"])
def test_a_state_that_is_not_finite_is_unstable(go1: Any, field: str, in_tmp: Path) -> None:
    with physics(go1) as made:
        begin(made)
        qpos, qvel = made.rows[:1, QPOS : QPOS + go1.nq].copy(), np.zeros((1, go1.nv))
        {"qpos": qpos, "qvel": qvel}[field][0, 5] = np.nan
        made.write_state(ids(1), qpos, qvel)
        view = made.wait(made.submit(0, controls(made, 0)))
        assert view.failures.tolist() == [0, UNSTABLE, 0, 0]
    assert list(in_tmp.iterdir()) == []


def test_a_clock_that_is_not_finite_is_a_failure(go1: Any) -> None:
    with physics(go1) as made:
        begin(made)
        made.rows[3, TIME] = np.nan
        view = made.wait(made.submit(0, controls(made, 0)))
        assert view.failures.tolist() == [0, 0, 0, UNSTABLE]


def test_a_bad_ctrl_freezes_its_env(
    go1: Any, in_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with physics(go1) as made:
        begin(made)
        ctrl = controls(made, 0)
        ctrl[1, :, 0] = np.nan
        view = made.wait(made.submit(0, ctrl))
        assert view.failures.tolist() == [0, FROZEN, 0, 0]
        np.testing.assert_array_equal(view.state[1, 1:], view.state[1, :1].repeat(3, axis=0))
        ctrl = controls(made, 1)
        view = made.wait(made.submit(0, ctrl))  # flags are of this step
        assert view.failures.tolist() == [0, 0, 0, 0]
    assert list(in_tmp.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_contacts_beyond_the_memory_freeze_their_env(
    in_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = mujoco.MjModel.from_xml_string(pile("800K"))
    with physics(model, 3, threads=2) as made:
        qpos = np.tile(model.qpos0, (3, 1))
        qpos[[0, 2], 2::7] += 2.0 * np.arange(48)  # only env 1 holds a pile
        made.write_state(ids(0, 1, 2), qpos, np.zeros((3, model.nv)))
        view = made.wait(made.submit(0, np.zeros((3, SUBSTEPS, 0))))
        assert view.failures.tolist() == [0, FROZEN, 0]
        assert (view.state[1, -1, TIME] < view.state[0, -1, TIME]).all()
    assert list(in_tmp.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_model_too_large_for_its_memory_is_refused_at_start() -> None:
    model = mujoco.MjModel.from_xml_string(pile("200K"))
    with pytest.raises(ConfigError, match=r"stack overflow(.|\n)*<size memory="), physics(model):
        pass


def test_an_engine_error_in_a_rollout_ends_the_process_with_code_1(tmp_path: Path) -> None:
    """MuJoCo gives no way to catch it; the last checkpoint is what is left of a run."""
    script = f"""
        import mujoco, numpy as np
        from unilab.physics.mujoco_cpu import MujocoCpu
        model = mujoco.MjModel.from_xml_string('''{pile("200K")}''')
        apart = model.qpos0.copy()
        apart[2::7] += 2.0 * np.arange(48)
        qpos0 = model.qpos0.copy()
        model.qpos0[:] = apart  # so that the step at start succeeds
        physics = MujocoCpu(model, num_envs=2, groups=(slice(0, 2),), substeps=2, threads=2,
                            overlap=False)
        physics.write_state(np.arange(2, dtype=np.int32), np.stack([apart, qpos0]), None)
        print("stepping", flush=True)
        physics.submit(0, np.zeros((2, 2, 0)))
        print("never reached", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "stepping" in done.stdout
    assert "never reached" not in done.stdout
    assert "stack overflow" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


# -- threads ------------------------------------------------------------------------------------


def test_a_reset_does_not_wait_for_the_physics_of_another_group(go1: Any) -> None:
    groups = (slice(0, 128), slice(128, 132))
    with physics(go1, 132, groups=groups, overlap=True, substeps=40) as made:
        begin(made)
        ticket = made.submit(0, np.zeros((128, 40, go1.nu)))  # about 100 ms
        made.write_state(ids(130), np.array(go1.key_qpos[:1]), np.zeros((1, go1.nv)))
        made.reset_sensors(ids(130), np.zeros((1, 1, go1.nu)))
        assert ticket.future is not None
        assert not ticket.future.done()
        assert np.isfinite(made.sensors[130]).all()
        made.wait(ticket)
        assert ticket.span_ns[0] < ticket.span_ns[1]


@pytest.mark.parametrize("overlap", [False, True])
def test_a_call_that_mujoco_refuses_is_an_error_with_the_envs(go1: Any, overlap: bool) -> None:
    with (
        physics(go1, 4, groups=(slice(0, 2), slice(2, 4)), overlap=overlap) as made,
        pytest.raises(PhysicsError, match=r"envs \[2, 4\)"),
    ):
        made.wait(made.submit(1, np.zeros((2, SUBSTEPS - 1, go1.nu))))


def test_close_finishes_the_step_in_flight_and_may_be_called_twice(go1: Any) -> None:
    with physics(go1, 64, overlap=True, threads=2) as made:
        begin(made)
        ticket = made.submit(0, controls(made, 0))
        made.close()
        made.close()
        assert np.isfinite(made.wait(ticket).state).all()
        with pytest.raises(PhysicsError, match="shutdown"):
            made.submit(0, controls(made, 1))


def test_a_model_without_sensors_steps() -> None:
    model = mujoco.MjModel.from_xml_string(PENDULUM)
    with physics(model) as made:
        begin(made)
        made.reset_sensors(ids(0, 1), np.zeros((2, 1, 1)))
        view = made.wait(made.submit(0, np.zeros((4, SUBSTEPS, 1))))
        assert view.sensors.shape == (4, SUBSTEPS, 0)
        assert np.isfinite(view.state).all()


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="Linux has CPU affinity")
def test_a_pool_that_uses_every_cpu_has_each_thread_on_one_of_its_own() -> None:
    cpus = os.sched_getaffinity(0)
    if len(cpus) == 1:
        pytest.skip("one CPU: no pool")
    placed = pool_affinities(len(cpus), may_pin=True)
    assert sorted(placed, key=min) == [{cpu} for cpu in sorted(cpus)]
    assert pool_affinities(len(cpus), may_pin=False) == [cpus] * len(cpus)
    assert pool_affinities(len(cpus) + 1, may_pin=True) == [cpus] * (len(cpus) + 1)
    assert os.sched_getaffinity(0) == cpus


def pool_affinities(threads: int, *, may_pin: bool) -> list[set[int]]:
    """Make a pool; return the CPUs that each of its threads may use."""
    before = set(os.listdir("/proc/self/task"))
    pool = make_pool(threads, may_pin=may_pin)
    workers = set(os.listdir("/proc/self/task")) - before
    placed = [os.sched_getaffinity(int(worker)) for worker in workers]
    pool.close()
    return placed


# -- variants -------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlap", [False, True])
def test_each_env_steps_with_its_own_variant(go1: Any, overlap: bool) -> None:
    """Groups, threads and a change of variants between steps; against one model at a time."""
    variants, groups = table(go1), (slice(0, 3), slice(3, 8))
    chosen = np.array([[0, 1, 2, 0, 1, 2, 2, 1], [2, 1, 0, 0, 2, 2, 1, 0]], np.int32)
    with physics(go1, 8, groups=groups, threads=2, overlap=overlap, variants=variants) as made:
        begin(made)
        start = made.rows.copy()
        for row in chosen:
            made.set_variants(ids(*range(8)), row)
            for group, envs in enumerate(groups):
                made.wait(made.submit(group, controls(made, 0)[envs]))
        ends = made.rows.copy()
    for env in range(8):
        state = start[env]
        for row in chosen:
            with physics(variants.models[row[env]], 1) as alone:
                alone.rows[:] = state
                alone.wait(alone.submit(0, controls(made, 0)[env : env + 1].copy()))
                state = alone.rows[0].copy()
        np.testing.assert_array_equal(ends[env], state)


def test_a_change_of_variant_touches_no_other_env(go1: Any) -> None:
    ends = []
    for other in (0, 1):
        with physics(go1, 4, variants=table(go1)) as made:
            begin(made)
            made.set_variants(ids(2), ids(other))
            made.wait(made.submit(0, controls(made, 0)))
            ends.append(made.rows.copy())
    assert np.flatnonzero((ends[0] != ends[1]).any(axis=1)).tolist() == [2]


def test_sensors_of_a_reset_are_of_the_envs_own_variant(go1: Any) -> None:
    variants = table(go1)
    with physics(go1, 9, threads=2, variants=variants) as made:
        begin(made)
        made.rows[:] = made.rows[0]  # the same state, so that only the model differs
        chosen = np.arange(9, dtype=np.int32) % 3
        made.set_variants(np.arange(9, dtype=np.int32), chosen)
        for reset in (ids(1, 5), ids(*range(9))):  # alone, and with the thread pool's help
            made.sensors[:] = np.nan
            made.reset_sensors(reset, np.zeros((len(reset), 1, go1.nu)))
            for env in reset:
                data = mujoco.MjData(go1)
                mujoco.mj_setState(go1, data, made.rows[env], STATE_SIGNATURE)
                mujoco.mj_forward(variants.models[chosen[env]], data)
                np.testing.assert_array_equal(made.sensors[env, 0], data.sensordata)
        assert len({row.tobytes() for row in made.sensors[:, 0]}) == 3
