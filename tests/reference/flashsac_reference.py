"""FlashSAC written a second time, plainly: float64, one loop an idea, autograd, no code shared with
`unilab.learners`. The oracle of its tests."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

EPS = 1e-5
F64 = torch.float64


@dataclass
class Net:
    """One network (one head), as plain lists. Leaves that require gradients."""

    weights: list[Tensor]  # input, then two a block, then head; (rows, columns)
    pairs: list[tuple[Tensor, Tensor]]  # scale and bias of each batch norm, last of RMS
    bias: Tensor  # of the head
    running: list[tuple[Tensor, Tensor]]  # mean and unbiased variance of each batch norm

    def parameters(self) -> list[Tensor]:
        return [*self.weights, *(t for pair in self.pairs for t in pair), self.bias]


@dataclass
class Moments:
    first: dict[int, Tensor] = field(default_factory=dict)
    second: dict[int, Tensor] = field(default_factory=dict)
    steps: int = 0


@dataclass
class State:
    actor: Net
    critics: list[Net]
    targets: list[Net]
    log_alpha: Tensor
    moments: dict[str, Moments] = field(
        default_factory=lambda: {name: Moments() for name in ("actor", "alpha", "critic")}
    )


@dataclass
class Rows:
    """Those of one update, mirrored where that is asked for. A row of weight 0 is a copy of one
    that counts, with its own weight."""

    obs: Tensor
    critic_obs: Tensor
    action: Tensor
    reward: Tensor
    discount: Tensor
    next_obs: Tensor
    next_critic_obs: Tensor
    weight: Tensor


@dataclass
class Settings:
    limit: Tensor
    v_max: float
    num_atoms: int
    tau: float
    learning_rate: float
    target_entropy: float
    reward_scale: float


def batch_norm(x: Tensor, net: Net, i: int, training: bool, noted: list | None) -> Tensor:
    scale, bias = net.pairs[i]
    if training:
        mean = x.mean(0)
        var = ((x - mean) ** 2).mean(0)
        if noted is not None:
            n = x.shape[0]
            noted.append((mean.detach(), var.detach() * n / (n - 1)))
    else:
        mean, var = net.running[i]
    return scale * (x - mean) / torch.sqrt(var + EPS) + bias


def forward(net: Net, x: Tensor, training: bool, noted: list | None = None) -> Tensor:
    h = batch_norm(x, net, 0, training, noted) @ net.weights[0].T
    for block in range((len(net.weights) - 2) // 2):
        i = 1 + 2 * block
        inner = torch.relu(batch_norm(h @ net.weights[i].T, net, i, training, noted))
        outer = inner @ net.weights[i + 1].T
        h = h + torch.relu(batch_norm(outer, net, i + 1, training, noted))
    rms = torch.sqrt((h**2).mean(-1, keepdim=True) + EPS)
    scale, bias = net.pairs[-1]
    return (scale * h / rms + bias) @ net.weights[-1].T + net.bias


def take_statistics(net: Net, noted: list) -> None:
    net.running = [
        (0.99 * m + 0.01 * new_m, 0.99 * v + 0.01 * new_v)
        for (m, v), (new_m, new_v) in zip(net.running, noted, strict=True)
    ]


def project(net: Net) -> None:
    with torch.no_grad():
        for weight in net.weights:
            for row in weight:
                row /= math.sqrt(float((row**2).sum()))
        for scale, bias in net.pairs:
            factor = math.sqrt(len(scale) / float((scale**2).sum() + (bias**2).sum()))
            scale *= factor
            bias *= factor


def sample(out: Tensor, noise: Tensor, limit: Tensor) -> tuple[Tensor, Tensor]:
    """Actions, and how dense the policy is there."""
    half = out.shape[1] // 2
    mean, log_std = out[:, :half], -10 + 12 * (torch.tanh(out[:, half:]) + 1) / 2
    normal = torch.distributions.Normal(mean, log_std.exp())
    u = mean + log_std.exp() * noise
    # tanh has the slope 1 / cosh^2, which keeps its digits where tanh is flat.
    log_prob = normal.log_prob(u) - torch.log(limit) + 2 * torch.log(torch.cosh(u))
    return limit * torch.tanh(u), log_prob.sum(-1)


def adam(parameters: list[Tensor], grads: list[Tensor], moments: Moments, rate: float) -> None:
    moments.steps += 1
    for i, (p, g) in enumerate(zip(parameters, grads, strict=True)):
        m = 0.9 * moments.first.get(i, torch.zeros_like(p)) + 0.1 * g
        v = 0.999 * moments.second.get(i, torch.zeros_like(p)) + 0.001 * g * g
        moments.first[i], moments.second[i] = m, v
        m_hat, v_hat = m / (1 - 0.9**moments.steps), v / (1 - 0.999**moments.steps)
        with torch.no_grad():
            p -= rate * m_hat / (v_hat.sqrt() + 1e-8)


def projected(values: Tensor, probs: Tensor, s: Settings) -> Tensor:
    """C51's projection, one atom of one row at a time."""
    out = torch.zeros_like(probs)
    gap = 2 * s.v_max / (s.num_atoms - 1)
    for row in range(values.shape[0]):
        for value, prob in zip(values[row].tolist(), probs[row].tolist(), strict=True):
            place = (min(max(value, -s.v_max), s.v_max) + s.v_max) / gap
            lower = min(int(place), s.num_atoms - 1)
            upper = min(lower + 1, s.num_atoms - 1)
            out[row, lower] += prob * (1 - (place - lower))
            out[row, upper] += prob * (place - lower)
    return out


def mean_value(logits: Tensor, s: Settings) -> Tensor:
    atoms = torch.linspace(-s.v_max, s.v_max, s.num_atoms, dtype=F64)
    return (torch.softmax(logits, -1) * atoms).sum(-1)


def update_actor(state: State, batch: Rows, noise: Tensor, s: Settings) -> dict[str, float]:
    size, weight = len(batch.obs), batch.weight
    alpha, noted = state.log_alpha.detach().exp(), []
    out = forward(state.actor, torch.cat([batch.obs, batch.next_obs]), True, noted)[:size]
    action, log_prob = sample(out, noise, s.limit)
    x = torch.cat([batch.critic_obs, action / s.limit], 1)
    heads = [mean_value(forward(critic, x, False), s) for critic in state.critics]
    value = torch.stack(heads).min(0).values
    loss = (weight * (alpha * log_prob - value)).sum() / weight.sum()
    grads = list(torch.autograd.grad(loss, state.actor.parameters()))
    entropy = -(weight * log_prob).sum().detach() / weight.sum()
    temperature_loss = state.log_alpha.exp() * (entropy - s.target_entropy)
    temperature_grad = list(torch.autograd.grad(temperature_loss, [state.log_alpha]))
    adam(state.actor.parameters(), grads, state.moments["actor"], s.learning_rate)
    adam([state.log_alpha], temperature_grad, state.moments["alpha"], s.learning_rate)
    project(state.actor)
    take_statistics(state.actor, noted)
    return {"loss": loss.item(), "entropy": entropy.item(), "alpha": alpha.item()}


def update_critic(state: State, batch: Rows, noise: Tensor, s: Settings) -> dict[str, float]:
    size, weight = len(batch.obs), batch.weight
    atoms = torch.linspace(-s.v_max, s.v_max, s.num_atoms, dtype=F64)
    with torch.no_grad():
        alpha = state.log_alpha.exp()
        next_out = forward(state.actor, batch.next_obs, False)
        next_action, log_prob = sample(next_out, noise, s.limit)
        x = torch.cat(
            [
                torch.cat([batch.critic_obs, batch.action / s.limit], 1),
                torch.cat([batch.next_critic_obs, next_action / s.limit], 1),
            ]
        )
        logits = [forward(target, x, True)[size:] for target in state.targets]
        means = torch.stack([mean_value(out, s) for out in logits])
        probs = torch.stack([torch.softmax(logits[int(means[:, i].argmin())][i], -1)
                             for i in range(size)])  # fmt: skip
        values = (batch.reward / s.reward_scale).unsqueeze(1) + batch.discount.unsqueeze(1) * (
            atoms - alpha * log_prob.unsqueeze(1)
        )
        target = projected(values, probs, s)
    loss, notes = torch.zeros((), dtype=F64), []
    for critic in state.critics:
        noted: list = []
        out = forward(critic, x, True, noted)[:size]
        rows = -(target * torch.log_softmax(out, -1)).sum(-1)
        loss = loss + (weight * rows).sum() / weight.sum() / len(state.critics)
        notes.append(noted)
    parameters = [p for critic in state.critics for p in critic.parameters()]
    grads = list(torch.autograd.grad(loss, parameters))
    adam(parameters, grads, state.moments["critic"], s.learning_rate)
    for critic, old, noted in zip(state.critics, state.targets, notes, strict=True):
        project(critic)
        take_statistics(critic, noted)
        with torch.no_grad():
            for p, q in zip(critic.parameters(), old.parameters(), strict=True):
                q.copy_((1 - s.tau) * q + s.tau * p)
    return {"loss": loss.item()}
