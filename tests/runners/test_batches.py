"""From the envs to a batch: what an off-policy learner gets is what really happened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.runners.test_off_policy import NUM_ENVS, make_run, ticks
from tests.runtime.support import plan
from unilab.runners.build import make_pipeline

STEPS, GAMMA = 39, 0.9


def test_batches_are_made_of_what_the_envs_gave_also_where_time_ran_out(tmp_path: Path) -> None:
    """The envs are run again with the stored actions, by themselves: the same seed, the same bits.

    At a time-out the next observation is the true last one and its value counts; where the pole
    fell nothing does.
    """
    words = ("warmup_steps=40", "n_steps=1", f"gamma={GAMMA}")
    run = make_run(tmp_path, *(f"learners.sac.{word}" for word in words))
    ticks(run, STEPS)
    run.pipeline.close()
    stored = run.replay.state_dict()["rows"]
    actions = stored[: STEPS * NUM_ENVS, -1:].numpy().reshape(STEPS, NUM_ENVS, 1)

    pipeline = make_pipeline(run.pipeline.built, plan(), seed=3, num_envs=NUM_ENVS)
    pipeline.reset()
    obs, truth = pipeline.observe(0)[0].copy(), {}
    for t in range(STEPS):
        pipeline.submit(0, actions[t])
        step = pipeline.finish(0)
        ended = (step.terminated | step.truncated).astype(bool)
        following = np.where(ended[:, None], step.final_obs, step.obs)
        for env in range(NUM_ENVS):
            happened = (actions[t, env, 0], step.reward[env], following[env])
            ends = bool(step.terminated[env]), bool(step.truncated[env])
            truth[obs[env].tobytes()] = (*(np.copy(x) for x in happened), *ends)
        obs = step.obs.copy()
    pipeline.close()

    generator, seen = torch.Generator().manual_seed(5), {"terminated": 0, "truncated": 0}
    for _ in range(20):
        batch = run.replay.sample(128, generator)
        assert (batch.weight == 1).all()
        for i in range(128):
            action, reward, following, terminated, truncated = truth[batch.obs[i].numpy().tobytes()]
            assert batch.action[i, 0] == float(action)
            assert batch.reward[i] == float(reward)
            assert batch.discount[i] == (0.0 if terminated else np.float32(GAMMA))
            if not terminated:
                assert np.array_equal(batch.next_obs[i].numpy(), following)
            seen["terminated"] += terminated
            seen["truncated"] += truncated and not terminated
    assert min(seen.values()) > 5, seen
