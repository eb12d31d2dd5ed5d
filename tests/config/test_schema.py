"""The models: frozen all the way down, closed, documented, and true to their types."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from unilab.config import RunConfig, all_keys, find_key
from unilab.config.schema import LearnersConfig, RuntimeConfig


@pytest.fixture
def config() -> RunConfig:
    return RunConfig.model_validate(
        {
            "task": "balance",
            "rewards": {"upright": {"weight": 1, "on": True, "range": [0, 1.5]}},
            "learners": {"ppo": {"overrides": {"physics": {"num_envs": 4}}}},
        }
    )


def test_nothing_in_a_config_can_be_changed(config):
    with pytest.raises(ValidationError):
        config.seed = 1
    with pytest.raises(ValidationError):
        config.physics.num_envs = 1
    with pytest.raises(TypeError):
        config.rewards["other"] = {}
    with pytest.raises(TypeError):
        config.rewards["upright"]["weight"] = 2.0
    with pytest.raises(TypeError):
        config.rewards.update(other={})
    with pytest.raises(TypeError):
        del config.learners.ppo.overrides["physics"]
    with pytest.raises(TypeError):
        config.rewards |= {"other": {}}
    assert list(config.rewards) == ["upright"]


def test_default_mappings_cannot_be_changed_either():
    with pytest.raises(TypeError):
        RunConfig(task="balance").events["push"] = {}


def test_term_values_keep_their_types(config):
    values = config.rewards["upright"]
    assert values == {"weight": 1.0, "on": True, "range": (0.0, 1.5)}
    assert [type(v) for v in values.values()] == [float, bool, tuple]


def test_a_config_can_be_copied_and_pickled(config):
    assert copy.deepcopy(config) == config
    assert pickle.loads(pickle.dumps(config)) == config


def test_every_key_says_what_it_does_and_what_is_valid():
    keys = list(all_keys())
    assert len(keys) > 50
    for key in keys:
        assert key.description.endswith("."), key.dotted
        assert key.valid not in ("", "any value"), key.dotted


def test_only_what_can_be_used_is_listed_as_valid():
    assert find_key(["device"]).valid == "auto | cpu | cuda or cuda:NUMBER"
    assert find_key(["physics", "backend"]).valid == "auto | mujoco_cpu | mujoco_warp"


def test_defaults_in_the_docs_are_those_of_the_schema():
    page = Path(__file__).resolve().parents[2] / "docs" / "threads.md"
    rows = re.findall(r"^\| `([\w.]+)` \| ([^|]+) \|", page.read_text(), flags=re.M)
    assert len(rows) == len(RuntimeConfig.model_fields)
    for dotted, shown in rows:
        key = find_key(dotted.split("."))
        assert key is not None, dotted
        assert str(key.default).lower() == shown.strip(), dotted


def test_a_key_with_a_unit_says_so():
    for key in all_keys():
        if key.dotted.endswith("_s"):
            assert ", s" in key.description, key.dotted


def test_every_learner_has_its_block():
    names = get_args(RunConfig.model_fields["learner"].annotation)
    assert set(names) == set(LearnersConfig.model_fields)


def test_bounds_are_inclusive_where_they_say_so(config):
    assert find_key(["learners", "ppo", "gamma"]).valid == "number >= 0 and <= 1"
    for gamma in (0, 1):
        values = {"task": "balance", "learners": {"ppo": {"gamma": gamma}}}
        assert RunConfig.model_validate(values).learners.ppo.gamma == gamma


def test_as_many_minibatches_as_samples_is_the_limit():
    sizes = {"num_steps": 2, "minibatches": 6}
    values = {"task": "balance", "physics": {"num_envs": 3}, "learners": {"ppo": sizes}}
    assert RunConfig.model_validate(values).learners.ppo.minibatches == 6
    values["physics"] = {"num_envs": 2}
    with pytest.raises(ValidationError, match=r"2 \* 2 = 4"):
        RunConfig.model_validate(values)


def test_an_episode_of_exactly_one_control_step_is_accepted():
    values = {
        "task": "balance",
        "physics": {"timestep_s": 0.1, "substeps": 3},
        "episode": {"length_s": 0.3},
    }
    assert RunConfig.model_validate(values).episode.length_s == 0.3


def test_the_mirror_loss_needs_its_weight():
    for ppo in ({"symmetry": "mirror_loss"}, {"symmetry": "augment", "mirror_coef": 0.5}):
        with pytest.raises(ValidationError, match="mirror_coef"):
            RunConfig.model_validate({"task": "balance", "learners": {"ppo": ppo}})
    both = {"symmetry": "mirror_loss", "mirror_coef": 0.5}
    RunConfig.model_validate({"task": "balance", "learners": {"ppo": both}})
