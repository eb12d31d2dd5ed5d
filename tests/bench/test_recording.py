"""Recorded inputs are those of a running task, and the host step can be run on them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench.support import NUM_ENVS, busy_g1, recording
from tests.runtime.support import plan
from unilab.bench import recording as module
from unilab.bench.agreement import compare
from unilab.bench.numpy_derived import TWINS
from unilab.bench.numpy_step import with_numpy
from unilab.bench.recording import Recording, record
from unilab.bench.replay import HostStep, ReplayPhysics
from unilab.errors import UnilabError
from unilab.runners.build import compile_kernels, make_learner, make_pipeline


def test_a_recording_has_ends_of_episodes_pushes_and_new_commands():
    found, built = recording(), busy_g1()
    assert found.action.shape == (4, NUM_ENVS, 29)
    assert found.done_per_step > 0
    host = HostStep(built, ReplayPhysics(found, built), plan())
    commands = host.pipeline.field("command").copy()
    pushed = done = 0
    for _ in range(found.num_steps):
        host.step()
        pushed += int(host.pipeline.arrays["pushed_out"].sum())
        done += int((host.pipeline.arrays["terminated_out"]).sum())
    assert pushed > 0
    assert done > 0
    assert (host.pipeline.field("command") != commands).any(axis=1).mean() > 0.2
    host.close()


def test_replaying_gives_the_same_results_each_time():
    found, built = recording(), busy_g1()
    host = HostStep(built, ReplayPhysics(found, built), plan())
    results = []
    for _ in range(2):
        times = host.run()
        assert len(times) == found.num_steps
        assert min(times) > 0
        results.append({n: a.copy() for n, a in host.pipeline.arrays.items() if n != "scratch_io"})
    for name in results[0]:
        np.testing.assert_array_equal(results[0][name], results[1][name], err_msg=name)
    host.close()


def test_a_large_batch_is_made_of_stretches_of_a_smaller_one(monkeypatch, tmp_path):
    import torch

    monkeypatch.setattr(module, "MOST_ENVS", 64)
    monkeypatch.setattr(module, "WARM_UP_STEPS", 1)
    built = busy_g1()
    pipeline = make_pipeline(built, plan(), seed=1, num_envs=module.recorded_envs(150))
    compile_kernels(pipeline)
    found = record(pipeline, make_learner(built, built.config, torch.device("cpu"), 1), 150, 2)
    pipeline.close()
    assert found.num_envs == 150
    # Env 64 + i goes on where env i, the same robot, was two steps before.
    ages = found.start["arrays"]["step_io"]
    went_on = ages[64:128] == ages[:64] + 2
    assert went_on.mean() > 0.5
    assert found.start["arrays"]["log_io"].shape[0] == 3
    assert found.start["physics"]["rows"].shape[0] == 150
    found.save(tmp_path / "recording.pkl")
    again = Recording.load(tmp_path / "recording.pkl")
    np.testing.assert_array_equal(again.state, found.state)
    host = HostStep(built, ReplayPhysics(again, built), plan())
    assert len(host.run()) == 2
    host.close()


def test_numpy_and_kernel_agree_on_recorded_steps():
    agreement = compare(busy_g1(), recording(), plan(), steps=4)
    assert agreement.steps == 4
    assert agreement.stray_envs == 0
    assert agreement.largest_difference < 1e-4
    assert agreement.done > 0
    assert agreement.pushed > 0
    assert {"obs", "reward", "final_critic_obs", "fields", "log"} <= set(agreement.arrays)


def test_a_baseline_that_differs_is_refused_with_the_place(monkeypatch):
    right = TWINS["reward", "pose"]

    def wrong(chunk, out):
        right(chunk, out)
        out += 1.0

    monkeypatch.setitem(TWINS, ("reward", "pose"), wrong)
    with pytest.raises(UnilabError, match=r"differ in .* envs:[\s\S]*reward_out: env"):
        compare(busy_g1(), recording(), plan())


def test_the_host_step_of_the_baseline_runs_on_shards():
    found, built = recording(), busy_g1()
    host = HostStep(with_numpy(built), ReplayPhysics(found, built), plan(shards=2))
    host.pipeline.shards.min_blocks = 1
    assert len(host.run()) == found.num_steps
    assert np.isfinite(host.pipeline.arrays["obs_out"]).all()
    host.close()
