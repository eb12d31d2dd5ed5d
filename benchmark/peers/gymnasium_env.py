"""Peer: Gymnasium's SyncVectorEnv and AsyncVectorEnv over MuJoCo, with the task as a Python env.

Runs in an interpreter with `gymnasium` and `mujoco`; prints one JSON object.

    python gymnasium_env.py BUNDLE --mode async --num-envs 128
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
from multiprocessing.synchronize import Barrier
from pathlib import Path
from time import perf_counter
from typing import Any

import gymnasium
import mujoco
import numpy as np
from bundle import ACTION_ROWS, Facts, draw_actions
from g1_terms import G1Terms
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

MODES = ("sync", "async", "halves", "check")
WORKERS = 2  # processes of the mode `halves`


@functools.cache
def load(folder: str) -> tuple[Facts, Any]:
    """Read a bundle once a process: its envs share the compiled model, as nothing changes it."""
    facts = Facts.read(folder)
    return facts, mujoco.MjModel.from_binary_path(str(facts.folder / "model.mjb"))


class G1WalkEnv(gymnasium.Env):
    """The task as one env over MjModel and MjData.

    The observation is the actor's and the critic's in one Box: a Dict costs the vector envs more.
    """

    def __init__(self, folder: str) -> None:
        self.facts, self.model = load(folder)
        self.data = mujoco.MjData(self.model)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.model.nu,), np.float32)
        size = 2 * (11 + 3 * self.model.nu) + 3
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float32)
        self.terms = G1Terms(self.facts, np.random.default_rng(0))
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self.terms.generator = self.np_random
        self.steps = 0
        self.set_state(*self.terms.start(self.model.nv))
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Run one control step."""
        terms, data = self.terms, self.data
        data.ctrl[:] = terms.to_ctrl(action)
        mujoco.mj_step(self.model, data, nstep=self.facts.substeps)
        self.steps += 1
        terms.read(data.qpos, data.qvel, data.sensordata)
        terminated, reward = terms.terminated(), terms.reward()
        terms.update_commands()
        observation = terms.observe()
        terms.push(data.qvel)
        return observation, reward, terminated, self.steps >= self.facts.max_steps, {}

    def set_state(self, qpos: Any, qvel: Any) -> None:
        """Put the robot into a state, with the solver's memory cleared."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[:], self.data.qvel[:] = qpos, qvel
        mujoco.mj_forward(self.model, self.data)

    def observe(self) -> Any:
        """Observe the state as it stands."""
        self.terms.read(self.data.qpos, self.data.qvel, self.data.sensordata)
        return self.terms.observe()


def check(folder: str) -> dict[str, float]:
    """Repeat the bundle's steps; return the largest differences of observations and rewards."""
    env = G1WalkEnv(folder)
    env.terms.noise = dict.fromkeys(env.terms.noise, 0.0)
    env.terms.resamples, env.terms.facts.events["push"]["min_s"] = False, 1e9
    env.terms.facts.events["push"]["max_s"] = 1e9
    with np.load(Path(folder) / "check.npz") as file:
        ours = {name: file[name] for name in file.files}
    differences = {"obs": 0.0, "critic_obs": 0.0, "reward": 0.0}
    for i in range(ours["actions"].shape[1]):
        env.reset(seed=0)
        env.set_state(ours["qpos"][i], ours["qvel"][i])
        env.terms.command, env.terms.phase = ours["command"].copy(), float(ours["phase"][i])
        for t, action in enumerate(ours["actions"][:, i]):
            observation, reward, *_ = env.step(action)
            size = ours["obs"].shape[2]
            parts = {"obs": observation[:size], "critic_obs": observation[size:], "reward": reward}
            for name, value in parts.items():
                difference = float(np.abs(value - ours[name][t, i]).max())
                differences[name] = max(differences[name], difference)
    return differences


def measure(folder: str, mode: str, num_envs: int, warmup: int, seconds: float) -> dict[str, Any]:
    """Step a vector env for some seconds; return its env-steps/s."""
    facts, _ = load(folder)
    makers = [functools.partial(G1WalkEnv, folder)] * num_envs
    envs: Any = AsyncVectorEnv(makers) if mode == "async" else SyncVectorEnv(makers)
    try:
        envs.reset(seed=0)
        actions = draw_actions(num_envs, facts.num_actions)
        return run(envs, actions, warmup, seconds)
    finally:
        envs.close()


def run(envs: Any, actions: Any, warmup: int, seconds: float) -> dict[str, Any]:
    """Step for some seconds after a warm-up; return the rate and the share of ended episodes."""
    warm_up(envs, actions, warmup)
    steps = ended = 0
    begin = perf_counter()
    while perf_counter() - begin < seconds:
        _, _, terminated, truncated, _ = envs.step(actions[steps % ACTION_ROWS])
        ended += int(np.count_nonzero(terminated | truncated))
        steps += 1
    elapsed = perf_counter() - begin
    count = steps * actions.shape[1]
    return {"steps_per_s": count / elapsed, "ended_share": ended / count}


def warm_up(envs: Any, actions: Any, steps: int) -> None:
    """Let the envs leave their first states."""
    for t in range(steps):
        envs.step(actions[t % ACTION_ROWS])


def measure_halves(folder: str, num_envs: int, warmup: int, seconds: float) -> dict[str, Any]:
    """Run two processes, each a SyncVectorEnv of half the envs, that exchange nothing at all.

    An upper bound of what any split of these envs over two cores can reach: no observation, action
    or reward leaves its process.
    """
    context = multiprocessing.get_context("fork")
    load(folder)
    barrier, results = context.Barrier(WORKERS), context.Queue()
    processes = [
        context.Process(
            target=_half, args=(folder, num_envs // WORKERS, warmup, seconds, barrier, results)
        )
        for _ in range(WORKERS)
    ]
    for process in processes:
        process.start()
    halves = [results.get(timeout=60 + 10 * seconds) for _ in processes]
    for process in processes:
        process.join()
    return {
        "steps_per_s": sum(half["steps_per_s"] for half in halves),
        "ended_share": sum(half["ended_share"] for half in halves) / WORKERS,
    }


def _half(
    folder: str, num_envs: int, warmup: int, seconds: float, barrier: Barrier, results: Any
) -> None:
    envs = SyncVectorEnv([functools.partial(G1WalkEnv, folder)] * num_envs)
    envs.reset(seed=0)
    actions = draw_actions(num_envs, load(folder)[0].num_actions)
    warm_up(envs, actions, warmup)
    barrier.wait()
    results.put(run(envs, actions, 0, seconds))


def main() -> None:
    """Measure one mode and print the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--mode", choices=MODES, default="sync")
    parser.add_argument("--num-envs", type=int, default=128)
    parser.add_argument("--warmup", type=int, default=60, help="control steps")
    parser.add_argument("--seconds", type=float, default=4.0)
    given = parser.parse_args()
    if given.mode == "check":
        result: dict[str, Any] = check(given.bundle)
    elif given.mode == "halves":
        result = measure_halves(given.bundle, given.num_envs, given.warmup, given.seconds)
    else:
        result = measure(given.bundle, given.mode, given.num_envs, given.warmup, given.seconds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
