"""New episodes: sampled states, first observations, and how far they spread."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.support import assert_same, copied, random_arrays
from unilab_kernels.fuse import ARRAYS, seed_key
from unilab_kernels.spec import BAD_TERM


def sample(case, arrays, ids):
    case.module.sample_resets(np.array(ids, np.int32), *(arrays[name] for name in ARRAYS))


def observe(case, arrays, ids):
    case.module.observe_resets(np.array(ids, np.int32), *(arrays[name] for name in ARRAYS))


@pytest.mark.parametrize("ids", [[], [0], [129, 3, 64, 63], list(range(130))])
def test_sampling_and_observing_are_the_reference(ids, everything):
    case = everything
    arrays = random_arrays(case.kernel, case.spec, 130, seed=31)
    arrays["failure_io"][::3] = 2
    wanted = case.reference.sample_resets(arrays, ids)
    sample(case, arrays, ids)
    assert_same(arrays, wanted)
    wanted = case.reference.observe_resets(arrays, ids)
    observe(case, arrays, ids)
    assert_same(arrays, wanted)


def test_quaternions_of_new_states_are_unit(everything):
    arrays = random_arrays(everything.kernel, everything.spec, 70, seed=32)
    sample(everything, arrays, range(70))
    norms = np.linalg.norm(arrays["reset_qpos_out"][:, 3:7], axis=1)
    np.testing.assert_allclose(norms, 1.0, rtol=1e-6)


def test_a_reset_clears_the_fields_of_its_rows_alone(everything):
    case = everything
    arrays = random_arrays(case.kernel, case.spec, 66, seed=33)
    before = copied(arrays)
    observe(case, arrays, [2, 65])
    columns = case.kernel.carried_slices
    for name in ("action", "prev_action", "feet_air_time"):
        assert not arrays["fields_io"][[2, 65], columns[name]].any(), name
    for i in (2, 65):  # the actuators rest at their offset, which is what action 0 asks for
        np.testing.assert_array_equal(
            arrays["fields_io"][i, columns["ctrl"]], arrays["ctrl_offset_in"].astype(np.float32)
        )
    fixed = columns["fixed_command"]
    np.testing.assert_array_equal(
        arrays["fields_io"][:, fixed], before["fields_io"][:, fixed], "kept across episodes"
    )
    others = np.delete(np.arange(66), [2, 65])
    for name in ("fields_io", "obs_out", "critic_obs_out", "step_io", "return_io"):
        np.testing.assert_array_equal(arrays[name][others], before[name][others], err_msg=name)


def test_a_first_observation_that_is_not_finite_is_flagged(everything):
    case = everything
    arrays = random_arrays(case.kernel, case.spec, 66, seed=34)
    spare = case.spec.state_fields["spare"].columns[0]
    arrays["sensor_in"][[3, 64, 65], :, spare] = 0.0  # spare_inverse divides by it
    arrays["failure_io"][:] = 1
    wanted = case.reference.observe_resets(arrays, [3, 4, 65])
    observe(case, arrays, [3, 4, 65])
    assert arrays["failure_io"][[3, 4, 64, 65]].tolist() == [BAD_TERM, 0, 1, BAD_TERM]
    assert_same(arrays, wanted)


def put_on_first_tile(case, arrays):
    arrays["fields_io"][:, case.kernel.carried_slices["fixed_tile"]] = [1.0, 0.0, 0.0]


def states(case, *, seed=7, rank=0, num_envs=8, episodes=20):
    """What resets draw, (episodes, num_envs, nq + nv)."""
    arrays = random_arrays(case.kernel, case.spec, num_envs, key=(seed, rank))
    arrays["episode_io"][:] = 0
    put_on_first_tile(case, arrays)
    rows = []
    for _ in range(episodes):
        sample(case, arrays, range(num_envs))
        rows.append(np.hstack([arrays["reset_qpos_out"], arrays["reset_qvel_out"]]).copy())
    return np.array(rows)


def test_every_randomised_number_spreads_over_envs_and_over_episodes(everything):
    rows = states(everything)
    nq = everything.spec.nq
    fixed = [4, 5] if not rows[:, :, 4:6].any() else []  # x and y of a heading
    spread = np.delete(np.arange(rows.shape[2]), fixed)
    assert np.all(rows.std(axis=0)[:, spread] > 0), "an env draws the same in each episode"
    assert np.all(rows.std(axis=1)[:, spread] > 0), "all envs draw the same"
    flat = rows.reshape(-1, rows.shape[2])[:, spread]
    assert len(np.unique(flat, axis=0)) == len(flat), "two initial states are the same"
    assert len(spread) >= nq + everything.spec.nv - 2


def test_draws_depend_on_seed_and_rank_and_repeat(everything):
    base = states(everything)
    np.testing.assert_array_equal(states(everything), base)
    for seed, rank in ((8, 0), (7, 1), (-7, 0)):
        other = states(everything, seed=seed, rank=rank)
        assert not np.any(other[:, :, 0] == base[:, :, 0]), (seed, rank)


def test_draws_of_one_env_do_not_depend_on_how_many_there_are_or_who_else_resets(everything):
    case = everything
    many = random_arrays(case.kernel, case.spec, 130, seed=1)
    few = random_arrays(case.kernel, case.spec, 6, seed=2)
    many["episode_io"][:], few["episode_io"][:] = 4, 4
    for arrays in (many, few):
        put_on_first_tile(case, arrays)
    sample(case, many, range(130))
    sample(case, few, [5])
    np.testing.assert_array_equal(few["reset_qpos_out"][5], many["reset_qpos_out"][5])


def test_reset_draws_are_uniform_in_their_range(everything):
    rows = states(everything, num_envs=64, episodes=60)
    parameters = everything.spec.events["reset_base"]
    tile_x = everything.spec.constants["tile_frame"][0]
    x = rows[:, :, 0].ravel() - 0.1 - tile_x  # from the default x on the first tile
    assert np.abs(x).max() <= parameters["xy_m"] * (1 + 1e-6)
    counts = np.histogram(x, bins=16, range=(-parameters["xy_m"], parameters["xy_m"]))[0]
    expected = len(x) / 16
    assert np.sum((counts - expected) ** 2 / expected) < 50.0  # 15 degrees of freedom
    yaw = 2 * np.arctan2(rows[:, :, 6], rows[:, :, 3]) - 2 * np.arctan2(0.6, 0.8) * 0
    assert yaw.std() > 0.3


def test_seeds_give_different_keys():
    keys = {int(seed_key(seed, rank)[0]) for seed in range(50) for rank in range(8)}
    assert len(keys) == 400
