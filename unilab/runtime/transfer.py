"""Between the host's arrays and the learner's device: pinned memory, and copies by event.

A copy of pageable memory makes the host wait for everything that the device has in hand. With these
slots it waits for one event a step, that of the policy's action, and for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# What a step hands to the learner's device; see `Pipeline`.
PINNED = ("obs_out", "critic_obs_out", "reward_out", "terminated_out", "truncated_out")


def zeros(shape: tuple[int, ...], dtype: Any, *, pinned: bool) -> NDArray[Any]:
    """Return a zeroed array, in pinned memory where asked for."""
    if not pinned:
        return np.zeros(shape, dtype)
    kind = torch.from_numpy(np.zeros(0, dtype)).dtype
    array: NDArray[Any] = torch.zeros(shape, dtype=kind, pin_memory=True).numpy()
    return array


class ActionSlots:
    """Brings the policy's actions to the host.

    Args:
      device: where the policy acts.
      num_envs, num_actions: N, A.
    """

    def __init__(self, device: torch.device, num_envs: int, num_actions: int) -> None:
        self._host: Tensor | None = None
        if device.type == "cuda":
            self._host = torch.zeros(num_envs, num_actions, pin_memory=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def fetch(self, envs: slice, action: Tensor) -> NDArray[np.float32]:
        """Return the actions (Ng, A) of a group as an array, valid until the group's next fetch.

        Args:
          envs: the group's env range.
          action: (Ng, A) on the policy's device.
        """
        if self._host is None:
            return action.numpy()
        slot = self._host[envs]
        slot.copy_(action, non_blocking=True)
        self._arrived.record()
        self._arrived.synchronize()
        return slot.numpy()


def finish_queued(device: torch.device) -> None:
    """Wait until what this thread has queued on the device is done. On a CPU it is."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Policy and learner work on a stream of their own, beside those of physics.

    It is this thread's: a collector on a thread of its own takes another one. The default stream
    cannot be recorded as a graph. On a CPU nothing changes.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(before)
    with torch.cuda.stream(stream):
        yield
    before.wait_stream(stream)
