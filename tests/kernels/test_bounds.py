"""Indices that leave a row are refused when the kernel is assembled, not read from a neighbour."""

from __future__ import annotations

import pytest

from tests.kernels.support import HEAD, import_terms, make_spec, refused
from unilab_kernels.fuse import assemble

pytestmark = pytest.mark.usefixtures("forget_terms")

SHORT = [1.0, 2.0, 3.0]  # the made-up robot has 5 joints


def reward_of(*lines: str) -> str:
    """A user's file with the reward `mine`: sums over joints with the config's list `w`."""
    body = ["total = 0.0", *lines, "return total"]
    return HEAD + "@reward\ndef mine(joint_pos, feet_pos_w, w):\n    " + "\n    ".join(body) + "\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ["for j in range(len(joint_pos)):", "    total += w[j]"],
            ["w[j]", "up to 4", "'w' has 3", "'joint_pos' has 5"],
        ),
        (["for j in range(5):", "    total += w[j]"], ["w[j]", "range(5)", "'w' has 3"]),
        (
            ["for f in range(len(w)):", "    total += feet_pos_w[4 * f + 4]"],
            ["feet_pos_w[4 * f + 4]", "up to 12", "'feet_pos_w' has 12", "'w' has 3"],
        ),
        (
            ["for f in range(len(feet_pos_w) // 3):", "    total += w[f]"],
            ["w[f]", "up to 3", "'w' has 3", "'feet_pos_w' has 12"],
        ),
        (["for j in range(1, 5):", "    total += w[j - 1]"], ["w[j - 1]", "up to 3"]),
        (["for j in range(5):", "    total += w[-j]"], ["w[-j]", "down to -4", "'w' has 3"]),
        (
            ["for j in range(5):", "    if joint_pos[j] > 0.0:", "        total += w[j]"],
            ["w[j]", "'w' has 3"],
        ),
        (
            ["for j in range(3):", "    total += w[j]", "for j in range(4):", "    total += w[j]"],
            ["w[j]", "range(4)", "'w' has 3"],
        ),
        (
            ["for j in range(5):", "    if joint_pos[j] > 0.0:", "        return w[j]"],
            ["w[j]", "'w' has 3"],
        ),
        (["total += dot(joint_pos, w)"], ["'dot'", "b[j]", "'b' has 3", "'a' has 5"]),
        (["total += 2.0 * dot(joint_pos, w)"], ["'dot'", "b[j]", "'b' has 3", "'a' has 5"]),
        (["for j in range(NUM):", "    total += w[j]"], ["w[j]", "range(NUM)", "'w' has 3"]),
    ],
)  # fmt: skip
def test_a_counter_that_leaves_a_row_is_refused_with_both_sizes(lines, words, folder):
    helper = "\n\nNUM = 4\n\n\ndef dot(a, b):\n    total = 0.0\n    for j in range(len(a)):\n"
    helper += "        total += a[j] * b[j]\n    return total\n"
    import_terms(folder, "bounds", reward_of(*lines) + helper)
    refused(["rewards.mine", *words], rewards={"mine": {"weight": 1.0, "w": SHORT}})


def test_a_constant_or_an_output_that_is_too_short_is_refused(folder):
    text = "@observation(size='feet_contact')\ndef seen(joint_pos, kp, out):\n"
    text += "    for j in range(len(kp)):\n        out[j] = kp[j]\n"
    import_terms(folder, "out_row", HEAD + text)
    refused(["observations.actor.seen", "out[j]", "'out' has 4", "'kp' has 5"], actor={"seen": {}})
    constants = {**make_spec().constants, "kp": [1.0] * 4}
    refused(
        ["derived.joint_torque", "kp[j]", "'kp' has 4"],
        constants=constants,
        rewards={"torque": {"weight": 1.0}},
    )


@pytest.mark.parametrize(
    "lines",
    [
        ["for j in range(len(joint_pos)):", "    if j < len(w):", "        total += w[j]"],
        ["for j in range(len(joint_pos)):", "    total += w[j % 3] + w[j // 2]"],
        ["for j in range(len(joint_pos)):", "    total += w[j] if j < 3 else 0.0"],
        ["for j in range(len(w)):", "    for k in range(len(w) - j):", "        total += w[j + k]"],
        ["for j in range(len(w)):", "    total += w[j - 1] + w[len(w) - 1 - j]"],
        ["for f in range(len(feet_pos_w) // 3):", "    total += feet_pos_w[3 * f + 2]"],
        ["for j in range(1, 1):", "    total += w[j + 7]"],
        ["for j in range(5):", "    total = 1.0", "for j in range(3):", "    total += w[j]"],
        ["j = 4", "while j >= 0:", "    total += w[j // 2]", "    j -= 1"],
    ],
)  # fmt: skip
def test_indices_that_stay_inside_or_are_guarded_are_accepted(lines, folder):
    import_terms(folder, "inside", reward_of(*lines))
    assert assemble(make_spec(rewards={"mine": {"weight": 1.0, "w": SHORT}})).source
