"""Copies of an off-policy learner's policy, to act with while it learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.learners import flash_support, off_policy_support
from tests.learners.dispatch import NoHostSync
from tests.learners.support import tensors_of

KINDS = ("sac", "td3", "flashsac")


def make(kind: str, seed: int = 3, **changes: Any) -> Any:
    """A learner that has learned a little, so that statistics and weights matter."""
    if kind == "flashsac":
        learner: Any = flash_support.small_learner(seed, **changes)
    else:
        learner = off_policy_support.small(kind, seed, **changes)
    learn(learner, 1)
    return learner


def learn(learner: Any, seed: int) -> None:
    flash = hasattr(learner, "reward_scale")
    batch = (flash_support if flash else off_policy_support).random_batch(learner, seed)
    learner.observe(2 * batch.obs + 1, batch.critic_obs)
    learner.cycle(batch)


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


OBS = torch.randn(20, 5, generator=stream(0))


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_acts_as_the_learner_did_until_it_is_published_to(kind: str) -> None:
    learner = make(kind)
    copies = [learner.snapshot(stream(7)) for _ in range(2)]
    before = learner.act(OBS, explore=False).action
    learn(learner, 2)
    after = learner.act(OBS, explore=False).action
    assert (before - after).abs().max() > 1e-4
    for copy in copies:
        assert torch.equal(copy.act(OBS, explore=False).action, before)
    with NoHostSync():
        learner.publish(copies[0])
    assert torch.equal(copies[0].act(OBS, explore=False).action, after)
    assert torch.equal(copies[1].act(OBS, explore=False).action, before)
    assert torch.equal(learner.act(OBS, explore=False).action, after)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_explores_as_the_learner_would_with_the_same_stream(kind: str) -> None:
    learner, other = make(kind), make(kind)
    copies = [learner.snapshot(stream(7)), None]
    copies[1] = learner.snapshot(copies[0].generator)
    other.generator = stream(7)
    untouched = learner.generator.get_state()
    for turn in range(12):  # held noise goes on in whichever copy acts
        copy = copies[turn % 2]
        assert torch.equal(copy.act(OBS).action, other.act(OBS).action)
    assert torch.equal(copies[0].random_actions(5), other.random_actions(5))
    assert torch.equal(learner.generator.get_state(), untouched)
    # What is held is saved with the learner.
    saved, wanted = (tensors_of(x.state_dict()) for x in (learner, other))
    for name in wanted:
        if name.startswith("noise"):
            assert torch.equal(saved[name], wanted[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_acting_with_a_copy_changes_nothing_that_is_learned(kind: str) -> None:
    learner, other = make(kind), make(kind)
    copy = learner.snapshot(stream(7))
    for seed in (2, 3):
        copy.act(OBS)
        learn(learner, seed)
        learner.publish(copy)
        learn(other, seed)
    found, wanted = (tensors_of(x.state_dict()) for x in (learner, other))
    names = [name for name in wanted if not name.startswith("noise")]
    assert len(names) > 20
    assert all(torch.equal(found[name], wanted[name]) for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_acting_reads_is_published(kind: str) -> None:
    """A copy of one learner, published to by another of other weights, acts as that one."""
    learner, other = make(kind, seed=3), make(kind, seed=4)
    learn(other, 5)
    copy = learner.snapshot(stream(7))
    other.publish(copy)
    assert torch.equal(copy.act(OBS, explore=False).action, other.act(OBS, explore=False).action)


@pytest.mark.parametrize("kind", KINDS)
def test_the_learner_may_take_up_a_state_while_a_copy_is_there(kind: str) -> None:
    learner, other = make(kind, seed=3), make(kind, seed=4)
    copy = learner.snapshot(stream(7))
    other.act(OBS)
    learner.load_state_dict(other.state_dict())
    learner.publish(copy)
    other.generator = stream(7)
    assert torch.equal(copy.act(OBS).action, other.act(OBS).action)
