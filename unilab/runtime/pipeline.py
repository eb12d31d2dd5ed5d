"""Runs control steps of groups of envs: actions in, transitions out.

The order of one control step, per group::

    submit   apply_action kernel, then physics starts
    finish   wait for physics, phase A kernel over all rows
             where an episode ended: choose its model and sample a new state, write it, its sensors,
             observe it
             interval pushes are added to qvel

With overlap, physics runs on a thread of its own: while one group's step is in flight, kernels of
another run here. Without, `submit` runs physics before it returns. Both give the same numbers, for
any number of groups, shards and threads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unilab.errors import PhysicsError
from unilab.physics.base import Physics, Ticket
from unilab.runtime.shards import Shards
from unilab.runtime.threads import ENVS_PER_BLOCK, ThreadPlan
from unilab.runtime.timers import Timers
from unilab.runtime.transfer import PINNED, ActionSlots, zeros
from unilab.tasks.base import BuiltTask
from unilab_kernels.arrays import ARRAYS, episode_draws, seed_key
from unilab_kernels.spec import BAD_ACTION, BAD_TERM, FAILURES

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]

# Written by one step and read in the next: saved with a checkpoint, beside the physics.
SAVED = ("fields_io", "step_io", "start_step_io", "episode_io", "return_io", "log_io",
         "obs_out", "critic_obs_out")  # fmt: skip


@dataclass(frozen=True)
class Transitions:
    """What one control step of a group gave. Views, valid until the group's next `finish`.

    Attributes:
      start, stop: the group's env range; Ng = stop - start.
      action: (Ng, A) f32 as it was given, before the clip; NaN where the policy gave that.
      reward: (Ng,) f32.
      terminated, truncated: (Ng,) u8; terminated wins, never both.
      obs, critic_obs: (Ng, O), (Ng, C) f32, what the policy sees next (of the new episode, where
        one began).
      final_obs, final_critic_obs: (Ng, O), (Ng, C) f32, the true observations before the reset;
        valid where terminated or truncated.
      done_ids: (n,) i32 global ids of the envs whose episode ended.
      bad_action_ids: those of them that ended because the policy's action was not finite.
    """

    start: int
    stop: int
    action: F32
    reward: F32
    terminated: U8
    truncated: U8
    obs: F32
    critic_obs: F32
    final_obs: F32
    final_critic_obs: F32
    done_ids: I32
    bad_action_ids: I32


class Pipeline:
    """N envs of a task, stepped in groups.

    Args:
      built: the task.
      physics: N envs of the task's robot, cut into groups.
      plan: threads and shards of the kernels.
      seed: of everything the envs draw.
      rank: of this process; each rank draws its own numbers.
      timers: where times go.
      device: of the learner; what it reads is pinned where that is a GPU. None is the CPU.

    Attributes:
      arrays: the kernels' arrays by name, over all envs.
      shards: what runs them.
      actions: the way of the policy's actions to the host.
    """

    def __init__(
        self,
        built: BuiltTask,
        physics: Physics,
        plan: ThreadPlan,
        *,
        seed: int,
        rank: int = 0,
        timers: Timers | None = None,
        device: torch.device | None = None,
    ) -> None:
        self._pinned = device is not None and device.type == "cuda"
        self.built, self.physics, self.plan = built, physics, plan
        self.seed, self.rank = seed, rank
        self.num_envs = len(physics.state)
        self.groups = physics.groups
        self.timers = timers or Timers()
        self.actions = ActionSlots(device or torch.device("cpu"), self.num_envs, self.num_actions)
        self.arrays = self._make_arrays(seed, rank)
        self._ordered = tuple(self.arrays[name] for name in ARRAYS)
        self._kernels = built.kernel.load()
        self._step = (
            self._kernels.step_parallel if plan.threads_per_shard > 1 else self._kernels.step_serial
        )
        self.shards = Shards(plan.shards, plan.threads_per_shard)
        self._tickets: list[Ticket | None] = [None] * len(self.groups)
        self._log_lock = Lock()  # statistics may be taken by another thread than that of the steps
        model = built.robot.model
        self._qvel_columns = slice(1 + model.nq, 1 + model.nq + model.nv)
        self._rest: F64 = np.tile(self.arrays["ctrl_offset_in"], (self.num_envs, 1, 1))
        self._views = [self._make_views(envs) for envs in self.groups]

    # -- stepping -------------------------------------------------------------------------------

    def compile(self) -> None:
        """Compile the kernels, or load them from the disk cache, so that no step has to."""
        for kernel in (self._kernels.apply_action, self._step):
            kernel(0, 0, self.num_envs, *self._ordered)
        nobody = np.zeros(0, np.int32)
        for kernel in (self._kernels.sample_resets, self._kernels.observe_resets):
            kernel(nobody, *self._ordered)

    def reset(self, *, random_start: bool | None = None) -> None:
        """Begin a new episode in every env, at a random age where `random_start` says so.

        Args:
          random_start: None takes the config's `episode.random_start`.

        Raises:
          PhysicsError: a term gave a non-finite number for a new state.
        """
        self._begin_episodes(np.arange(self.num_envs, dtype=np.int32))
        if random_start is None:
            random_start = self.built.config.episode.random_start
        if random_start:
            key = np.array([self.seed % 2**64, self.rank], np.uint64)
            ages = np.random.Generator(np.random.Philox(key=key)).integers(
                0, self.built.max_steps, self.num_envs
            )
            self.arrays["step_io"][:] = ages
            self.arrays["start_step_io"][:] = ages

    def observe(self, group: int) -> tuple[F32, F32]:
        """Return the (Ng, O) and (Ng, C) observations that the group's next action is for."""
        envs = self.groups[group]
        return self.arrays["obs_out"][envs], self.arrays["critic_obs_out"][envs]

    def submit(self, group: int, action: F32) -> None:
        """Start a control step of a group with the policy's action (Ng, A).

        The action is copied, from any float type and memory order, to f32. A row that is not finite
        ends the episode of its env (reason bad_action).

        Raises:
          ValueError: the action has another shape.
          PhysicsError: MuJoCo refused the call (with overlap, `finish` raises it).
        """
        assert self._tickets[group] is None, "finish the group's step first"
        envs = self.groups[group]
        wanted = (envs.stop - envs.start, self.num_actions)
        if np.shape(action) != wanted:
            raise ValueError(
                f"group {group} is envs [{envs.start}, {envs.stop}) and needs actions of shape "
                f"{wanted}; {np.shape(action)} came"
            )
        with self.timers.span("kernel", busy="kernel", group=group):
            self._apply(envs, action)
        with self.timers.span("physics", group=group):
            self._tickets[group] = self.physics.submit(group, self.arrays["ctrl_out"][envs])

    def finish(self, group: int) -> Transitions:
        """Wait for the group's step, run the kernels and begin new episodes where one ended.

        Raises:
          PhysicsError: a term gave a non-finite number for a finite state.
          ShardError: a kernel raised.
        """
        ticket = self._tickets[group]
        assert ticket is not None, "submit first"
        self._tickets[group] = None
        envs = self.groups[group]
        with self.timers.span("physics", group=group):
            view = self.physics.wait(ticket)
        self.timers.add_busy("physics", ticket.span_ns, group)
        for notice in self.physics.events(group):
            warnings.warn(notice, stacklevel=2)
        with self.timers.span("kernel", busy="kernel", group=group):
            failures = self.arrays["failure_io"][envs]
            np.maximum(failures, view.failures, out=failures)  # a bad action counts as that
            with self._log_lock:
                self._run(self._step, envs)
        with self.timers.span("reset", busy="reset", group=group):
            done = self.arrays["terminated_out"][envs] | self.arrays["truncated_out"][envs]
            done_ids = _where(done, envs.start)
            bad_action_ids = done_ids
            if len(done_ids):
                reasons = self.arrays["failure_io"][done_ids]
                self._check_terms(done_ids, reasons)
                bad_action_ids = done_ids[reasons == BAD_ACTION]
                self._begin_episodes(done_ids)
            self._push(envs, done)
        return Transitions(**self._views[group], done_ids=done_ids, bad_action_ids=bad_action_ids)

    def _run(self, kernel: Any, envs: slice, *, light: bool = False) -> None:
        first, last = envs.start // ENVS_PER_BLOCK, -(-envs.stop // ENVS_PER_BLOCK)
        self.shards.run(kernel, first, last, self.num_envs, self._ordered, light=light)

    def _apply(self, envs: slice, action: F32) -> None:
        """Take over the policy's action and map it to ctrl, each shard its own rows."""
        kept, given = self.arrays["policy_action_in"], np.asarray(action)

        def apply(first: int, last: int, num_envs: int, *arrays: Any) -> None:
            start, stop = first * ENVS_PER_BLOCK, min(last * ENVS_PER_BLOCK, envs.stop)
            kept[start:stop] = given[start - envs.start : stop - envs.start]
            self._kernels.apply_action(first, last, num_envs, *arrays)

        self._run(apply, envs, light=True)

    def _begin_episodes(self, env_ids: I32) -> None:
        """Phases B and C: new states, their sensors, and the first observation of each."""
        arrays = self.arrays
        self._kernels.sample_resets(env_ids, *self._ordered)
        self._choose_models(env_ids)
        self.physics.write_state(
            env_ids, arrays["reset_qpos_out"][env_ids], arrays["reset_qvel_out"][env_ids]
        )
        self.physics.reset_sensors(env_ids, self._rest[: len(env_ids)])
        self._kernels.observe_resets(env_ids, *self._ordered)
        self._check_terms(env_ids, arrays["failure_io"][env_ids])

    def _choose_models(self, env_ids: I32) -> None:
        """Give each env the model of its episode: a function of (seed, rank, env, episode)."""
        variants = self.physics.variants
        if variants is not None:
            episodes = self.arrays["episode_io"][env_ids]
            draws = episode_draws(self.arrays["seed_in"], env_ids, episodes, "variant")
            self.physics.set_variants(env_ids, variants.ids(env_ids, draws))

    def _push(self, envs: slice, done: U8) -> None:
        """Phase D: add what interval events ask for to qvel, in f64."""
        pushed = self.arrays["pushed_out"][envs] > done  # not where a new episode has begun
        ids = _where(pushed, envs.start)
        if len(ids):
            qvel = self.physics.state[ids, -1, self._qvel_columns]
            self.physics.write_state(ids, None, qvel + self.arrays["push_out"][ids])

    def _check_terms(self, env_ids: I32, reasons: U8) -> None:
        """Raise where a term gave a number that is not finite, in a step or at a reset."""
        bad = env_ids[reasons == BAD_TERM]
        if len(bad):
            raise PhysicsError(self._blame(int(bad[0])), [int(i) for i in bad])

    def _blame(self, env_id: int) -> str:
        """Name the term whose result is not finite."""
        kernel = self.built.kernel
        for group, layout, rows in (
            ("actor", kernel.actor_layout, self.arrays["obs_out"]),
            ("critic", kernel.critic_layout, self.arrays["critic_obs_out"]),
        ):
            for part in layout:
                values = rows[env_id, part.start : part.stop]
                if not np.isfinite(values).all():
                    return f"observations.{group}.{part.name} gave {values.tolist()}"
        names = ", ".join(kernel.reward_names)
        return f"a reward term (of {names}) gave a number that is not finite"

    def _make_views(self, envs: slice) -> dict[str, Any]:
        """What is the same in all `Transitions` of a group: views into the arrays."""
        names = ("reward", "terminated", "truncated", "obs", "critic_obs", "final_obs",
                 "final_critic_obs")  # fmt: skip
        views = {name: self.arrays[f"{name}_out"][envs] for name in names}
        views["action"] = self.arrays["policy_action_in"][envs]
        return {"start": envs.start, "stop": envs.stop, **views}

    # -- what is inside -------------------------------------------------------------------------

    @property
    def num_actions(self) -> int:
        """A."""
        return len(self.built.model.ctrl_offset)

    def field(self, name: str) -> F32:
        """Return a carried field of all envs, (N, size) f32, to read or write between steps."""
        fields: F32 = self.arrays["fields_io"]
        return fields[:, self.built.kernel.carried_slices[name]]

    def qpos(self) -> F64 | F32:
        """Return the positions of all envs after the last step, (N, nq)."""
        return self.physics.state[:, -1, 1 : 1 + self.built.robot.model.nq]

    def qvel(self) -> F64 | F32:
        """Return the velocities of all envs after the last step (before a push), (N, nv)."""
        return self.physics.state[:, -1, self._qvel_columns]

    def take_log(self) -> dict[str, float]:
        """Return the statistics since the last call, and start anew. From any thread.

        Returns:
          "reward/<term>" weighted, per second; "metric/<term>" for a term of weight 0, unweighted;
          "episode/return", "episode/length_s" of the episodes that ended (absent if none did);
          "termination/<term>", "termination/timeout": share of those; "failure/<reason>": count;
          "curriculum/<field>": mean over the envs now.
        """
        kernel, log = self.built.kernel, self.arrays["log_io"]
        with self._log_lock:
            sums = dict(zip(kernel.log_names, np.add.reduce(log, axis=0).tolist(), strict=True))
            log[:] = 0.0
        steps, episodes = max(sums["steps"], 1.0), sums["episodes"]
        result: dict[str, float] = {"episode/ended": episodes}
        if episodes:
            result["episode/return"] = sums["return_sum"] / episodes
            result["episode/length_s"] = sums["length_sum"] / episodes * self.built.control_dt
            result["termination/timeout"] = sums["timeouts"] / episodes
            for name in kernel.termination_names:
                result[f"termination/{name}"] = sums[f"termination/{name}"] / episodes
        result["reward/total"] = sums["reward_sum"] / steps / self.built.control_dt
        for name, weight in zip(kernel.reward_names, kernel.weights.tolist(), strict=True):
            mean = sums[f"reward/{name}"] / steps
            result[f"reward/{name}" if weight else f"metric/{name}"] = mean * (weight or 1.0)
        for name in self.built.model.logged:
            result[f"curriculum/{name}"] = float(self.field(name).mean(dtype=np.float64))
        for reason in FAILURES[1:]:
            if sums[f"failure/{reason}"]:
                result[f"failure/{reason}"] = sums[f"failure/{reason}"]
        return result

    def state_dict(self) -> dict[str, Any]:
        """Return everything carried from step to step, as arrays. No step may be in flight."""
        assert all(t is None for t in self._tickets), "finish every group first"
        state = {name: self.arrays[name].copy() for name in SAVED}
        return {"arrays": state, "physics": dict(self.physics.snapshot())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        for name in SAVED:
            self.arrays[name][:] = np.asarray(state["arrays"][name])
        self.physics.restore(state["physics"])
        self._choose_models(np.arange(self.num_envs, dtype=np.int32))

    def close(self) -> None:
        """Release all threads."""
        self.shards.close()
        self.physics.close()

    def _make_arrays(self, seed: int, rank: int) -> dict[str, Any]:
        """Allocate what the kernels read and write; nothing is allocated later."""
        built, kernel, n = self.built, self.built.kernel, self.num_envs
        model, a = built.robot.model, len(built.model.ctrl_offset)
        blocks = -(-n // ENVS_PER_BLOCK)
        given = {
            "state_in": self.physics.state,
            "sensor_in": self.physics.sensors,
            "ctrl_out": self.physics.ctrl,
            "default_qpos_in": np.array(built.robot.default_qpos),
            "ctrl_offset_in": np.array(built.model.ctrl_offset, np.float64),
            "ctrl_scale_in": np.array(built.ctrl_scale, np.float64),
            "action_clip_in": np.array([built.config.actions.clip], np.float32),
            "weights_in": kernel.weights.copy(),
            "params_in": kernel.params.copy(),
            "constants_in": kernel.constants.copy(),
            "seed_in": seed_key(seed, rank),
            "max_steps_in": np.array([built.max_steps], np.int32),
        }
        shapes: dict[str, tuple[int, ...]] = {
            "policy_action_in": (n, a),
            "fields_io": (n, kernel.num_fields),
            "log_io": (blocks, len(kernel.log_names)),
            "scratch_io": (blocks, kernel.num_scratch),
            "obs_out": (n, kernel.num_obs),
            "critic_obs_out": (n, kernel.num_critic_obs),
            "final_obs_out": (n, kernel.num_obs),
            "final_critic_obs_out": (n, kernel.num_critic_obs),
            "reset_qpos_out": (n, model.nq),
            "reset_qvel_out": (n, model.nv),
            "push_out": (n, model.nv),
        }
        dtypes = {"f32": np.float32, "f64": np.float64, "u8": np.uint8, "i32": np.int32}

        def make(name: str, dtype: str) -> NDArray[Any]:
            pinned = self._pinned and name in PINNED
            return zeros(shapes.get(name, (n,)), dtypes[dtype], pinned=pinned)

        return {
            name: given[name] if name in given else make(name, dtype)
            for name, (_, dtype, _) in ARRAYS.items()
        }


def _where(flags: U8, start: int) -> I32:
    """Return the ids of the envs whose flag is 1; the first flag is that of env `start`."""
    return (np.flatnonzero(flags.view(np.bool_)) + start).astype(np.int32)


def cut_groups(num_envs: int, groups: int) -> tuple[slice, ...]:
    """Cut [0, N) into ranges of whole blocks, as even as they come."""
    blocks = -(-num_envs // ENVS_PER_BLOCK)
    cuts = [min(num_envs, ENVS_PER_BLOCK * (blocks * g // groups)) for g in range(groups + 1)]
    return tuple(slice(a, b) for a, b in pairwise(cuts))
