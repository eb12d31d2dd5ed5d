"""What bare physics of a task costs: `mujoco.rollout` on its model, and nothing else of unilab.

Two tables. First, single thread: the model as the task configures it beside variants of its solver,
its time step and, for g1_walk, its feet; all take one control step from the same recorded states,
in turns. Second, the rate for numbers of threads and envs. Three fresh processes are run.

    python benchmark/benchmark_physics.py g1_walk

States are of a robot that stands, one that moves (random targets; with --run, its policy acts),
and one that has fallen. `err` is the 99th percentile of |dqvel| after one control step, against a
solver that runs to the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import fresh_processes, machine, spread, write_result

STATES = 64  # in each bank
SIDES = ("left", "right")


def main() -> None:
    """Measure, print the tables, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="go1_walk")
    parser.add_argument("--run", default=None, help="run whose policy moves the robot")
    parser.add_argument("--log-dir", default="runs")
    parser.add_argument("--threads", default="1,2", help="sizes of the thread pool")
    parser.add_argument("--envs", default="128,512,2048", help="numbers of envs")
    parser.add_argument("--rounds", type=int, default=20, help="timed calls of each variant")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    if arguments.child:
        print(json.dumps(measure(arguments)))
        return
    header = machine()
    results = fresh_processes(__file__, [w for w in sys.argv[1:] if w != "--child"])
    variants = merge([r["variants"] for r in results])
    rates = merge([r["rates"] for r in results])
    print(f"{arguments.task}: {results[0]['step']}; one thread, us per physics step (min-max)")
    banks = results[0]["banks"]
    print(f"{'':34s}" + "".join(f"{bank:>46s}" for bank in banks))
    for name, row in variants.items():
        cells = [
            f"{v['us']['median']:8.1f} ({v['us']['min']:.1f}-{v['us']['max']:.1f}) "
            f"nefc {v['nefc']['median']:4.1f} err {v['error']['median']:.0e}"
            for v in row.values()
        ]
        print(f"{name:34s}" + "".join(f"{cell:>46s}" for cell in cells))
    print("rate of one control step, moving states")
    for name, row in rates.items():
        each = row["env_steps_per_s"]
        low, high = each["min"], each["max"]
        print(f"{name:34s}{each['median']:10,.0f} env-steps/s ({low:,.0f}-{high:,.0f})")
    path = write_result(
        f"physics_{arguments.task}",
        header,
        {"variants": variants, "rates": rates, "banks": banks, "step": results[0]["step"]},
    )
    print(f"written: {path}")


def merge(results: list[Any]) -> Any:
    """Join equal trees of numbers into one of their spreads."""
    if isinstance(results[0], dict):
        return {key: merge([r[key] for r in results]) for key in results[0]}
    return spread(results)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: all variants in turns on the same states, then threads and envs."""
    import mujoco

    from unilab.config import load_config
    from unilab.runtime.threads import prepare_environment

    config = load_config(arguments.task, arguments.overrides).config
    prepare_environment(config.runtime)
    from unilab.tasks.base import build_task

    mujoco.set_mju_user_warning(lambda _message: None)
    built = build_task(config)
    banks = record_states(built, arguments)
    models = make_variants(built, arguments.task)
    rates = {}
    for threads in map(int, arguments.threads.split(",")):
        for num_envs in map(int, arguments.envs.split(",")):
            name = f"{threads} threads, {num_envs} envs"
            rates[name] = rate(built.robot.model, banks["moving"], built, threads, num_envs)
    return {
        "step": f"{config.physics.substeps} substeps of {config.physics.timestep_s:g} s",
        "banks": list(banks),
        "variants": compare(models, banks, built.control_dt, arguments.rounds),
        "rates": rates,
    }


# -- states ---------------------------------------------------------------------------------------


def record_states(built: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return name of the bank -> (rows (STATES, nstate), ctrl (STATES, A)), f64."""
    import numpy as np

    whole = compile_task(built, built.robot.path, all_geoms=True)
    rest = np.array(built.model.ctrl_offset)
    banks = {
        "standing": drive(built.robot.model, rest, 0.02, 0.3, built.control_dt),
        "moving": drive(built.robot.model, rest, 0.3, 0.5, built.control_dt),
        "fallen": drive(whole, rest, 0.3, 4.0, built.control_dt),
    }
    if arguments.run is not None:
        banks["moving"] = follow_policy(built, arguments)
    return banks


def drive(model: Any, rest: Any, noise: float, seconds: float, control_dt: float) -> Any:
    """Move robots by random targets around `rest` (A,), for up to `seconds` each."""
    import mujoco
    import numpy as np

    draw = np.random.default_rng(0)
    data = mujoco.MjData(model)
    spec = int(mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    rows = np.zeros((STATES, mujoco.mj_stateSize(model, spec)))
    ctrl = np.zeros((STATES, model.nu))
    home = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_KEY, "home")
    for i in range(STATES):
        mujoco.mj_resetDataKeyframe(model, data, home)
        data.time = 1.0
        length = seconds * (0.5 + 0.5 * (i + 1) / STATES)
        for _ in range(round(length / control_dt)):
            data.ctrl[:] = ctrl[i] = rest + draw.uniform(-noise, noise, model.nu)
            for _ in range(round(control_dt / model.opt.timestep)):
                mujoco.mj_step(model, data)
        mujoco.mj_getState(model, data, rows[i], spec)
    return rows, ctrl


def follow_policy(built: Any, arguments: argparse.Namespace) -> Any:
    """Return states and controls of envs that the policy of a run has driven for two seconds."""
    import torch

    from unilab.runners import checkpoint as checkpoints
    from unilab.runners.build import make_learner, make_pipeline
    from unilab.runs import find_checkpoint, resolve_run
    from unilab.runtime.threads import make_plan

    plan = make_plan(built.config.runtime, STATES)
    pipeline = make_pipeline(built, plan, seed=1, num_envs=STATES)
    learner = make_learner(built, built.config, torch.device("cpu"), 1)
    run = resolve_run(arguments.run, arguments.log_dir, arguments.task)
    learner.load_state_dict(checkpoints.load(find_checkpoint(run)).learner)
    pipeline.reset()
    for _ in range(round(2.0 / built.control_dt)):
        for group in range(len(pipeline.groups)):
            obs = torch.from_numpy(pipeline.observe(group)[0])
            pipeline.submit(group, learner.act(obs, explore=False).action.numpy())
            pipeline.finish(group)
    rows, ctrl = pipeline.physics.rows.copy(), pipeline.arrays["ctrl_out"][:, 0].copy()
    pipeline.close()
    return rows, ctrl


# -- variants -------------------------------------------------------------------------------------


def compile_task(built: Any, path: Path, *, all_geoms: bool = False, **options: Any) -> Any:
    """Compile a file the way the task does; `options` are set on the compiled model."""
    from unilab.physics.model import compile_robot

    robot = compile_robot(
        path,
        sensors=built.task.sensors,
        timestep_s=options.pop("timestep", built.config.physics.timestep_s),
        collision_geoms=None if all_geoms else built.task.collision_geoms,
        contact=built.task.contact,
    )
    for name, value in options.items():
        setattr(robot.model.opt, name, value)
    return robot.model


def make_variants(built: Any, task: str) -> dict[str, Any]:
    """Return name -> compiled model. The first is the task's own."""
    import mujoco

    path, step = built.robot.path, built.control_dt
    cone, jacobian, solver = mujoco.mjtCone, mujoco.mjtJacobian, mujoco.mjtSolver
    models = {"as configured": built.robot.model}
    for count in (2, 4, 5):
        if count != built.config.physics.substeps:
            name = f"{count} substeps of {step / count:g} s"
            models[name] = compile_task(built, path, timestep=step / count)
    for name, options in (
        ("elliptic cone", {"cone": cone.mjCONE_ELLIPTIC}),
        ("elliptic cone, impratio 10", {"cone": cone.mjCONE_ELLIPTIC, "impratio": 10.0}),
        ("dense Jacobian", {"jacobian": jacobian.mjJAC_DENSE}),
        ("sparse Jacobian", {"jacobian": jacobian.mjJAC_SPARSE}),
        ("5 iterations", {"iterations": 5, "ls_iterations": 10}),
        ("solver PGS", {"solver": solver.mjSOL_PGS}),
    ):
        models[name] = compile_task(built, path, **options)
    models["all geoms collide"] = compile_task(built, path, all_geoms=True)
    if task == "g1_walk":
        for name, build in FEET.items():
            models[f"foot: {name}"] = with_feet(built, build)
    return models


def with_feet(built: Any, build: Callable[[Any, str], None]) -> Any:
    """Return the task's model with other feet."""
    import mujoco

    spec = mujoco.MjSpec.from_file(str(built.robot.path))
    for side in SIDES:
        spec.delete(spec.geom(f"{side}_foot_collision"))
        build(spec, side)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "variant.xml"
        spec.compile()
        path.write_text(spec.to_xml())
        return compile_task(built, path)


def add_foot_geoms(spec: Any, side: str, kind: str, geoms: list[dict[str, Any]]) -> None:
    """Add colliding geoms to a foot; the first has the name that the task's sensor looks for."""
    import mujoco

    for k, geom in enumerate(geoms):
        spec.body(f"{side}_ankle_roll_link").add_geom(
            name=f"{side}_foot_collision" if k == 0 else f"{side}_{k}_foot_collision",
            type=getattr(mujoco.mjtGeom, f"mjGEOM_{kind}"),
            mass=0,
            condim=3,
            friction=[0.6, 0.005, 0.0001],
            priority=1,
            **geom,
        )


def seven_capsules(spec: Any, side: str) -> None:
    """The published foot: the capsules that the file has for the eye."""
    soles = [spec.geom(f"{side}_foot{k}") for k in range(1, 8)]
    geoms = [{"size": [0.01, 0, 0], "fromto": list(sole.fromto)} for sole in soles]
    add_foot_geoms(spec, side, "CAPSULE", geoms)


def two_boxes(spec: Any, side: str) -> None:
    """Heel and toe."""
    geoms = [{"size": [0.045, 0.03, 0.008], "pos": [x, 0, -0.027]} for x in (-0.005, 0.085)]
    add_foot_geoms(spec, side, "BOX", geoms)


def two_capsules(spec: Any, side: str) -> None:
    """One along each edge."""
    geoms = [
        {"size": [0.008, 0, 0], "fromto": [-0.042, y, -0.027, 0.122, y, -0.027]}
        for y in (-0.022, 0.022)
    ]
    add_foot_geoms(spec, side, "CAPSULE", geoms)


def spheres(corners: tuple[tuple[float, float], ...]) -> Callable[[Any, str], None]:
    """Small spheres at places of the sole."""

    def build(spec: Any, side: str) -> None:
        geoms = [{"size": [0.008, 0, 0], "pos": [x, y, -0.027]} for x, y in corners]
        add_foot_geoms(spec, side, "SPHERE", geoms)

    return build


FEET: dict[str, Callable[[Any, str], None]] = {
    "7 capsules (published)": seven_capsules,
    "2 boxes": two_boxes,
    "2 capsules": two_capsules,
    "4 spheres": spheres(((-0.042, -0.022), (-0.042, 0.022), (0.122, -0.022), (0.122, 0.022))),
    "3 spheres": spheres(((-0.042, 0.0), (0.122, -0.022), (0.122, 0.022))),
}


# -- timing ---------------------------------------------------------------------------------------


def compare(
    models: dict[str, Any], banks: dict[str, Any], control_dt: float, rounds: int
) -> dict[str, Any]:
    """Time a control step of every variant from every bank, in turns: the least of many calls."""
    import numpy as np
    from mujoco import rollout

    calls = {}
    with rollout.Rollout(nthread=0) as roll:
        for name, model in models.items():
            for bank, (rows, ctrl) in banks.items():
                calls[name, bank] = make_call(roll, model, rows, ctrl, control_dt, threads=1)
        least = dict.fromkeys(calls, np.inf)
        for _ in range(rounds):
            for key, call in calls.items():
                begin = perf_counter()
                call()
                least[key] = min(least[key], perf_counter() - begin)
    table: dict[str, Any] = {}
    for name, model in models.items():
        steps = STATES * round(control_dt / model.opt.timestep)
        table[name] = {
            bank: {
                "us": least[name, bank] / steps * 1e6,
                "nefc": count_rows(model, banks[bank][0]),
                "error": solver_error(model, banks[bank], control_dt),
            }
            for bank in banks
        }
    return table


def make_call(
    roll: Any, model: Any, rows: Any, ctrl: Any, control_dt: float, *, threads: int
) -> Callable[[], Any]:
    """Return a call that steps all rows by one control step and gives the states (N, T, nstate)."""
    import mujoco
    import numpy as np

    substeps = round(control_dt / model.opt.timestep)
    data = [mujoco.MjData(model) for _ in range(threads)]
    targets = np.repeat(ctrl[:, None], substeps, axis=1)
    state = np.zeros((len(rows), substeps, rows.shape[1]))
    sensors = np.zeros((len(rows), substeps, model.nsensordata))
    pool = [model] * len(rows)

    def call() -> Any:
        roll.rollout(
            pool, data, rows, targets, skip_checks=True, nstep=substeps, state=state,
            sensordata=sensors,
        )  # fmt: skip
        return state

    return call


def count_rows(model: Any, rows: Any) -> float:
    """Return the mean number of constraint rows in the states given."""
    import mujoco

    data, counts = mujoco.MjData(model), []
    for row in rows:
        mujoco.mj_setState(model, data, row, int(mujoco.mjtState.mjSTATE_FULLPHYSICS.value))
        mujoco.mj_forward(model, data)
        counts.append(data.nefc)
    return sum(counts) / len(counts)


def solver_error(model: Any, bank: Any, control_dt: float) -> float:
    """Return the 99th percentile of |dqvel| after a control step, rad/s, m/s."""
    import copy

    import numpy as np
    from mujoco import rollout

    exact = copy.copy(model)
    exact.opt.iterations, exact.opt.ls_iterations, exact.opt.tolerance = 200, 100, 1e-14
    exact.opt.solver = 2  # Newton
    ends = []
    with rollout.Rollout(nthread=0) as roll:
        for variant in (model, exact):
            call = make_call(roll, variant, *bank, control_dt, threads=1)
            ends.append(call()[:, -1, 1 + model.nq : 1 + model.nq + model.nv].copy())
    return float(np.quantile(np.abs(ends[0] - ends[1]), 0.99))


def rate(model: Any, bank: Any, built: Any, threads: int, num_envs: int) -> dict[str, float]:
    """Return env steps a second: the best of several calls."""
    import numpy as np
    from mujoco import rollout

    rows, ctrl = (np.resize(array, (num_envs, array.shape[1])) for array in bank)
    least = np.inf
    with rollout.Rollout(nthread=threads if threads > 1 else 0) as roll:
        call = make_call(roll, model, rows, ctrl, built.control_dt, threads=threads)
        for _ in range(max(3, 4096 // num_envs)):
            begin = perf_counter()
            call()
            least = min(least, perf_counter() - begin)
    return {"env_steps_per_s": num_envs / least}


if __name__ == "__main__":
    main()
