"""A failure is an event of one env: ended, counted with its reason, reset; others go on as if."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.runtime.support import built_task, running, step_all
from unilab.errors import PhysicsError
from unilab.runtime.pipeline import Transitions
from unilab.tasks.base import ASSETS, BuiltTask
from unilab_kernels.spec import BAD_TERM


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> BuiltTask:
    """A cart-pole whose motor blows the state up at an action of 1 (gear 1e9, ctrl 1e6)."""
    spec = mujoco.MjSpec.from_file(str(ASSETS / "cartpole.xml"))
    spec.actuators[0].gear[0] = 1e9
    spec.actuators[0].ctrlrange = [-1e6, 1e6]
    path = tmp_path_factory.mktemp("wild") / "cartpole.xml"
    path.write_text(spec.to_xml())
    return built_task("cartpole", f"physics.model={path}")


def run(built: BuiltTask, steps: int, action: NDArray[np.float32]) -> list[dict[str, Any]]:
    """Step 4 envs from the same start; return copies of what each step gave."""
    with running(built, 4) as pipeline:
        result = []
        for _ in range(steps):
            (step,) = step_all(pipeline, action)
            result.append({k: np.copy(v) for k, v in vars(step).items()} | pipeline.take_log())
        return result


def assert_finite(step: Transitions) -> None:
    for name, value in vars(step).items():
        assert name == "action" or np.isfinite(value).all(), name  # the action comes as given


def test_an_unstable_env_is_terminated_and_the_others_do_not_notice(
    wild: BuiltTask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    quiet = run(wild, 5, np.zeros((4, 1), np.float32))
    loud = run(wild, 5, np.array([[0], [0], [1], [0]], np.float32))
    others = [0, 1, 3]
    for one, other in zip(loud, quiet, strict=True):
        assert one["terminated"].tolist() == [0, 0, 1, 0]
        assert not one["truncated"].any()
        assert one["reward"][2] == 0.0
        assert one["failure/unstable"] == 1
        assert "failure/unstable" not in other
        for name in ("obs", "critic_obs", "reward", "action"):
            np.testing.assert_array_equal(one[name][others], other[name][others])
            assert np.isfinite(one[name]).all()
    assert not (tmp_path / "MUJOCO_LOG.TXT").exists()
    assert capfd.readouterr() == ("", "")


def test_statistics_leave_a_failed_row_out(wild: BuiltTask) -> None:
    log = run(wild, 1, np.array([[0], [0], [1], [0]], np.float32))[0]
    assert log["episode/ended"] == 0
    assert "episode/return" not in log


def test_the_final_obs_of_a_failed_env_is_its_last_finite_one(wild: BuiltTask) -> None:
    with running(wild, 4) as pipeline:
        before = pipeline.observe(0)[0].copy()
        (step,) = step_all(pipeline, np.array([[0], [0], [1], [0]], np.float32))
        np.testing.assert_array_equal(step.final_obs[2], before[2])
        assert (step.obs[2] != before[2]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_action_ends_its_env_only(bad: float) -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        action = np.zeros((4, 1), np.float32)
        action[1] = bad
        (step,) = step_all(pipeline, action)
        assert step.done_ids.tolist() == [1]
        assert step.bad_action_ids.tolist() == [1]
        assert step.terminated.tolist() == [0, 1, 0, 0]
        np.testing.assert_array_equal(step.action, action)
        assert_finite(step)
        assert pipeline.take_log()["failure/bad_action"] == 1
        (step,) = step_all(pipeline, np.zeros((4, 1), np.float32))
        assert len(step.bad_action_ids) == 0


def test_a_state_beyond_the_limit_counts_as_diverged() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        ids = np.array([3], np.int32)
        pipeline.physics.write_state(ids, np.zeros((1, 2)), np.array([[2e6, 0.0]]))
        (step,) = step_all(pipeline, np.zeros((4, 1), np.float32))
        assert step.terminated.tolist() == [0, 0, 0, 1]
        assert pipeline.take_log()["failure/diverged"] == 1
        assert_finite(step)


def test_a_run_survives_a_state_that_is_poisoned_again_and_again() -> None:
    with running(built_task("cartpole"), 4) as pipeline:
        for t in range(500):
            if t % 50 == 49:
                poison = np.full((1, 2), np.nan)
                pipeline.physics.write_state(np.array([2], np.int32), poison, np.zeros((1, 2)))
            (step,) = step_all(pipeline, np.zeros((4, 1), np.float32))
            assert_finite(step)
            if t % 50 == 49:
                assert step.terminated[2] == 1
                assert step.truncated[2] == 0
                assert step.reward[2] == 0.0
        assert pipeline.take_log()["failure/unstable"] == 10


def test_a_term_that_is_not_finite_for_a_finite_state_stops_the_run_and_is_named() -> None:
    with running(
        built_task("cartpole", "observations.actor.cart_state.scale=3.0e38"), 4
    ) as pipeline:
        ids = np.array([1], np.int32)
        pipeline.physics.write_state(ids, np.array([[0.0, 0.0]]), np.array([[1000.0, 0.0]]))
        with pytest.raises(
            PhysicsError, match=r"observations\.actor\.cart_state.*envs 1"
        ) as caught:
            step_all(pipeline, np.zeros((4, 1), np.float32))
        assert caught.value.env_ids == (1,)
        assert pipeline.arrays["failure_io"][1] == BAD_TERM
