"""The PPO learner against the plain reference, in float64."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from tests.learners.support import MIRRORS, collect, small_learner
from tests.reference import ppo_reference
from unilab.learners.networks import MLP
from unilab.learners.ppo import PPO


class RecordingPPO(PPO):
    """PPO that also notes the raw gradients and the learning rate of each minibatch."""

    def _step(self, metrics: list[Tensor], kl: Tensor) -> None:
        actor = [p for linear in self.actor.mlp.linears for p in (linear.weight, linear.bias)]
        critic = [p for linear in self.critic.linears for p in (linear.weight, linear.bias)]
        self.gradients.append([p.grad.clone() for p in (*actor, self.actor.std, *critic)])
        self.losses.append(tuple(x.item() for x in metrics[:3]))
        super()._step(metrics, kl)
        self.learning_rates.append(float(self.learning_rate))

    def start_recording(self) -> None:
        self.gradients: list[list[Tensor]] = []
        self.losses: list[tuple[float, ...]] = []
        self.learning_rates: list[float] = []


def layers_of(mlp: MLP) -> ppo_reference.Layers:
    return [
        (
            linear.weight.detach().clone().requires_grad_(),
            linear.bias.detach().clone().requires_grad_(),
        )
        for linear in mlp.linears
    ]


def reference_state(learner: PPO) -> ppo_reference.State:
    return ppo_reference.State(
        actor=layers_of(learner.actor.mlp),
        std=learner.actor.std.detach().clone().requires_grad_(),
        critic=layers_of(learner.critic),
        learning_rate=float(learner.learning_rate),
    )


def reference_settings(learner: PPO) -> ppo_reference.Settings:
    c = learner.config
    return ppo_reference.Settings(
        epochs=c.epochs,
        minibatches=c.minibatches,
        gamma=c.gamma,
        lam=c.lam,
        clip=c.clip,
        value_clip=c.value_clip,
        value_coef=c.value_coef,
        entropy_coef=c.entropy_coef,
        adaptive=c.schedule == "adaptive",
        target_kl=c.target_kl,
        max_grad_norm=c.max_grad_norm,
        activation=c.activation,
        symmetry=c.symmetry,
        mirror_coef=c.mirror_coef,
    )


def frozen(mean: Tensor, var: Tensor):
    mean, std = mean.clone(), var.sqrt()
    return lambda x: (x - mean) / (std + 1e-2)


CASES = {
    "defaults": {},
    "no value clip, fixed rate": {"value_clip": False, "schedule": "fixed"},
    "tight clips": {"clip": 0.02, "max_grad_norm": 0.05, "value_coef": 0.5},
    "augment": {"symmetry": "augment"},
    "mirror loss": {"symmetry": "mirror_loss", "mirror_coef": 0.7},
    "augment, tanh, uneven split": {"symmetry": "augment", "activation": "tanh", "minibatches": 5},
    "relu": {"activation": "relu"},
    "silu": {"activation": "silu"},
    "gelu": {"activation": "gelu"},
}


@pytest.mark.parametrize("name", CASES)
def test_whole_update_equals_the_plain_reference(name: str) -> None:
    learner = small_learner(dtype=torch.float64, learning_rate=2e-3, **CASES[name])
    learner.__class__ = RecordingPPO
    for normalizer, dim in ((learner.obs_normalizer, 5), (learner.critic_obs_normalizer, 7)):
        draw = torch.Generator().manual_seed(dim)
        rows = torch.randn(50, dim, generator=draw, dtype=torch.float64)
        normalizer.fold(rows * torch.arange(1, dim + 1) + 0.3)
    learner._refresh()
    collected = collect(learner, seed=11)
    r = collected.rollout
    assert (r.truncated & ~r.terminated).any()
    assert (r.truncated & r.terminated).any()
    data = ppo_reference.Data(
        *(x.clone() for x in (r.obs, r.critic_obs, r.action, r.mean, r.log_prob, r.reward)),
        r.terminated.clone(),
        r.truncated.clone(),
        collected.final_critic_obs,
    )
    state, settings = reference_state(learner), reference_settings(learner)
    order_draw = torch.Generator()
    order_draw.set_state(learner.generator.get_state())
    orders = [torch.randperm(48, generator=order_draw) for _ in range(settings.epochs)]
    trace = ppo_reference.update(
        state,
        data,
        settings,
        frozen(learner.obs_normalizer.mean, learner.obs_normalizer.var),
        frozen(learner.critic_obs_normalizer.mean, learner.critic_obs_normalizer.var),
        orders,
        MIRRORS,
    )

    learner.start_recording()
    metrics = learner.update(r)

    assert learner.learning_rates == pytest.approx(trace.learning_rates, rel=1e-6)
    assert len(trace.gradients) == settings.epochs * settings.minibatches
    for ours, theirs in zip(learner.losses, trace.losses, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    for ours, theirs in zip(learner.gradients, trace.gradients, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert (a - b).abs().max() <= 1e-6 * max(1e-3, float(b.abs().max()))
    after = [*layers_of(learner.actor.mlp), *layers_of(learner.critic)]
    for (w, b), (w_ref, b_ref) in zip(after, [*state.actor, *state.critic], strict=True):
        assert torch.allclose(w, w_ref, rtol=1e-6, atol=1e-7)
        assert torch.allclose(b, b_ref, rtol=1e-6, atol=1e-7)
    assert torch.allclose(learner.actor.std, state.std, rtol=1e-6)
    assert float(metrics["policy/kl"]) == pytest.approx(sum(trace.kls) / len(trace.kls), rel=1e-5)
    assert float(metrics["learner/non_finite_updates"]) == 0


def test_adaptive_rate_both_rises_and_falls_in_the_oracle_case() -> None:
    learner = small_learner(dtype=torch.float64, learning_rate=2e-3)
    learner.__class__ = RecordingPPO
    collected = collect(learner, seed=11)
    learner.start_recording()
    learner.update(collected.rollout)
    rates = learner.learning_rates
    assert any(b > a for a, b in itertools.pairwise(rates))
    assert any(b < a for a, b in itertools.pairwise(rates))


def test_float32_update_stays_close_to_float64() -> None:
    exact = small_learner(dtype=torch.float64, schedule="fixed", learning_rate=1e-3)
    single = small_learner(dtype=torch.float32, schedule="fixed", learning_rate=1e-3)
    wide = collect(exact, seed=5).rollout
    narrow = collect(single, seed=5).rollout
    for name in ("obs", "critic_obs", "action", "mean", "log_prob", "reward"):
        getattr(narrow, name).copy_(getattr(wide, name))
    narrow.terminated.copy_(wide.terminated)
    narrow.truncated.copy_(wide.truncated)
    single.generator.set_state(exact.generator.get_state())
    exact.update(wide)
    single.update(narrow)
    for a, b in zip(exact.actor.parameters(), single.actor.parameters(), strict=True):
        assert torch.allclose(a.float(), b, atol=2e-4)
