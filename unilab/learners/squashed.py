"""The Gaussian squashed by tanh into (-1, 1): samples and their log-densities. Pure functions."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from unilab.learners.losses import HALF_LOG_2PI

# Bounds of the log standard deviation before the squash. Source: FastSAC (holosoma).
MIN_LOG_STD, MAX_LOG_STD = -5.0, 0.0
LOG_2 = math.log(2.0)


class Squashed(NamedTuple):
    """Actions in (-1, 1) and how dense the policy is there."""

    action: Tensor  # (..., A)
    log_prob: Tensor  # (...), nats, in units of `action`


def bound_log_std(raw: Tensor) -> Tensor:
    """Map (..., A) of any size smoothly into [MIN_LOG_STD, MAX_LOG_STD]; 0 to their middle."""
    half = 0.5 * (MAX_LOG_STD - MIN_LOG_STD)
    return torch.tanh(raw) * half + (MIN_LOG_STD + half)


def squash(mean: Tensor, log_std: Tensor, noise: Tensor) -> Squashed:
    """Squash the Gaussian samples u = mean + exp(log_std) * noise.

    The log-density takes `log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u))` off that of u. That
    form is exact where tanh(u) has rounded to 1, and needs no inverse of it.
    Source: Haarnoja et al. 2018, appendix C; the form is that of TensorFlow Probability's Tanh.

    Args:
      mean, log_std, noise: (..., A); noise from a standard normal.
    """
    u = torch.addcmul(mean, log_std.exp(), noise)
    log_slope = 2.0 * (LOG_2 - u - functional.softplus(-2.0 * u))
    log_prob = (-0.5 * noise.square() - log_std - HALF_LOG_2PI - log_slope).sum(-1)
    return Squashed(torch.tanh(u), log_prob)
