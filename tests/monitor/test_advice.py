"""Every key that is recommended is one that there is, and every verdict has a way out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.monitor.support import PLAN
from unilab.config import all_keys, load_config
from unilab.monitor.advice import FASTER, LIGHTER, describe, hints
from unilab.monitor.verdict import RESOURCES, TITLES

KEYS = {key.dotted for key in all_keys()} | {"observations", "rewards"}
EVERY = [hint for found in FASTER.values() for hint in found] + list(LIGHTER)


def test_every_verdict_has_keys_to_change():
    assert set(FASTER) == set(TITLES)
    assert set(RESOURCES.values()) | {"other"} < set(FASTER)


@pytest.mark.parametrize("hint", EVERY, ids=lambda hint: hint.keys[0])
def test_every_recommended_key_is_in_the_config_and_shows_its_value(hint):
    assert set(hint.keys) <= KEYS
    config = load_config("cartpole").config
    line = describe(hint, config)
    assert line.endswith(hint.text)
    for key in hint.keys:
        assert f"{key} (now " in line or f"{key}.*" in line


def test_a_hint_shows_what_its_keys_are_now():
    config = load_config("cartpole", ["physics.substeps=7", "learners.ppo.actor_hidden=[8, 9]"])
    physics, learner = FASTER["physics"][0], FASTER["learner"][1]
    assert describe(physics, config.config).startswith("physics.substeps (now 7), ")
    assert describe(learner, config.config).startswith("learners.ppo.actor_hidden (now [8, 9]), ")
    assert describe(physics, None).startswith("physics.substeps, physics.timestep_s: ")


def test_what_cannot_help_is_not_recommended():
    config = load_config("cartpole", ["physics.substeps=1", "log.tensorboard=false"]).config

    def keys(bound_by, plan):
        return [hint.keys[0] for hint in hints(bound_by, None, plan, config)]

    assert "physics.substeps" not in keys("physics", PLAN)
    assert "runtime.threads" not in keys("physics", PLAN)
    assert "runtime.threads" in keys("physics", replace(PLAN, physics=1))
    assert "log.tensorboard" not in keys("bookkeeping", PLAN)
    assert "runtime.overlap" not in keys("kernel", PLAN)
    assert "runtime.overlap" in keys("kernel", replace(PLAN, cpus=8))


def test_a_verdict_on_threads_also_tells_of_the_stage_that_costs_most():
    config = load_config("cartpole", ["runtime.allow_oversubscription=true"]).config
    found = [hint.keys for hint in hints("oversubscribed threads", "learner", PLAN, config)]
    assert found[0][0] == "runtime.threads"
    assert ("runtime.allow_oversubscription",) in found
    assert ("learners.ppo.epochs",) in found
