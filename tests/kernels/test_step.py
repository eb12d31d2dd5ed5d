"""The fused step against the plain one: all bookkeeping, failures, edges, ranges, threads."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.conftest import Case
from tests.kernels.support import assert_same, copied, random_arrays, step
from tests.reference.step_reference import StepReference
from unilab.config import load_config
from unilab.tasks.base import build_task
from unilab_kernels.arrays import FusedKernel
from unilab_kernels.fuse import ARRAYS
from unilab_kernels.spec import BAD_TERM, DIVERGED, FAILURES, KernelSpec

SIZES = [1, 2, 63, 64, 65, 130]
OUTPUTS = ("reward_out", "terminated_out", "truncated_out", "pushed_out")


@pytest.fixture(scope="session", params=["go1_walk", "g1_walk", "go1_rough"])
def robot_task(request) -> tuple[Case, dict[str, int]]:
    """A robot's task as configured, and the sizes of its state and sensor rows."""
    built = build_task(load_config(request.param, []).config)
    model, config = built.robot.model, built.config
    spec = KernelSpec(
        name=request.param,
        num_actions=int(model.nu),
        qpos_column=1,
        nq=int(model.nq),
        qvel_column=1 + int(model.nq),
        nv=int(model.nv),
        state_fields=built.model.fields,
        carried_fields=built.model.carried,
        constants={
            **built.model.constants,
            "control_dt": built.control_dt,
            "episode_length_s": config.episode.length_s,
        },
        actor=config.observations.actor,
        critic=config.observations.critic,
        rewards=config.rewards,
        terminations=config.terminations,
        commands=config.commands,
        events=config.events,
    )
    case = Case(spec, built.kernel, built.kernel.load(), StepReference(spec, seed=7))
    sizes = {"num_state": 1 + model.nq + model.nv, "num_sensor": model.nsensordata}
    return case, {name: int(value) for name, value in sizes.items()}


def with_failures(case: Case, arrays: dict[str, np.ndarray], first: int = 0) -> None:
    """Every kind of bad row, at the start of the batch or from `first` on."""
    spec, nan, inf = case.spec, np.nan, np.inf
    state, sensor = arrays["state_in"], arrays["sensor_in"]
    changes = [
        lambda i: state.__setitem__((i, -1, spec.qpos_column), nan),
        lambda i: state.__setitem__((i, -1, spec.qvel_column + spec.nv - 1), inf),
        lambda i: state.__setitem__((i, -1, spec.qpos_column + spec.nq - 1), -inf),
        lambda i: state.__setitem__((i, -1, spec.qvel_column), 1e6),
        lambda i: state.__setitem__((i, -1, spec.qvel_column), -0.99e6),  # large, still fine
        lambda i: sensor.__setitem__((i, -1, 0), nan),
        lambda i: sensor.__setitem__((i, 0, 0), -inf),
        lambda i: sensor.__setitem__((i, -1, 6), 1e39),  # finite, but not as float32
        lambda i: arrays["failure_io"].__setitem__(i, 1),
        lambda i: arrays["failure_io"].__setitem__(i, 2),
        lambda i: arrays["failure_io"].__setitem__(i, 4),
        lambda i: (state.__setitem__(i, nan), arrays["failure_io"].__setitem__(i, 1)),
    ]
    for k, change in enumerate(changes):
        if first + k < len(state):
            change(first + k)


@pytest.mark.parametrize("num_envs", SIZES)
def test_a_step_of_a_robot_task_is_the_reference(num_envs, robot_task):
    case, sizes = robot_task
    arrays = random_arrays(case.kernel, case.spec, num_envs, seed=num_envs, num_substeps=2, **sizes)
    if num_envs > 2:
        with_failures(case, arrays, first=num_envs // 3)
    wanted = case.reference.step(arrays, 0, -(-num_envs // 64), num_envs)
    step(case.module, arrays)
    # A place 50 m from the corner of the ground is a float32 to 4e-6 m, and stairs are steep.
    assert_same(arrays, wanted, atol=2e-5 if case.spec.name == "go1_rough" else 2e-6)
    if num_envs == 130:
        assert set(arrays["failure_io"]) == {0, 1, 2, 3, 4}
        assert arrays["pushed_out"].any()
        assert arrays["terminated_out"].any()
        assert arrays["truncated_out"].any()


@pytest.mark.parametrize("num_envs", SIZES)
def test_a_step_of_all_terms_is_the_reference(num_envs, everything):
    case = everything
    arrays = random_arrays(case.kernel, case.spec, num_envs, seed=num_envs + 1)
    if num_envs > 2:
        with_failures(case, arrays)
    wanted = case.reference.step(arrays, 0, -(-num_envs // 64), num_envs)
    step(case.module, arrays)
    assert_same(arrays, wanted)
    if num_envs == 130:  # the square root of a negative number: about half of the rows
        assert set(arrays["failure_io"]) == {0, 1, 2, 3, 4, 5}


def test_many_steps_in_a_row_are_the_reference(everything):
    """Timers run down, counters and returns add up, episodes end: state carried over 12 steps."""
    case = everything
    arrays = quiet(case, random_arrays(case.kernel, case.spec, 66, seed=4))
    wanted = copied(arrays)
    ended = 0
    for turn in range(12):
        fresh = quiet(case, random_arrays(case.kernel, case.spec, 66, seed=100 + turn))
        for target in (arrays, wanted):
            for name in ("state_in", "sensor_in"):
                target[name][:] = fresh[name]
        wanted = case.reference.step(wanted, 0, 2, 66)
        step(case.module, arrays)
        done = np.flatnonzero(arrays["terminated_out"] | arrays["truncated_out"]).astype(np.int32)
        wanted = case.reference.observe_resets(case.reference.sample_resets(wanted, done), done)
        for kernel in (case.module.sample_resets, case.module.observe_resets):
            kernel(done, *(arrays[name] for name in ARRAYS))
        assert_same(arrays, wanted)
        ended += len(done)
    assert ended > 66
    assert arrays["episode_io"].max() > 9


def quiet(case: Case, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """No term that goes wrong, so that every row is worked on."""
    spare = case.spec.state_fields["spare"].columns[0]
    arrays["sensor_in"][:, :, spare] = np.abs(arrays["sensor_in"][:, :, spare]) + 0.1
    return arrays


def test_only_the_given_blocks_are_written(everything):
    case = everything
    arrays = random_arrays(case.kernel, case.spec, 200, seed=9)
    before = copied(arrays)
    wanted = case.reference.step(arrays, 1, 2, 200)
    step(case.module, arrays, (1, 2))
    assert_same(arrays, wanted)
    for name, (shape, _, _) in ARRAYS.items():
        if name == "scratch_io":
            continue
        own = slice(1, 2) if shape.startswith("(blocks") else slice(64, 128)
        if shape.startswith(("(N", "(blocks")):
            outside = np.delete(arrays[name], own, axis=0)
            np.testing.assert_array_equal(outside, np.delete(before[name], own, axis=0), name)
    for name in OUTPUTS:
        written = arrays[name][64:128]
        assert np.isfinite(written).all()
        assert not np.any(written == 255), name
    assert np.isfinite(arrays["reward_out"][64:128]).all()
    assert np.isnan(arrays["reward_out"][:64]).all()
    assert np.isnan(arrays["reward_out"][128:]).all()


def test_no_input_is_written_and_no_block_means_no_work(everything):
    case = everything
    arrays = random_arrays(case.kernel, case.spec, 65, seed=10)
    before = copied(arrays)
    step(case.module, arrays, (0, 0))
    for name in ARRAYS:
        np.testing.assert_array_equal(arrays[name], before[name], err_msg=name)
    step(case.module, arrays)
    for name in ARRAYS:
        if name.endswith("_in"):
            np.testing.assert_array_equal(arrays[name], before[name], err_msg=name)


# -- precedence, failures -------------------------------------------------------------------------


def prepared(case: Case, num_envs: int = 4) -> dict[str, np.ndarray]:
    """Envs far from every limit: upright, high, the cart in the middle."""
    arrays = quiet(case, random_arrays(case.kernel, case.spec, num_envs, seed=21))
    arrays["state_in"][:, :, 1:8] = [0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0]
    cart = case.spec.state_fields["cart_pos"].columns[0]
    arrays["sensor_in"][:, :, cart : cart + 3] = 0.1
    arrays["start_step_io"][:], arrays["step_io"][:] = 3, 10
    return arrays


def fall(case: Case, arrays: dict[str, np.ndarray], i: int) -> None:
    arrays["sensor_in"][i, :, case.spec.state_fields["cart_pos"].columns[0]] = 5.0


def test_terminated_wins_over_truncated(everything):
    arrays = prepared(everything)
    last_step = int(arrays["max_steps_in"][0]) - 1
    arrays["step_io"][[1, 3]] = last_step
    fall(everything, arrays, 2)
    fall(everything, arrays, 3)
    step(everything.module, arrays)
    assert arrays["terminated_out"].tolist() == [0, 0, 1, 1]
    assert arrays["truncated_out"].tolist() == [0, 1, 0, 0]


@pytest.mark.parametrize("failure", range(1, len(FAILURES)))
def test_a_failed_row_gives_nothing_but_its_failure(failure, everything):
    case = everything
    arrays = prepared(case)
    arrays["step_io"][1] = arrays["max_steps_in"][0] - 1  # a time-out at the same time
    if failure == DIVERGED:
        arrays["state_in"][1, -1, 1] = np.nan
    elif failure == BAD_TERM:
        arrays["sensor_in"][1, :, case.spec.state_fields["spare"].columns[0]] = -1.0
    else:
        arrays["failure_io"][1] = failure
    before = copied(arrays)
    arrays["log_io"][:] = 0.0
    step(case.module, arrays)
    assert arrays["failure_io"].tolist() == [0, failure, 0, 0]
    assert arrays["reward_out"][1] == 0.0
    assert (arrays["terminated_out"][1], arrays["truncated_out"][1]) == (1, 0)
    assert arrays["return_io"][1] == before["return_io"][1]
    log = dict(zip(case.kernel.log_names, arrays["log_io"][0].tolist(), strict=True))
    assert log["steps"] == 3.0
    assert log["episodes"] == 0.0
    assert {n for n in log if n.startswith("failure/") and log[n]} == {
        f"failure/{FAILURES[failure]}"
    }
    assert np.isfinite(arrays["log_io"]).all()
    if failure != BAD_TERM:  # the last observation that was fine
        for final, name in (
            ("final_obs_out", "obs_out"),
            ("final_critic_obs_out", "critic_obs_out"),
        ):
            np.testing.assert_array_equal(arrays[final][1], before[name][1])
            np.testing.assert_array_equal(arrays[name][1], before[name][1])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e7, -1e7])
@pytest.mark.parametrize("where", ["qpos", "qvel", "sensor", "other state"])
def test_no_bad_number_slips_through_fast_math(value, where, everything):
    """The checks must hold under the float options that the kernel is compiled with."""
    case, arrays = everything, prepared(everything, 70)
    spec = case.spec
    columns = {
        "qpos": (arrays["state_in"], range(spec.qpos_column, spec.qvel_column)),
        "qvel": (arrays["state_in"], range(spec.qvel_column, spec.qvel_column + spec.nv)),
        "other state": (arrays["state_in"], spec.state_fields["clock"].columns),
        "sensor": (arrays["sensor_in"], range(arrays["sensor_in"].shape[2])),
    }
    array, numbers = columns[where]
    for i, column in enumerate(numbers):
        array[i, -1, column] = value
    step(case.module, arrays)
    is_bad = not np.isfinite(value) or where in ("qpos", "qvel")
    wanted = [DIVERGED if is_bad and i < len(numbers) else 0 for i in range(70)]
    if not is_bad:  # a sensor may be large; a square of it may not be finite
        assert set(arrays["failure_io"]) <= {0, BAD_TERM}
    else:
        assert arrays["failure_io"].tolist() == wanted


def test_final_observation_is_what_the_run_without_that_end_would_see(everything):
    case = everything
    arrays = prepared(case)
    fall(case, arrays, 1)
    arrays["step_io"][2] = arrays["max_steps_in"][0] - 1
    open_ended = copied(arrays)
    open_ended["max_steps_in"][0] = 10_000
    limits = np.isin(open_ended["params_in"], np.float32([1.2]))  # cart_out.limit_m
    assert limits.sum() == 1
    open_ended["params_in"][limits] = 1e9
    step(case.module, arrays)
    step(case.module, open_ended)
    assert (arrays["terminated_out"] | arrays["truncated_out"]).tolist() == [0, 1, 1, 0]
    assert not np.any(open_ended["terminated_out"] | open_ended["truncated_out"])
    for final, name in (("final_obs_out", "obs_out"), ("final_critic_obs_out", "critic_obs_out")):
        np.testing.assert_array_equal(arrays[final][1:3], open_ended[name][1:3])
        assert np.isnan(arrays[final][[0, 3]]).all()


# -- the same numbers, however the work is cut ----------------------------------------------------


def test_cutting_the_batch_changes_no_bit(everything):
    case = everything
    whole = random_arrays(case.kernel, case.spec, 300, seed=12)
    with_failures(case, whole, first=100)
    cut, twenty = copied(whole), copied(whole)
    step(case.module, whole)
    for block in (3, 0, 4, 2, 1):
        step(case.module, cut, (block, block + 1))
    for name in ARRAYS:
        if name != "scratch_io":
            np.testing.assert_array_equal(cut[name], whole[name], err_msg=name)
    step(case.module, twenty)
    np.testing.assert_array_equal(twenty["log_io"], whole["log_io"])


def test_the_parallel_twin_gives_the_same_bits_every_time(small):
    """Twenty runs on two threads: no sum crosses a block, so nothing can race."""
    serial = random_arrays(small.kernel, small.spec, 700, seed=13)
    given = copied(serial)
    step(small.module, serial)
    for _ in range(20):
        parallel = copied(given)
        small.module.step_parallel(0, 11, 700, *(parallel[name] for name in ARRAYS))
        for name in ARRAYS:
            if name != "scratch_io":
                np.testing.assert_array_equal(parallel[name], serial[name], err_msg=name)


@pytest.mark.parametrize("num_envs", [1, 2, 3, 7, 10, 11, 1000])
def test_odd_sizes_are_the_reference(num_envs, small):
    arrays = random_arrays(small.kernel, small.spec, num_envs, seed=num_envs)
    wanted = small.reference.step(arrays, 0, -(-num_envs // 64), num_envs)
    step(small.module, arrays)
    assert_same(arrays, wanted)


# -- actions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_envs", SIZES)
def test_actions_are_clipped_checked_and_mapped(num_envs, small):
    arrays = random_arrays(small.kernel, small.spec, num_envs, seed=num_envs)
    action = arrays["policy_action_in"]
    bad = {0: np.nan, 1: np.inf, 2: -np.inf}
    for i, value in bad.items():
        if i < num_envs - 1:  # at least one good row
            action[i, i] = value
    before = copied(arrays)
    blocks = -(-num_envs // 64)
    small.module.apply_action(0, blocks, num_envs, *(arrays[name] for name in ARRAYS))
    is_bad = ~np.isfinite(action).all(axis=1)
    applied = np.where(is_bad[:, None], 0.0, np.clip(action, -1.5, 1.5)).astype(np.float32)
    columns = small.kernel.carried_slices
    fields = arrays["fields_io"]
    np.testing.assert_array_equal(fields[:, columns["action"]], applied)
    np.testing.assert_array_equal(
        fields[:, columns["prev_action"]], before["fields_io"][:, columns["action"]]
    )
    ctrl = arrays["ctrl_offset_in"] + arrays["ctrl_scale_in"] * applied.astype(np.float64)
    for t in range(arrays["ctrl_out"].shape[1]):
        np.testing.assert_allclose(arrays["ctrl_out"][:, t], ctrl, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose(fields[:, columns["ctrl"]], ctrl, rtol=1e-6)
    np.testing.assert_array_equal(arrays["failure_io"], np.where(is_bad, 4, 0))


def test_the_kernel_is_typed_as_the_assembler_says(robot_task):
    case, _ = robot_task
    assert isinstance(case.kernel, FusedKernel)
    assert case.reference.log_names == list(case.kernel.log_names)
