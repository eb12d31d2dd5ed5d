"""Encoder bias and delays: against the plain step, by hand, and what a reset leaves alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.conftest import Case
from tests.kernels.support import (
    NUM_JOINTS,
    NUM_SUBSTEPS,
    assert_same,
    copied,
    make_spec,
    random_arrays,
    refused,
    step,
)
from tests.reference.step_reference import StepReference
from unilab_kernels.fuse import ARRAYS, assemble
from unilab_kernels.spec import Delay, EncoderBias, Hardware, StateField

N = 70
LATE = ("gravity", "joint_pos_rel")
LOW, HIGH = np.linspace(-0.3, -0.1, NUM_JOINTS), np.linspace(0.0, 0.2, NUM_JOINTS)
TASK: dict[str, Any] = {
    "actor": {
        "base_height": {},
        "gravity": {"noise": 0.1},
        "joint_velocity": {},
        "joint_pos_rel": {"scale": 0.5},
        "last_action": {},
    },
    "critic": {"joint_pos_rel": {}, "gravity": {}, "last_action": {}},
    "rewards": {"torque": {"weight": -0.1}},
    "terminations": {"base_low": {"height_m": -0.5}},
}


def make_case(hardware: Hardware, **changes: Any) -> Case:
    spec = make_spec(name="hardware", **{**TASK, **changes}, hardware=hardware)
    kernel = assemble(spec)
    late = hardware.observation_delay
    columns = [
        column
        for part in kernel.actor_layout
        if late is not None and part.name in late.terms
        for column in range(part.start, part.stop)
    ]
    return Case(spec, kernel, kernel.load(), StepReference(spec, seed=7, late=columns))


@pytest.fixture(scope="module")
def full() -> Case:
    """Everything on; an action is on its way for up to three control steps."""
    return make_case(
        Hardware(
            EncoderBias(LOW, HIGH),
            Delay(1, 8, per_episode=True),
            Delay(0, 3, per_episode=True, terms=LATE),
            substeps=NUM_SUBSTEPS,
        )
    )


def call(case: Case, name: str, arrays: dict[str, np.ndarray], ids: Any) -> None:
    getattr(case.module, name)(np.array(ids, np.int32), *(arrays[a] for a in ARRAYS))


def apply(case: Case, arrays: dict[str, np.ndarray]) -> None:
    blocks = -(-len(arrays["step_io"]) // 64)
    case.module.apply_action(0, blocks, len(arrays["step_io"]), *(arrays[a] for a in ARRAYS))


def started(case: Case, num_envs: int = N) -> dict[str, np.ndarray]:
    """Arrays in which every env has begun an episode."""
    arrays = random_arrays(case.kernel, case.spec, num_envs, seed=5, max_steps=10_000)
    call(case, "sample_resets", arrays, range(num_envs))
    call(case, "observe_resets", arrays, range(num_envs))
    return arrays


def field(case: Case, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    return arrays["fields_io"][:, case.kernel.carried_slices[name]]


def seen(case: Case, arrays: dict[str, np.ndarray], name: str) -> np.ndarray:
    part = next(p for p in case.kernel.actor_layout if p.name == name)
    return arrays["obs_out"][:, part.start : part.stop]


def test_twelve_steps_are_the_reference(full: Case) -> None:
    arrays = started(full)
    draw = np.random.default_rng(2)
    for t in range(12):
        arrays["policy_action_in"][:] = draw.normal(0.0, 1.0, arrays["policy_action_in"].shape)
        arrays["policy_action_in"][t, 2] = np.nan
        wanted = full.reference.apply_action(arrays)
        apply(full, arrays)
        assert_same(arrays, wanted)
        arrays["state_in"][:, :, :12] += draw.normal(0.0, 0.02, (N, NUM_SUBSTEPS, 12))
        wanted = full.reference.step(arrays, 0, 2, N)
        step(full.module, arrays)
        assert_same(arrays, wanted)
        if t % 4 == 3:
            ids = [t, 3, 69]
            for name in ("sample_resets", "observe_resets"):
                wanted = getattr(full.reference, name)(arrays, ids)
                call(full, name, arrays, ids)
                assert_same(arrays, wanted)


def test_a_delay_in_substeps_by_hand() -> None:
    """T = 3, delay 4: at substep t acts the action of step floor((3k + t - 4) / 3)."""
    case = make_case(Hardware(action_delay=Delay(4, 4), substeps=3))
    arrays = started(case, 1)
    arrays["ctrl_offset_in"][:], arrays["ctrl_scale_in"][:] = 0.0, 1.0
    arrays["action_clip_in"][:] = 100.0
    taken = []
    for k in range(1, 5):
        arrays["policy_action_in"][:] = float(k)
        apply(case, arrays)
        taken.append(arrays["ctrl_out"][0, :, 0].tolist())
        assert np.all(field(case, arrays, "ctrl") == taken[-1][-1])
        assert np.all(field(case, arrays, "action") == k)
    assert taken == [[0, 0, 0], [0, 1, 1], [1, 2, 2], [2, 3, 3]]


@pytest.mark.parametrize(
    ("delay", "wanted"),
    [
        (0, [[1, 1, 1], [2, 2, 2], [3, 3, 3]]),
        (1, [[0, 1, 1], [1, 2, 2], [2, 3, 3]]),
        (3, [[0, 0, 0], [1, 1, 1], [2, 2, 2]]),
        (7, [[0, 0, 0], [0, 0, 0], [0, 1, 1]]),
    ],
)
def test_other_delays_by_hand(delay: int, wanted: list[list[int]]) -> None:
    case = make_case(Hardware(action_delay=Delay(0, 7), substeps=3))
    arrays = started(case, 1)
    arrays["ctrl_offset_in"][:], arrays["ctrl_scale_in"][:] = 0.0, 1.0
    arrays["action_clip_in"][:] = 100.0
    field(case, arrays, "action_delay")[:] = delay
    for k, row in enumerate(wanted, start=1):
        arrays["policy_action_in"][:] = float(k)
        apply(case, arrays)
        assert arrays["ctrl_out"][0, :, 0].tolist() == row


def test_an_observation_comes_as_late_as_drawn() -> None:
    case = make_case(Hardware(observation_delay=Delay(0, 3, terms=("base_height",)), substeps=3))
    arrays = started(case, 4)
    arrays["state_in"][:, :, 3] = 100.0
    call(case, "observe_resets", arrays, range(4))
    field(case, arrays, "observation_delay")[:, 0] = [0, 1, 2, 3]
    shown = [seen(case, arrays, "base_height")[:, 0].tolist()]
    for k in range(1, 6):
        arrays["state_in"][:, :, 3] = 100.0 + k
        step(case.module, arrays)
        shown.append(seen(case, arrays, "base_height")[:, 0].tolist())
    assert np.transpose(shown).tolist() == [
        [100, 101, 102, 103, 104, 105],
        [100, 100, 101, 102, 103, 104],
        [100, 100, 100, 101, 102, 103],
        [100, 100, 100, 100, 101, 102],
    ]


def test_a_random_age_at_the_start_does_not_mix_up_the_history() -> None:
    case = make_case(Hardware(observation_delay=Delay(2, 2, terms=("base_height",)), substeps=3))
    arrays = started(case, 4)
    arrays["step_io"][:] = [0, 1, 2, 977]
    first = seen(case, arrays, "base_height").copy()
    for k in range(2):
        arrays["state_in"][:, :, 3] = 50.0 + k
        step(case.module, arrays)
        np.testing.assert_array_equal(seen(case, arrays, "base_height"), first)
    step(case.module, arrays)
    assert np.all(seen(case, arrays, "base_height") == 50.0)


def test_a_reset_fills_the_history_of_its_rows_alone(full: Case) -> None:
    """RST-08 and RST-12."""
    arrays = started(full)
    for _ in range(5):
        arrays["state_in"][:, :, 1:13] += 0.05
        step(full.module, arrays)
    before = copied(arrays)
    arrays["episode_io"][[2, 65]] += 1
    call(full, "observe_resets", arrays, [2, 65])
    others = np.delete(np.arange(N), [2, 65])
    for name in ("fields_io", "obs_out"):
        np.testing.assert_array_equal(arrays[name][others], before[name][others])
    history = field(full, arrays, "observation_history").reshape(N, 4, -1)[[2, 65]]
    for name, columns in (("gravity", slice(0, 3)), ("joint_pos_rel", slice(3, 8))):
        first = seen(full, arrays, name)[[2, 65]]
        np.testing.assert_array_equal(history[:, :, columns], np.stack([first] * 4, axis=1))


def test_the_actor_sees_the_bias_and_the_critic_does_not() -> None:
    case = make_case(Hardware(EncoderBias(LOW, HIGH)))
    arrays = started(case)
    step(case.module, arrays)
    bias = field(case, arrays, "encoder_bias")
    difference = seen(case, arrays, "joint_pos_rel") / 0.5 - arrays["critic_obs_out"][:, :5]
    np.testing.assert_allclose(difference, bias, atol=1e-5)
    assert np.all(bias >= LOW - 1e-6)
    assert np.all(bias <= HIGH + 1e-6)
    assert np.all(bias.std(axis=0) > 0.05)


def drawn(hardware: Hardware, name: str, episodes: int = 12) -> np.ndarray:
    """What episodes draw, (episodes, N)."""
    case = make_case(hardware)
    arrays, rows = started(case), []
    for _ in range(episodes):
        call(case, "sample_resets", arrays, range(N))
        call(case, "observe_resets", arrays, range(N))
        rows.append(field(case, arrays, name)[:, 0].copy())
    return np.array(rows)


@pytest.mark.parametrize("name", ["encoder_bias", "action_delay", "observation_delay"])
def test_startup_draws_stay_and_reset_draws_change(name: str) -> None:
    for per_episode in (False, True):
        bias = EncoderBias(LOW, HIGH, per_episode)
        delay = Delay(2, 6, per_episode, terms=("gravity",) if name.startswith("obs") else ())
        hardware = Hardware(**{name: bias if name == "encoder_bias" else delay})
        rows = drawn(hardware, name)
        assert np.all(np.ptp(rows, axis=1) > 0), "all envs draw the same"
        assert np.all((np.ptp(rows, axis=0) > 0) == per_episode)
        if name != "encoder_bias":
            assert set(np.unique(rows)) == {2.0, 3.0, 4.0, 5.0, 6.0}


def test_ends_of_ranges_are_run_time_numbers() -> None:
    one, other = (
        make_case(Hardware(EncoderBias(LOW, HIGH + k), Delay(k, 3), substeps=3)) for k in (0, 1)
    )
    assert one.kernel.source == other.kernel.source


def test_a_task_without_hardware_has_no_trace_of_it() -> None:
    plain = assemble(make_spec(name="hardware", **TASK))
    for word in ("hardware_key", "late", "newest", "older_actions", "encoder_bias"):
        assert word not in plain.source


def test_a_bias_needs_joint_positions() -> None:
    fields = dict(make_spec().state_fields)
    fields["joint_pos"] = StateField((8, 9))
    refused(["joint_pos"], state_fields=fields, hardware=Hardware(EncoderBias(LOW, HIGH)))
