"""APPO written a second time, plainly: float64, one loop an idea, autograd, no code shared with
`unilab.learners`. The oracle of its tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

Layers = list[tuple[Tensor, Tensor]]  # (weight (out, in), bias (out,)) of each layer


@dataclass
class Settings:
    minibatches: int
    gamma: float
    lam: float
    rho_bar: float
    c_bar: float
    clip: float
    value_coef: float
    entropy_coef: float
    target_kl: float
    max_grad_norm: float


@dataclass
class State:
    """Everything the update changes. Tensors are float64 leaves."""

    actor: Layers
    std: Tensor
    critic: Layers
    learning_rate: float
    moments: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    steps: int = 0


@dataclass
class Data:
    """A rollout, normalised. Time-major; final_critic_obs is dense (T, N, C)."""

    obs: Tensor
    critic_obs: Tensor
    action: Tensor
    log_prob: Tensor  # under the policy that collected
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_critic_obs: Tensor


def network(layers: Layers, x: Tensor) -> Tensor:
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight.T + bias
        if i < len(layers) - 1:
            x = torch.nn.functional.elu(x)
    return x


def log_prob_of(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return torch.distributions.Normal(mean, std).log_prob(action).sum(-1)


def vtrace_advantages(
    data: Data, value: Tensor, final_value: Tensor, ratio: Tensor, s: Settings
) -> Tensor:
    num_steps, num_envs = data.reward.shape
    advantage = torch.zeros(num_steps, num_envs, dtype=torch.float64)
    for env in range(num_envs):
        later = 0.0
        for t in reversed(range(num_steps)):
            ends = bool(data.terminated[t, env] or data.truncated[t, env])
            if data.terminated[t, env]:
                following = 0.0
            elif data.truncated[t, env]:
                following = float(final_value[t, env])
            else:
                following = float(value[t + 1, env])
            weight = float(ratio[t, env])
            delta = float(data.reward[t, env]) + s.gamma * following - float(value[t, env])
            trace = 0.0 if ends else s.gamma * s.lam * min(s.c_bar, weight) * later
            later = min(s.rho_bar, weight) * delta + trace
            advantage[t, env] = later
    return advantage


def adam(parameters: list[Tensor], grads: list[Tensor], state: State) -> None:
    state.steps += 1
    for i, (p, g) in enumerate(zip(parameters, grads, strict=True)):
        m, v = state.moments.get(i, (torch.zeros_like(p), torch.zeros_like(p)))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        state.moments[i] = (m, v)
        m_hat, v_hat = m / (1 - 0.9**state.steps), v / (1 - 0.999**state.steps)
        with torch.no_grad():
            p -= state.learning_rate * m_hat / (v_hat.sqrt() + 1e-8)


def clip_norm(grads: list[Tensor], most: float) -> list[Tensor]:
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads))
    return [g * min(1.0, most / (norm + 1e-6)) for g in grads]


def update(state: State, data: Data, s: Settings, orders: list[Tensor]) -> list[float]:
    """Run one whole update in place, one permutation of T * N an epoch. Returns the KLs."""
    steps, envs = data.reward.shape
    actor = [*(t for layer in state.actor for t in layer), state.std]
    critic = [t for layer in state.critic for t in layer]
    with torch.no_grad():
        value = network(state.critic, data.critic_obs)[..., 0]
        final_value = network(state.critic, data.final_critic_obs)[..., 0]
        start_mean = network(state.actor, data.obs[:steps])
        start_std = state.std.detach().clone()
        ratio = torch.exp(log_prob_of(data.action, start_mean, start_std) - data.log_prob)
        advantage = vtrace_advantages(data, value, final_value, ratio, s)
        returns = (advantage + value[:steps]).flatten()
        old_value, advantage = value[:steps].flatten(), advantage.flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
    obs, critic_obs = data.obs[:steps].flatten(0, 1), data.critic_obs[:steps].flatten(0, 1)
    action, behaviour = data.action.flatten(0, 1), data.log_prob.flatten()
    start_mean = start_mean.flatten(0, 1)
    size, kls = steps * envs // s.minibatches, []
    for order in orders:
        for start in range(0, size * s.minibatches, size):
            ids = order[start : start + size]
            mean = network(state.actor, obs[ids])
            new = torch.distributions.Normal(mean, state.std)
            old = torch.distributions.Normal(start_mean[ids], start_std)
            kl = float(torch.distributions.kl_divergence(old, new).sum(-1).mean().detach())
            kls.append(kl)
            rate = state.learning_rate
            if kl > 2 * s.target_kl:
                rate = rate / 1.5
            elif 1e-5 * s.target_kl < kl < s.target_kl / 2:
                rate = rate * 1.5
            state.learning_rate = min(1e-2, max(1e-5, rate))
            moved = torch.exp(log_prob_of(action[ids], mean, state.std) - behaviour[ids])
            adv = advantage[ids]
            clamped = torch.clamp(moved, 1 - s.clip, 1 + s.clip)
            surrogate = torch.max(-adv * moved, -adv * clamped).mean()
            v = network(state.critic, critic_obs[ids])[:, 0]
            near = old_value[ids] + torch.clamp(v - old_value[ids], -s.clip, s.clip)
            value_loss = torch.max((v - returns[ids]) ** 2, (near - returns[ids]) ** 2).mean()
            entropy = new.entropy().sum(-1).mean()
            loss = surrogate + s.value_coef * value_loss - s.entropy_coef * entropy
            grads = list(torch.autograd.grad(loss, actor + critic))
            clipped = clip_norm(grads[: len(actor)], s.max_grad_norm)
            clipped += clip_norm(grads[len(actor) :], s.max_grad_norm)
            adam(actor + critic, clipped, state)
            with torch.no_grad():
                state.std.clamp_(1e-2, 1e2)
    return kls
