"""What keeping transitions costs: a rollout, and the replay buffer of an off-policy learner.

A rollout is kept on the CUDA device as it grows, or in host memory, and moved at once. With a CUDA
device: the device buffer (each step's rows go over as they come) beside a host buffer that is moved
when it is full, from pageable and from pinned memory. Everywhere: what an append to a host buffer
costs by its layout, since that is what there is to choose without a device.

A replay buffer has packed rows, or every field by itself; with a CUDA device it is there, or in
host memory from where each batch is moved, pinned or not, with the learner behind it or without.
All in turns, three fresh processes.

    python benchmark/benchmark_gpu_buffer.py g1_walk --num-envs 8192
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import replay_layouts
from common import RESULTS, fresh_processes, machine, show, spread, write_result

from unilab.bench.choices import NO_CUDA
from unilab.bench.results import result_stem

ROWS = {
    "rollout": "Rollout.append, host: one array a field, time first",
    "env_first": "host: one array a field, env first",
    "packed": "host: one packed row an env and step",
    "device": "Rollout.append, device: each step as it comes",
    "pageable": "host buffer, then moved: pageable",
    "pinned": "host buffer, then moved: pinned",
}
NO_LEARNER = "not run: no learner"


def main() -> None:
    """Measure, print the table, write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", nargs="?", default="g1_walk")
    parser.add_argument("--num-envs", type=int, default=8192)
    parser.add_argument("--num-steps", type=int, default=24)
    parser.add_argument("--passes", type=int, default=10, help="rollouts of each kind")
    parser.add_argument("--batch", type=int, default=8192, help="rows drawn from a replay buffer")
    parser.add_argument("--draws", type=int, default=40, help="batches of each kind")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments)))
        return
    head = machine()
    results = fresh_processes(__file__, sys.argv[1:])
    table = {name: spread([r["ms"][name] for r in results]) for name in results[0]["ms"]}
    moved = results[0]["bytes_per_step"]
    print(f"{arguments.task}, {arguments.num_envs:,} envs, {arguments.num_steps} steps, "
          f"{moved / 1e6:.1f} MB a step")  # fmt: skip
    print(f"{'':54s}{'ms per control step':>26s}{'GB/s':>8s}")
    for name, title in ROWS.items():
        if name not in table:
            print(f"{title:54s}  {NO_CUDA}")
            continue
        rate = moved / table[name]["median"] * 1e-6
        print(f"{title:54s}{show(table[name]):>26s}{rate:8.1f}")
    replay = summarize_replay(results)
    print_replay(replay, arguments.batch)
    content = {
        "ms_per_step": table,
        "absent": {name: NO_CUDA for name in ROWS if name not in table},
        "bytes_per_step": moved,
        "num_envs": arguments.num_envs,
        "num_steps": arguments.num_steps,
        "replay": {**replay, "batch": arguments.batch, "steps_of_an_env": replay_layouts.CAPACITY},
    }
    name = result_stem("buffer", arguments.task, head["id"])
    print(f"written: {write_result(name, head, content, arguments.output)}")


def summarize_replay(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the processes' figures together; a ratio is of one process, so of one minute."""
    times = [result["replay_ms"] for result in results]
    sizes = results[0]["replay_bytes"]
    return {
        "ms": {name: spread([t[name] for t in times]) for name in times[0]},
        "absent": {
            name: NO_LEARNER if name.endswith("_learner") and "pinned" in times[0] else NO_CUDA
            for name in replay_layouts.ROWS
            if name not in times[0]
        },
        "speedup": {
            f"{name} over {base}": spread([t[base] / t[name] for t in times])
            for base, names in (
                ("fields", ("fp32", "bf16", "fp32_n3", "bf16_n3")),
                ("fields_given", ("fp32", "bf16", "fp32_n3", "bf16_n3")),
                ("fields_table", ("fp32_table", "bf16_table")),
            )
            for name in names
        },
        "bytes_per_transition": sizes,
        "bytes_share": {name: size / sizes["fields"] for name, size in sizes.items()},
        "h2d_bytes_per_update": results[0]["h2d_bytes"],
    }


def print_replay(replay: dict[str, Any], batch: int) -> None:
    """Print the rows of the replay buffer."""
    print(f"\n{f'replay, {batch:,} transitions drawn':54s}{'ms':>26s}")
    for name, title in replay_layouts.ROWS.items():
        shown = replay["absent"].get(name) or show(replay["ms"][name])
        print(f"{title:54s}{shown:>26s}")
    for name, ratio in replay["speedup"].items():
        print(f"{name:54s}{show(ratio, 2):>26s} x")
    for name, size in replay["bytes_per_transition"].items():
        share = replay["bytes_share"][name]
        print(f"{f'bytes a transition: {name}':54s}{size:>18.1f} {share:.3f} x")
    for name, size in replay["h2d_bytes_per_update"].items():
        print(f"{f'bytes to the device, one update a step: {name}':54s}{size:>18,d}")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """One process: fill rollouts of every kind in turns with rows as the kernel leaves them."""
    from unilab.config import load_config
    from unilab.runtime.threads import available_cpus, prepare_environment

    config = load_config(arguments.task, []).config
    prepare_environment(config.runtime)
    import torch

    from unilab.tasks.base import build_task

    torch.set_num_threads(available_cpus())
    built = build_task(config)
    source = Source(built.kernel.num_obs, built.kernel.num_critic_obs, int(built.robot.model.nu),
                    arguments.num_envs)  # fmt: skip
    # First: once a process has freed large blocks, its allocator keeps memory back, and what is
    # allocated for each batch costs fewer page faults.
    replay = replay_layouts.measure(source, arguments.batch, arguments.draws, config)
    fills = make_fills(source, arguments.num_steps)
    times: dict[str, list[float]] = {name: [] for name in fills}
    for fill in fills.values():  # first touch
        fill()
    for _ in range(arguments.passes):
        for name, fill in fills.items():
            begin = perf_counter()
            fill()
            times[name].append(1e3 * (perf_counter() - begin) / arguments.num_steps)
    return {
        "ms": {name: median(values) for name, values in times.items()},
        "bytes_per_step": source.num_bytes,
        **replay,
    }


class Source:
    """The rows of one control step as kernel and policy leave them; 1 in 200 runs out of time.

    Args:
      obs, critic_obs, actions: O, C, A.
      num_envs: N.

    Attributes:
      step: a `Transitions`, arrays in host memory.
      output: an `ActOutput` in host memory.
      fields: all that a rollout keeps of it, arrays.
    """

    def __init__(self, obs: int, critic_obs: int, actions: int, num_envs: int) -> None:
        import numpy as np
        import torch

        from unilab.learners.base import ActOutput
        from unilab.runtime.pipeline import Transitions

        draw = np.random.default_rng(0)

        def rows(*shape: int) -> Any:
            return draw.standard_normal((num_envs, *shape), dtype=np.float32)

        self.sizes, self.num_envs = (obs, critic_obs, actions), num_envs
        nobody = np.zeros(0, np.int32)
        self.step = Transitions(
            start=0, stop=num_envs, action=rows(actions), reward=rows(),
            terminated=np.zeros(num_envs, np.uint8),
            truncated=(draw.random(num_envs) < 0.005).astype(np.uint8),
            obs=rows(obs), critic_obs=rows(critic_obs), final_obs=rows(obs),
            final_critic_obs=rows(critic_obs), done_ids=nobody, bad_action_ids=nobody,
        )  # fmt: skip
        action, mean, log_prob = rows(actions), rows(actions), rows()
        self.output = ActOutput(*(torch.from_numpy(part) for part in (action, mean, log_prob)))
        step = self.step
        self.fields = (action, mean, log_prob, step.reward, step.terminated, step.truncated,
                       step.obs, step.critic_obs)  # fmt: skip
        self.num_bytes = sum(field.nbytes for field in self.fields)


def make_fills(source: Source, num_steps: int) -> dict[str, Callable[[], None]]:
    """Return what fills a rollout of each kind that can run here."""
    import torch

    fills = {
        "rollout": _into_rollout(source, num_steps, torch.device("cpu")),
        "env_first": _into_env_first(source, num_steps),
        "packed": _into_packed(source, num_steps),
    }
    if torch.cuda.is_available():
        device = torch.device("cuda")
        fills["device"] = _into_rollout(source, num_steps, device)
        fills["pageable"] = _moved_at_the_end(source, num_steps, device, pin=False)
        fills["pinned"] = _moved_at_the_end(source, num_steps, device, pin=True)
    return fills


def _into_rollout(source: Source, num_steps: int, device: Any) -> Callable[[], None]:
    import torch

    from unilab.buffers.rollout import Rollout
    from unilab.learners.base import ActOutput
    from unilab.runners.on_policy import append

    rollout = Rollout(num_steps, source.num_envs, *source.sizes, device)
    # As in training: what the policy gave is on the device already.
    output = ActOutput(*(part.to(device) for part in source.output))

    def fill() -> None:
        for t in range(num_steps):
            append(rollout, t, output, source.step)
        rollout.carry_over()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return fill


def _into_env_first(source: Source, num_steps: int) -> Callable[[], None]:
    import numpy as np

    pairs = [
        (np.zeros((source.num_envs, num_steps, *field.shape[1:]), field.dtype), field)
        for field in source.fields
    ]

    def fill() -> None:
        for t in range(num_steps):
            for array, field in pairs:
                array[:, t] = field

    return fill


def _into_packed(source: Source, num_steps: int) -> Callable[[], None]:
    import numpy as np

    fields = [field.reshape(source.num_envs, -1) for field in source.fields]
    stops = np.cumsum([field.shape[1] for field in fields]).tolist()
    packed = np.zeros((num_steps, source.num_envs, stops[-1]), np.float32)
    columns = [slice(s - f.shape[1], s) for s, f in zip(stops, fields, strict=True)]

    def fill() -> None:
        for t in range(num_steps):
            for part, field in zip(columns, fields, strict=True):
                packed[t, :, part] = field

    return fill


def _moved_at_the_end(
    source: Source, num_steps: int, device: Any, *, pin: bool
) -> Callable[[], None]:
    import torch

    from unilab.buffers.rollout import Rollout
    from unilab.runners.on_policy import append

    fields = ("obs", "critic_obs", "action", "mean", "log_prob", "reward", "terminated",
              "truncated")  # fmt: skip
    rollout = Rollout(num_steps, source.num_envs, *source.sizes, torch.device("cpu"))
    targets = {name: torch.empty_like(getattr(rollout, name), device=device) for name in fields}
    staging = {name: getattr(rollout, name).pin_memory() for name in fields} if pin else {}

    def fill() -> None:
        for t in range(num_steps):
            append(rollout, t, source.output, source.step)
        rollout.carry_over()
        for name, target in targets.items():
            if pin:
                staging[name].copy_(getattr(rollout, name))
                target.copy_(staging[name], non_blocking=True)
            else:
                target.copy_(getattr(rollout, name))
        torch.cuda.synchronize()

    return fill


if __name__ == "__main__":
    main()
