"""Off-policy learners ask the device no question and launch few operations."""

from __future__ import annotations

import pytest

from tests.learners.dispatch import CountOps, NoHostSync
from tests.learners.off_policy_support import KINDS, observe_something, random_batch, small
from tests.learners.support import CPU

# Eager operations of one step of the critics (with target, temperature and slow copies) and of one
# step of the actor, views not counted, with the published number of layers.
CRITIC_BUDGET = {"sac": 220, "td3": 150}
ACTOR_BUDGET = {"sac": 200, "td3": 118}
CHANGES = [{}, {"symmetry": "augment"}, {"normalize_obs": False}, {"precision": "bf16"}]
RESIDUAL = {"network": "residual", "actor_hidden": [8, 8], "critic_hidden": [12, 12]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [*CHANGES, RESIDUAL], ids=str)
def test_no_method_of_the_loop_waits_for_the_device(kind: str, changes: dict) -> None:
    learner = small(kind, **changes)
    batch = random_batch(learner, 1)
    with NoHostSync():
        learner.random_actions(8)
        learner.act(batch.obs)
        learner.act(batch.obs, explore=False)
        learner.observe(batch.obs, batch.critic_obs)
        metrics = learner.cycle(batch)
    assert all(value.shape == () and value.device == CPU for value in metrics.values())


def count_ops(kind: str, **changes) -> tuple[int, int, float]:
    """Operations of a step of the critics, of a step of the actor, and of a cycle per update."""
    three = {"actor_hidden": [16, 12, 8], "critic_hidden": [16, 12, 8], "actor_every": 4}
    learner = small(kind, **(three | changes))
    observe_something(learner)
    batch = random_batch(learner, 1)
    learner.cycle(batch)
    rows = learner._table.rows(0)
    with CountOps() as critic:
        learner.critic.follow(learner._learn_critic(rows, 0))
    with CountOps() as actor:
        learner._learn_actor(rows, 0)
    with CountOps() as cycle:
        learner.cycle(batch)
    assert any(name.startswith("_fused_adam") for name in critic.names)
    return len(critic.names), len(actor.names), len(cycle.names) / learner.updates_per_step


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"symmetry": "augment"}], ids=str)
def test_an_update_stays_within_the_budget_of_operations(kind: str, changes: dict) -> None:
    critic, actor, per_update = count_ops(kind, **changes)
    print(f"{kind} {changes}: critic {critic}, actor {actor}, cycle per update {per_update}")
    assert 50 < critic <= CRITIC_BUDGET[kind]
    assert 50 < actor <= ACTOR_BUDGET[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_stay_in_their_memory_from_cycle_to_cycle(kind: str) -> None:
    learner = small(kind)
    first = learner.cycle(random_batch(learner, 1))
    where = {key: value.data_ptr() for key, value in first.items()}
    before = {key: value.item() for key, value in first.items()}
    second = learner.cycle(random_batch(learner, 2))
    assert {key: value.data_ptr() for key, value in second.items()} == where
    assert before["loss/critic"] != second["loss/critic"].item()
