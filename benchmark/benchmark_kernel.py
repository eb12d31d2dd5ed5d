"""What the assembled kernel of a task costs, beside a kernel of the same terms written by hand.

Both run in turns in one process, single thread, on the same inputs; their outputs are compared.
Three fresh processes are run, each with a cold kernel cache and then a warm one.

    python benchmark/benchmark_kernel.py g1_walk

`hand_<task>.py` holds the hand-written one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import fresh_processes, machine, spread, write_result

SIZES = (512, 4096)
CONTROL_STEPS = 24


def main() -> None:
    """Measure, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk", choices=("go1_walk", "g1_walk"))
    parser.add_argument("--repeats", type=int, default=400, help="timed calls of each kernel")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.warm:
        print(json.dumps(start_up(arguments.task)))
        return
    if arguments.child:
        print(json.dumps(measure(arguments.task, arguments.repeats)))
        return
    header = machine()
    results = fresh_processes(__file__, sys.argv[1:])
    table = {name: spread([r[name] for r in results]) for name in results[0]}
    title = f"{arguments.task}, single thread"
    print(f"{title:44s} {'median':>8s} {'min':>8s} {'max':>8s}")
    for name, value in table.items():
        print(f"{name:44s} {value['median']:8.2f} {value['min']:8.2f} {value['max']:8.2f}")
    path = write_result(
        f"kernel_{arguments.task}", header, {"figures": table, "processes": results}
    )
    print(f"written: {path}")


def measure(task: str, repeats: int) -> dict[str, float]:
    """One process: compile on a cold cache, start again on the warm one, then time."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["UNILAB_CACHE_DIR"] = folder
        figures = {f"cold: {name}": value for name, value in start_up(task).items()}
        done = subprocess.run(
            [sys.executable, __file__, task, "--warm"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        warm = json.loads(done.stdout.strip().splitlines()[-1])
        figures |= {f"warm: {name}": value for name, value in warm.items()}
        for num_envs in SIZES:
            figures |= compare(task, num_envs, repeats)
        figures |= control_step(task, figures[f"assembled step, N={SIZES[0]} (ns/env)"])
    return figures


def build(task: str) -> Any:
    """Return the task as configured."""
    from unilab.config import load_config
    from unilab.runtime.threads import prepare_environment

    config = load_config(task, []).config
    prepare_environment(config.runtime)
    from unilab.tasks.base import build_task

    return build_task(config)


def start_up(task: str) -> dict[str, float]:
    """Time from an assembled task to the first result of every kernel, import of Numba included."""
    built = build(task)
    begin, begin_cpu = perf_counter(), process_time()
    kernels = built.kernel.load()
    arrays = make_arrays(built, 64)
    call_all(kernels, arrays)
    return {
        "all kernels ready (s)": perf_counter() - begin,
        "all kernels ready (CPU s)": process_time() - begin_cpu,
    }


def call_all(kernels: Any, arrays: dict[str, Any]) -> None:
    """Call each kernel once."""
    import numpy as np

    values, num_envs = tuple(arrays.values()), len(arrays["step_io"])
    ids = np.arange(num_envs, dtype=np.int32)
    kernels.sample_resets(ids, *values)
    kernels.observe_resets(ids, *values)
    kernels.apply_action(0, 1, num_envs, *values)
    kernels.step_serial(0, 1, num_envs, *values)


def make_arrays(built: Any, num_envs: int) -> dict[str, Any]:
    """States of a robot that walks: near the default pose, a timer due now and then."""
    import numpy as np

    from unilab_kernels.fuse import ARRAYS, seed_key

    draw = np.random.default_rng(0)
    kernel, model, blocks = built.kernel, built.robot.model, -(-num_envs // 64)
    nq, nv, na, substeps = int(model.nq), int(model.nv), int(model.nu), 2
    shapes: dict[str, tuple[int, ...]] = {
        "state_in": (num_envs, substeps, 1 + nq + nv),
        "sensor_in": (num_envs, substeps, int(model.nsensordata)),
        "policy_action_in": (num_envs, na),
        "ctrl_out": (num_envs, substeps, na),
        "fields_io": (num_envs, kernel.num_fields),
        "log_io": (blocks, len(kernel.log_names)),
        "scratch_io": (blocks, kernel.num_scratch),
        "obs_out": (num_envs, kernel.num_obs),
        "critic_obs_out": (num_envs, kernel.num_critic_obs),
        "final_obs_out": (num_envs, kernel.num_obs),
        "final_critic_obs_out": (num_envs, kernel.num_critic_obs),
        "reset_qpos_out": (num_envs, nq),
        "reset_qvel_out": (num_envs, nv),
        "push_out": (num_envs, nv),
    }
    dtypes = {"f32": np.float32, "f64": np.float64, "u8": np.uint8, "i32": np.int32}
    given = {
        "default_qpos_in": np.array(built.robot.default_qpos),
        "ctrl_offset_in": np.array(built.model.ctrl_offset, np.float64),
        "ctrl_scale_in": np.array(built.ctrl_scale, np.float64),
        "action_clip_in": np.array([built.config.actions.clip], np.float32),
        "weights_in": kernel.weights.copy(),
        "params_in": kernel.params.copy(),
        "constants_in": kernel.constants.copy(),
        "seed_in": seed_key(1),
        "max_steps_in": np.array([built.max_steps], np.int32),
    }
    arrays = {
        name: given.get(name, np.zeros(shapes.get(name, (num_envs,)), dtypes.get(dtype)))
        for name, (_, dtype, _) in ARRAYS.items()
    }
    state, qpos = arrays["state_in"], np.array(built.robot.default_qpos)
    state[:, :, 1 : 1 + nq] = qpos + draw.normal(0.0, 0.08, (num_envs, substeps, nq))
    quat = state[:, :, 4:8]
    quat /= np.linalg.norm(quat, axis=-1, keepdims=True)
    state[:, :, 1 + nq :] = draw.normal(0.0, 0.5, (num_envs, substeps, nv))
    arrays["sensor_in"][:] = draw.normal(0.1, 0.4, arrays["sensor_in"].shape)
    arrays["policy_action_in"][:] = draw.normal(0.0, 1.0, (num_envs, na))
    fields, columns = arrays["fields_io"], kernel.carried_slices
    fields[:] = draw.normal(0.0, 0.4, fields.shape)
    if "feet_air_time" in columns:
        fields[:, columns["feet_air_time"]] = np.abs(fields[:, columns["feet_air_time"]])
    if "gait_phase" in columns:
        fields[:, columns["gait_phase"]] = draw.uniform(0.0, 1.0, (num_envs, 1))
    fields[:, columns["fixed_command"]] = 0.0
    for name in ("command_timer", "push_timer"):
        fields[:, columns[name]] = draw.uniform(0.0, 5.0, (num_envs, 1))
    arrays["step_io"][:] = draw.integers(0, built.max_steps, num_envs)
    arrays["episode_io"][:] = 1
    return arrays


def hand_arguments(hand: Any, built: Any, arrays: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments of the hand-written kernel; checks that its literals fit the task."""
    import numpy as np

    kernel, config = built.kernel, built.config
    assert kernel.reward_names == hand.REWARDS
    assert kernel.termination_names == hand.TERMINATIONS
    assert {n: built.model.fields[n].columns for n in hand.FIELDS} == hand.FIELDS
    assert {n: kernel.carried_slices[n] for n in hand.CARRIED} == hand.CARRIED
    assert (kernel.num_obs, kernel.num_critic_obs) == hand.SIZES
    sections = {
        "rewards": config.rewards,
        "terminations": config.terminations,
        "commands": config.commands,
        "events": config.events,
        "observations.actor": config.observations.actor,
        "observations.critic": config.observations.critic,
    }
    numbers = tuple(np.float32(sections[s][term][name]) for s, term, name in hand.NUMBERS)
    constants = built.model.constants
    joints = tuple(np.array(constants[name], np.float32) for name in hand.JOINT_CONSTANTS)
    names = (
        *("state_in", "sensor_in", "failure_io", "fields_io", "step_io", "start_step_io"),
        *("episode_io", "return_io", "log_io", "obs_out", "critic_obs_out", "final_obs_out"),
        *("final_critic_obs_out", "reward_out", "terminated_out", "truncated_out", "push_out"),
        *("pushed_out", "weights_in"),
    )
    dt = np.float32(built.control_dt)
    end = (numbers, joints, dt, arrays["seed_in"], arrays["max_steps_in"])
    return (*(arrays[name] for name in names), *end)


def compare(task: str, num_envs: int, repeats: int) -> dict[str, float]:
    """Check that both kernels agree, then time them in turns: the least of many calls."""
    import numpy as np

    hand = importlib.import_module(f"hand_{task}")
    built = build(task)
    kernels = built.kernel.load()
    given = make_arrays(built, num_envs)
    ours = {name: array.copy() for name, array in given.items()}
    theirs = {name: array.copy() for name, array in given.items()}
    blocks = -(-num_envs // 64)
    our_call, their_call = tuple(ours.values()), hand_arguments(hand, built, theirs)
    kernels.step_serial(0, blocks, num_envs, *our_call)
    hand.step(0, blocks, num_envs, *their_call)
    for name in given:
        if name != "scratch_io":
            np.testing.assert_allclose(ours[name], theirs[name], 2e-5, 2e-5, err_msg=name)
    assert ours["pushed_out"].any()
    changing = [name for name in given if name.endswith("_io")]
    calls = {
        "assembled step": (ours, lambda: kernels.step_serial(0, blocks, num_envs, *our_call)),
        "hand-written step": (theirs, lambda: hand.step(0, blocks, num_envs, *their_call)),
        "apply_action": (ours, lambda: kernels.apply_action(0, blocks, num_envs, *our_call)),
        "observe_resets": (ours, lambda: kernels.observe_resets(ids, *our_call)),
        "sample_resets": (ours, lambda: kernels.sample_resets(ids, *our_call)),
    }
    ids = np.arange(num_envs, dtype=np.int32)
    least = dict.fromkeys(calls, np.inf)
    for _ in range(repeats):
        for name, (arrays, call) in calls.items():
            for changed in changing:
                np.copyto(arrays[changed], given[changed])
            begin = perf_counter()
            call()
            least[name] = min(least[name], perf_counter() - begin)
    figures = {f"{n}, N={num_envs} (ns/env)": t / num_envs * 1e9 for n, t in least.items()}
    ratio = least["assembled step"] / least["hand-written step"]
    return {**figures, f"assembled / hand-written, N={num_envs}": ratio}


def control_step(task: str, step_ns: float) -> dict[str, float]:
    """The end-to-end effect: a whole control step on one thread, and the step kernel's share."""
    import numpy as np

    from unilab.runners.build import make_pipeline
    from unilab.runtime.threads import ThreadPlan

    built = build(task)
    num_envs = SIZES[0]
    pipeline = make_pipeline(built, ThreadPlan(1, 1, 1, 1, 1, False, 1), seed=1, num_envs=num_envs)
    pipeline.reset()
    draw, times = np.random.default_rng(0), []
    for _ in range(CONTROL_STEPS):
        action = draw.normal(0.0, 0.5, (num_envs, pipeline.num_actions)).astype(np.float32)
        begin = perf_counter()
        pipeline.submit(0, action)
        pipeline.finish(0)
        times.append(perf_counter() - begin)
    pipeline.close()
    whole = float(np.median(times)) / num_envs * 1e9
    return {
        f"control step with physics, N={num_envs} (ns/env)": whole,
        "step kernel's share of it (%)": 100.0 * step_ns / whole,
    }


if __name__ == "__main__":
    main()
