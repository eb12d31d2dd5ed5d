"""Assembling: what is refused and how, what recompiles and what does not."""

from __future__ import annotations

import ast

import numpy as np
import pytest

from tests.kernels.conftest import SMALL
from tests.kernels.support import (
    HEAD,
    chosen,
    import_terms,
    make_spec,
    random_arrays,
    refused,
    step,
)
from unilab_kernels import terms
from unilab_kernels.fuse import ARRAYS, assemble
from unilab_kernels.spec import CarriedField
from unilab_kernels.terms import TermError

pytestmark = pytest.mark.usefixtures("forget_terms")

# -- a user's mistakes in a config ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rewards": {"track_lin_vell": {"weight": 1.0}}},
            ["rewards.track_lin_vell: ", "'track_lin_vel'"],
        ),
        ({"terminations": {"tiltd": {}}}, ["terminations.tiltd: ", "'tilted'?"]),
        ({"actor": {"gravty": {}}}, ["observations.actor.gravty: ", "'gravity'?"]),
        ({"commands": {"zzz": {}}}, ["commands.zzz: ", "valid:", "velocity"]),
        ({"events": {"pushh": {}}}, ["events.pushh: ", "'push'?"]),
        ({"carried_fields": {"x": CarriedField(1, update="track_air")}}, ["'track_air_time'?"]),
    ],
)
def test_an_unknown_term_names_the_nearest(changes, words):
    refused(["unknown", *words], **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"rewards": {"track_lin_vel": {"weight": 1.0}}},
            ["rewards.track_lin_vel", "'std'", "rewards.track_lin_vel.std=", "base_pos", "kp"],
        ),
        (
            {"rewards": {"track_lin_vel": {"weight": 1.0, "sdt": 2.0, "std": 1.0}}},
            ["rewards.track_lin_vel", "no parameter 'sdt'", "'std'?"],
        ),
        ({"rewards": {"alive": {}}}, ["rewards.alive", "'weight' is missing"]),
        ({"rewards": {"alive": {"weight": 1.0, "noise": 1.0}}}, ["no parameter 'noise'", "weight"]),
        ({"actor": {"gravity": {"noize": 1.0}}}, ["observations.actor.gravity", "'noise'?"]),
        ({"actor": {}}, ["observations.actor", "at least one term"]),
        ({"critic": {}}, ["observations.critic", "at least one term"]),
        ({"events": {"push": {"min_s": 1.0}}}, ["events.push", "events.push.max_s="]),
        (
            {"commands": {"velocity": chosen("command")["velocity"]}, "carried_fields": {}},
            ["commands.velocity", "'command_io'", "'<carried field>_io'"],
        ),
    ],
)
def test_a_wrong_parameter_says_where_and_what_is_valid(changes, words):
    refused(words, **changes)


def test_a_field_that_the_task_lacks_is_named_with_all_that_there_is():
    fields = dict(make_spec().state_fields)
    del fields["base_quat"]
    carried = {k: v for k, v in make_spec().carried_fields.items() if v.update is None}
    refused(
        [
            "observations.actor.gravity",
            "'projected_gravity'",
            "'base_quat'",
            "joint_pos",
            "command",
        ],
        state_fields=fields,
        carried_fields=carried,
    )
    del fields["joint_pos"]
    refused(
        ["'joint_pos'"],
        state_fields=fields,
        carried_fields=carried,
        actor={"joint_pos_rel": {}},
    )


def test_a_parameter_cannot_replace_a_field():
    given = {"weight": 1.0, "std": 1.0, "command": 2.0}
    refused(["no parameter 'command'", "std, weight"], rewards={"track_lin_vel": given})


# -- a user's mistakes in a file of terms ---------------------------------------------------------


def test_two_terms_with_one_name_are_refused(folder):
    text = HEAD + "@reward\ndef mine(action):\n    return action[0]\n"
    import_terms(folder, "first", text)
    import_terms(folder, "first", text)  # the same file once more: replaced
    with pytest.raises(TermError, match=r"'mine' is defined twice.*first\.py:4.*second\.py:4"):
        import_terms(folder, "second", text)
    with pytest.raises(TermError, match=r"'alive' is defined twice"):
        import_terms(folder, "third", HEAD + "@reward\ndef alive():\n    return 2.0\n")


def test_two_terms_with_one_name_in_one_file_are_refused(folder):
    text = HEAD + "@reward\ndef twin():\n    return 1.0\n"
    with pytest.raises(TermError, match="'twin' is defined twice"):
        import_terms(folder, "twice", text + "\n@reward\ndef twin():\n    return 2.0\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("TABLE = [1.0, 2.0]\n@reward\ndef bad(cart_pos):\n    return cart_pos * TABLE[0]\n",
         ["'TABLE'", "list", "constant of the task"]),
        ("import numpy as np\nTABLE = np.zeros(3)\n@reward\ndef bad():\n    return TABLE[0]\n",
         ["'TABLE'", "ndarray"]),
        ("@reward\ndef bad(action):\n    return action[5]\n", ["'bad'", "action[5]", "0 to 4"]),
        ("@reward\ndef bad(action):\n    return action[-6]\n", ["'bad'", "action[-6]"]),
        ("@reward\ndef bad(cart_pos):\n    if cart_pos > 0.0:\n        return 1.0\n",
         ["'bad'", "on every path"]),
        ("@reward\ndef bad(fresh):\n    return 1.0\n", ["reward term", "'fresh'", "command"]),
        ("@observation(size=1)\ndef bad(terminated, out):\n    out[0] = 1.0\n",
         ["observation term", "'terminated'", "reward"]),
        ("@derived(size=0)\ndef one(two):\n    return two\n@derived(size=0)\ndef two(one):\n"
         "    return one\n@reward\ndef bad(one):\n    return one\n",
         ["rewards.bad", "one -> two -> one"]),
        ("@derived(size=0)\ndef self_made(self_made):\n    return 1.0\n"
         "@reward\ndef bad(self_made):\n    return self_made\n", ["self_made -> self_made"]),
    ],
)  # fmt: skip
def test_a_term_that_cannot_work_is_refused_by_name(text, words, folder):
    import_terms(folder, "bad_terms", HEAD + text)
    if terms.find("observation", "bad"):
        refused(words, actor={"bad": {}})
    else:
        refused(words, rewards={"bad": {"weight": 1.0}})


@pytest.mark.parametrize(
    "text",
    [
        "@observation(size=2)\ndef no_out(cart_pos):\n    return cart_pos\n",
        "@reward\ndef with_out(cart_pos, out):\n    out[0] = cart_pos\n",
    ],
)
def test_out_and_size_go_together(text, folder):
    with pytest.raises(TermError, match="'out' and a size go together"):
        import_terms(folder, "sizes", HEAD + text)


def test_helpers_of_one_name_from_two_files_are_refused(folder):
    import_terms(
        folder,
        "left",
        HEAD + "def helper(x):\n    return x\n@reward\ndef l(cart_pos):\n"
        "    return helper(cart_pos)\n",
    )
    import_terms(
        folder,
        "right",
        HEAD + "def helper(x):\n    return -x\n@reward\ndef r(cart_pos):\n"
        "    return helper(cart_pos)\n",
    )
    both = {"l": {"weight": 1.0}, "r": {"weight": 1.0}}
    refused(["'helper'", "left.py", "right.py", "rename"], rewards=both)


def test_constants_of_one_name_from_two_files_are_refused_where_a_function_needs_them(folder):
    for name, value in (("low", 1.0), ("high", 2.0)):
        import_terms(
            folder, name, HEAD + f"LIMIT = {value}\n@reward\ndef {name}(cart_pos):\n"
            "    return cart_pos * LIMIT\n",
        )  # fmt: skip
    both = {"low": {"weight": 1.0}, "high": {"weight": 1.0}}
    refused(["'LIMIT'", "rename"], rewards=both)


def test_a_function_named_as_a_variable_of_the_kernel_is_refused(folder):
    import_terms(
        folder, "taken", HEAD + "def total(x):\n    return x\n@reward\ndef t(cart_pos):\n"
        "    return total(cart_pos)\n",
    )  # fmt: skip
    refused(["'total'", "rename"], rewards={"t": {"weight": 1.0}})


def test_globals_that_python_would_not_find_are_refused(folder):
    import_terms(
        folder, "typo", HEAD + "@reward\ndef t(cart_pos):\n    return maht.exp(cart_pos)\n"
    )
    refused(["'maht'", "typo.py", "nor defined"], rewards={"t": {"weight": 1.0}})
    closure = HEAD + "def make():\n    factor = 2.0\n    @reward\n    def inner(cart_pos):\n"
    import_terms(folder, "closure", closure + "        return factor * cart_pos\nmake()\n")
    refused(["'factor'", "top of the file"], rewards={"inner": {"weight": 1.0}})


# -- numbers are run-time -------------------------------------------------------------------------


def test_other_constants_give_the_same_source():
    constants = {**make_spec().constants, "control_dt": 0.5}
    small, changed = assemble(make_spec(**SMALL)), assemble(make_spec(**SMALL, constants=constants))
    assert small.source == changed.source
    assert small.constants.tolist() != changed.constants.tolist()


def test_weights_and_parameters_act_without_compiling_anew(small):
    arrays = random_arrays(small.kernel, small.spec, 3, seed=2)
    step(small.module, arrays)
    compiled = len(small.module.step_serial.signatures)
    base = arrays["reward_out"].copy()
    arrays["weights_in"][0] = 4.0
    step(small.module, arrays)
    np.testing.assert_allclose(arrays["reward_out"], 4.0 * base, rtol=1e-6)
    assert len(small.module.step_serial.signatures) == compiled == 1


def test_a_zero_weight_is_still_evaluated_and_logged(small):
    arrays = random_arrays(small.kernel, small.spec, 5, seed=2)
    arrays["log_io"][:] = 0.0
    step(small.module, arrays)
    assert small.kernel.weights.tolist() == [1.0, 0.0]
    cart = arrays["sensor_in"][:, -1, small.spec.state_fields["cart_pos"].columns[0]]
    column = small.kernel.log_names.index("reward/cart_centered")
    np.testing.assert_allclose(
        arrays["log_io"][0, column], np.exp(-((cart / 0.5) ** 2)).sum(), rtol=1e-5
    )
    np.testing.assert_allclose(arrays["reward_out"], small.spec.constants["control_dt"], rtol=1e-6)


def test_every_function_takes_the_arrays_in_their_order(small):
    tree = ast.parse(small.kernel.source)
    heads = {
        n.name: [a.arg for a in n.args.args] for n in tree.body if isinstance(n, ast.FunctionDef)
    }
    for name, head in (
        ("apply_action", ["first_block", "last_block", "num_envs"]),
        ("step_serial", ["first_block", "last_block", "num_envs"]),
        ("step_parallel", ["first_block", "last_block", "num_envs"]),
        ("sample_resets", ["env_ids"]),
        ("observe_resets", ["env_ids"]),
    ):
        assert heads[name] == [*head, *ARRAYS]
