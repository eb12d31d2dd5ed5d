"""Each term of the library against its oracle, through the fused kernel."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.support import copied, library, one_env, random_arrays, step
from tests.reference.step_reference import TRUNCATIONS
from tests.reference.terms_reference import ORACLES
from unilab_kernels.terms import STAGES

NUM_ENVS = 130
ALL = [(stage, name) for stage in STAGES for name in library(stage)]


@pytest.fixture(scope="module")
def given(everything):
    arrays = random_arrays(everything.kernel, everything.spec, NUM_ENVS, seed=1)
    spare = everything.spec.state_fields["spare"].columns[0]
    arrays["sensor_in"][:, :, spare] = np.abs(arrays["sensor_in"][:, :, spare]) + 0.1
    # Edges: nobody touches the ground, all feet do, upright, upside down, no command, no motion.
    arrays["sensor_in"][0, :, :4], arrays["sensor_in"][1, :, :4] = -1.0, 1.0
    arrays["state_in"][2, :, 4:8], arrays["state_in"][3, :, 4:8] = [1, 0, 0, 0], [0, 1, 0, 0]
    arrays["fields_io"][4, everything.kernel.carried_slices["command"]] = 0.0
    arrays["state_in"][5, :, 1 + everything.spec.nq :] = 0.0
    return arrays


@pytest.fixture(scope="module")
def envs(everything, given):
    return everything.reference.envs(given, list(range(NUM_ENVS)))


@pytest.fixture(scope="module")
def logs(everything, given):
    """The log of each env alone, (N, L): it holds every reward and termination by itself."""
    rows = []
    for i in range(NUM_ENVS):
        arrays = one_env(copied(given), i)
        step(everything.module, arrays)
        assert arrays["failure_io"][0] == 0
        rows.append(arrays["log_io"][0].copy())
    return np.array(rows)


@pytest.fixture(scope="module")
def stepped(everything, given):
    arrays = copied(given)
    arrays["params_in"][:] = everything.kernel.params
    step(everything.module, arrays)
    return arrays


@pytest.mark.parametrize(("stage", "name"), ALL)
def test_every_term_of_the_library_has_an_oracle_and_a_docstring(stage, name):
    from unilab_kernels import terms

    assert (stage, name) in ORACLES, f"write {name} into tests/reference/terms_reference.py"
    assert terms.find(stage, name).summary.endswith((".", "]", "2", "s", "m"))


def test_no_oracle_is_left_of_a_term_that_is_gone():
    assert set(ORACLES) == set(ALL)


@pytest.mark.parametrize("name", library("reward"))
def test_a_reward_is_its_oracle(name, everything, envs, logs):
    column = everything.kernel.log_names.index(f"reward/{name}")
    given = {k: v for k, v in everything.spec.rewards[name].items() if k != "weight"}
    wanted = np.broadcast_to(
        ORACLES["reward", name](terminated_too(everything, envs), **given), 130
    )
    np.testing.assert_allclose(logs[:, column], wanted, rtol=1e-5, atol=1e-6)
    if name != "alive":
        assert len(np.unique(wanted)) > 1, "the inputs do not exercise it"


def terminated_too(everything, envs):
    ends = [
        ORACLES["termination", n](envs, **p)
        for n, p in everything.spec.terminations.items()
        if n not in TRUNCATIONS
    ]
    envs.terminated = np.any(ends, axis=0)
    return envs


@pytest.mark.parametrize("name", library("termination"))
def test_a_termination_is_its_oracle(name, everything, envs, logs):
    column = everything.kernel.log_names.index(f"termination/{name}")
    wanted = ORACLES["termination", name](envs, **everything.spec.terminations[name])
    np.testing.assert_array_equal(logs[:, column], wanted)
    assert 0 < wanted.sum() < NUM_ENVS


@pytest.mark.parametrize("name", [*library("observation"), *library("derived")])
def test_an_observation_or_a_derived_field_is_its_oracle(name, everything, stepped):
    derived = name in library("derived")
    shown = f"show_{name}" if derived else name
    part = next(p for p in everything.kernel.critic_layout if p.name == shown)
    # Observations see the fields after the carried ones and the command were updated.
    envs = everything.reference.envs(stepped, list(range(NUM_ENVS)))
    wanted = ORACLES["derived" if derived else "observation", name](envs).reshape(NUM_ENVS, -1)
    actual = stepped["critic_obs_out"][:, part.start : part.stop]
    np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=2e-6)
    assert len(np.unique(wanted)) > 1


def test_noise_stays_in_its_range_and_scale_comes_after_it(everything, stepped):
    critic = {p.name: slice(p.start, p.stop) for p in everything.kernel.critic_layout}
    seen = set()
    for part in everything.kernel.actor_layout:
        noisy = stepped["obs_out"][:, part.start : part.stop]
        clean = stepped["critic_obs_out"][:, critic[part.name]]
        wiggle = noisy / np.float32(part.scale) - clean
        limit = part.noise + 1e-5
        assert np.all(np.abs(wiggle) <= limit), part.name
        if part.noise:
            assert np.abs(wiggle).max() > 0.9 * part.noise
            assert abs(wiggle.mean()) < 0.2 * part.noise
        seen.add((part.noise > 0, part.scale != 1.0))
    assert len(seen) == 4


@pytest.mark.parametrize("name", [*library("carry"), *library("command"), *library("interval")])
def test_a_term_that_carries_is_covered_by_the_whole_step(name, everything):
    """These change fields that others read: `test_step` compares all of them after a step."""
    spec = everything.spec
    updates = {field.update for field in spec.carried_fields.values()}
    assert name in {*updates, *spec.commands, *spec.events}
