from __future__ import annotations

import pytest
from pydantic import ValidationError

from unilab.config.describe import find_key
from unilab.config.off_policy import SACConfig, TD3Config
from unilab.config.schema import RunConfig


def test_both_blocks_load_beside_that_of_ppo_and_are_described() -> None:
    learners = RunConfig.model_validate(
        {"task": "balance", "learners": {"sac": {"gamma": 0.9}, "td3": {"action_limit": 2}}}
    ).learners
    assert (learners.sac.gamma, learners.td3.action_limit, learners.td3.atoms) == (0.9, 2, 101)
    for block, config in (("sac", SACConfig), ("td3", TD3Config)):
        for name in config.model_fields:
            assert find_key(["learners", block, name]).dotted == f"learners.{block}.{name}"
            assert config.model_fields[name].description


@pytest.mark.parametrize("config", [SACConfig, TD3Config])
@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"v_min": 3.0, "v_max": 3.0}, "v_min < v_max"),
        ({"n_steps": 8, "replay_capacity": 8}, "replay_capacity > n_steps"),
        ({"max_lag": 3}, "max_lag=3 does nothing with schedule=lockstep; valid: schedule=free"),
        ({"schedule": "free", "max_lag": 0}, "greater than or equal to 1"),
        ({"schedule": "async"}, "'lockstep', 'sync' or 'free'"),
        ({"network": "residual", "actor_hidden": [64], "critic_hidden": [64, 32]}, "one width"),
        ({"precision": "fp8"}, "'auto', 'fp32', 'bf16' or 'fp16'"),
        ({"action_limit": 0.0}, "greater than 0"),
        ({"atoms": 1}, "greater than or equal to 2"),
        ({"tau": 0.0}, "greater than 0"),
    ],
)
def test_impossible_settings_are_refused_with_what_is_valid(config, values, text) -> None:
    with pytest.raises(ValidationError, match=text):
        config.model_validate(values)


def test_bounds_of_the_exploration_noise_must_be_in_order() -> None:
    with pytest.raises(ValidationError, match="noise_std_min <= noise_std_max"):
        TD3Config(noise_std_min=0.5)
