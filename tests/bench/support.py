"""Small real pieces for the benchmark's tests: a task, and a recording of a few of its steps."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from tests.runtime.support import built_task, plan
from unilab.bench.recording import Recording, record
from unilab.runners.build import compile_kernels, make_learner, make_pipeline
from unilab.tasks.base import BuiltTask

# Pushes and commands fall due within a few steps.
BUSY = (
    "events.push.min_s=0.05",
    "events.push.max_s=0.2",
    "commands.velocity.resample_min_s=0.05",
    "commands.velocity.resample_max_s=0.2",
)
NUM_ENVS = 160  # two whole blocks and a half


@cache
def busy_g1() -> BuiltTask:
    """g1_walk in which much happens in few steps."""
    return built_task("g1_walk", *BUSY)


@cache
def recording() -> Recording:
    """A few real steps of g1_walk; episodes end in them."""
    built = busy_g1()
    pipeline = make_pipeline(built, plan(), seed=1, num_envs=NUM_ENVS)
    compile_kernels(pipeline)
    learner = make_learner(built, built.config, torch.device("cpu"), 1)
    found = record(pipeline, learner, NUM_ENVS, 4)
    pipeline.close()
    assert np.isfinite(found.state).all()
    return found
