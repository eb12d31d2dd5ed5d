"""Loss functions of policy optimisation. Pure: tensors in, a tensor out."""

from __future__ import annotations

import torch
from torch import Tensor

# Bounds and factor of the adaptive learning rate. Source: rsl_rl.
MIN_LEARNING_RATE, MAX_LEARNING_RATE, LEARNING_RATE_FACTOR = 1e-5, 1e-2, 1.5
# A KL below this fraction of the target is rounding (the policy has not moved), not a measurement.
KL_NOISE_FRACTION = 1e-5


def gaussian_kl(mean: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor) -> Tensor:
    """KL(old || new) of diagonal Gaussians: means (B, A), stds (A,). Returns (B,), nats."""
    shift = ((mean - old_mean) / std).square_().sum(-1).mul_(0.5)
    scale = (std / old_std).log() + (old_std / std).square() * 0.5 - 0.5
    return shift + scale.sum()


def policy_loss(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Clipped surrogate, to be minimised. ratio, advantage: (B,). Returns ()."""
    clipped = ratio.clamp(1.0 - clip, 1.0 + clip)
    return -torch.minimum(ratio * advantage, clipped * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Mean squared error, or the larger of it and that of the clipped value. (B,) each, to ()."""
    error = (value - returns).square()
    if clip is None:
        return error.mean()
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(error, (clipped - returns).square()).mean()


def adapted_learning_rate(learning_rate: Tensor, kl: Tensor, target: float) -> Tensor:
    """The next learning rate (), from the present one () and the KL () just measured.

    A third off where the KL is above twice the target, half as much again where it is below half
    of it. An undefined KL, and one of pure rounding, change nothing.
    """
    slow = (kl < 0.5 * target) & (kl > KL_NOISE_FRACTION * target)
    factor = torch.where(
        kl > 2.0 * target,
        1.0 / LEARNING_RATE_FACTOR,
        torch.where(slow, LEARNING_RATE_FACTOR, 1.0),
    )
    new = (learning_rate * factor).clamp_(MIN_LEARNING_RATE, MAX_LEARNING_RATE)
    return torch.where(factor == 1.0, learning_rate, new)
