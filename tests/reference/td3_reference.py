"""FastTD3 written a second time, plainly: float64, loops over rows and atoms, autograd, no code
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
    limit: Tensor
    tau: float
    learning_rate: float
    weight_decay: float
    v_min: float
    v_max: float
    atoms: int
    double_q: bool
    smoothing_std: float
    smoothing_clip: float


@dataclass
class State:
    actor: Network
    critics: list[Network]
    targets: list[Network]
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
    normal: Tensor  # standard normal, for the noise on the next action
    actor_learns: bool


@dataclass
class Trace:
    critic_losses: list[float] = field(default_factory=list)
    actor_losses: list[float] = field(default_factory=list)
    lower_first: list[int] = field(default_factory=list)  # rows whose first copy is the lower


def forward(network: Network, x: Tensor) -> Tensor:
    def norm(x: Tensor, gain: Tensor, offset: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * gain + offset

    for kind, p in network:
        if kind == "linear":
            x = x @ p[0] + p[1]
        elif kind == "norm":
            x = norm(x, *p)
        elif kind == "block":
            x = x + torch.relu(norm(x, p[0], p[1]) @ p[2] + p[3]) @ p[4] + p[5]
        else:
            x = torch.relu(x)
    return x


def parameters(*networks: Network) -> list[Tensor]:
    return [tensor for network in networks for _, step in network for tensor in step]


def policy(actor: Network, obs: Tensor, limit: Tensor) -> Tensor:
    return torch.tanh(forward(actor, obs)) * limit


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
    steps += 1
    first = [0.9 * m + 0.1 * g for m, g in zip(first, grads, strict=True)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(second, grads, strict=True)]
    state.moments[name] = (steps, first, second)
    with torch.no_grad():
        for p, m, v in zip(tensors, first, second, strict=True):
            p -= s.learning_rate * s.weight_decay * p
            m_hat, v_hat = m / (1 - 0.9**steps), v / (1 - 0.999**steps)
            p -= s.learning_rate * m_hat / (v_hat.sqrt() + 1e-8)


def update(state: State, updates: list[Rows], s: Settings) -> Trace:
    """Run the updates of a cycle in place and tell the losses."""
    trace = Trace()
    values = torch.linspace(s.v_min, s.v_max, s.atoms, dtype=torch.float64)
    for rows in updates:
        share = rows.weight / rows.weight.sum()
        with torch.no_grad():
            noise = (s.smoothing_std * rows.normal).clamp(-s.smoothing_clip, s.smoothing_clip)
            action = policy(state.actor, rows.next_obs, s.limit) + noise * s.limit
            action = torch.max(torch.min(action, s.limit), -s.limit)
            wanted = [
                project(
                    probabilities(target, rows.next_critic_obs, action, s.limit),
                    rows.reward,
                    rows.discount,
                    s,
                )
                for target in state.targets
            ]
            if s.double_q:
                first, second = ((target * values).sum(-1) for target in wanted)
                lower = [bool(a < b) for a, b in zip(first, second, strict=True)]
                trace.lower_first.append(sum(lower))
                chosen = [wanted[0 if is_first else 1][i] for i, is_first in enumerate(lower)]
                wanted = [torch.stack(chosen)] * 2
        loss = torch.zeros((), dtype=torch.float64)
        for critic, target in zip(state.critics, wanted, strict=True):
            probs = probabilities(critic, rows.critic_obs, rows.action, s.limit)
            loss = loss - ((target * probs.log()).sum(-1) * share).sum()
        adamw("critic", state, parameters(*state.critics), loss, s)
        trace.critic_losses.append(loss.item())

        if rows.actor_learns:
            action = policy(state.actor, rows.obs, s.limit)
            means = torch.stack(
                [
                    (probabilities(critic, rows.critic_obs, action, s.limit) * values).sum(-1)
                    for critic in state.critics
                ]
            )
            value = means.min(0).values if s.double_q else means.mean(0)
            loss = -(value * share).sum()
            adamw("actor", state, parameters(state.actor), loss, s)
            trace.actor_losses.append(loss.item())

        with torch.no_grad():
            for slow, fast in zip(
                parameters(*state.targets), parameters(*state.critics), strict=True
            ):
                slow += s.tau * (fast - slow)
    return trace
