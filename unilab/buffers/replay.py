"""Replay buffer of an off-policy learner: packed rows on its device, no stored next observation."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unilab.buffers.batch import Batch
from unilab.buffers.replay_draw import TERMINATED, Draw
from unilab.buffers.replay_spec import DTYPES, ReplaySpec, as_slice
from unilab.errors import ConfigError

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]


class Replay:
    """The last `capacity` transitions of each of N envs, filled group by group, sampled at random.

    A ring of slots, one a control step, of N rows [obs | extra critic columns | action] each.
    Row (t, env) holds what the policy saw and did at step t; what it saw next is row (t + 1, env).
    Beside it are the reward and how the step ended. Where an episode was truncated the true last
    observation is kept in a second ring, below the rows of the first. `terminated` wins over
    `truncated`: a step that is both bootstraps from nothing, and nothing is kept.

    A step is written by one `append` for each group of envs and becomes sampleable, for all envs
    at once, by `commit`. What can be sampled is never written to, so `sample` may run in another
    thread than `append` and `commit`. On a GPU all of them must be on one stream.

    Args:
      spec: sizes.
      device: where the rows live and batches appear.

    Attributes:
      committed: control steps committed so far, of each env.
      dropped: (,) int64 on the device, sampled rows of weight 0 so far.

    Raises:
      ConfigError: it does not fit in the memory that is free.
    """

    def __init__(self, spec: ReplaySpec, device: torch.device) -> None:
        spec.check_memory(device)
        self.spec, self.device = spec, device
        envs, slots = spec.num_envs, spec.slots
        self._ring = slots * envs  # rows of the first ring
        self._rows = _zeros((self._ring + spec.final_slots, spec.width), spec.dtype, device)
        self._slots = self._rows[: self._ring].view(slots, envs, spec.width)
        self._finals = self._rows[self._ring :]
        self._tails = torch.zeros(self._ring, dtype=torch.int64, device=device)
        extra = spec.extra_columns
        self._extra = as_slice(extra)
        self._extra_ids = torch.tensor(extra, dtype=torch.int64, device=device)
        pinned = device.type == "cuda"
        # What `append` puts together on the host. A group's part is read before it acts again.
        self._tail_stage = torch.zeros(envs, dtype=torch.int64, pin_memory=pinned)
        words = self._tail_stage.numpy().view(np.int32).reshape(envs, 2)
        self._reward, self._end = words[:, 0].view(np.float32), words[:, 1]
        self._final_stage = torch.zeros(envs, spec.obs_width, pin_memory=pinned)
        self._draw = Draw(spec, device)
        self._lock = Lock()
        self.dropped = torch.zeros((), dtype=torch.int64, device=device)
        self.committed = 0
        self._written = 0  # final observations so far
        self._appended = 0  # envs of the step that is being filled
        self._brought = self._reported = 0  # bytes since `take_traffic`, and steps until then
        # First row, rows to start from, last final observation (plus 1) that is overwritten.
        self._window = torch.zeros(3, dtype=torch.int64, device=device)

    @property
    def filled(self) -> int:
        """Committed control steps that are stored, of each env."""
        return min(self.committed, self.spec.capacity)

    @property
    def num_starts(self) -> int:
        """Transitions that can be sampled now: those followed by all of their n steps."""
        return max(0, self.filled - self.spec.n_steps + 1) * self.spec.num_envs

    @property
    def mean_age(self) -> float:
        """How many steps before the newest one a sampled transition began, on average."""
        return max(0.0, (self.filled + self.spec.n_steps) / 2 - 1)

    # -- writing --------------------------------------------------------------------------------

    def set_first(
        self, obs: Tensor | Floats, critic_obs: Tensor | Floats, start: int, stop: int
    ) -> None:
        """Write the first observations of envs [start, stop): obs (n, O), critic_obs (n, C).

        Only before the first step: a restored buffer has them.
        """
        assert self.committed == 0, "the next observation of the last step would be overwritten"
        self._put_obs(self._slots[0, start:stop], obs, critic_obs)

    def append(
        self,
        start: int,
        stop: int,
        *,
        action: Tensor | Floats,
        reward: Floats,
        terminated: Flags,
        truncated: Flags,
        final_obs: Floats,
        final_critic_obs: Floats,
        next_obs: Tensor | Floats,
        next_critic_obs: Tensor | Floats,
    ) -> None:
        """Write the step of the n = stop - start envs [start, stop). Everything is copied.

        What the envs saw when they acted is there already, by `set_first` or the last `append`.
        Arrays are in host memory, tensors on the buffer's device. Every env once a step, then
        `commit`.

        Args:
          start, stop: range of envs (a group).
          action: (n, A).
          reward: (n,).
          terminated, truncated: (n,) bool.
          final_obs, final_critic_obs: (n, O), (n, C), read only where truncated and not terminated.
          next_obs, next_critic_obs: (n, O), (n, C) what the policy sees next, after any reset.
        """
        head, envs = self.committed % self.spec.slots, slice(start, stop)
        self._put_action(self._slots[head, envs, self.spec.obs_width :], action)
        self._put_obs(self._slots[(head + 1) % self.spec.slots, envs], next_obs, next_critic_obs)
        self._reward[envs] = reward
        end = self._end[envs]
        np.multiply(terminated, TERMINATED, out=end)
        found = np.flatnonzero(truncated > terminated)
        if len(found):
            end[found] = np.arange(self._written + 1, self._written + 1 + len(found))
            self._keep_finals(start, final_obs[found], final_critic_obs[found])
        tails = self._tails.view(self.spec.slots, -1)
        tails[head, envs].copy_(self.bring(self._tail_stage[envs]))
        self._appended += stop - start

    def commit(self) -> None:
        """Make the step that was appended for all envs sampleable; the oldest one makes room."""
        assert self._appended == self.spec.num_envs, "append the step of every env once"
        with self._lock:
            self._appended = 0
            self.committed += 1
            self._publish()

    def _publish(self) -> None:
        """Tell the device what can be sampled, without waiting for it."""
        oldest = (self.committed - self.filled) % self.spec.slots
        values = (
            oldest * self.spec.num_envs,
            self.num_starts,
            self._written - self.spec.num_finals,
        )
        for entry, value in zip(self._window, values, strict=True):
            entry.fill_(value)

    def _put_obs(self, rows: Tensor, obs: Tensor | Floats, critic_obs: Tensor | Floats) -> None:
        """Write the observation part of rows (n, W)."""
        spec = self.spec
        rows[:, : spec.obs_dim].copy_(self.bring(obs))
        if spec.extra_columns:
            critic = self.bring(critic_obs)
            rows[:, spec.obs_dim : spec.obs_width].copy_(self._take_extra(critic))

    def _put_action(self, columns: Tensor, action: Tensor | Floats) -> None:
        """Write the action part of rows, columns (n, A)."""
        action = self.bring(action)
        if self.spec.dtype == "bf16":
            columns = columns.view(torch.float16)
            most = torch.finfo(torch.float16).max
            action = action.clamp(-most, most)  # beyond it would be stored as infinite
        columns.copy_(action)

    def _keep_finals(self, start: int, obs: Floats, critic_obs: Floats) -> None:
        """Append final observations (k, O), (k, C) of a group that starts at env `start`."""
        count, ring = len(obs), self.spec.final_slots
        stage = self._final_stage[start : start + count]
        stage[:, : self.spec.obs_dim] = torch.from_numpy(obs)
        stage[:, self.spec.obs_dim :] = self._take_extra(torch.from_numpy(critic_obs))
        stage, first = self.bring(stage), self._written % ring
        until_seam = min(count, ring - first)
        columns = self._finals[:, : self.spec.obs_width]
        columns[first : first + until_seam].copy_(stage[:until_seam])
        columns[: count - until_seam].copy_(stage[until_seam:])
        self._written += count

    def _take_extra(self, critic_obs: Tensor) -> Tensor:
        """Return the columns of critic_obs (n, C) that are stored beside obs."""
        if self._extra is not None:
            return critic_obs[:, self._extra]
        return critic_obs.index_select(1, self._extra_ids.to(critic_obs.device))

    def bring(self, value: Tensor | NDArray[Any]) -> Tensor:
        """Return a value on the device, in its own type: pinned memory goes over as it is."""
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(value)
        if tensor.device.type != self.device.type:
            self._brought += tensor.nbytes
        return tensor.to(self.device, non_blocking=True)

    def take_traffic(self) -> float:
        """Bytes that went to the device for each step committed since the last call; 0 on a CPU."""
        steps = self.committed - self._reported
        brought, self._brought, self._reported = self._brought, 0, self.committed
        return brought / steps if steps > 0 else 0.0

    # -- reading --------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> Batch:
        """Draw `count` of the stored transitions, each with the same chance, with replacement.

        Never waits for the device. The tensors of the result are the same memory at each call.

        Args:
          count: at most batch_size * updates of the spec.
          generator: on the buffer's device.

        Returns:
          the batch, views that the next call overwrites.
        """
        draw = self._draw
        with self._lock:
            assert self.num_starts > 0, "fewer than n_steps steps are committed"
            oldest, num_starts, overwritten = self._window.unbind()
            steps = draw.rows(count, generator, oldest, num_starts)
            end = draw.sum_rewards(steps[:-1], self._tails)
            # Where the episode terminated, nothing is made of what comes n steps later.
            final = end > 0
            kept = self._ring + (end - 1) % self.spec.final_slots
            torch.where(final, kept, steps[-1], out=draw.next_rows[:count])
            lost = final & (end <= overwritten)
            draw.gather(count, self._rows)
        draw.finish(count, lost)
        self.dropped += lost.sum()
        return draw.batch(count)

    # -- state ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that is stored, as tensors in host memory and plain values.

        It takes as much memory again as what is stored. No step may be half appended.
        """
        assert self._appended == 0, "commit the step first"
        used = min(self.committed + 1, self.spec.slots) * self.spec.num_envs
        finals = min(self._written, self.spec.final_slots)
        return {
            "layout": self._layout(),
            "rows": self._rows[:used].to("cpu", copy=True),
            "finals": self._finals[:finals].to("cpu", copy=True),
            "tails": self._tails[:used].to("cpu", copy=True),
            "dropped": self.dropped.to("cpu", copy=True),
            "committed": self.committed,
            "written": self._written,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a state that `state_dict` gave.

        Raises:
          ConfigError: it is that of a buffer of other sizes.
        """
        self.check_state(state)
        with self._lock:
            for target, name in (
                (self._rows, "rows"), (self._finals, "finals"), (self._tails, "tails")
            ):  # fmt: skip
                target[: len(state[name])].copy_(state[name])
            self.dropped.copy_(state["dropped"])
            self.committed, self._written = int(state["committed"]), int(state["written"])
            self._appended = 0
            self._brought, self._reported = 0, self.committed
            self._publish()

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError where a state is that of a buffer of other sizes. Changes nothing."""
        here, there = self._layout(), dict(state["layout"])
        if here != there:
            different = ", ".join(
                f"{key}={there.get(key)} there and {here[key]} here"
                for key in here
                if here[key] != there.get(key)
            )
            raise ConfigError(
                f"learners.{self.spec.learner}: the checkpoint's replay has {different}; give this "
                "run the same sizes, or leave the replay out, to be filled anew: "
                "checkpoint.replay=false"
            )

    def _layout(self) -> dict[str, Any]:
        """What two buffers must have in common for one to take up the other's state."""
        spec = self.spec
        return {
            "num_envs": spec.num_envs, "replay_capacity": spec.capacity, "obs": spec.obs_dim,
            "critic_obs": spec.critic_obs_dim, "action": spec.action_dim,
            "replay_dtype": spec.dtype, "final observations": spec.num_finals,
            "shared columns": [list(pair) for pair in spec.shared],
        }  # fmt: skip


def _zeros(shape: tuple[int, int], dtype: str, device: torch.device) -> Tensor:
    """Allocate the rows, zeroed."""
    kind = DTYPES[dtype]
    if device.type != "cpu":
        return torch.zeros(shape, dtype=kind, device=device)
    # NumPy asks for huge pages, torch does not: up to a sixth of the time of a gather.
    words = np.zeros(shape, np.float32 if kind == torch.float32 else np.int16)
    return torch.from_numpy(words).view(kind)
