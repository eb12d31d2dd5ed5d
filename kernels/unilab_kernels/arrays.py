"""What the kernels read and write: their arrays, and the layout of an assembled kernel."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from . import jit
from .rng import fold
from .spec import CarriedField, ObservationSlice

# name -> (shape, dtype, meaning). The order is the order of the kernels' arguments.
ARRAYS: dict[str, tuple[str, str, str]] = {
    "state_in": ("(N, T, nstate)", "f64", "state rows after each substep"),
    "sensor_in": ("(N, T, S)", "f64", "sensor rows of each substep"),
    "failure_io": ("(N,)", "u8", "why the env failed in this step, see FAILURES"),
    "policy_action_in": ("(N, A)", "f32", "what the policy asked for"),
    "ctrl_out": ("(N, T, A)", "f64", "what the actuators get at each substep; T may be 1"),
    "fields_io": ("(N, F)", "f32", "all carried fields, packed"),
    "step_io": ("(N,)", "i32", "control steps done in this episode"),
    "start_step_io": ("(N,)", "i32", "age at which the episode was started"),
    "episode_io": ("(N,)", "i32", "episodes begun, counted from 1"),
    "return_io": ("(N,)", "f64", "sum of rewards of this episode"),
    "log_io": ("(blocks, L)", "f64", "sums for the log, one row per block of 64 envs"),
    "scratch_io": ("(blocks, X)", "f32", "loaded and derived fields of the env at work"),
    "obs_out": ("(N, O)", "f32", "actor observation"),
    "critic_obs_out": ("(N, C)", "f32", "critic observation"),
    "final_obs_out": ("(N, O)", "f32", "observation before the reset, where done"),
    "final_critic_obs_out": ("(N, C)", "f32", "critic observation before the reset, where done"),
    "reward_out": ("(N,)", "f32", "reward"),
    "terminated_out": ("(N,)", "u8", "1 where the episode ended as a failure"),
    "truncated_out": ("(N,)", "u8", "1 where the episode was cut by its time limit"),
    "reset_qpos_out": ("(N, nq)", "f64", "sampled state of a new episode"),
    "reset_qvel_out": ("(N, nv)", "f64", "sampled state of a new episode"),
    "push_out": ("(N, nv)", "f64", "what interval events add to qvel"),
    "pushed_out": ("(N,)", "u8", "1 where push_out is to be applied"),
    "default_qpos_in": ("(nq,)", "f64", "state that resets start from"),
    "ctrl_offset_in": ("(A,)", "f64", "ctrl = offset + scale * action"),
    "ctrl_scale_in": ("(A,)", "f64", "ctrl = offset + scale * action"),
    "action_clip_in": ("(1,)", "f32", "|action| limit"),
    "weights_in": ("(K,)", "f32", "weight of each reward term"),
    "params_in": ("(P,)", "f32", "parameters of all terms"),
    "constants_in": ("(Q,)", "f32", "constants of the model"),
    "seed_in": ("(1,)", "u64", "key of (seed, rank)"),
    "max_steps_in": ("(1,)", "i32", "control steps of a full episode"),
}


@dataclass(frozen=True)
class FusedKernel:
    """An assembled kernel: its text, and the layout of everything that it reads and writes.

    Attributes:
      name: of the task.
      source: the module's text.
      actor_layout, critic_layout: where each observation term is.
      reward_names, termination_names: in the order of the weights and of the log.
      carried_slices: name -> slice into a row of ``fields_io``.
      carried: name -> size, reset value and update of each carried field.
      log_names: the columns of ``log_io``.
      num_scratch: width of ``scratch_io``.
      weights, params, constants: run-time values, f32.
    """

    name: str
    source: str
    actor_layout: tuple[ObservationSlice, ...]
    critic_layout: tuple[ObservationSlice, ...]
    reward_names: tuple[str, ...]
    termination_names: tuple[str, ...]
    carried_slices: Mapping[str, slice]
    carried: Mapping[str, CarriedField]
    log_names: tuple[str, ...]
    num_scratch: int
    weights: np.ndarray
    params: np.ndarray
    constants: np.ndarray

    @property
    def num_obs(self) -> int:
        """O."""
        return int(self.actor_layout[-1].stop)

    @property
    def num_critic_obs(self) -> int:
        """C."""
        return int(self.critic_layout[-1].stop)

    @property
    def num_fields(self) -> int:
        """Width of ``fields_io``."""
        return max(int(s.stop) for s in self.carried_slices.values())

    def write(self) -> Path:
        """Write the module to the kernel cache and return its path."""
        return jit.write_module(self.name, self.source)

    def load(self) -> Any:
        """Return the compiled module, with the functions named above."""
        return jit.load_module(self.write())


def seed_key(seed: int, rank: int = 0) -> np.ndarray:
    """Return the base key of (seed, rank), (1,) u64, for ``seed_in``."""
    with np.errstate(over="ignore"):
        key = fold(fold(np.uint64(0), np.uint64(seed & (2**64 - 1))), np.uint64(rank))  # type: ignore[no-untyped-call]
    return np.asarray([key], dtype=np.uint64)


def episode_draws(
    key: np.ndarray, env_ids: np.ndarray, episodes: np.ndarray, stream: str
) -> np.ndarray:
    """Return 64 random bits of each env and episode, (n,) u64, that nothing in a kernel draws.

    Args:
      key: (1,) u64 of `seed_key`.
      env_ids, episodes: (n,) i32.
      stream: what they are for.
    """
    bits = np.full(len(env_ids), key[0])
    for counter in (env_ids, episodes, np.full(len(env_ids), zlib.crc32(stream.encode()))):
        bits = fold(bits, counter.astype(np.uint64))  # type: ignore[no-untyped-call]
    return bits
