"""One process of the regression gate: a script, run with one version of the package on the path.

It measures older versions too, so it imports nothing of this room and calls only what a training
run calls. The job comes as JSON on stdin.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

BEGIN = perf_counter()
STEPS = 8  # control steps of a rollout


def main() -> None:
    """Measure this version, and write the figures to the file that the job names."""
    job: dict[str, Any] = json.loads(sys.stdin.read())
    result = Path(job["result"])
    import unilab.config
    from unilab.errors import ConfigError

    try:
        figures = measure(job)
    except ConfigError as error:
        result.write_text(json.dumps({"error": str(error)}))
        return
    source = str(Path(unilab.config.__file__).resolve())
    result.write_text(json.dumps({"figures": figures, "source": source}))


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Return the figures of this version."""
    from unilab.config import load_config
    from unilab.runtime.threads import make_plan, prepare_environment

    overrides = [*job["overrides"], f"physics.num_envs={job['num_envs']}"]
    config = load_config(job["task"], overrides).config
    prepare_environment(config.runtime)
    import torch

    from unilab.buffers.rollout import Rollout
    from unilab.runners.build import compile_kernels, make_learner, make_pipeline
    from unilab.runners.on_policy import collect, set_first
    from unilab.tasks.base import build_task

    plan = make_plan(config.runtime, config.physics.num_envs)
    torch.set_num_threads(plan.learner)
    built = build_task(config)
    pipeline = make_pipeline(built, plan, seed=1)
    compile_kernels(pipeline)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    learner: Any = make_learner(built, config, device, 1)
    kernel = built.kernel
    rollout = Rollout(
        STEPS, pipeline.num_envs, kernel.num_obs, kernel.num_critic_obs, pipeline.num_actions,
        device,
    )  # fmt: skip
    pipeline.reset()
    set_first(pipeline, rollout)
    ready_s = perf_counter() - BEGIN
    rounds: dict[str, list[float]] = {}
    deadline = None
    while deadline is None or perf_counter() < deadline or len(rounds["step"]) < 3:
        pipeline.timers.take()
        collect(pipeline, learner.act, rollout)
        times = pipeline.timers.take()
        begin = perf_counter()
        learner.update(rollout)
        if device.type == "cuda":
            torch.cuda.synchronize()
        update_ms = 1e3 * (perf_counter() - begin)
        rollout.carry_over()
        if deadline is None:  # the first round warms up
            deadline = perf_counter() + job["seconds"]
            rounds = {"step": []}
            continue
        add_round(rounds, times, update_ms)
    pipeline.close()
    found = {name: median(values) for name, values in rounds.items()}
    return {
        "collector (env-steps/s)": pipeline.num_envs / found.pop("step") * 1e3,
        "host step (ms)": found["host"],
        "physics (ms)": found["physics"],
        "policy (ms)": found["policy"],
        "buffer (ms)": found["buffer"],
        "update (ms)": found["update"],
        "start, warm cache (s)": ready_s,
    }


def add_round(rounds: dict[str, list[float]], times: dict[str, float], update_ms: float) -> None:
    """Add the times of one rollout, ms per control step; the update is whole."""

    def stage(*names: str) -> float:
        return sum(times.get(f"stage/{name}_ms", 0.0) for name in names) / STEPS

    for name, value in (
        ("step", times["iteration_ms"] / STEPS),
        ("host", stage("kernel", "reset", "other")),
        ("physics", stage("physics")),
        ("policy", stage("policy")),
        ("buffer", stage("buffer")),
        ("update", update_ms),
    ):
        rounds.setdefault(name, []).append(value)


if __name__ == "__main__":
    main()
