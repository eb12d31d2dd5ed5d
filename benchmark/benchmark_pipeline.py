"""What groups and overlap do to the collector of a task: ms per control step, stage by stage.

Each row is a real collector (physics, policy, kernel, buffer) with the threads that `auto` gives
such a plan; all begin at the same recorded states and take turns. Three fresh processes.

    python benchmark/benchmark_pipeline.py g1_walk --num-envs 2048
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import RESULTS, fresh_processes, machine, show, spread, write_result

from unilab.bench.results import result_stem

STEPS = 4  # control steps of a pass
STAGES = ("physics", "policy", "kernel", "reset", "buffer", "other")


def main() -> None:
    """Measure, print the tables, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="g1_walk")
    parser.add_argument("--num-envs", type=int, default=2048)
    parser.add_argument("--groups", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=20.0, help="per process")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    if arguments.child:
        print(json.dumps(measure(arguments)))
        return
    head = machine()
    results = fresh_processes(__file__, sys.argv[1:])
    rows = {}
    for name in results[0]["rows"]:
        found = [r["rows"][name] for r in results]
        rows[name] = {
            "env_steps_per_s": spread([f["env_steps_per_s"] for f in found]),
            "stages_ms": {
                stage: spread([f["stages_ms"].get(stage, 0.0) for f in found])
                for stage in (*STAGES, "step")
            },
        }
    print(f"{arguments.task}, {arguments.num_envs:,} envs: exposed ms per control step (medians)")
    print(f"{'':24s}{'step':>24s}" + "".join(f"{s:>9s}" for s in STAGES) + f"{'env-steps/s':>13s}")
    for name, row in rows.items():
        stages = row["stages_ms"]
        cells = "".join(f"{stages[s]['median']:9.2f}" for s in STAGES)
        rate = row["env_steps_per_s"]["median"]
        print(f"{name:24s}{show(stages['step'], 1):>24s}{cells}{rate:13,.0f}")
        print(f"  {results[0]['plans'][name]}")
    content = {"rows": rows, "plans": results[0]["plans"], "num_envs": arguments.num_envs}
    name = result_stem("pipeline", arguments.task, head["id"])
    print(f"written: {write_result(name, head, content, arguments.output)}")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: record states, then run all plans in turns."""
    from unilab.config import load_config
    from unilab.runtime.threads import available_cpus, prepare_environment

    config = load_config(arguments.task, arguments.overrides).config
    prepare_environment(config.runtime)
    from time import perf_counter

    import torch

    from unilab.bench.choices import STEP, Choice
    from unilab.bench.collector import Collector
    from unilab.bench.measure import median_pass
    from unilab.bench.recording import record, recorded_envs
    from unilab.runners.backends import choose_device
    from unilab.runners.build import compile_kernels, make_learner, make_pipeline
    from unilab.tasks.base import build_task

    built, count = build_task(config), arguments.num_envs
    few = recorded_envs(count)
    source = make_pipeline(built, Choice("", "").plan(few), seed=1, num_envs=few)
    compile_kernels(source)
    recording = record(source, make_learner(built, config, torch.device("cpu"), 1), count, STEPS)
    source.close()
    device = choose_device(config.device)
    learner = make_learner(built, config, device, 1)
    rows = {}
    for groups in map(int, arguments.groups.split(",")):
        for overlap in (False, True):
            if groups > -(-count // 64) or (overlap and (groups < 2 or available_cpus() < 2)):
                continue
            choice = Choice("", "", STEP, groups=groups, overlap=overlap)
            name = f"{groups} group(s), overlap {'on' if overlap else 'off'}"
            rows[name] = Collector(built, choice, learner, recording, STEPS)
    passes: dict[str, list[Any]] = {name: [] for name in rows}
    for row in rows.values():
        row.run()
    begin = perf_counter()
    while len(next(iter(passes.values()))) < 2 or perf_counter() - begin < arguments.seconds:
        for name, row in rows.items():
            passes[name].append(row.run())
    plans = {name: row.plan.describe() for name, row in rows.items()}
    for row in rows.values():
        row.close()
    return {"rows": {name: median_pass(found) for name, found in passes.items()}, "plans": plans}


if __name__ == "__main__":
    main()
