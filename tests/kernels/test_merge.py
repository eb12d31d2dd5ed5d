"""Loops made one, factors applied at the store: the same numbers from other statements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.support import make_spec
from unilab_kernels.fuse import assemble
from unilab_kernels.merge import merge_into_loads, merge_loops, scale_stores

FIRST = ["# first: a sum.", "a_t = 0.0", "for a_j in range(9):", "    a_t += x[a_j]", "r0 = a_t"]
SECOND = [
    "# second: squares, doubled.",
    "b_t = 0.0",
    "b_k = 2.0",
    "for b_j in range(9):",
    "    b_d = x[b_j] - y[b_j]",
    "    b_t += b_k * b_d * b_d",
    "r1 = b_t",
    "total += r1",
]
ALONE = ["r2 = x[0] if x[0] > 0.0 else 0.0", "total += r2"]


def run(lines: list[str]) -> dict[str, float]:
    draw = np.random.default_rng(0)
    x, y, out = (draw.normal(size=40) for _ in range(3))
    names = {"x": x, "y": y, "out": out, "total": 0.0, "factor": 3.0}
    exec("\n".join(lines), names)
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in names.items()
        if name in ("r0", "r1", "r2", "total", "out")
    }


def loops(lines: list[str]) -> int:
    return sum(line.lstrip().startswith("for ") for line in lines)


def test_loops_of_equal_length_become_one_that_gives_the_same() -> None:
    pieces = [FIRST, ALONE, SECOND]
    apart = [line for piece in pieces for line in piece]
    merged = merge_loops(pieces)
    assert (loops(apart), loops(merged)) == (2, 1)
    assert run(merged) == run(apart)
    comments = [line for line in merged if line.startswith("#")]
    assert comments == [FIRST[0], SECOND[0]]
    assert merged.index("r0 = a_t") < merged.index("total += r2") < merged.index("total += r1")


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([line.replace("9", "10") for line in SECOND], id="another length"),
        pytest.param([*SECOND[:5], "    out[b_j] = b_d", *SECOND[5:]], id="writes an array"),
        pytest.param([*SECOND[:5], "    if b_d > 0.0: break", *SECOND[5:]], id="may stop"),
        pytest.param([*SECOND[:5], "    b_k = a_t", *SECOND[5:]], id="uses the other's sum"),
        pytest.param(["b_e = r0", *SECOND[1:]], id="uses the other's result"),
        pytest.param([*SECOND, "for b_j in range(9):", "    r1 += x[b_j]"], id="two loops"),
        pytest.param(["if total > 1.0: total = 1.0", *SECOND[1:]], id="a branch before"),
        pytest.param([line.replace("9", "len(x)") for line in SECOND], id="unknown length"),
    ],
)
def test_a_loop_that_cannot_move_stays_where_it_is(other: list[str]) -> None:
    assert merge_loops([FIRST, other]) == [*FIRST, *other]


def test_short_loops_stay_as_they_are() -> None:
    pieces = [[line.replace("9", "7") for line in piece] for piece in (FIRST, SECOND)]
    assert merge_loops(pieces) == [*pieces[0], *pieces[1]]


OUT_FIRST = ["# copy", "for a_j in range(9):", "    out[0 + a_j] = x[a_j]"]
OUT_SECOND = ["# shift", "for b_j in range(9):", "    out[9 + b_j] = y[b_j] - x[b_j]"]


def test_loops_that_fill_their_own_columns_become_one() -> None:
    merged = merge_loops([OUT_FIRST, ["out[20] = x[0]"], OUT_SECOND], "out")
    assert loops(merged) == 1
    assert run(merged) == run([*OUT_FIRST, "out[20] = x[0]", *OUT_SECOND])
    assert merge_loops([OUT_FIRST, OUT_SECOND]) == [*OUT_FIRST, *OUT_SECOND]


@pytest.mark.parametrize(
    "line",
    ["    out[9 + b_j] += x[b_j]", "    out[9 + b_j] = out[b_j]", "    x[b_j] = y[b_j]"],
)
def test_a_loop_that_reads_the_array_or_writes_another_stays(line: str) -> None:
    other = [*OUT_SECOND[:2], line]
    assert merge_loops([OUT_FIRST, other], "out") == [*OUT_FIRST, *other]


def test_a_factor_goes_into_the_one_place_that_writes() -> None:
    piece = ["# title", "for j in range(9):", "    out[i, j] = x[j] - y[j]", "out[i, 9] = x[1]"]
    assert scale_stores(piece, "out", "factor") == [
        "# title",
        "for j in range(9):",
        "    out[i, j] = factor * (x[j] - y[j])",
        "out[i, 9] = factor * x[1]",
    ]


@pytest.mark.parametrize(
    "line",
    ["out[i, 0] += x[0]", "out[i, 0] = out[i, 1]", "out[i, 0] = out[i, 1] = x[0]", "fill(out)"],
)
def test_a_term_that_reads_what_it_writes_is_scaled_afterwards(line: str) -> None:
    assert scale_stores(["out[i, 1] = x[0]", line], "out", "factor") is None


def test_the_critic_takes_over_only_what_the_actor_sees_as_it_is() -> None:
    kernel = assemble(
        make_spec(
            actor={"last_action": {}, "gravity": {"noise": 0.1}, "base_ang_vel": {"scale": 2.0}},
            critic={"gravity": {}, "base_ang_vel": {}, "last_action": {}, "base_height": {}},
        )
    )
    copied = [line.split(":")[0].strip() for line in kernel.source.split("\n") if "as in" in line]
    assert set(copied) == {"# observations.critic.last_action"}


LOADS = ["for j in range(9):", "    out[0 + j] = x[j]", "    out[9 + j] = y[j]", "out[30] = x[3]"]
DERIVED = [
    "# derived: a difference.",
    "for d_j in range(9):",
    "    d_v = out[d_j] - out[9 + d_j]",
    "    out[18 + d_j] = d_v * out[9 + d_j]",
]


def test_a_derived_field_that_reads_its_own_position_goes_into_the_loop_of_the_load() -> None:
    twice = ["for e_j in range(9):", "    out[31 + e_j] = 2.0 * out[18 + e_j]"]
    merged = merge_into_loads(LOADS, [DERIVED, twice], "out")
    assert loops(merged) == 1
    assert "    # derived: a difference." in merged
    assert run(merged) == run([*LOADS, *DERIVED, *twice])


@pytest.mark.parametrize(
    "piece",
    [
        ["for d_j in range(8):", "    out[18 + d_j] = out[d_j]"],
        ["for d_j in range(9):", "    out[18 + d_j] = out[30]"],
        ["for d_j in range(9):", "    out[18 + d_j] = out[9 + 8 - d_j]"],
        ["for d_j in range(9):", "    out[18 + d_j] = out[27 + d_j]"],
        ["for d_j in range(9):", "    out[18 + d_j] += out[d_j]"],
        ["for d_j in range(9):", "    y[d_j] = out[d_j]"],
        ["for d_j in range(9):", "    if out[d_j] > 0.0:", "        break"],
        ["d_t = 0.0", "for d_j in range(9):", "    out[18 + d_j] = d_t + out[d_j]"],
        ["out[18] = out[0]"],
    ],
)
def test_any_other_derived_field_stays_behind_the_loads(piece: list[str]) -> None:
    assert merge_into_loads(LOADS, [piece], "out") == [*LOADS, *piece]
