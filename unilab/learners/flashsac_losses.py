"""Pure functions of FlashSAC: the squashed Gaussian and the categorical critic."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from unilab.learners.losses import HALF_LOG_2PI

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0  # source: FlashSAC, arXiv 2604.04539


def gaussian_parameters(out: Tensor) -> tuple[Tensor, Tensor]:
    """Split a policy's output (B, 2 A) into mean and log_std, both (B, A).

    The second half is brought into [LOG_STD_MIN, LOG_STD_MAX] by a tanh.
    """
    mean, raw = out.chunk(2, dim=-1)
    middle, half = (LOG_STD_MAX + LOG_STD_MIN) / 2, (LOG_STD_MAX - LOG_STD_MIN) / 2
    return mean, raw.tanh().mul(half).add(middle)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action tanh(mean + std * noise) and its log-density.

    Args:
      mean, log_std, noise: (B, A); noise is standard normal.

    Returns:
      action (B, A) in (-1, 1), and log_prob (B,), nats.

    The Jacobian is written as log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which is exact
    for large |u|, too. Source: Haarnoja et al. 2018, appendix C, in the stable form.
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    jacobian = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
    log_prob = (noise.square().mul(-0.5) - log_std - jacobian).sum(-1)
    return u.tanh(), log_prob - HALF_LOG_2PI * mean.shape[-1]


def project_distribution(values: Tensor, probs: Tensor, v_max: float) -> Tensor:
    """Spread probability at arbitrary values over K atoms, evenly spaced from -v_max to v_max.

    A value between two atoms is shared between them so that the mean stays; one beyond the ends
    goes to the end.

    Args:
      values, probs: (B, K).
      v_max: end of the range.

    Returns:
      (B, K) probabilities of the atoms.

    Source: Bellemare et al. 2017 (C51), algorithm 1.
    """
    last = probs.shape[1] - 1
    place = values.clamp(-v_max, v_max).add_(v_max).mul_(last / (2.0 * v_max)).clamp_max_(last)
    lower = place.floor()
    share = (place - lower).mul_(probs)  # of the upper atom
    # A NaN has no atom; the id is kept valid, and the NaN itself arrives with the share.
    lower_id = lower.long().clamp_(0, last)
    upper_id = (lower_id + 1).clamp_max_(last)
    out = torch.zeros_like(probs)
    out.scatter_add_(1, lower_id, probs - share)
    return out.scatter_add_(1, upper_id, share)


def expectation(probs: Tensor, atoms: Tensor) -> Tensor:
    """Mean (...) of distributions (..., K) over atoms (K,).

    A product and a sum, because a GPU may round a matrix product to TF32.
    """
    return (probs * atoms).sum(-1)


def lowest_head(probs: Tensor, mean: Tensor) -> Tensor:
    """Of E distributions (E, B, K) with means (E, B), for each of B the one with the lowest mean.

    Returns (B, K). Source: clipped double Q-learning of Fujimoto et al. 2018, on distributions.
    """
    head = mean.argmin(0).view(1, -1, 1).expand(1, *probs.shape[1:])
    return probs.gather(0, head)[0]


def cross_entropy(logits: Tensor, target: Tensor, share: Tensor) -> Tensor:
    """Weighted cross-entropy of E predicted distributions with one target each, averaged over E.

    Args:
      logits: (E, B, K).
      target: (B, K) probabilities.
      share: (B,) weights of the rows, that add up to 1.

    Returns:
      () nats.
    """
    log_probs = functional.log_softmax(logits, dim=-1)
    rows = (log_probs * target).sum(-1)  # (E, B)
    return (rows @ share).mean().neg()
