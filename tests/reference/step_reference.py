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
OBSERVATION_DELAY = ("observation_delay", "observation_history")
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
      late: the columns of the actor's observation that come late.
    """

    def __init__(
        self,
        spec: KernelSpec,
        *,
        seed: int,
        rank: int = 0,
        oracles: dict[Any, Any] | None = None,
        late: list[int] | None = None,
    ) -> None:
        self.spec, self.seed, self.rank = spec, seed, rank
        self.oracles = {**ORACLES, **(oracles or {})}
        self.columns: dict[str, slice] = {}
        sizes = dict.fromkeys(("action", "prev_action", "ctrl"), spec.num_actions)
        sizes |= {name: carried.size for name, carried in spec.carried_fields.items()}
        sizes |= self._hardware_sizes(spec, late or [])
        self.late = late or []
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
                if name in ("encoder_bias", "action_delay", *OBSERVATION_DELAY):
                    continue
                if carried is None or carried.reset is not None:
                    arrays["fields_io"][i, columns] = 0.0 if carried is None else carried.reset
            arrays["fields_io"][i, self.columns["ctrl"]] = arrays["ctrl_offset_in"]
            self._draw_hardware(arrays, i)
            if self._intervals():
                self._clear_push(arrays, i)
            self._events(arrays, i, fresh=True)
        self._observe(arrays, list(ids))
        for i in ids:
            if not np.all(np.isfinite([*arrays["obs_out"][i], *arrays["critic_obs_out"][i]])):
                arrays["failure_io"][i] = BAD_TERM
            if self.late:
                slots = self._slots(arrays, i)
                slots[:] = arrays["obs_out"][i, self.late]
        return arrays

    def apply_action(self, given: Arrays) -> Arrays:
        """The policy's actions to ctrl, each substep the newest that has arrived."""
        arrays = {name: array.copy() for name, array in given.items()}
        num_substeps = arrays["ctrl_out"].shape[1]
        for i in range(len(arrays["step_io"])):
            wanted = arrays["policy_action_in"][i]
            arrays["failure_io"][i] = 0 if np.all(np.isfinite(wanted)) else 4
            limit = arrays["action_clip_in"][0]
            newest = np.clip(wanted, -limit, limit) if arrays["failure_io"][i] == 0 else 0 * limit
            fields = {name: arrays["fields_io"][i, c] for name, c in self.columns.items()}
            older = fields.get("older_actions", np.zeros(0, np.float32))
            sent = [fields["action"].copy(), fields["prev_action"].copy()]
            sent += list(older.reshape(-1, self.spec.num_actions).copy())
            sent.insert(0, np.broadcast_to(newest, self.spec.num_actions))
            fields["action"][:], fields["prev_action"][:] = sent[0], sent[1]
            older[:] = np.concatenate(sent[2:])[: len(older)]
            delay = int(fields.get("action_delay", np.zeros(1))[0])
            for t in range(num_substeps):
                age = max(0, int(np.ceil((delay - t) / num_substeps)))
                target = arrays["ctrl_scale_in"] * sent[age].astype(np.float64)
                arrays["ctrl_out"][i, t] = arrays["ctrl_offset_in"] + target
            fields["ctrl"][:] = arrays["ctrl_out"][i, -1]
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
            self._show_late(arrays, i)
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
            if group == "actor" and self.spec.hardware.encoder_bias is not None:
                seen = dict(envs.__dict__)
                seen["joint_pos"] = envs.joint_pos + envs.encoder_bias
            else:
                seen = envs.__dict__
            for name, given in terms.items():
                parameters = {k: v for k, v in given.items() if k not in ("noise", "scale")}
                values = np.array(
                    self.oracles["observation", name](Envs(seen), **parameters), float
                )
                if "noise" in given:
                    stream = f"noise/observations.{group}.{name}"
                    for k, i in enumerate(ids):
                        key = self._key(arrays, i, int(arrays["step_io"][i]), stream)
                        draws = [rng.uniform01(key, j) for j in range(values.shape[1])]
                        values[k] += given["noise"] * (2 * np.array(draws) - 1)
                values *= given.get("scale", 1.0)
                arrays[out][ids, start : start + values.shape[1]] = values
                start += values.shape[1]

    # -- hardware -------------------------------------------------------------------------------

    @staticmethod
    def _hardware_sizes(spec: KernelSpec, late: list[int]) -> dict[str, int]:
        hardware, sizes = spec.hardware, {}
        if hardware.encoder_bias is not None:
            sizes["encoder_bias"] = spec.num_actions
        if hardware.action_delay is not None:
            sizes["action_delay"] = 1
            older = int(np.ceil(hardware.action_delay.high / hardware.substeps)) - 1
            if older > 0:
                sizes["older_actions"] = older * spec.num_actions
        if hardware.observation_delay is not None:
            sizes["observation_delay"] = 1
            sizes["observation_history"] = (hardware.observation_delay.high + 1) * len(late)
        return sizes

    def _draw_hardware(self, arrays: Arrays, i: int) -> None:
        for name in ("encoder_bias", "action_delay", "observation_delay"):
            drawn = getattr(self.spec.hardware, name)
            if drawn is None:
                continue
            episode = int(arrays["episode_io"][i]) if drawn.per_episode else 0
            env = rng.env_key(self.seed, self.rank, i, episode, 0)
            key = rng.stream_key(env, f"hardware/{name}")
            target = arrays["fields_io"][i, self.columns[name]]
            if name == "encoder_bias":
                for j in range(self.spec.num_actions):  # the even draws of a key
                    target[j] = rng.uniform(key, 2 * j, drawn.low[j], drawn.high[j])
            else:
                target[0] = drawn.low + int((drawn.high - drawn.low + 1) * rng.uniform01(key, 0))

    def _slots(self, arrays: Arrays, i: int) -> np.ndarray:
        history = arrays["fields_io"][i, self.columns["observation_history"]]
        return history.reshape(-1, len(self.late))

    def _show_late(self, arrays: Arrays, i: int) -> None:
        if self.late:
            slots, step = self._slots(arrays, i), int(arrays["step_io"][i])
            slots[step % len(slots)] = arrays["obs_out"][i, self.late]
            delay = int(arrays["fields_io"][i, self.columns["observation_delay"]][0])
            arrays["obs_out"][i, self.late] = slots[(step - delay) % len(slots)]

    def _key(self, arrays: Arrays, i: int, step: int, stream: str) -> int:
        episode = int(arrays["episode_io"][i])
        return rng.stream_key(rng.env_key(self.seed, self.rank, i, episode, step), stream)
