"""What randomization costs: a control step with it, over one without, in turns.

Every pass begins with the same states of physics, takes some control steps (policy left out, its
time would hide the cost), and is compared with the pass without randomization next to it. The
ranges are narrow, so that the robots do the same. Three fresh processes.

    python benchmark/benchmark_randomization.py go1_walk
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, fresh_processes, machine, show, spread, write_result

PASS_S, MIN_STEPS, WARM_UP = 0.5, 8, 60  # of a pass; control steps before states are taken
NARROW = "[0.97, 1.03]"
MODEL = tuple(f"randomization.{entry}={NARROW}" for entry in ("body_mass.scale", "gravity.scale"))
RESET = ("randomization.body_mass.mode=reset", "randomization.gravity.mode=reset")
HARDWARE = (
    "randomization.encoder_bias.add_rad=[-0.01, 0.01]",
    "randomization.encoder_bias.mode=reset",
    "randomization.action_delay.substeps=[0, 2]",
    "randomization.observation_delay.steps=[0, 1]",
)
ROWS: dict[str, tuple[str, ...]] = {
    "off": (),
    "64 variants, startup": MODEL,
    "64 variants, reset": (*MODEL, *RESET),
    "256 variants, startup": (*MODEL, "randomization.startup_variants=256"),
    "encoder bias and delays": HARDWARE,
    "all, 64 variants, reset": (*MODEL, *RESET, *HARDWARE),
}


def main() -> None:
    """Measure, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--seconds", type=float, default=40.0, help="per process")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    if arguments.child:
        print(json.dumps(measure(arguments)))
        return
    head = machine()
    results = fresh_processes(__file__, sys.argv[1:])
    rows = {
        name: {key: spread([r["rows"][name][key] for r in results]) for key in ("step_ms", "ratio")}
        for name in results[0]["rows"]
    }
    print(f"{arguments.task}, {results[0]['num_envs']:,} envs, {results[0]['plan']}")
    print(f"{'':28s}{'ms per control step':>24s}{'over off':>24s}")
    for name, row in rows.items():
        print(f"{name:28s}{show(row['step_ms'], 2):>24s}{show(row['ratio']):>24s}")
    content = {"rows": rows, "num_envs": results[0]["num_envs"], "plan": results[0]["plan"]}
    path = write_result(f"randomization_{arguments.task}", head, content, arguments.output)
    print(f"written: {path}")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: bring the robots into motion, then run all rows in turns."""
    from unilab.config import load_config
    from unilab.runtime.threads import make_plan, prepare_environment

    base = load_config(arguments.task, arguments.overrides).config
    prepare_environment(base.runtime)
    from statistics import median
    from time import perf_counter

    import numpy as np

    from unilab.runners.build import compile_kernels, make_pipeline
    from unilab.tasks.base import build_task

    plan = make_plan(base.runtime, base.physics.num_envs)
    pipelines = {}
    for name, overrides in ROWS.items():
        possible = [t for t in overrides if has_joint_positions(base) or "encoder_bias" not in t]
        config = load_config(arguments.task, [*arguments.overrides, *possible]).config
        pipelines[name] = make_pipeline(build_task(config), plan, seed=1)
        compile_kernels(pipelines[name])
        pipelines[name].reset()
    draw = np.random.default_rng(1)
    size = (WARM_UP, base.physics.num_envs, pipelines["off"].num_actions)
    actions = draw.normal(0.0, 0.3, size).astype(np.float32)

    def run(pipeline: Any, steps: int) -> float:
        begin = perf_counter()
        for step in range(steps):
            for group, envs in enumerate(pipeline.groups):
                pipeline.submit(group, actions[step % WARM_UP, envs])
                pipeline.finish(group)
        return (perf_counter() - begin) / steps

    # Long enough that the caches are those of this row and not of the one before.
    steps = max(MIN_STEPS, round(PASS_S / run(pipelines["off"], WARM_UP)))
    start = dict(pipelines["off"].physics.snapshot())
    times: dict[str, list[float]] = {name: [] for name in pipelines}
    begin = perf_counter()
    while len(times["off"]) < 4 or perf_counter() - begin < arguments.seconds:
        for name, pipeline in pipelines.items():
            pipeline.physics.restore(start)
            times[name].append(run(pipeline, steps))
    for pipeline in pipelines.values():
        pipeline.close()
    rows = {
        name: {
            "step_ms": 1e3 * median(found[1:]),
            "ratio": median(a / b for a, b in zip(found[1:], times["off"][1:], strict=True)),
        }
        for name, found in times.items()
    }
    return {"rows": rows, "num_envs": base.physics.num_envs, "plan": plan.describe()}


def has_joint_positions(config: Any) -> bool:
    """Say whether the policy of a task sees joint positions, which an encoder bias needs."""
    return "joint_pos_rel" in config.observations.actor


if __name__ == "__main__":
    main()
