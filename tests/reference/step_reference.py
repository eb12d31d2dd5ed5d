"""Phases A, B and C of a control step written a second time: plain loops, float64, one env a turn.

Takes the kernels' arrays by name and returns changed copies: what a kernel must leave alone comes
back as it was. The oracle of the fused kernel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from unilab_kernels.spec import KernelSpec

from . import rng_reference as rng
from .terms_reference import ORACLES, Envs

Arrays = dict[str, np.ndarray]
BLOCK = 64
DIVERGED, BAD_TERM = 3, 5
FAILURES = ("unstable", "frozen", "diverged", "bad_action", "bad_term")
DERIVED_NEEDS = {  # what a derived field is computed from
    "projected_gravity": ("base_quat",),
    "lin_vel_b": ("base_quat", "base_lin_vel_w"),
    "joint_torque": ("joint_pos", "joint_vel", "ctrl", "kp", "kd", "effort_limit"),
    "ground_height": ("base_pos", "height_grid"),
    "feet_ground": ("feet_pos_w", "height_grid"),
    "ground_scan": ("base_pos", "base_quat", "height_grid", "scan_x"),
}
TRUNCATIONS = ("terrain_left",)  # they end an episode as its time limit does


class StepReference:
    """The step of one task.

    Args:
      spec: the task.
      seed, rank: of all draws.
      oracles: terms beyond those of the library, by (stage, name).
    """

    def __init__(
        self, spec: KernelSpec, *, seed: int, rank: int = 0, oracles: dict[Any, Any] | None = None
    ) -> None:
        self.spec, self.seed, self.rank = spec, seed, rank
        self.oracles = {**ORACLES, **(oracles or {})}
        self.columns: dict[str, slice] = {}
        sizes = dict.fromkeys(("action", "prev_action", "ctrl"), spec.num_actions)
        sizes |= {name: carried.size for name, carried in spec.carried_fields.items()}
        start = 0
        for name, size in sizes.items():
            self.columns[name] = slice(start, start + size)
            start += size
        self.log_names = [
            *("steps", "reward_sum", "episodes", "return_sum", "length_sum", "timeouts"),
            *(f"reward/{name}" for name in spec.rewards),
            *(f"termination/{name}" for name in spec.terminations),
            *(f"failure/{name}" for name in FAILURES),
        ]

    # -- what terms read ------------------------------------------------------------------------

    def physics_fields(self, arrays: Arrays, ids: list[int]) -> dict[str, np.ndarray]:
        """The fields read from state and sensors, as float32 made them."""
        values = {}
        for name, field in self.spec.state_fields.items():
            rows = arrays["state_in" if field.source == "state" else "sensor_in"][ids]
            rows = rows[:, :, list(field.columns)]
            if field.source == "sensor" and field.reduce == "max":
                value = rows.max(axis=1)
            elif field.source == "sensor" and field.reduce == "any":
                value = (rows > 0).any(axis=1)
            else:
                value = rows[:, -1]
            value = value.astype(np.float32).astype(np.float64)
            values[name] = value[:, 0] if field.scalar else value
        return values

    def envs(self, arrays: Arrays, ids: list[int], **more: Any) -> Envs:
        """All that terms may read, for some envs."""
        values: dict[str, Any] = {"n": len(ids), **more}
        for name, constant in self.spec.constants.items():
            values[name] = np.float32(constant).astype(np.float64)
        values |= self.physics_fields(arrays, ids)
        for name, columns in self.columns.items():
            carried = arrays["fields_io"][ids, columns].astype(np.float64)
            is_scalar = name in self.spec.carried_fields and self.spec.carried_fields[name].scalar
            values[name] = carried[:, 0] if is_scalar else carried
        for name, needs in DERIVED_NEEDS.items():
            if all(need in values for need in needs):
                values[name] = self.oracles["derived", name](Envs(values))
        return Envs(values)

    def record(self, arrays: Arrays, i: int) -> dict[str, Any]:
        """One env for the terms that carry or draw: carried fields can be written."""
        values = {name: np.asarray(v, np.float64) for name, v in self.spec.constants.items()}
        values |= {name: v[0] for name, v in self.physics_fields(arrays, [i]).items()}
        values |= {name: arrays["fields_io"][i, columns] for name, columns in self.columns.items()}
        return {**values, "nv": self.spec.nv}

    def bad_state(self, arrays: Arrays, i: int) -> bool:
        """Something in the state that the task reads is not finite, or is far too large."""
        spec = self.spec
        q = arrays["state_in"][i, -1, spec.qpos_column : spec.qpos_column + spec.nq]
        v = arrays["state_in"][i, -1, spec.qvel_column : spec.qvel_column + spec.nv]
        bad = not np.all(np.abs([*q, *v]) < 1e6)
        for field in spec.state_fields.values():
            rows = arrays["state_in" if field.source == "state" else "sensor_in"][i]
            rows = rows if field.source == "sensor" and field.reduce != "last" else rows[-1:]
            bad |= not np.all(np.abs(rows[:, list(field.columns)]) < 3.4e38)
        return bad

    # -- the kernels ----------------------------------------------------------------------------

    def step(self, given: Arrays, first_block: int, last_block: int, num_envs: int) -> Arrays:
        """Phase A over some blocks of envs."""
        arrays = {name: array.copy() for name, array in given.items()}
        alive = []
        for i in range(first_block * BLOCK, min(last_block * BLOCK, num_envs)):
            arrays["step_io"][i] += 1
            self._clear_push(arrays, i)
            if arrays["failure_io"][i] == 0 and self.bad_state(arrays, i):
                arrays["failure_io"][i] = DIVERGED
            if arrays["failure_io"][i]:
                self._fail(arrays, i)
            else:
                alive.append(i)
        if alive:
            self._advance(arrays, alive)
        return arrays

    def sample_resets(self, given: Arrays, ids: Any) -> Arrays:
        """Phase B: new states."""
        arrays = {name: array.copy() for name, array in given.items()}
        for i in ids:
            arrays["episode_io"][i] += 1
            record = self.record(arrays, i)
            record |= {"env_id": i, "episode": int(arrays["episode_io"][i])}
            record["qpos"] = arrays["reset_qpos_out"][i]
            record["qvel"] = arrays["reset_qvel_out"][i]
            record["qpos"][:] = arrays["default_qpos_in"]
            record["qvel"][:] = 0.0
            for name, given_parameters in self.spec.events.items():
                if ("reset", name) in self.oracles:
                    key = self._key(arrays, i, -1, f"reset/{name}")
                    self.oracles["reset", name](record, key, **given_parameters)
        return arrays

    def observe_resets(self, given: Arrays, ids: Any) -> Arrays:
        """Phase C: carried fields, commands and observations of new episodes."""
        arrays = {name: array.copy() for name, array in given.items()}
        for i in ids:
            for name in ("step_io", "start_step_io", "return_io", "failure_io"):
                arrays[name][i] = 0
            for name, columns in self.columns.items():
                carried = self.spec.carried_fields.get(name)
                if carried is None or carried.reset is not None:
                    arrays["fields_io"][i, columns] = 0.0 if carried is None else carried.reset
            arrays["fields_io"][i, self.columns["ctrl"]] = arrays["ctrl_offset_in"]
            if self._intervals():
                self._clear_push(arrays, i)
            self._events(arrays, i, fresh=True)
        self._observe(arrays, list(ids))
        for i in ids:
            if not np.all(np.isfinite([*arrays["obs_out"][i], *arrays["critic_obs_out"][i]])):
                arrays["failure_io"][i] = BAD_TERM
        return arrays

    # -- their parts ----------------------------------------------------------------------------

    def _advance(self, arrays: Arrays, ids: list[int]) -> None:
        spec = self.spec
        envs = self.envs(arrays, ids)
        ends = {
            name: np.asarray(self.oracles["termination", name](envs, **p), bool)
            for name, p in spec.terminations.items()
        }
        fails = [flags for name, flags in ends.items() if name not in TRUNCATIONS]
        cuts = [flags for name, flags in ends.items() if name in TRUNCATIONS]
        terminated = np.any([np.zeros(len(ids), bool), *fails], axis=0)
        late = arrays["step_io"][ids] >= arrays["max_steps_in"][0]
        truncated = ~terminated & np.any([late, *cuts], axis=0)
        envs.terminated = terminated
        rewards, total = {}, np.zeros(len(ids))
        for name, given in spec.rewards.items():
            parameters = {k: v for k, v in given.items() if k != "weight"}
            rewards[name] = self.oracles["reward", name](envs, **parameters)
            total = total + given["weight"] * rewards[name]
        for k, i in enumerate(ids):
            record = {**self.record(arrays, i), "terminated": terminated[k]}
            for carried in spec.carried_fields.values():
                if carried.update is not None:
                    self.oracles["carry", carried.update](record)
            self._events(arrays, i, fresh=False)
        self._observe(arrays, ids)
        for k, i in enumerate(ids):
            reward = float(total[k] * spec.constants["control_dt"])
            row = [reward, *arrays["obs_out"][i], *arrays["critic_obs_out"][i]]
            if not np.all(np.isfinite(row)):
                arrays["failure_io"][i] = BAD_TERM
                self._fail(arrays, i)
                continue
            arrays["reward_out"][i] = reward
            arrays["terminated_out"][i], arrays["truncated_out"][i] = terminated[k], truncated[k]
            arrays["return_io"][i] += reward
            sums = {"steps": 1.0, "reward_sum": reward}
            sums |= {f"reward/{name}": values[k] for name, values in rewards.items()}
            if terminated[k] or truncated[k]:
                self._keep_final(arrays, i)
                sums |= {"episodes": 1.0, "return_sum": arrays["return_io"][i]}
                sums["length_sum"] = arrays["step_io"][i] - arrays["start_step_io"][i]
                sums["timeouts"] = float(truncated[k])
                sums |= {f"termination/{name}": float(end[k]) for name, end in ends.items()}
            self._log(arrays, i, sums)

    def _fail(self, arrays: Arrays, i: int) -> None:
        arrays["reward_out"][i] = 0.0
        arrays["terminated_out"][i], arrays["truncated_out"][i] = 1, 0
        self._keep_final(arrays, i)
        self._log(arrays, i, {f"failure/{FAILURES[arrays['failure_io'][i] - 1]}": 1.0})

    def _keep_final(self, arrays: Arrays, i: int) -> None:
        arrays["final_obs_out"][i] = arrays["obs_out"][i]
        arrays["final_critic_obs_out"][i] = arrays["critic_obs_out"][i]

    def _log(self, arrays: Arrays, i: int, sums: dict[str, float]) -> None:
        for name, value in sums.items():
            arrays["log_io"][i // BLOCK, self.log_names.index(name)] += value

    def _events(self, arrays: Arrays, i: int, *, fresh: bool) -> None:
        step = int(arrays["step_io"][i])
        record = self.record(arrays, i)
        for name, p in self.spec.commands.items():
            key = self._key(arrays, i, step, f"command/{name}")
            self.oracles["command", name](record, fresh, key, **p)
        for name in self._intervals():
            key = self._key(arrays, i, step, f"interval/{name}")
            kick = self.oracles["interval", name](record, fresh, key, **self.spec.events[name])
            if kick is not None:
                arrays["push_out"][i] += kick
                arrays["pushed_out"][i] = 1

    def _intervals(self) -> list[str]:
        return [n for n in self.spec.events if ("interval", n) in self.oracles]

    def _clear_push(self, arrays: Arrays, i: int) -> None:
        if self._intervals():
            arrays["push_out"][i] = 0.0
        arrays["pushed_out"][i] = 0

    def _observe(self, arrays: Arrays, ids: list[int]) -> None:
        envs = self.envs(arrays, ids)
        for group, terms, out in (
            ("actor", self.spec.actor, "obs_out"),
            ("critic", self.spec.critic, "critic_obs_out"),
        ):
            start = 0
            for name, given in terms.items():
                parameters = {k: v for k, v in given.items() if k not in ("noise", "scale")}
                values = np.array(self.oracles["observation", name](envs, **parameters), float)
                if "noise" in given:
                    stream = f"noise/observations.{group}.{name}"
                    for k, i in enumerate(ids):
                        key = self._key(arrays, i, int(arrays["step_io"][i]), stream)
                        draws = [rng.uniform01(key, j) for j in range(values.shape[1])]
                        values[k] += given["noise"] * (2 * np.array(draws) - 1)
                values *= given.get("scale", 1.0)
                arrays[out][ids, start : start + values.shape[1]] = values
                start += values.shape[1]

    def _key(self, arrays: Arrays, i: int, step: int, stream: str) -> int:
        episode = int(arrays["episode_io"][i])
        return rng.stream_key(rng.env_key(self.seed, self.rank, i, episode, step), stream)
