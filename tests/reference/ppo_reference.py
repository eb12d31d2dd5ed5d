"""PPO written a second time, plainly: float64, one loop an idea, autograd, no code shared with
`unilab.learners`. The oracle of its tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

Layers = list[tuple[Tensor, Tensor]]  # (weight (out, in), bias (out,)) of each layer

FUNCTIONS = {
    "elu": torch.nn.functional.elu,
    "relu": torch.relu,
    "tanh": torch.tanh,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
}


@dataclass
class Settings:
    epochs: int
    minibatches: int
    gamma: float
    lam: float
    clip: float
    value_clip: bool
    value_coef: float
    entropy_coef: float
    adaptive: bool
    target_kl: float
    max_grad_norm: float
    activation: str
    symmetry: str
    mirror_coef: float


@dataclass
class State:
    """Everything the update changes. Tensors are float64 leaves."""

    actor: Layers
    std: Tensor
    critic: Layers
    learning_rate: float
    moments: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    steps: int = 0

    def actor_parameters(self) -> list[Tensor]:
        return [*(t for layer in self.actor for t in layer), self.std]

    def critic_parameters(self) -> list[Tensor]:
        return [t for layer in self.critic for t in layer]


@dataclass
class Data:
    """A rollout, raw. Time-major; final_critic_obs is dense (T, N, C)."""

    obs: Tensor
    critic_obs: Tensor
    action: Tensor
    mean: Tensor
    log_prob: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    final_critic_obs: Tensor


@dataclass
class Trace:
    learning_rates: list[float] = field(default_factory=list)
    gradients: list[list[Tensor]] = field(default_factory=list)  # before clipping
    losses: list[tuple[float, float, float]] = field(default_factory=list)
    kls: list[float] = field(default_factory=list)


def network(layers: Layers, x: Tensor, activation: str) -> Tensor:
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight.T + bias
        if i < len(layers) - 1:
            x = FUNCTIONS[activation](x)
    return x


def mirror(x: Tensor, permutation: list[int], sign: list[float]) -> Tensor:
    return torch.stack([sign[i] * x[..., permutation[i]] for i in range(len(sign))], dim=-1)


def generalised_advantages(data: Data, value: Tensor, final_value: Tensor, s: Settings) -> Tensor:
    num_steps, num_envs = data.reward.shape
    advantage = torch.zeros(num_steps, num_envs, dtype=torch.float64)
    for env in range(num_envs):
        later = 0.0
        for t in reversed(range(num_steps)):
            if data.terminated[t, env]:
                following, ends = 0.0, True
            elif data.truncated[t, env]:
                following, ends = float(final_value[t, env]), True
            else:
                following, ends = float(value[t + 1, env]), False
            delta = float(data.reward[t, env]) + s.gamma * following - float(value[t, env])
            later = delta + (0.0 if ends else s.gamma * s.lam * later)
            advantage[t, env] = later
    return advantage


def normal_log_prob(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return torch.distributions.Normal(mean, std).log_prob(action).sum(-1)


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


def update(
    state: State,
    data: Data,
    s: Settings,
    normalize_obs,  # callables on raw observations, frozen
    normalize_critic_obs,
    orders: list[Tensor],  # one permutation of T * N an epoch
    mirrors=None,  # (permutation, sign) of obs, critic_obs, action
) -> Trace:
    """Run one whole PPO update in place and tell what happened in each minibatch."""
    trace = Trace()
    steps, envs = data.reward.shape
    with torch.no_grad():

        def critic_value(x: Tensor) -> Tensor:
            return network(state.critic, normalize_critic_obs(x), s.activation)[..., 0]

        value = critic_value(data.critic_obs)
        advantage = generalised_advantages(data, value, critic_value(data.final_critic_obs), s)
        returns = (advantage + value[:steps]).flatten()
        old_value = value[:steps].flatten()
        advantage = advantage.flatten()
        advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        old_std = state.std.detach().clone()
    obs, critic_obs = data.obs[:steps].flatten(0, 1), data.critic_obs[:steps].flatten(0, 1)
    action, old_mean = data.action.flatten(0, 1), data.mean.flatten(0, 1)
    old_log_prob = data.log_prob.flatten()
    size = steps * envs // s.minibatches

    for order in orders:
        for start in range(0, size * s.minibatches, size):
            ids = order[start : start + size]
            mb_obs, mb_critic_obs, mb_action = obs[ids], critic_obs[ids], action[ids]
            repeat = 1
            if s.symmetry == "augment":
                repeat = 2
                mb_obs = torch.cat([mb_obs, mirror(mb_obs, *mirrors[0])])
                mb_critic_obs = torch.cat([mb_critic_obs, mirror(mb_critic_obs, *mirrors[1])])
                mb_action = torch.cat([mb_action, mirror(mb_action, *mirrors[2])])
            mean = network(state.actor, normalize_obs(mb_obs), s.activation)
            log_prob = normal_log_prob(mb_action, mean, state.std)
            new = torch.distributions.Normal(mean[:size], state.std)
            old = torch.distributions.Normal(old_mean[ids], old_std)
            kl = float(torch.distributions.kl_divergence(old, new).sum(-1).mean().detach())
            if s.adaptive:
                rate = state.learning_rate
                if kl > 2 * s.target_kl:
                    rate = rate / 1.5
                elif 1e-5 * s.target_kl < kl < s.target_kl / 2:
                    rate = rate * 1.5
                state.learning_rate = min(1e-2, max(1e-5, rate))

            ratio = torch.exp(log_prob - old_log_prob[ids].repeat(repeat))
            adv = advantage[ids].repeat(repeat)
            clamped = torch.clamp(ratio, 1 - s.clip, 1 + s.clip)
            surrogate = torch.max(-adv * ratio, -adv * clamped).mean()
            v = network(state.critic, normalize_critic_obs(mb_critic_obs), s.activation)[:, 0]
            v_old, ret = old_value[ids].repeat(repeat), returns[ids].repeat(repeat)
            value_loss = (v - ret) ** 2
            if s.value_clip:
                v_clipped = v_old + torch.clamp(v - v_old, -s.clip, s.clip)
                value_loss = torch.max(value_loss, (v_clipped - ret) ** 2)
            value_loss = value_loss.mean()
            entropy = new.entropy().sum(-1).mean()
            loss = surrogate + s.value_coef * value_loss - s.entropy_coef * entropy
            if s.symmetry == "mirror_loss":
                mirrored = network(
                    state.actor, normalize_obs(mirror(mb_obs, *mirrors[0])), s.activation
                )
                target = mirror(mean.detach(), *mirrors[2])
                loss = loss + s.mirror_coef * ((mirrored - target) ** 2).mean()

            parameters = state.actor_parameters() + state.critic_parameters()
            grads = list(torch.autograd.grad(loss, parameters))
            trace.gradients.append(grads)
            trace.losses.append(tuple(x.item() for x in (surrogate, value_loss, entropy)))
            trace.learning_rates.append(state.learning_rate)
            trace.kls.append(kl)
            split = len(state.actor_parameters())
            clipped = clip_norm(grads[:split], s.max_grad_norm)
            clipped += clip_norm(grads[split:], s.max_grad_norm)
            adam(parameters, clipped, state)
            with torch.no_grad():
                state.std.clamp_(1e-2, 1e2)
    return trace
