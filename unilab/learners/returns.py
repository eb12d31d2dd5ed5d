"""Advantages and returns of a rollout."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation over T steps of N envs.

    The value that follows step t is 0 where the episode terminated, the value of the true final
    observation where it was only truncated, and `value[t + 1]` otherwise. Nothing is carried
    backwards across the end of an episode.

    Args:
      reward: (T, N).
      value: (T + 1, N), value[T] is that of the observation after the last step.
      terminated: (T, N) bool; wins over truncated.
      truncated: (T, N) bool.
      final_value: (T, N), read only where truncated and not terminated.
      gamma: discount per step.
      lam: weight of longer estimates, in [0, 1].

    Returns:
      advantage: (T, N).
      returns: (T, N), advantage + value[:T].

    Source: Schulman et al. 2016; truncation after Pardo et al. 2018.
    """
    delta = _errors(reward, value, terminated, truncated, final_value, gamma)
    carry = (~(terminated | truncated)).to(reward.dtype).mul_(gamma * lam)
    advantage = _accumulate(delta, carry)
    return advantage, advantage + value[:-1]


def vtrace(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    log_ratio: Tensor,
    gamma: float,
    lam: float,
    rho_bar: float,
    c_bar: float,
) -> tuple[Tensor, Tensor]:
    """V-trace with lambda: advantages under a policy other than the one that collected.

    With w = exp(log_ratio), rho = min(rho_bar, w) and c = lam * min(c_bar, w)::

        A_t = rho_t (r_t + gamma V'_t - V_t) + gamma c_t A_t+1

    where V' is what follows the step, as in `gae`, and A_t+1 is 0 across the end of an episode.
    On data of the policy itself (w = 1, and rho_bar, c_bar >= 1) this is `gae`, bit for bit. That
    is why A serves as the advantage of the policy gradient too, in the place of IMPALA's
    `rho (r + gamma vs' - V)`, which differs from it for lam < 1.

    Args:
      reward, value, terminated, truncated, final_value, gamma, lam: as in `gae`.
      log_ratio: (T, N) log-probability of the action under the policy that learns, less that
        under the policy that collected, nats.
      rho_bar: bound of the weights of the errors; decides what V converges to.
      c_bar: bound of the weights of the trace; decides how fast. At most rho_bar.

    Returns:
      advantage: (T, N), vs - V.
      returns: (T, N), vs.

    Source: Espeholt et al. 2018 (IMPALA), section 4.1 and its remark 2 on lambda.
    """
    weight = log_ratio.exp()
    delta = _errors(reward, value, terminated, truncated, final_value, gamma)
    delta.mul_(weight.clamp_max(rho_bar))
    carry = (~(terminated | truncated)).to(reward.dtype).mul_(gamma * lam)
    advantage = _accumulate(delta, carry.mul_(weight.clamp_max_(c_bar)))
    return advantage, advantage + value[:-1]


def _errors(
    reward: Tensor,
    value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_value: Tensor,
    gamma: float,
) -> Tensor:
    """Temporal difference errors (T, N), freshly allocated."""
    following = torch.where(truncated, final_value, value[1:]).masked_fill_(terminated, 0.0)
    return torch.add(reward, following, alpha=gamma).sub_(value[:-1])


def _accumulate(delta: Tensor, carry: Tensor) -> Tensor:
    """Add to each row of `delta` (T, N) what follows it times `carry` (T, N), in place."""
    for t in range(delta.shape[0] - 2, -1, -1):
        delta[t].addcmul_(carry[t], delta[t + 1])
    return delta
