"""The FlashSAC learner against the plain reference, in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.learners.flash_support import random_batch, small_learner
from tests.learners.off_policy_support import LIMITS, mirrored
from tests.learners.support import (
    ACTION_DIM,
    ACTION_MIRROR,
    CRITIC_OBS_MIRROR,
    OBS_MIRROR,
    tensors_of,
)
from tests.reference import flashsac_reference as reference
from unilab.learners.flashsac import FlashSAC
from unilab.learners.off_policy import Batch
from unilab.learners.residual import ResidualEnsemble

F64 = torch.float64


def leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def net_of(ensemble: ResidualEnsemble, member: int) -> reference.Net:
    running, start = [], 0
    if ensemble.running.shape[1]:
        for pair in list(ensemble.norms)[:-1]:
            size, count = pair.shape[-1], pair.shape[-1] * ensemble.members
            channels = ensemble.running[:, start : start + count].view(2, -1, size)[:, member]
            running.append((channels[0].clone(), channels[1].clone()))
            start += count
    return reference.Net(
        [leaf(w[member]) for w in ensemble.weights],
        [(leaf(p[0, member]), leaf(p[1, member])) for p in ensemble.norms],
        leaf(ensemble.bias[member, 0]),
        running,
    )


def nets_of(ensemble: ResidualEnsemble) -> list[reference.Net]:
    return [net_of(ensemble, member) for member in range(ensemble.members)]


def reference_state(learner: FlashSAC) -> reference.State:
    return reference.State(
        net_of(learner.actor, 0),
        nets_of(learner.critic),
        nets_of(learner.target),
        leaf(learner.temperature.log),
    )


def settings_of(learner: FlashSAC) -> reference.Settings:
    c = learner.config
    limit = torch.full((ACTION_DIM,), 0.7) if c.action_limit == 0.7 else torch.tensor(LIMITS)
    noise = torch.distributions.Normal(0.0, limit.to(F64) * c.target_std)
    return reference.Settings(
        limit.to(F64), c.v_max, c.atoms, c.tau, c.learning_rate, noise.entropy().sum().item(),
        1 / float(learner.reward_scale.inverse),
    )  # fmt: skip


def update_rows(learner: FlashSAC, batch: Batch, update: int) -> reference.Rows:
    """The rows of an update by hand: those without weight replaced, then all of them mirrored."""
    size = learner.batch_size
    rows = {name: x[update * size : (update + 1) * size] for name, x in batch._asdict().items()}
    first = rows["weight"].tolist().index(1.0)
    for name in ("obs", "critic_obs", "action", "next_obs", "next_critic_obs"):
        kept = zip(rows[name], rows["weight"], strict=True)
        rows[name] = torch.stack([x if weight > 0 else rows[name][first] for x, weight in kept])
    if learner.config.symmetry == "augment":
        mirrors = {"obs": OBS_MIRROR, "critic_obs": CRITIC_OBS_MIRROR, "action": ACTION_MIRROR}
        for name, x in rows.items():
            mirror = mirrors.get(name.removeprefix("next_"))
            rows[name] = torch.cat([x, x if mirror is None else mirrored(x, mirror)])
    return reference.Rows(**rows)


def worst_parameter(ours: list[reference.Net], theirs: list[reference.Net]) -> float:
    """Largest difference of any parameter."""
    pairs = [
        (x.detach(), y.detach())
        for a, b in zip(ours, theirs, strict=True)
        for x, y in zip(a.parameters(), b.parameters(), strict=True)
    ]
    return max(float((x - y).abs().max()) for x, y in pairs)


def worst_statistic(ours: list[reference.Net], theirs: list[reference.Net]) -> float:
    """Largest difference of any running mean or variance."""
    return max(
        float((p - q).abs().max())
        for a, b in zip(ours, theirs, strict=True)
        for x, y in zip(a.running, b.running, strict=True)
        for p, q in zip(x, y, strict=True)
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_critics": 1},
        {"critic_blocks": 1, "actor_blocks": 3, "v_max": 2.0, "tau": 0.3},
        {"symmetry": "augment"},
        {"action_limit": 0.7},
    ],
    ids=["defaults", "one critic", "other shape", "mirrored", "one limit for all"],
)
def test_a_whole_cycle_equals_the_plain_reference(changes) -> None:
    learner = small_learner(dtype=F64, **changes)
    rewards = 4 * torch.randn(32, 9, generator=torch.Generator().manual_seed(1), dtype=F64)
    for row in rewards:
        learner.observe_rewards(row, row > 4)
    learner.cycle(random_batch(learner, seed=20))  # past the first, symmetric moments
    for trained in (learner._trained_actor, learner._trained_critic, learner._trained_temperature):
        for name in ("step", "exp_avg", "exp_avg_sq"):
            trained.tensors()[name].zero_()
    learner._done.zero_()
    state, settings = reference_state(learner), settings_of(learner)
    batch, draw = random_batch(learner, seed=21), torch.Generator()
    draw.set_state(learner.generator.get_state())
    assert batch.weight.view(2, -1).amin(1).tolist() == [0, 0]
    unknown = batch.weight == 0
    batch.next_obs[unknown], batch.next_critic_obs[unknown] = 1e6, 1e6  # must reach no statistic
    losses, actor = [], {}
    for i in range(learner.updates_per_step):
        part = update_rows(learner, batch, i)
        if i == 0:
            noise = torch.empty(len(part.obs), ACTION_DIM, dtype=F64).normal_(generator=draw)
            actor = reference.update_actor(state, part, noise, settings)
        noise = torch.empty(len(part.obs), ACTION_DIM, dtype=F64).normal_(generator=draw)
        losses.append(reference.update_critic(state, part, noise, settings)["loss"])

    metrics = learner.cycle(batch)

    assert float(metrics["loss/critic"]) == pytest.approx(sum(losses) / 2, rel=1e-6)
    assert float(metrics["loss/actor"]) == pytest.approx(actor["loss"], rel=1e-6)
    assert float(metrics["policy/entropy"]) == pytest.approx(actor["entropy"], rel=1e-6)
    assert float(metrics["policy/temperature"]) == pytest.approx(actor["alpha"], rel=1e-6)
    assert float(metrics["learner/non_finite_updates"]) == 0
    assert learner.temperature.log.item() == pytest.approx(state.log_alpha.item(), rel=1e-6)
    actors = ([net_of(learner.actor, 0)], [state.actor])
    critics, targets = nets_of(learner.critic), nets_of(learner.target)
    errors = {
        "actor": worst_parameter(*actors),
        "actor statistics": worst_statistic(*actors),
        "critics": worst_parameter(critics, state.critics),
        "critic statistics": worst_statistic(critics, state.critics),
        "slow copies": worst_parameter(targets, state.targets),
    }
    print(errors)
    assert max(errors.values()) <= 1e-6
    assert worst_parameter(critics, targets) > 1e-4


def test_float32_stays_close_to_float64() -> None:
    wide, narrow = small_learner(dtype=F64), small_learner()
    batch = random_batch(wide, seed=5)

    def same_noise(rows: int) -> Tensor:
        values = torch.linspace(-2, 2, rows * ACTION_DIM, dtype=F64).view(rows, -1)
        return values[torch.randperm(rows, generator=torch.Generator().manual_seed(rows))]

    wide._draw = same_noise
    narrow._draw = lambda rows: same_noise(rows).float()
    exact = wide.cycle(batch)
    single = narrow.cycle(Batch(*(x.float() for x in batch)))
    assert float(single["loss/critic"]) == pytest.approx(float(exact["loss/critic"]), rel=1e-5)
    assert float(single["loss/actor"]) == pytest.approx(float(exact["loss/actor"]), rel=1e-4)


def test_parameters_stay_on_their_spheres() -> None:
    learner = small_learner(dtype=F64)
    for seed in range(3):
        learner.cycle(random_batch(learner, seed))
    for net in (learner.actor, learner.critic):
        for weight in net.weights:
            assert torch.allclose(weight.square().sum(-1), torch.ones((), dtype=F64))
        for pair in net.norms:
            norm = pair.square().sum((0, 2))
            assert torch.allclose(norm, torch.full_like(norm, pair.shape[-1]))


def test_a_row_of_weight_0_changes_nothing() -> None:
    states = []
    for poison in (0.0, 3.0):
        learner = small_learner(dtype=F64)
        batch = random_batch(learner, seed=5)
        unknown = batch.weight == 0
        for field in batch[:7]:
            field[unknown] += poison
        learner.cycle(batch)
        states.append(tensors_of(learner.state_dict()))
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_learning_rate_follows_half_a_cosine_and_stays_at_its_end() -> None:
    learner = small_learner()  # two updates a cycle, ten in all
    rates = [learner.cycle(random_batch(learner, i))["learner/learning_rate"].item()
             for i in range(8)]  # fmt: skip
    half = [0.5 * (1 + torch.cos(torch.tensor(torch.pi * i / 5)).item()) for i in range(5)]
    expected = [1e-3 + 2e-3 * h for h in half] + [1e-3] * 3
    assert rates == pytest.approx(expected, rel=1e-5)
