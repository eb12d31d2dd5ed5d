"""From the config to what the kernel draws; what has no effect in a task is refused."""

from __future__ import annotations

import numpy as np
import pytest

from unilab.config import load_config
from unilab.errors import ConfigError
from unilab.tasks.base import build_task


def build(task: str, *overrides: str):
    return build_task(load_config(task, [f"randomization.{text}" for text in overrides]).config)


def test_patterns_choose_joints_and_terms() -> None:
    built = build(
        "go1_walk",
        "encoder_bias.joints=['FR_*']",
        "encoder_bias.add_rad=[-0.02, 0.01]",
        "observation_delay.terms=['joint_*', gravity]",
        "observation_delay.steps=[1, 2]",
    )
    fields = built.kernel.carried_slices
    size = fields["observation_history"].stop - fields["observation_history"].start
    assert size == 3 * (12 + 12 + 3)
    bias = built.kernel.params[np.flatnonzero(np.isclose(built.kernel.params, -0.02))]
    assert len(bias) == 3


def test_an_action_of_one_control_step_needs_no_history() -> None:
    assert "older_actions" not in build("go1_walk", "action_delay.substeps=[0, 2]").kernel.carried
    older = build("go1_walk", "action_delay.substeps=[0, 5]").kernel.carried["older_actions"]
    assert older.size == 2 * 12


@pytest.mark.parametrize(
    ("task", "overrides", "words"),
    [
        ("cartpole", ["encoder_bias.add_rad=[-0.1, 0.1]"], ["encoder_bias", "joint_pos"]),
        ("go1_walk", ["encoder_bias.joints=[FR_hop]", "encoder_bias.add_rad=[0, 0.1]"],
         ["randomization.encoder_bias.joints", "'FR_hop'", "actuated joint"]),
        ("go1_walk", ["observation_delay.terms=[gravit]", "observation_delay.steps=[0, 1]"],
         ["randomization.observation_delay.terms", "did you mean 'gravity'"]),
        ("go1_walk", ["observation_delay.steps=[0, 0]"], ["observation_delay.steps", "no effect"]),
        ("go1_walk", ["action_delay.substeps=[0, 0]"], ["action_delay.substeps", "no effect"]),
        ("go1_walk", ["body_mass.bodies=[trunc]", "body_mass.scale=[0.9, 1.1]"],
         ["randomization.body_mass.bodies", "did you mean 'trunk'"]),
        ("go1_walk", ["body_mass.bodies=['*_calf']", "body_mass.add_kg=[-1, 1]"],
         ["randomization.body_mass", "_calf'", "above 0"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_has_no_effect_or_no_match_is_refused(
    task: str, overrides: list[str], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        build(task, *overrides)
    for word in words:
        assert word in str(error.value), str(error.value)
