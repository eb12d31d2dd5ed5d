"""What collecting costs over bare physics: (T_collector - T_policy - T_bare) / T_bare.

The collector runs a task with a policy, as training does. Bare is `mujoco.rollout` replaying the
same states and controls with the same model, threads and substeps. Both alternate in one process;
three fresh processes are run. The first pass records what the second, timed one will do again, bit
for bit.

    python benchmark/benchmark_collection.py go1_walk --run latest
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import fresh_processes, machine, spread, write_result


def main() -> None:
    """Measure, print the tables, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--run", default=None, help="run whose policy acts; else an untrained one")
    parser.add_argument("--log-dir", default="runs")
    parser.add_argument("--steps", type=int, default=48, help="control steps a pass")
    parser.add_argument("--passes", type=int, default=16)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    if arguments.child:
        print(json.dumps(measure(arguments)))
        return
    words = [w for w in sys.argv[1:] if w != "--child"]
    header = machine()
    results = fresh_processes(__file__, words)
    overhead = spread([r["overhead"] for r in results])
    stages = {k: spread([r["stages_ms"][k] for r in results]) for k in results[0]["stages_ms"]}
    print(f"{arguments.task}: {results[0]['num_envs']} envs, {results[0]['threads']}")
    print(f"{'ms per control step':24s} {'median':>8s} {'min':>8s} {'max':>8s}")
    for name, value in stages.items():
        print(f"  {name:22s} {value['median']:8.3f} {value['min']:8.3f} {value['max']:8.3f}")
    rate = spread([r["steps_per_s"] for r in results])
    bare = spread([r["bare_steps_per_s"] for r in results])
    print(f"env-steps/s: collector {rate['median']:,.0f}, bare physics {bare['median']:,.0f}")
    print(f"overhead over bare physics, policy aside: {100 * overhead['median']:.1f} % "
          f"({100 * overhead['min']:.1f} to {100 * overhead['max']:.1f})")  # fmt: skip
    path = write_result(
        f"collection_{arguments.task}_{results[0]['num_envs']}",
        header,
        {
            "overhead": overhead,
            "stages_ms": stages,
            "env_steps_per_s": rate,
            "bare_env_steps_per_s": bare,
            "processes": results,
        },
    )
    print(f"written: {path}")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: alternate collector passes and bare passes, take the median of each."""
    from unilab.config import load_config
    from unilab.runtime.threads import make_plan, prepare_environment

    config = load_config(arguments.task, arguments.overrides).config
    prepare_environment(config.runtime)
    import numpy as np
    import torch

    from unilab.buffers.rollout import Rollout
    from unilab.runners import checkpoint as checkpoints
    from unilab.runners.build import make_learner, make_pipeline
    from unilab.runners.on_policy import collect, set_first
    from unilab.runs import find_checkpoint, resolve_run
    from unilab.tasks.base import build_task

    plan = make_plan(config.runtime, config.physics.num_envs)
    torch.set_num_threads(plan.learner)
    built = build_task(config)
    pipeline = make_pipeline(built, plan, seed=1)
    learner = make_learner(built, config, torch.device("cpu"), 1)
    if arguments.run is not None:
        run = resolve_run(arguments.run, arguments.log_dir, arguments.task)
        learner.load_state_dict(checkpoints.load(find_checkpoint(run)).learner)
    kernel = built.kernel
    rollout = Rollout(
        arguments.steps, pipeline.num_envs, kernel.num_obs, kernel.num_critic_obs,
        pipeline.num_actions, torch.device("cpu"),
    )  # fmt: skip
    pipeline.reset()
    set_first(pipeline, rollout)
    for _ in range(4):  # warm up, and let the envs leave their first states
        collect(pipeline, learner.act, rollout)
        rollout.carry_over()
    baseline = Bare(pipeline, plan.physics)
    rows, ctrl, collected, bare, policy = [], [], [], [], []
    stages: dict[str, list[float]] = {}
    for _ in range(arguments.passes):
        envs, generator = pipeline.state_dict(), learner.state_dict()
        _record(pipeline, learner, rollout, collect, rows, ctrl)
        pipeline.load_state_dict(envs)
        learner.load_state_dict(generator)
        set_first(pipeline, rollout)
        pipeline.timers.take()
        begin = perf_counter()
        collect(pipeline, learner.act, rollout)
        collected.append(perf_counter() - begin)
        times = pipeline.timers.take()
        policy.append(times["stage/policy_ms"] * 1e-3)
        for name, value in times.items():
            stages.setdefault(name, []).append(value / arguments.steps)
        begin = perf_counter()
        baseline.replay(rows, ctrl)
        bare.append(perf_counter() - begin)
        rollout.carry_over()
    pipeline.close()
    medians = {name: float(np.median(values)) for name, values in stages.items()}
    medians["bare physics"] = float(np.median(bare)) * 1e3 / arguments.steps
    # Each collector pass is compared with the bare pass right after it: the machine drifts.
    pairs = zip(collected, policy, bare, strict=True)
    overheads = [
        (t_collector - t_policy - t_bare) / t_bare for t_collector, t_policy, t_bare in pairs
    ]
    count = arguments.steps * pipeline.num_envs
    return {
        "overhead": float(np.median(overheads)),
        "stages_ms": medians,
        "steps_per_s": count / float(np.median(collected)),
        "bare_steps_per_s": count / float(np.median(bare)),
        "num_envs": pipeline.num_envs,
        "threads": plan.describe(),
    }


def _record(
    pipeline: Any, learner: Any, rollout: Any, collect: Any, rows: list[Any], ctrl: list[Any]
) -> None:
    """One pass that keeps the state and the controls of every submit."""
    rows.clear()
    ctrl.clear()
    submit = pipeline.physics.submit

    def recording_submit(group: int, given: Any) -> Any:
        rows.append((group, pipeline.physics.rows[pipeline.groups[group]].copy()))
        ctrl.append(given.copy())
        return submit(group, given)

    pipeline.physics.submit = recording_submit
    try:
        collect(pipeline, learner.act, rollout)
    finally:
        pipeline.physics.submit = submit


class Bare:
    """`mujoco.rollout` on what was recorded, and nothing else."""

    def __init__(self, pipeline: Any, threads: int) -> None:
        import mujoco

        from unilab.physics.mujoco_cpu import make_pool

        physics = pipeline.physics
        self.model, self.substeps = physics.model, physics.substeps
        self.groups = pipeline.groups
        self.data = [mujoco.MjData(self.model) for _ in range(threads)]
        self.rollout = make_pool(threads, may_pin=not pipeline.plan.overlap)
        self.models = [[self.model] * (g.stop - g.start) for g in self.groups]
        self.state, self.sensors = physics.state.copy(), physics.sensors.copy()

    def replay(self, rows: list[Any], ctrl: list[Any]) -> None:
        """Step every recorded state with its recorded controls."""
        for (group, state), given in zip(rows, ctrl, strict=True):
            envs = self.groups[group]
            self.rollout.rollout(
                self.models[group],
                self.data,
                state,
                given,
                skip_checks=True,
                nstep=self.substeps,
                state=self.state[envs],
                sensordata=self.sensors[envs],
            )


if __name__ == "__main__":
    main()
