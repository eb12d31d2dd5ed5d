"""Which config keys to change, for each verdict: to be faster, and to load the machine less."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from unilab.config import RunConfig
from unilab.config.base import Section
from unilab.monitor.run_state import Plan


@dataclass(frozen=True)
class Hint:
    """A change to try.

    Attributes:
      keys: config keys, as on the command line.
      text: what to do with them, and why.
      useful: whether there is anything to gain, for a run and its config.
    """

    keys: tuple[str, ...]
    text: str
    useful: Callable[[Plan, RunConfig], bool] = lambda _plan, _config: True


_THREADS = ("runtime.threads", "runtime.shards", "runtime.threads_per_shard",
            "runtime.learner_threads")  # fmt: skip
_NETS = ("learners.ppo.actor_hidden", "learners.ppo.critic_hidden")
_HIDE = Hint(
    ("runtime.overlap", "runtime.groups"),
    "overlap=true with groups=2 runs it while physics of the other group goes on; pays from about "
    "four cores on",
    lambda plan, _: not plan.overlap and plan.cpus > 2,
)
_LARGER_BATCH = Hint(("physics.num_envs",), "more envs a step: a call then costs less for each")
_LESS_OFTEN = Hint(("log.every", "checkpoint.every"), "write more rarely")

FASTER: Mapping[str, tuple[Hint, ...]] = {
    "physics": (
        Hint(
            ("physics.substeps", "physics.timestep_s"),
            "fewer, longer substeps, as far as the robot stays stable: the time goes with their "
            "number",
            lambda _, config: config.physics.substeps > 1,
        ),
        Hint(("physics.model",), "a model with fewer contacts and simpler geoms"),
        Hint(
            ("runtime.threads",),
            "as many threads as CPUs; `unilab tune` finds the number",
            lambda plan, _: plan.physics < plan.cpus,
        ),
    ),
    "kernel": (
        Hint(
            ("rewards", "observations"),
            "take out or simplify what costs most; `unilab explain TASK --kernel` shows the code",
        ),
        Hint(
            ("runtime.shards", "runtime.threads_per_shard"),
            "more threads for the kernel",
            lambda plan, _: plan.kernel < plan.cpus,
        ),
        _HIDE,
    ),
    "policy": (
        Hint(("learners.ppo.actor_hidden",), "a smaller policy network"),
        _LARGER_BATCH,
        Hint(("runtime.groups",), "fewer groups: larger batches", lambda plan, _: plan.groups > 1),
        _HIDE,
    ),
    "buffer": (
        Hint(
            ("device",),
            "device=cpu keeps the rollout where the envs are",
            lambda _, config: config.device != "cpu",
        ),
        _LARGER_BATCH,
    ),
    "transfer": (
        Hint(("device",), "device=cpu needs no copies; worth it for small networks"),
        Hint(("runtime.overlap", "runtime.groups"), "more groups hide copies behind physics"),
    ),
    "learner": (
        Hint(
            ("learners.ppo.epochs",),
            "fewer passes over a rollout",
            lambda _, config: config.learners.ppo.epochs > 1,
        ),
        Hint(_NETS, "smaller networks"),
        Hint(
            ("learners.ppo.minibatches",),
            "fewer and larger minibatches",
            lambda _, config: config.learners.ppo.minibatches > 1,
        ),
        Hint(
            ("runtime.learner_threads",),
            "as many threads as CPUs",
            lambda plan, _: plan.learner < plan.cpus,
        ),
        Hint(
            ("learners.ppo.symmetry",),
            "none halves the samples",
            lambda _, config: config.learners.ppo.symmetry != "none",
        ),
        Hint(
            ("device",),
            "device=cuda where there is a GPU",
            lambda _, config: not config.device.startswith("cuda"),
        ),
    ),
    "bookkeeping": (
        _LESS_OFTEN,
        Hint(
            ("log.tensorboard",),
            "false leaves its files out",
            lambda _, config: config.log.tensorboard,
        ),
    ),
    "other": (_LESS_OFTEN,),
    "oversubscribed threads": (
        Hint(_THREADS, "auto, or numbers whose sum fits the CPUs; `unilab tune` finds them"),
        Hint(
            ("runtime.allow_oversubscription",),
            "false refuses a plan with more threads than CPUs",
            lambda _, config: config.runtime.allow_oversubscription,
        ),
    ),
    "other load": (
        Hint(
            ("runtime.threads", "runtime.learner_threads"),
            "no more than the cores that are free; or end what else runs: no key makes up for it",
        ),
    ),
}

LIGHTER: tuple[Hint, ...] = (
    Hint(("runtime.threads", "runtime.learner_threads"), "fewer threads leave cores to others"),
    Hint(("physics.num_envs",), "fewer envs take less memory, and shorter bursts of every core"),
)


def hints(
    bound_by: str | None, stage: str | None, plan: Plan | None, config: RunConfig | None
) -> tuple[Hint, ...]:
    """Return what to change to be faster, for a verdict and the stage that costs most.

    Hints that cannot help are left out; all come where the run's plan or config is not known.
    """
    names = dict.fromkeys(name for name in (bound_by, stage) if name is not None)
    found = [hint for name in names for hint in FASTER.get(name, ())]
    if plan is None or config is None:
        return tuple(found)
    return tuple(hint for hint in found if hint.useful(plan, config))


def describe(hint: Hint, config: RunConfig | None) -> str:
    """Return a hint as a line, with what its keys are now."""
    keys = ", ".join(_with_value(key, config) for key in hint.keys)
    return f"{keys}: {hint.text}"


def _with_value(key: str, config: RunConfig | None) -> str:
    if config is None:
        return key
    value: Any = reduce(getattr, key.split("."), config)
    if isinstance(value, dict | Section):
        return f"{key}.*"
    shown = list(value) if isinstance(value, tuple) else value
    return f"{key} (now {'null' if shown is None else shown})"
