"""SAC and TD3 against their plain references, in float64, a whole cycle at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.learners.off_policy_support import (
    KINDS,
    LIMITS,
    member,
    mirrored,
    observe_something,
    random_batch,
    small,
)
from tests.learners.support import ACTION_MIRROR, CRITIC_OBS_MIRROR, OBS_MIRROR
from tests.reference import sac_reference, td3_reference
from unilab.learners.ensemble import EnsembleNetwork
from unilab.learners.normalize import RunningNormalizer
from unilab.learners.off_policy import Batch
from unilab.learners.off_policy_core import OffPolicyCore

F64 = torch.float64
LIMIT = torch.tensor(LIMITS, dtype=F64)
COMMON = {
    "defaults": {},
    "residual": {"network": "residual", "actor_hidden": [8, 8], "critic_hidden": [12, 12]},
    "augment": {"symmetry": "augment"},
    "raw observations, one layer": {"normalize_obs": False, "critic_hidden": [9]},
    "actor every time": {"actor_every": 1, "weight_decay": 0.0},
    "actor seldom": {"actor_every": 3, "weight_decay": 0.3, "tau": 1.0},
    "narrow support": {"v_min": -0.5, "v_max": 0.25, "atoms": 2},
}
SAC_CASES = COMMON | {"entropy": {"init_temperature": 0.5, "target_entropy_ratio": 0.5}}
TD3_CASES = COMMON | {
    "each from itself": {"double_q": False},
    "wild smoothing": {"smoothing_std": 0.8, "smoothing_clip": 0.3},
}


def normalized(normalizer: RunningNormalizer, x: Tensor) -> Tensor:
    if not normalizer.enabled:
        return x
    return (x - normalizer.mean) / (normalizer.var.sqrt() + 1e-2)


def update_rows(learner: OffPolicyCore, batch: Batch, update: int) -> dict[str, Tensor]:
    """The rows of an update, mirrored and normalised by hand."""
    size = learner.batch_size
    rows = {name: x[update * size : (update + 1) * size] for name, x in batch._asdict().items()}
    if learner.config.symmetry == "augment":
        mirrors = {"obs": OBS_MIRROR, "critic_obs": CRITIC_OBS_MIRROR, "action": ACTION_MIRROR}
        for name, x in rows.items():
            mirror = mirrors.get(name.removeprefix("next_"))
            rows[name] = torch.cat([x, x if mirror is None else mirrored(x, mirror)])
    for name, x in rows.items():
        if name.endswith("critic_obs"):
            rows[name] = normalized(learner.critic_obs_normalizer, x)
        elif name.endswith("obs"):
            rows[name] = normalized(learner.obs_normalizer, x)
    return rows


def assert_same(ours: EnsembleNetwork, theirs: list[Any]) -> None:
    for index, network in enumerate(theirs):
        for (_, mine), (_, plain) in zip(member(ours, index), network, strict=True):
            for a, b in zip(mine, plain, strict=True):
                assert a.shape == b.shape
                assert torch.allclose(a, b, rtol=1e-6, atol=1e-8)


def turns(learner: OffPolicyCore) -> list[bool]:
    every = learner.config.actor_every
    start = learner.updates
    return [(start + i) % every == 1 % every for i in range(learner.updates_per_step)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("name", SAC_CASES)
def test_two_cycles_of_sac_equal_the_plain_reference(name: str) -> None:
    learner = small("sac", dtype=F64, learning_rate=2e-3, **SAC_CASES[name])
    observe_something(learner)
    config = learner.config
    state = sac_reference.State(
        actor=member(learner.actor, 0),
        critics=[member(learner.critic.network, e) for e in range(2)],
        targets=[member(learner.critic.target, e) for e in range(2)],
        log_temperature=learner.temperature.log.detach().clone().requires_grad_(),
    )
    settings = sac_reference.Settings(
        tau=config.tau,
        learning_rate=float(learner._trained_actor.learning_rate),
        weight_decay=config.weight_decay,
        v_min=config.v_min,
        v_max=config.v_max,
        atoms=config.atoms,
        target_entropy=-config.target_entropy_ratio * 3,
        limit=LIMIT,
    )
    for seed in (1, 2):
        batch, draw = random_batch(learner, seed), torch.Generator()
        draw.set_state(learner.generator.get_state())
        next_noise = torch.empty_like(learner._next_noise).normal_(generator=draw)
        noise = iter(torch.empty_like(learner._noise).normal_(generator=draw))
        updates = [
            sac_reference.Rows(
                **update_rows(learner, batch, i),
                next_noise=next_noise[i],
                noise=next(noise) if turn else None,
            )
            for i, turn in enumerate(turns(learner))
        ]
        trace = sac_reference.update(state, updates, settings)
        metrics = {key: value.item() for key, value in learner.cycle(batch).items()}
        assert_same(learner.actor, [state.actor])
        assert_same(learner.critic.network, state.critics)
        assert_same(learner.critic.target, state.targets)
        assert learner.temperature.log.item() == pytest.approx(state.log_temperature.item())
        expected = {
            "loss/critic": trace.critic_losses,
            "loss/temperature": trace.temperature_losses,
            "loss/actor": trace.actor_losses,
            "policy/entropy": trace.entropies,
        }
        for key, values in expected.items():
            assert metrics[key] == pytest.approx(mean(values), rel=1e-6, abs=1e-9), key
        assert metrics["learner/non_finite_updates"] == 0


@pytest.mark.parametrize("name", TD3_CASES)
def test_two_cycles_of_td3_equal_the_plain_reference(name: str) -> None:
    learner = small("td3", dtype=F64, learning_rate=2e-3, **TD3_CASES[name])
    observe_something(learner)
    config = learner.config
    state = td3_reference.State(
        actor=member(learner.actor, 0),
        critics=[member(learner.critic.network, e) for e in range(2)],
        targets=[member(learner.critic.target, e) for e in range(2)],
    )
    settings = td3_reference.Settings(
        limit=LIMIT,
        tau=config.tau,
        learning_rate=float(learner._trained_actor.learning_rate),
        weight_decay=config.weight_decay,
        v_min=config.v_min,
        v_max=config.v_max,
        atoms=config.atoms,
        double_q=config.double_q,
        smoothing_std=config.smoothing_std,
        smoothing_clip=config.smoothing_clip,
    )
    for seed in (1, 2):
        batch, draw = random_batch(learner, seed), torch.Generator()
        draw.set_state(learner.generator.get_state())
        normal = torch.empty_like(learner._smoothing).normal_(generator=draw)
        updates = [
            td3_reference.Rows(
                **update_rows(learner, batch, i), normal=normal[i], actor_learns=turn
            )
            for i, turn in enumerate(turns(learner))
        ]
        trace = td3_reference.update(state, updates, settings)
        metrics = {key: value.item() for key, value in learner.cycle(batch).items()}
        assert_same(learner.actor, [state.actor])
        assert_same(learner.critic.network, state.critics)
        assert_same(learner.critic.target, state.targets)
        assert metrics["loss/critic"] == pytest.approx(mean(trace.critic_losses), rel=1e-6)
        assert metrics["loss/actor"] == pytest.approx(mean(trace.actor_losses), rel=1e-6)
        if config.double_q:  # both copies are the lower one somewhere
            assert 0 < sum(trace.lower_first) < len(updates) * len(updates[0].weight)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_cycle_stays_close_to_float64(kind: str) -> None:
    exact, single = small(kind, dtype=F64), small(kind)
    names = ("_next_noise", "_noise") if kind == "sac" else ("_smoothing",)
    exact._draw_noise()
    for learner in (exact, single):
        for name in names:
            getattr(learner, name).copy_(getattr(exact, name))
        learner._draw_noise = lambda: None
        observe_something(learner)
    batch = random_batch(exact, 1)
    before = [p.detach().float().clone() for p in single.actor.parameters()]
    wide, narrow = exact.cycle(batch), single.cycle(Batch(*(x.float() for x in batch)))
    for key, value in wide.items():
        assert narrow[key].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-5), key
    ours, theirs = list(single.actor.parameters()), list(exact.actor.parameters())
    for a, b, old in zip(ours, theirs, before, strict=True):
        assert torch.allclose(a, b.float(), atol=5e-5)
        assert not torch.allclose(a, old, atol=2e-4)
