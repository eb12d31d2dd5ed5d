"""FastSAC written a second time, plainly: float64, loops over rows and atoms, autograd, no code
shared with `unilab.learners`. The oracle of its tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

# A network is a list of steps: ("linear", [W (in, out), b]), ("norm", [gain, offset]), ("act", [])
# or ("block", [gain, offset, W, b, W, b]).
Network = list[tuple[str, list[Tensor]]]


@dataclass
class Settings:
    tau: float = 0.1
    learning_rate: float = 3e-4
    weight_decay: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    v_min: float = -20.0
    v_max: float = 20.0
    atoms: int = 101
    actor_every: int = 4
    target_entropy: float = 0.0
    limit: Tensor = field(default_factory=lambda: torch.ones(1))


@dataclass
class State:
    actor: Network
    critics: list[Network]
    targets: list[Network]
    log_temperature: Tensor
    moments: dict[str, tuple[int, list[Tensor], list[Tensor]]] = field(default_factory=dict)


@dataclass
class Rows:
    """The rows of one update, observations normalised, actions as they were taken."""

    obs: Tensor
    critic_obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    next_critic_obs: Tensor
    weight: Tensor
    next_noise: Tensor
    noise: Tensor | None  # for the actor, where it has its turn


@dataclass
class Trace:
    critic_losses: list[float] = field(default_factory=list)
    temperature_losses: list[float] = field(default_factory=list)
    actor_losses: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)


def norm(x: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * gain + offset


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


def forward(network: Network, x: Tensor) -> Tensor:
    for kind, p in network:
        if kind == "linear":
            x = x @ p[0] + p[1]
        elif kind == "norm":
            x = norm(x, *p)
        elif kind == "block":
            x = x + silu(norm(x, p[0], p[1]) @ p[2] + p[3]) @ p[4] + p[5]
        else:
            x = silu(x)
    return x


def parameters(*networks: Network) -> list[Tensor]:
    return [tensor for network in networks for _, step in network for tensor in step]


def sample(actor: Network, obs: Tensor, noise: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Action in its own units, and its log-density by the change of variables."""
    out = forward(actor, obs)
    size = out.shape[-1] // 2
    mean, log_std = out[..., :size], -5 + 0.5 * 5 * (torch.tanh(out[..., size:]) + 1)
    u = mean + torch.exp(log_std) * noise
    density = torch.distributions.Normal(mean, torch.exp(log_std)).log_prob(u)
    density = density - torch.log(1 - torch.tanh(u) ** 2) - torch.log(limit)
    return torch.tanh(u) * limit, density.sum(-1)


def probabilities(critic: Network, critic_obs: Tensor, action: Tensor, limit: Tensor) -> Tensor:
    return torch.softmax(forward(critic, torch.cat([critic_obs, action / limit], -1)), -1)


def project(probs: Tensor, reward: Tensor, discount: Tensor, s: Settings) -> Tensor:
    gap = (s.v_max - s.v_min) / (s.atoms - 1)
    result = [[0.0] * s.atoms for _ in range(len(probs))]
    for row, masses in enumerate(probs.tolist()):
        for k, mass in enumerate(masses):
            point = reward[row].item() + discount[row].item() * (s.v_min + k * gap)
            place = (min(max(point, s.v_min), s.v_max) - s.v_min) / gap
            below = math.floor(place)
            result[row][below] += mass * (1 - (place - below))
            if place > below:
                result[row][below + 1] += mass * (place - below)
    return torch.tensor(result, dtype=torch.float64)


def adamw(name: str, state: State, tensors: list[Tensor], loss: Tensor, s: Settings) -> None:
    grads = torch.autograd.grad(loss, tensors)
    zeros = [torch.zeros_like(p) for p in tensors]
    steps, first, second = state.moments.get(name, (0, zeros, zeros))
    steps, (b1, b2) = steps + 1, s.betas
    first = [b1 * m + (1 - b1) * g for m, g in zip(first, grads, strict=True)]
    second = [b2 * v + (1 - b2) * g * g for v, g in zip(second, grads, strict=True)]
    state.moments[name] = (steps, first, second)
    decay = 0.0 if name == "temperature" else s.weight_decay
    with torch.no_grad():
        for p, m, v in zip(tensors, first, second, strict=True):
            p -= s.learning_rate * decay * p
            m_hat, v_hat = m / (1 - b1**steps), v / (1 - b2**steps)
            p -= s.learning_rate * m_hat / (v_hat.sqrt() + 1e-8)


def update(state: State, updates: list[Rows], s: Settings) -> Trace:
    """Run the updates of a cycle in place and tell the losses."""
    trace = Trace()
    values = torch.linspace(s.v_min, s.v_max, s.atoms, dtype=torch.float64)
    for rows in updates:
        share = rows.weight / rows.weight.sum()
        alpha = float(state.log_temperature.detach().exp())
        with torch.no_grad():
            action, log_prob = sample(state.actor, rows.next_obs, rows.next_noise, s.limit)
            reward = rows.reward - rows.discount * alpha * log_prob
            wanted = [
                project(
                    probabilities(target, rows.next_critic_obs, action, s.limit),
                    reward,
                    rows.discount,
                    s,
                )
                for target in state.targets
            ]
        loss = torch.zeros((), dtype=torch.float64)
        for critic, target in zip(state.critics, wanted, strict=True):
            probs = probabilities(critic, rows.critic_obs, rows.action, s.limit)
            loss = loss - ((target * probs.log()).sum(-1) * share).sum()
        adamw("critic", state, parameters(*state.critics), loss, s)
        trace.critic_losses.append(loss.item())

        excess = ((log_prob + s.target_entropy) * share).sum()
        loss = -state.log_temperature.exp() * excess
        adamw("temperature", state, [state.log_temperature], loss, s)
        trace.temperature_losses.append(loss.item())
        trace.entropies.append(-(log_prob * share).sum().item())

        if rows.noise is not None:
            action, log_prob = sample(state.actor, rows.obs, rows.noise, s.limit)
            means = [
                (probabilities(critic, rows.critic_obs, action, s.limit) * values).sum(-1)
                for critic in state.critics
            ]
            alpha = float(state.log_temperature.detach().exp())
            loss = ((alpha * log_prob - (means[0] + means[1]) / 2) * share).sum()
            adamw("actor", state, parameters(state.actor), loss, s)
            trace.actor_losses.append(loss.item())

        with torch.no_grad():
            for slow, fast in zip(
                parameters(*state.targets), parameters(*state.critics), strict=True
            ):
                slow += s.tau * (fast - slow)
    return trace
