"""The process that measures: it builds the real task once, and runs bursts of it on request.

Reads one JSON request a line from stdin, writes one JSON answer a line to the stream that stdout
was at the start; whatever else is printed goes to stderr. Started by `probe`::

    python -m unilab.tune.worker CONFIG.yaml BURST_SECONDS
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import IO, TYPE_CHECKING, Any

from unilab.config import RunConfig, load_resolved
from unilab.errors import ConfigError
from unilab.runtime.threads import ThreadPlan, available_cpus, make_plan, prepare_environment

if TYPE_CHECKING:
    from unilab.buffers.rollout import Rollout
    from unilab.runtime.pipeline import Pipeline

SEED = 1
MOST_PIPELINES, MOST_SIZES = 3, 2  # kept ready at a time
WARM_UP_S = 2.0  # envs leave their first states
MOST_BURST_S = 2.0  # of collecting, where one iteration takes longer than a burst should
LEAST_STEPS = 4  # control steps of a burst: with fewer, the overlap's ends would weigh too much


def main() -> int:
    """Answer requests until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks ends this one
    config = load_resolved(Path(sys.argv[1])).config
    # Room for every candidate: Numba cannot have more threads than it was loaded with.
    every_cpu = config.runtime.model_copy(update={"threads_per_shard": available_cpus()})
    prepare_environment(every_cpu)
    bench: Bench | None = None
    try:
        bench = Bench(config, float(sys.argv[2]))
        answer = bench.describe()
    except Exception as error:  # noqa: BLE001  the process's edge: the other side raises it
        answer = _problem(error)
    _send(answers, answer)
    if bench is None:
        return 1
    for line in sys.stdin:
        try:
            answer = bench.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001  likewise
            answer = _problem(error)
        _send(answers, answer)
    return 0


def _problem(error: Exception) -> dict[str, Any]:
    if isinstance(error, ConfigError):
        return {"config": str(error)}
    traceback.print_exception(error)
    return {"error": f"{type(error).__name__}: {error}"}


def _send(stream: IO[str], answer: dict[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


@dataclass
class _Size:
    """What belongs to one number of envs."""

    num_envs: int
    snapshot: dict[str, Any]
    rollout: Rollout
    update_rollout: Rollout | None = None


class Bench:
    """The real task, ready to be run with any plan.

    Args:
      config: the run's config.
      burst_s: about how long one measurement takes, s.
    """

    def __init__(self, config: RunConfig, burst_s: float) -> None:
        import torch

        from unilab.runners.backends import choose_device
        from unilab.runners.build import make_on_policy_learner
        from unilab.tasks.base import build_task

        self.config, self.burst_s = config, burst_s
        self.device = choose_device(config.device)
        self.built = build_task(config)
        torch.set_num_threads(available_cpus())
        self.learner = make_on_policy_learner(self.built, config, self.device, SEED)
        # One optimiser step on a minibatch of the real size stands for all steps of an update.
        ppo = config.learners.ppo.model_copy(update={"epochs": 1, "minibatches": 1})
        learners = config.learners.model_copy(update={"ppo": ppo})
        one_step = config.model_copy(update={"learners": learners})
        self.updating = make_on_policy_learner(self.built, one_step, self.device, SEED)
        self._pipelines: OrderedDict[tuple[ThreadPlan, int], Pipeline] = OrderedDict()
        self._sizes: OrderedDict[int, _Size] = OrderedDict()
        self._updated = (0, 0)  # threads and envs of the last update
        self._size(config.physics.num_envs)

    def describe(self) -> dict[str, Any]:
        """Return what a search has to know of this process."""
        from unilab.runtime.threading_layer import start_layer

        layer: str | None = None
        if self.config.runtime.threading_layer != "workqueue":
            try:
                layer = start_layer(self.config.runtime.threading_layer, available_cpus())
            except ConfigError:
                layer = None
        return {"device": self.device.type, "layer": layer}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks for."""
        if request["measure"] == "collect":
            return self.collect(ThreadPlan(**request["plan"]), request["num_envs"])
        return self.update(request["threads"], request["num_envs"])

    def collect(self, plan: ThreadPlan, num_envs: int) -> dict[str, Any]:
        """Run a burst of collecting from the kept state of the envs.

        Returns:
          "seconds" per iteration, and "stages": exposed ms per control step by name.
        """
        import torch

        from unilab.runners.on_policy import collect, set_first

        size = self._size(num_envs)
        pipeline, rollout = self._pipeline(plan, num_envs), size.rollout
        pipeline.load_state_dict(size.snapshot)
        set_first(pipeline, rollout)
        torch.set_num_threads(plan.acting)  # as in training
        self.learner.act(torch.from_numpy(pipeline.observe(0)[0]).to(self.device))
        steps, begin = 0, perf_counter()
        pipeline.timers.take()
        while steps == 0 or perf_counter() - begin < self.burst_s:
            collect(pipeline, self.learner.act, rollout)
            rollout.carry_over()
            steps += rollout.num_steps
        took = perf_counter() - begin
        stages = {
            name.removeprefix("stage/").removesuffix("_ms"): value / steps
            for name, value in pipeline.timers.take().items()
            if name.startswith("stage/")
        }
        return {"seconds": took / steps * self.config.learners.ppo.num_steps, "stages": stages}

    def update(self, threads: int, num_envs: int) -> dict[str, Any]:
        """Run a burst of the learner's updates; returns "seconds" per iteration."""
        import torch

        size, ppo = self._size(num_envs), self.config.learners.ppo
        rollout = self._update_rollout(size)
        rows = rollout.num_steps * num_envs
        torch.set_num_threads(threads)
        if (threads, num_envs) != self._updated:  # starts torch's threads, and makes room
            self.updating.update(rollout)
            self._updated = (threads, num_envs)
        count, begin = 0, perf_counter()
        while count == 0 or perf_counter() - begin < self.burst_s:
            self.updating.update(rollout)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            count += 1
        took = (perf_counter() - begin) / count
        return {"seconds": took * ppo.epochs * ppo.num_steps * num_envs / rows}

    # -- what is kept ready ---------------------------------------------------------------------

    def _pipeline(self, plan: ThreadPlan, num_envs: int) -> Pipeline:
        from unilab.runners.build import compile_kernels, make_pipeline

        key = (plan, num_envs)
        if key not in self._pipelines:
            while len(self._pipelines) >= MOST_PIPELINES:
                self._pipelines.popitem(last=False)[1].close()
            pipeline = make_pipeline(self.built, plan, seed=SEED, num_envs=num_envs)
            compile_kernels(pipeline)
            self._pipelines[key] = pipeline
        self._pipelines.move_to_end(key)
        return self._pipelines[key]

    def _size(self, num_envs: int) -> _Size:
        """Return what belongs to a number of envs: states as they are amid training."""
        if num_envs not in self._sizes:
            while len(self._sizes) >= MOST_SIZES:
                self._drop(next(iter(self._sizes)))
            self._sizes[num_envs] = self._make_size(num_envs)
        self._sizes.move_to_end(num_envs)
        return self._sizes[num_envs]

    def _drop(self, num_envs: int) -> None:
        del self._sizes[num_envs]
        for key in [key for key in self._pipelines if key[1] == num_envs]:
            self._pipelines.pop(key).close()

    def _make_size(self, num_envs: int) -> _Size:
        from unilab.config.schema import RuntimeConfig
        from unilab.runners.build import check_memory
        from unilab.runners.on_policy import collect, set_first

        physics = self.config.physics.model_copy(update={"num_envs": num_envs})
        check_memory(
            replace(self.built, config=self.config.model_copy(update={"physics": physics}))
        )
        pipeline = self._pipeline(make_plan(RuntimeConfig(), num_envs), num_envs)
        pipeline.reset()
        first = self._rollout(1, num_envs)
        set_first(pipeline, first)
        begin, steps = perf_counter(), 0
        num_steps = self.config.learners.ppo.num_steps
        while steps == 0 or (steps < num_steps and perf_counter() - begin < WARM_UP_S):
            collect(pipeline, self.learner.act, first)
            first.carry_over()
            steps += 1
        step_s = (perf_counter() - begin) / steps
        fits = max(LEAST_STEPS, int(MOST_BURST_S / step_s))
        snapshot = pipeline.state_dict()
        return _Size(num_envs, snapshot, self._rollout(min(num_steps, fits), num_envs))

    def _update_rollout(self, size: _Size) -> Rollout:
        """Return a rollout of the size of a minibatch, collected by the real task."""
        from unilab.config.schema import RuntimeConfig
        from unilab.runners.on_policy import collect, set_first

        if size.update_rollout is None:
            ppo = self.config.learners.ppo
            steps = max(1, round(ppo.num_steps / ppo.minibatches))
            size.update_rollout = self._rollout(steps, size.num_envs)
            plan = make_plan(RuntimeConfig(), size.num_envs)
            pipeline = self._pipeline(plan, size.num_envs)
            pipeline.load_state_dict(size.snapshot)
            set_first(pipeline, size.update_rollout)
            collect(pipeline, self.learner.act, size.update_rollout)
        return size.update_rollout

    def _rollout(self, num_steps: int, num_envs: int) -> Rollout:
        from unilab.buffers.rollout import Rollout

        kernel = self.built.kernel
        return Rollout(
            num_steps,
            num_envs,
            kernel.num_obs,
            kernel.num_critic_obs,
            len(self.built.model.ctrl_offset),
            self.device,
        )


if __name__ == "__main__":
    sys.exit(main())
