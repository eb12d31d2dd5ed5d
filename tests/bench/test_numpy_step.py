"""The NumPy baseline gives what the kernel gives, whatever happens to the envs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.bench.support import BUSY
from tests.runtime.support import built_task, plan, waves
from unilab.bench.draws import KernelDraws
from unilab.bench.numpy_step import BATCH, NoTwinError, with_numpy
from unilab.config import load_config
from unilab.runners.build import make_pipeline
from unilab.runtime.pipeline import Pipeline
from unilab.tasks.base import build_task
from unilab_kernels.arrays import ARRAYS, seed_key
from unilab_kernels.spec import BAD_ACTION, BAD_TERM, DIVERGED

SEED = 3
OUTPUTS = [name for name in ARRAYS if name.endswith(("_io", "_out")) and name != "scratch_io"]


@contextmanager
def twins(task: str, num_envs: int, *overrides: str, part: int = 64) -> Iterator[Any]:
    """A pipeline with the kernel and one with NumPy that draws the same numbers."""
    built = built_task(task, *overrides)
    numpy = with_numpy(built, KernelDraws(seed_key(SEED)), part)
    pair = [make_pipeline(b, plan(), seed=SEED, num_envs=num_envs) for b in (built, numpy)]
    for pipeline in pair:
        pipeline.reset(random_start=True)
    yield pair
    for pipeline in pair:
        pipeline.close()


def assert_equal(kernel: Pipeline, numpy: Pipeline, context: str = "") -> None:
    for name in OUTPUTS:
        a, b = kernel.arrays[name], numpy.arrays[name]
        np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5, err_msg=f"{context} {name}")


def align(kernel: Pipeline, numpy: Pipeline) -> None:
    """Give both the same past, so that roundings do not add up."""
    numpy.load_state_dict(kernel.state_dict())
    for name in OUTPUTS:
        numpy.arrays[name][:] = kernel.arrays[name]


@pytest.mark.parametrize(
    ("task", "overrides"), [("g1_walk", BUSY), ("go1_walk", BUSY), ("cartpole", ())]
)
def test_whole_steps_are_equal_with_ends_pushes_and_new_commands(task, overrides):
    with twins(task, 160, *overrides) as (kernel, numpy):
        assert_equal(kernel, numpy, "first reset")
        done = pushed = 0
        for step in range(30):
            action = waves(step, kernel.groups[0], kernel.num_actions, 1.5)
            align(kernel, numpy)
            kernel.submit(0, action)
            numpy.submit(0, action)
            # The kernel may fuse offset + scale * action, so ctrl differs in its last bit.
            for name in ("state", "sensors", "rows"):
                theirs = getattr(kernel.physics, name)
                np.testing.assert_allclose(getattr(numpy.physics, name), theirs, atol=1e-6)
                getattr(numpy.physics, name)[:] = theirs
            done += len(kernel.finish(0).done_ids)
            numpy.finish(0)
            pushed += int(kernel.arrays["pushed_out"].sum())
            assert_equal(kernel, numpy, f"step {step}")
        assert done > 5
        assert pushed > 50 or task == "cartpole"


def test_failed_envs_are_equal():
    with twins("g1_walk", 160) as (kernel, numpy):
        action = waves(0, kernel.groups[0], kernel.num_actions)
        action[3, 5] = np.nan
        action[140] = 1e30  # finite: clipped, and no failure, though its square is not finite
        align(kernel, numpy)
        for pipeline in (kernel, numpy):
            pipeline.submit(0, action)
            physics: Any = pipeline.physics
            physics.state[7, -1, 2] = np.nan
            physics.state[70, -1, 40] = 2e6
            physics.sensors[71, -1, 1] = 1e39
            physics.failures[130] = 2
            ordered = tuple(pipeline.arrays[name] for name in ARRAYS)
            failures = pipeline.arrays["failure_io"]
            np.maximum(failures, physics.failures, out=failures)
            pipeline.built.kernel.load().step_serial(0, 3, 160, *ordered)
        failed = {i: int(r) for i, r in enumerate(kernel.arrays["failure_io"]) if r}
        assert failed == {3: BAD_ACTION, 7: DIVERGED, 70: DIVERGED, 71: DIVERGED, 130: 2}
        assert_equal(kernel, numpy)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_term_that_is_not_finite_is_found_in_the_same_envs():
    with twins("g1_walk", 100) as (kernel, numpy):
        for pipeline in (kernel, numpy):
            pipeline.submit(0, np.zeros((100, pipeline.num_actions), np.float32))
            pipeline.field("command")[[5, 90], 1] = np.inf
            pipeline.field("command_timer")[:] = 5.0
            ordered = tuple(pipeline.arrays[name] for name in ARRAYS)
            pipeline.built.kernel.load().step_serial(0, 2, 100, *ordered)
        assert np.flatnonzero(kernel.arrays["failure_io"] == BAD_TERM).tolist() == [5, 90]
        assert_equal(kernel, numpy)


def test_random_inputs_are_equal():
    draw = np.random.default_rng(0)
    with twins("g1_walk", 200, *BUSY) as (kernel, numpy):
        state, fields = kernel.physics.state, kernel.arrays["fields_io"]
        quat = draw.normal(size=(200, 2, 4))
        state[:, :, 1:] += draw.normal(0.0, 0.5, state[:, :, 1:].shape)
        state[:, :, 4:8] = quat / np.linalg.norm(quat, axis=-1, keepdims=True)
        kernel.physics.sensors[:] = draw.normal(0.0, 0.5, kernel.physics.sensors.shape)
        fields[:] = draw.normal(0.0, 0.5, fields.shape)
        kernel.field("gait_phase")[:] = draw.uniform(0.0, 1.0, (200, 1))
        kernel.field("gait_phase")[:4, 0] = (0.0, 0.5, 0.49, 0.99)
        kernel.field("command")[:20] = 0.0
        kernel.field("fixed_command")[:] = 0.0
        kernel.field("fixed_command")[100:110] = (1.0, 0.3, -0.2, 0.1)
        kernel.arrays["step_io"][:] = draw.integers(0, 1000, 200)
        kernel.arrays["step_io"][50] = 999
        align(kernel, numpy)
        numpy.physics.state[:], numpy.physics.sensors[:] = state, kernel.physics.sensors
        for pipeline in (kernel, numpy):
            ordered = tuple(pipeline.arrays[name] for name in ARRAYS)
            pipeline.built.kernel.load().step_serial(0, 4, 200, *ordered)
        assert kernel.arrays["terminated_out"].any()
        assert_equal(kernel, numpy)


def test_parts_and_shards_change_nothing_that_is_not_drawn():
    built = built_task("g1_walk")
    results = []
    for part, shards in ((64, 1), (64, 3), (BATCH, 1)):
        pipeline = make_pipeline(
            with_numpy(built, part=part), plan(shards=shards), seed=SEED, num_envs=300
        )
        pipeline.shards.min_blocks = 1
        reference = make_pipeline(built, plan(), seed=SEED, num_envs=300)
        reference.reset(random_start=False)
        pipeline.load_state_dict(reference.state_dict())
        pipeline.submit(0, waves(0, slice(0, 300), pipeline.num_actions))
        pipeline.finish(0)
        results.append([pipeline.arrays[n].copy() for n in ("critic_obs_out", "reward_out")])
        pipeline.close()
        reference.close()
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_task_with_a_term_of_its_own_has_no_baseline(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from unilab.tasks.cartpole import TASK\n"
        "from unilab_kernels.terms import reward\n\n"
        "@reward\ndef my_own(cart_pos):\n    return cart_pos\n"
    )
    config = load_config("cartpole").config
    observed = "\n".join(f"    {n}: {{}}" for n in config.observations.actor)
    (tmp_path / "mine.yaml").write_text(
        f"observations:\n  actor:\n{observed}\n  critic:\n{observed}\n"
        "rewards:\n  my_own: {weight: 1.0}\n"
    )
    built = build_task(load_config(str(tmp_path / "mine.py")).config)
    with pytest.raises(NoTwinError, match="the reward term 'my_own' has no NumPy form"):
        with_numpy(built)


def test_delays_and_biases_have_no_numpy_form():
    built = built_task("cartpole", "randomization.action_delay.substeps=[0, 2]")
    with pytest.raises(NoTwinError, match=r"randomization\.action_delay has no NumPy form"):
        with_numpy(built)
