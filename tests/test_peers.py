"""The peers' benchmark: peers get our task, and what cannot run is listed with the reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

BENCHMARK = Path(__file__).resolve().parent.parent / "benchmark"


@pytest.fixture(scope="module")
def peers() -> Any:
    """The benchmark as a module, with its folders on the path as it has them itself."""
    import importlib

    before = list(sys.path)
    sys.path.insert(0, str(BENCHMARK))
    module = importlib.import_module("benchmark_peers")
    yield module
    sys.path[:] = before


@pytest.fixture(scope="module")
def bundle(peers: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The exported task, without the noise that a peer's draws cannot repeat."""
    from export import write_bundle

    return write_bundle("g1_walk", [], tmp_path_factory.mktemp("bundle"))


def test_terms_in_numpy_give_the_observations_and_rewards_of_the_kernel(bundle: Any) -> None:
    from g1_terms import G1Terms

    model = mujoco.MjModel.from_binary_path(str(bundle.folder / "model.mjb"))
    with np.load(bundle.folder / "check.npz") as file:
        ours = {name: file[name] for name in file.files}
    steps, envs = ours["reward"].shape
    for i in range(envs):
        terms, data = G1Terms(bundle, np.random.default_rng(0)), mujoco.MjData(model)
        terms.noise, terms.resamples = dict.fromkeys(terms.noise, 0.0), False
        terms.start(model.nv)
        terms.command, terms.phase = ours["command"], float(ours["phase"][i])
        data.qpos[:], data.qvel[:] = ours["qpos"][i], ours["qvel"][i]
        for t in range(steps):
            data.ctrl[:] = terms.to_ctrl(ours["actions"][t, i])
            mujoco.mj_step(model, data, nstep=bundle.substeps)
            terms.read(data.qpos, data.qvel, data.sensordata)
            assert terms.reward() == pytest.approx(ours["reward"][t, i], abs=1e-4)
            assert not terms.terminated()
            terms.update_commands()
            both = np.concatenate([ours["obs"][t, i], ours["critic_obs"][t, i]])
            np.testing.assert_allclose(terms.observe(), both, atol=1e-3)


def test_every_reward_of_weight_is_exported_and_the_model_is_the_task_s(bundle: Any) -> None:
    assert len(bundle.rewards) == 15
    exact = mujoco.MjModel.from_binary_path(str(bundle.folder / "model.mjb"))
    written = mujoco.MjModel.from_xml_path(str(bundle.folder / "model.xml"))
    for name in ("nq", "nv", "nu", "ngeom", "nsensordata"):
        assert getattr(written, name) == getattr(exact, name)
    np.testing.assert_allclose(written.body_mass, exact.body_mass, rtol=1e-6)
    assert written.opt.timestep == exact.opt.timestep


def test_a_peer_that_is_not_installed_is_listed_with_the_way_to_get_it(peers: Any) -> None:
    ours = peers.Contender("ours", "", "8 envs", ["a.py"], results=[{"steps_per_s": 200.0}])
    peer = peers.Contender("theirs", "mjlab", "8 envs", ["b.py"])
    peers.find_interpreter(peer, [("python", {"gymnasium": "1.4.0"})])
    peer.run()  # does nothing
    rows = peers.summarise([ours, peer])
    assert "not run: mjlab is not installed (pip install mjlab" in peers.to_markdown(rows)
    assert peers.verdict(rows) == "no peer ran"


def test_a_peer_that_fails_is_listed_with_its_last_words(peers: Any, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("raise ValueError('this model is too large')")
    peer = peers.Contender("theirs", "gymnasium", "8 envs", [str(script)])
    peer.run()
    assert peer.not_run == "exit code 1: ValueError: this model is too large"


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "ahead"),
    [
        ("steps_per_s", [300.0, 200.0, 250.0], [100.0, 100.0, 100.0], 2.5),
        ("total_ms", [10.0, 20.0, 10.0], [30.0, 20.0, 20.0], 2.0),
    ],
)
def test_ratios_are_taken_within_a_round_and_above_one_means_ahead(
    peers: Any, metric: str, ours: list[float], theirs: list[float], ahead: float
) -> None:
    first = peers.Contender("ours", "", "g", ["a.py"], results=[{metric: v} for v in ours])
    other = peers.Contender(
        "theirs", "gymnasium", "g", ["b.py"], results=[{metric: v} for v in theirs]
    )
    rows = peers.summarise([first, other])
    assert rows[1]["ours_ahead_by"]["median"] == ahead
    assert peers.verdict(rows) == "ours is ahead in each of 1 comparisons"
    assert "behind: ours (g)" in peers.verdict(peers.summarise([other, first]))


def test_a_missing_interpreter_ends_with_exit_code_two_and_its_path() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARK / "benchmark_peers.py"), "--peer-python", "no/python"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "--peer-python no/python: no such program" in done.stderr
