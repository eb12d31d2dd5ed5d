"""The grammar of key=value, and help with what a shell made of it."""

from __future__ import annotations

import pytest

from unilab.config import parse_overrides
from unilab.errors import ConfigError


def parse_error(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_overrides(arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("2048", 2048),
        ("-1", -1),
        ("true", True),
        ("on", "on"),
        ("null", None),
        ("[1, 2.5]", [1, 2.5]),
        ("{weight: 2}", {"weight": 2}),
        ("'a=b'", "a=b"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_yaml_1_2(text, value):
    (override,) = parse_overrides([f"rewards.upright={text}"])
    assert override.path == ("rewards", "upright")
    assert override.value == value
    assert type(override.value) is type(value)


def test_a_key_without_equals_shows_how_to_write_it():
    message = parse_error("episode.length_s", "5.0")
    assert "episode.length_s 5.0" in message
    assert 'episode.length_s=5.0   in quotes where a shell drops the "=": ' in message
    assert '"episode.length_s=5.0"' in message


def test_a_key_without_equals_that_is_also_unknown_gets_near_keys():
    message = parse_error("env.episode_length_s", "5.0")
    assert "env.episode_length_s=5.0" in message
    assert "did you mean 'episode.length_s' or 'evaluation.episode_length_s'" in message


def test_spaces_around_equals_are_explained():
    assert "physics.num_envs=4" in parse_error("physics.num_envs", "=", "4")
    assert "without spaces" in parse_error("physics.num_envs=", "4")


def test_a_word_alone_asks_for_a_value():
    assert "physics.num_envs=VALUE" in parse_error("physics.num_envs")
    assert "physics.num_envs=VALUE" in parse_error("physics.num_envs", "seed=1")


def test_a_dashed_key_is_shown_without_dashes():
    assert "as one argument: physics.num_envs=3" in parse_error("--physics.num_envs=3")


@pytest.mark.parametrize(
    ("argument", "near"),
    [
        ("num_envs=4", "physics.num_envs"),
        ("env.nun_envs=4", "physics.num_envs"),
        ("physics.nun_envs=4", "physics.num_envs"),
        ("physic.num_envs=4", "physics.num_envs"),
        ("ppo.gamma=0.9", "learners.ppo.gamma"),
        ("sed=4", "seed"),
    ],
)
def test_an_unknown_key_gets_near_keys(argument, near):
    message = parse_error(argument)
    assert f"command line: {argument.split('=')[0]}: unknown key" in message
    assert f"'{near}'" in message


def test_an_unknown_key_with_nothing_near_lists_its_neighbours():
    message = parse_error("train.qqq=4")
    assert "valid: iterations, max_time_s" in message


def test_a_block_is_not_a_value():
    assert "physics.num_envs" in parse_error("physics=4")


def test_the_task_and_the_overrides_of_a_learner_are_not_set_by_key():
    assert "first argument" in parse_error("task=go1_walk")
    message = parse_error("learners.ppo.overrides.physics.num_envs=4")
    assert "set the key itself: physics.num_envs=VALUE" in message


def test_a_value_that_is_not_yaml_is_an_error():
    assert "not valid YAML" in parse_error("log.dir=[1")
    assert "not valid YAML" in parse_error("log.dir=2026-99-99")


def test_metric_names_are_keys_of_thresholds():
    (override,) = parse_overrides(["evaluation.thresholds.episode/return=3"])
    assert override.path == ("evaluation", "thresholds", "episode/return")
