"""Users' own terms: they work whatever their style, and the kernel holds their text."""

from __future__ import annotations

import ast
import re

import numpy as np
import pytest

from tests.kernels.support import HEAD, import_terms, make_spec, random_arrays, refused, step
from unilab_kernels import terms
from unilab_kernels.fuse import ARRAYS, assemble
from unilab_kernels.spec import CarriedField, StateField

pytestmark = pytest.mark.usefixtures("forget_terms")

OWN = (
    HEAD
    + """
from unilab_kernels.rng import uniform

SCALE = 2.5
COUNT = 3
flag = 7.0  # called as a variable of the kernel might be


def norm1(row):
    total = 0.0
    for j in range(len(row)):
        total += abs(row[j])
    return total


def first_above(row, limit):
    for j in range(len(row)):
        if row[j] > limit:
            return j
    return -1


@derived(size=0)
def wobble(joint_vel):
    size = norm1(joint_vel)
    return size / len(joint_vel)


@derived(size=2)
def ends(joint_pos, out):
    out[0] = joint_pos[0]
    out[1] = joint_pos[-1]


@reward
def own_rows(ends, joint_pos, gains, wobble, std=1.5):
    middle = joint_pos[1:4]
    total = norm1(middle) + ends[0] * ends[1]
    k = len(joint_pos) - 1
    while k >= 0:
        total += gains[k] * joint_pos[k - 1]
        k -= 1
    return SCALE * total + wobble / std + flag + COUNT


@reward
def own_search(joint_pos, limit):
    for j in range(len(joint_pos)):
        if joint_pos[j] > limit:
            return float(j)
    return -1.0


@reward
def own_helper_that_returns_from_a_loop(joint_pos, limit):
    place = first_above(joint_pos, limit)
    return 10.0 * place


@termination
def own_end(joint_pos, limit):
    if joint_pos[0] > limit:
        if joint_pos[1] > limit:
            return True
        return joint_pos[2] > limit
    return False


@carry
def own_memory(memory_io, memory_total, cart_pos):
    memory_io[0] = 0.5 * memory_io[0] + cart_pos
    memory_io[1] = memory_total


@observation(size="memory")
def own_seen(memory, key, out):
    for j in range(len(out)):
        out[j] = memory[j] + 0.0 * uniform(key, j, 0.0, 1.0)


@interval
def own_kick(push_out, cart_pos, force):
    if cart_pos > 0.0:
        push_out[0] += force
        return True
"""
)


def own_spec(**parameters):
    base = make_spec()
    gains = parameters.get("gains", [0.1, 0.2, 0.3, 0.4, 0.5])
    limit = parameters.get("limit", 0.2)
    return make_spec(
        name="own",
        actor={"own_seen": {}},
        critic={"own_seen": {"noise": parameters.get("noise", 0.0)}},
        rewards={
            "own_rows": {"weight": parameters.get("weight", 1.0), "gains": gains},
            "own_search": {"weight": 0.0, "limit": limit},
            "own_helper_that_returns_from_a_loop": {"weight": 0.0, "limit": limit},
        },
        terminations={"own_end": {"limit": limit}},
        events={"own_kick": {"force": 2.0}},
        carried_fields={
            "memory": CarriedField(2, update="own_memory"),
            "memory_total": CarriedField(1, scalar=True, reset=3.0),
        },
        state_fields={**base.state_fields, "extra": StateField((1,))},
    )


def test_a_users_file_of_terms_works_whatever_its_style(folder):
    """Slices, negative and running indices, early returns, helpers, globals: as in Python."""
    import_terms(folder, "own_terms", OWN)
    kernel = assemble(own_spec())
    module = kernel.load()
    arrays = random_arrays(kernel, own_spec(), 70, seed=3)
    fields = arrays["fields_io"].copy()
    step(module, arrays)
    spec = own_spec().state_fields
    q = arrays["state_in"][:, -1, list(spec["joint_pos"].columns)]
    v = arrays["state_in"][:, -1, list(spec["joint_vel"].columns)]
    cart = arrays["sensor_in"][:, -1, spec["cart_pos"].columns[0]]
    gains = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    total = np.abs(q[:, 1:4]).sum(1) + q[:, 0] * q[:, -1] + np.roll(q, 1, axis=1) @ gains
    rows = 2.5 * total + np.abs(v).sum(1) / 5 / 1.5 + 7.0 + 3
    np.testing.assert_allclose(arrays["reward_out"], 0.05 * rows, rtol=1e-5, atol=1e-6)
    above = q > 0.2
    found = np.where(above.any(1), above.argmax(1), -1)
    log = dict(zip(kernel.log_names, arrays["log_io"].sum(0).tolist(), strict=True))
    before = random_arrays(kernel, own_spec(), 70, seed=3)["log_io"].sum(0)
    start = dict(zip(kernel.log_names, before.tolist(), strict=True))
    for name, factor in (("own_search", 1.0), ("own_helper_that_returns_from_a_loop", 10.0)):
        name = f"reward/{name}"
        np.testing.assert_allclose(log[name] - start[name], factor * found.sum(), rtol=1e-6)
    np.testing.assert_array_equal(
        arrays["terminated_out"], above[:, 0] & (above[:, 1] | above[:, 2])
    )
    memory = kernel.carried_slices["memory"]
    before_memory = fields[:, memory]
    wanted = np.stack(
        [0.5 * before_memory[:, 0] + cart, fields[:, kernel.carried_slices["memory_total"]][:, 0]],
        1,
    )
    np.testing.assert_allclose(arrays["fields_io"][:, memory], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(arrays["obs_out"], wanted, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(arrays["pushed_out"], cart > 0)
    np.testing.assert_array_equal(arrays["push_out"][:, 0], np.where(cart > 0, 2.0, 0.0))
    assert not arrays["push_out"][:, 1:].any()


def test_the_source_holds_every_line_that_runs(folder):
    import_terms(folder, "own_terms", OWN)
    source = assemble(own_spec()).source
    tree = ast.parse(source)
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert imported <= {"os", "numpy", "math"}
    froms = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert froms == {"numba"}
    assert "2.5" in source
    assert "first_above" in source


def test_editing_a_helper_or_a_constant_changes_the_cache_key(folder):
    edits = [
        ("", ""),
        ("total += abs(row[j])", "total += 2.0 * abs(row[j])"),
        ("SCALE = 2.5", "SCALE = 3.5"),
        ("    return -1\n", "    return -2\n"),
    ]
    library = dict(terms._REGISTRY)
    paths = set()
    for k, (old, new) in enumerate(edits):
        terms._REGISTRY.clear()
        terms._REGISTRY.update(library)
        import_terms(folder, f"own_terms_{k}", OWN.replace(old, new) if old else OWN)
        paths.add(assemble(own_spec()).write())
    assert len(paths) == 4
    assert all(re.fullmatch(r"own_[0-9a-f]{16}\.py", path.name) for path in paths)


def test_one_name_in_two_stages_is_fine(folder):
    import_terms(
        folder,
        "two_stages",
        HEAD + "@reward\ndef both(cart_pos):\n    x = cart_pos\n    return x\n"
        "@termination\ndef both(cart_pos):\n    x = cart_pos > 1.0\n    return x\n",
    )
    rewards = {"both": {"weight": 1.0}}
    assert assemble(make_spec(rewards=rewards, terminations={"both": {}})).source


def test_other_numbers_give_the_same_source_and_the_same_file(folder):
    import_terms(folder, "own_terms", OWN)
    base = assemble(own_spec())
    other = assemble(own_spec(gains=[5, 4, 3, 2, 1], weight=0.0, limit=9.0, noise=0.3))
    assert other.source == base.source
    assert other.write() == base.write()
    assert other.params.tolist() != base.params.tolist()
    assert other.weights.tolist() != base.weights.tolist()


def test_parameters_whose_joined_names_are_equal_stay_apart(folder):
    """Term `a` with parameter `b_c` and term `a_b` with parameter `c`."""
    import_terms(
        folder, "joined", HEAD + "@reward\ndef a(b_c):\n    return b_c\n"
        "@reward\ndef a_b(c):\n    return 100.0 * c\n",
    )  # fmt: skip
    spec = make_spec(
        name="joined", rewards={"a": {"weight": 1.0, "b_c": 2.0}, "a_b": {"weight": 1.0, "c": 3.0}}
    )
    kernel = assemble(spec)
    arrays = random_arrays(kernel, spec, 2)
    step(kernel.load(), arrays)
    np.testing.assert_allclose(arrays["reward_out"], 0.05 * 302.0, rtol=1e-6)


def test_functions_and_numbers_of_math_and_numpy_can_be_named_directly(folder):
    import_terms(
        folder,
        "direct",
        HEAD + "from math import exp, pi as half_turn\nimport numpy as np\nf = np.float32\n"
        "@reward\ndef t(cart_pos):\n    return exp(cart_pos) + f(1.0) * half_turn + math.pi\n",
    )
    spec = make_spec(name="direct", rewards={"t": {"weight": 1.0}})
    kernel = assemble(spec)
    assert "f32(math.pi)" in kernel.source
    arrays = random_arrays(kernel, spec, 4)
    step(kernel.load(), arrays)
    cart = arrays["sensor_in"][:, -1, spec.state_fields["cart_pos"].columns[0]]
    np.testing.assert_allclose(arrays["reward_out"], 0.05 * (np.exp(cart) + 2 * np.pi), rtol=1e-5)


def test_many_early_returns_do_not_blow_the_source_up(folder):
    lines = ["@reward", "def deep(cart_pos, cart_vel):", "    total = 0.0"]
    for k in range(9):
        lines += [f"    if cart_pos > {k}.0:", f"        if cart_vel > {k}.0:"]
        lines += [f"            return {k}.0", "        total += 1.0"]
    import_terms(folder, "deep", HEAD + "\n".join([*lines, "    return total"]) + "\n")
    spec = make_spec(name="deep", rewards={"deep": {"weight": 1.0}})
    kernel = assemble(spec)
    assert len(kernel.source) < 30_000
    arrays = random_arrays(kernel, spec, 30)
    arrays["sensor_in"] *= 6.0
    step(kernel.load(), arrays)
    sensor, fields = arrays["sensor_in"][:, -1], spec.state_fields
    wanted = []
    for x, v in zip(
        *(sensor[:, fields[n].columns[0]] for n in ("cart_pos", "cart_vel")), strict=True
    ):
        passed = [k for k in range(9) if x > k]
        ends = [k for k in passed if v > k]
        wanted.append(float(ends[0]) if ends else float(len(passed)))
    np.testing.assert_allclose(arrays["reward_out"], 0.05 * np.array(wanted), rtol=1e-6)
    assert len(set(wanted)) > 3


def test_each_parameter_is_laid_out_once(folder):
    """However often the term is written out, and however deep a derived field is read."""
    import_terms(
        folder,
        "once",
        HEAD + "@derived(size=0)\ndef scaled(cart_pos, factor=7.0):\n"
        "    x = factor * cart_pos\n    return x\n"
        "@observation(size=1)\ndef seen(scaled, offset, out):\n    out[0] = scaled + offset\n"
        "@interval\ndef kick(push_out, fresh, force):\n    push_out[0] += force\n"
        "    return not fresh\n",
    )
    spec = make_spec(
        name="once",
        actor={"seen": {"offset": 11.0, "noise": 0.5, "scale": 3.0}},
        events={"kick": {"force": 13.0}},
    )
    kernel = assemble(spec)
    assert sorted(kernel.params.tolist()) == [0.5, 3.0, 7.0, 11.0, 13.0]
    arrays = random_arrays(kernel, spec, 4)
    arrays["params_in"][np.argmin(kernel.params)] = 0.0  # no noise
    step(kernel.load(), arrays)
    cart = arrays["sensor_in"][:, -1, spec.state_fields["cart_pos"].columns[0]]
    np.testing.assert_allclose(arrays["obs_out"][:, 0], 3.0 * (7.0 * cart + 11.0), rtol=1e-6)
    assert arrays["push_out"][:, 0].tolist() == [13.0] * 4


def test_an_integer_that_is_returned_becomes_float32(folder):
    """Else Numba would merge int64 and float32 into float64, and the whole sum with it."""
    import_terms(
        folder,
        "whole",
        HEAD + "@reward\ndef whole(cart_pos):\n    if cart_pos > 0.0:\n        return 0\n"
        "    return -1\n",
    )
    source = assemble(make_spec(rewards={"whole": {"weight": 1.0}})).source
    returned = re.findall(r"reward_0 = (.*)", source)
    assert returned == ["f32(0)", "f32(-1)"]


AT_RESET = (
    HEAD
    + """
from unilab_kernels.terms import truncation


@reset
def own_level(qpos_io, level_io, score, env_id, episode):
    level_io[0] += 1.0 if score > 0.5 else 0.0
    qpos_io[0] = 100.0 * env_id + episode
    qpos_io[1] = level_io[max(0, env_id - 1000)]


@reset
def own_wrong_level(score_io):
    score_io[0] = 0.0


@truncation
def own_edge(cart_pos):
    return cart_pos > 0.0


@termination
def own_fall(pole_angle):
    return pole_angle > 0.0
"""
)
KEPT = {
    "level": CarriedField(1, reset=None),
    "score": CarriedField(1, scalar=True),
}


def test_a_reset_term_sees_the_old_episode_and_keeps_what_outlives_it(folder):
    import_terms(folder, "own_resets", AT_RESET)
    spec = make_spec(name="own_reset", carried_fields=KEPT, events={"own_level": {}})
    kernel = assemble(spec)
    arrays = random_arrays(kernel, spec, 3, seed=1)
    level, score = (kernel.carried_slices[name].start for name in ("level", "score"))
    arrays["fields_io"][:, level] = [5.0, 6.0, 7.0]
    arrays["fields_io"][:, score] = [0.9, 0.1, 0.9]
    arrays["episode_io"][:] = [0, 4, 8]
    module, ids = kernel.load(), np.array([0, 1], np.int32)
    module.sample_resets(ids, *(arrays[name] for name in ARRAYS))
    module.observe_resets(ids, *(arrays[name] for name in ARRAYS))
    np.testing.assert_array_equal(arrays["fields_io"][:, level], [6.0, 6.0, 7.0])
    np.testing.assert_array_equal(arrays["fields_io"][:, score], np.float32([0.0, 0.0, 0.9]))
    np.testing.assert_array_equal(arrays["reset_qpos_out"][:2, 0], [1.0, 105.0])
    np.testing.assert_array_equal(arrays["reset_qpos_out"][:2, 1], [6.0, 6.0])


def test_a_reset_term_may_not_write_a_field_that_the_new_episode_sets(folder):
    import_terms(folder, "own_resets", AT_RESET)
    refused(["events.own_wrong_level", "'score_io'"], carried_fields=KEPT,
            events={"own_wrong_level": {}})  # fmt: skip


def test_a_truncation_cuts_the_episode_where_no_failure_ends_it(folder):
    import_terms(folder, "own_resets", AT_RESET)
    spec = make_spec(name="own_cut", terminations={"own_edge": {}, "own_fall": {}})
    kernel = assemble(spec)
    arrays = random_arrays(kernel, spec, 4, seed=1, max_steps=1000)
    cart, pole = (spec.state_fields[name].columns[0] for name in ("cart_pos", "pole_angle"))
    arrays["sensor_in"][:, :, cart] = np.array([1.0, 1.0, -1.0, -1.0])[:, None]
    arrays["sensor_in"][:, :, pole] = np.array([1.0, -1.0, 1.0, -1.0])[:, None]
    arrays["log_io"][:], arrays["step_io"][:] = 0.0, 10
    step(kernel.load(), arrays)
    assert arrays["terminated_out"].tolist() == [1, 0, 1, 0]
    assert arrays["truncated_out"].tolist() == [0, 1, 0, 0]
    log = dict(zip(kernel.log_names, arrays["log_io"].sum(0).tolist(), strict=True))
    assert (log["termination/own_edge"], log["termination/own_fall"]) == (2.0, 2.0)
    assert (log["episodes"], log["timeouts"]) == (3.0, 1.0)
