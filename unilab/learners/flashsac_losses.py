"""Pure functions that FlashSAC alone has; the rest is that of the other learners."""

from __future__ import annotations

from torch import Tensor

LOG_STD_MIN, LOG_STD_MAX = -10.0, 2.0  # source: FlashSAC, arXiv 2604.04539


def gaussian_parameters(out: Tensor) -> tuple[Tensor, Tensor]:
    """Split a policy's output (B, 2 A) into mean and log_std, both (B, A).

    The second half is brought into [LOG_STD_MIN, LOG_STD_MAX] by a tanh.
    """
    mean, raw = out.chunk(2, dim=-1)
    middle, half = (LOG_STD_MAX + LOG_STD_MIN) / 2, (LOG_STD_MAX - LOG_STD_MIN) / 2
    return mean, raw.tanh().mul(half).add(middle)


def lowest_head(probs: Tensor, mean: Tensor) -> Tensor:
    """Of E distributions (E, B, K) with means (E, B), for each of B the one with the lowest mean.

    Returns (B, K). Source: clipped double Q-learning of Fujimoto et al. 2018, on distributions.
    """
    head = mean.argmin(0).view(1, -1, 1).expand(1, *probs.shape[1:])
    return probs.gather(0, head)[0]
