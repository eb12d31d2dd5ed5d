"""Losses of policy optimisation with their gradients. Pure: tensors in, tensors out.

The gradients are written out because they are short: they cost a third of the operations that
autograd would run for them. Tests compare them with autograd.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Bounds and factor of the adaptive learning rate. Source: rsl_rl.
MIN_LEARNING_RATE, MAX_LEARNING_RATE, LEARNING_RATE_FACTOR = 1e-5, 1e-2, 1.5
# A KL below this fraction of the target is rounding (the policy has not moved), not a measurement.
KL_NOISE_FRACTION = 1e-5
HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class PolicyLoss(NamedTuple):
    """The clipped surrogate and what comes with it."""

    loss: Tensor  # () to be minimised
    grad_log_prob: Tensor  # (B,) gradient of loss by each log-probability
    clip_fraction: Tensor  # () share of the samples whose ratio is outside the band


def policy_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float
) -> PolicyLoss:
    """Clipped surrogate `mean(max(-A r, -A clip(r, 1 - c, 1 + c)))`, r = exp(log_prob - old).

    Args:
      log_prob, old_log_prob, advantage: (B,).
      clip: c.

    Source: Schulman et al. 2017, equation 7.
    """
    ratio = (log_prob - old_log_prob).exp_()
    clamped = ratio.clamp(1.0 - clip, 1.0 + clip)
    gain, clipped_gain = ratio * advantage, clamped * advantage
    loss = torch.minimum(gain, clipped_gain).mean().neg_()
    # d(r A) / d log_prob = r A, and nothing where the clipped branch is the smaller one. A NaN
    # counts as active, so that it reaches the gradient and the step is refused.
    grad = gain.masked_fill(gain > clipped_gain, 0.0).mul_(-1.0 / gain.numel())
    outside = torch.ne(ratio, clamped).mean(dtype=ratio.dtype)
    return PolicyLoss(loss, grad, outside)


def value_loss(
    value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """Mean squared error, or the larger of it and that of the value clipped to the old one.

    Args:
      value, old_value, returns: (B,).
      clip: how far `value` may move from `old_value` at a profit; None does not clip.

    Returns:
      loss (), and its gradient by value (B,).
    """
    error = value - returns
    square = error.square()
    if clip is None:
        return square.mean(), error.mul_(2.0 / error.numel())
    move = value - old_value
    bounded = move.clamp(-clip, clip)
    clipped_square = (old_value + bounded - returns).square_()
    loss = torch.maximum(square, clipped_square).mean()
    dead = torch.ne(move, bounded).logical_and_(square < clipped_square)
    return loss, error.masked_fill_(dead, 0.0).mul_(2.0 / error.numel())


def gaussian_kl(mean: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor) -> Tensor:
    """Mean of KL(old || new) over diagonal Gaussians: means (B, A), stds (A,). Returns (), nats."""
    shift = torch.div(mean - old_mean, std).square_().sum() * (0.5 / mean.shape[0])
    ratio = old_std / std
    return shift + (0.5 * ratio.square() - ratio.log() - 0.5).sum()


def learning_rate_factor(kl: Tensor, target: float) -> Tensor:
    """What to multiply the learning rate with, () f32, given the KL () just measured.

    A third off where the KL is above twice the target, half as much again where it is below half
    of it. An undefined KL, and one of pure rounding, change nothing.
    """
    slow = (kl < 0.5 * target).logical_and_(kl > KL_NOISE_FRACTION * target)
    faster = torch.where(slow, LEARNING_RATE_FACTOR, 1.0)
    return torch.where(kl > 2.0 * target, 1.0 / LEARNING_RATE_FACTOR, faster)
