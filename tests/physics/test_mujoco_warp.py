"""mujoco-warp on Warp's CPU device against MuJoCo C, and what it says when something is wrong."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import mujoco_warp as warp_physics
import numpy as np
import pytest
import torch
import warp

from tests.physics.backends import begin, physics, task
from tests.runtime.support import running, waves
from unilab.config.randomization import RandomizationConfig
from unilab.config.schema import PhysicsConfig
from unilab.errors import ConfigError, PhysicsError
from unilab.physics.base import FROZEN
from unilab.physics.contact_sizes import ContactSizes, measure_contacts
from unilab.physics.model import compile_robot
from unilab.physics.mujoco_warp import MujocoWarp
from unilab.physics.mujoco_warp.overflow import read_overflow
from unilab.physics.randomize import make_variants
from unilab.physics.variants import Variants
from unilab.selfcheck import checks, parity
from unilab.selfcheck.checks import CHECKS
from unilab.selfcheck.parity import step
from unilab_kernels.jit import cache_dir

CPU = torch.device("cpu")


@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.parametrize("name", ["go1_walk", "g1_walk"])
def test_what_selfcheck_checks_holds_on_warps_cpu_device(name: str, check: str) -> None:
    """Among them: 20 control steps from 50 reset states and from 50 fallen ones as MuJoCo C."""
    found = CHECKS[check](task(name, "physics.backend=mujoco_warp", "device=cpu"), CPU)
    assert found.outcome != "failed", found.detail
    assert found.outcome == "passed" or "CUDA" in found.detail


@pytest.mark.parametrize("entry", [n for n in checks.RANDOMIZATION if not n.endswith("_variants")])
def test_envs_of_different_models_move_as_with_mujoco_c(
    entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "RANDOMIZATION", {entry: checks.RANDOMIZATION[entry]})
    found = checks.randomization(task("go1_walk"), CPU)
    # What a robot hardly feels in 20 steps moves it by less than the limit; it must not be lost.
    moved = float(found.detail.split("move a robot by ")[1].split(";")[0])
    assert found.figures["worst"] <= min(parity.RESET_LIMIT, 0.1 * moved), found.detail


def test_a_new_draw_changes_the_rows_of_its_envs_only() -> None:
    built = task("go1_walk")
    block = RandomizationConfig.model_validate(
        {"body_mass": {"scale": (0.5, 2.0), "mode": "reset"}}
    )
    variants = make_variants(built.robot.model, block, seed=1)
    assert variants is not None
    with physics("mujoco_warp", built, 4, variants=variants) as made:
        rows = made._worlds[0].variants._rows["body_mass"]  # type: ignore[attr-defined]
        before = rows.clone()
        made.set_variants(np.array([2], np.int32), np.array([7], np.int32))
        np.testing.assert_array_equal(rows[[0, 1, 3]], before[[0, 1, 3]])
        wanted = variants.models[7].body_mass
        np.testing.assert_allclose(rows[2].numpy(), wanted, rtol=1e-6)
        for _ in range(500):  # always from the table: nothing adds up
            made.set_variants(np.array([2, 3], np.int32), np.array([5, 6], np.int32))
            made.set_variants(np.array([2, 3], np.int32), np.array([7, 7], np.int32))
        np.testing.assert_allclose(rows[3].numpy(), wanted, rtol=1e-6)


def test_a_field_that_cannot_differ_is_refused_by_name() -> None:
    built = task("go1_walk")
    variants = Variants((built.robot.model,), ("eq_objtype",), {"body_com": ("eq_objtype",)}, 1)
    with (
        pytest.raises(ConfigError, match=r"mujoco_warp.*randomization\.body_com \(eq_objtype\)"),
        physics("mujoco_warp", built, 1, variants=variants),
    ):
        pass


def test_late_actions_reach_the_solver_steps_that_they_are_for() -> None:
    """The same transitions as on the CPU backend, with all that the kernels draw per env."""
    words = (
        "randomization.action_delay.substeps=[1,3]",
        "randomization.encoder_bias.add_rad=[0,0.1]",
    )
    found = {}
    for backend in ("mujoco_cpu", "mujoco_warp"):
        built = task("go1_walk", f"physics.backend={backend}", *words)
        with running(built, 64) as pipeline:
            for k in range(4):
                pipeline.submit(0, waves(k, slice(0, 64), 12))
                step = pipeline.finish(0)
            found[backend] = step.obs.copy(), pipeline.physics.ctrl.copy()
    obs, ctrl = zip(*found.values(), strict=True)
    np.testing.assert_array_equal(ctrl[0].astype(np.float32), ctrl[1])
    assert (np.ptp(ctrl[0], axis=1) > 0).any()  # it changes within a control step
    np.testing.assert_allclose(obs[0], obs[1], atol=2e-2)


def test_a_state_that_is_off_by_a_permille_is_told_apart() -> None:
    wanted = np.ones((3, 4))
    found = np.stack([wanted[0], 1.001 * wanted[0], np.full(4, np.nan)])
    np.testing.assert_allclose(parity.relative_errors(found, wanted), [0.0, 1e-3, np.inf])


def test_the_recorded_graph_gives_the_bits_of_the_kernels_one_by_one() -> None:
    built, ends = task("go1_walk"), []
    for graph in ("on", "off"):
        with physics("mujoco_warp", built, 3, cuda_graph=graph) as made:
            begin(made, np.tile(built.robot.default_qpos, (3, 1)), np.zeros((3, 18)))
            for _ in range(3):
                step(made, np.tile(built.model.ctrl_offset, (3, 1)))
            ends.append(made.state.copy())
            assert ("one graph launch" in made.describe()) == (graph == "on")
    np.testing.assert_array_equal(*ends)


# -- sizes and overflow -------------------------------------------------------------------------


def test_sizes_are_measured_with_head_room() -> None:
    found = parity.room(task("go1_walk"))
    assert 8 <= found.contacts <= 64
    assert 24 <= found.constraints <= 160
    pole = task("cartpole").robot
    assert measure_contacts(pole.model, pole.default_qpos).contacts == 0


def test_a_model_without_contacts_steps() -> None:
    built = task("cartpole")
    nq = built.robot.model.nq
    with physics("mujoco_warp", built, 2) as made:
        begin(made, np.tile(built.robot.default_qpos, (2, 1)), np.zeros((2, nq)))
        step(made, np.ones((2, 1)))
        assert np.isfinite(made.state).all()
        assert not made.failures.any()  # type: ignore[attr-defined]


def stand(made: Any, built: Any, *envs: int) -> None:
    """Let these envs stand on the ground, the others are in the air; step once."""
    qpos = np.tile(built.robot.default_qpos, (4, 1))
    qpos[[e for e in range(4) if e not in envs], 2] += 1.0
    begin(made, qpos, np.zeros((4, 18)))
    step(made, np.tile(built.model.ctrl_offset, (4, 1)))


def test_an_env_with_more_constraints_than_fit_is_named_with_the_key_to_raise() -> None:
    built = task("go1_walk")
    sizes = replace(parity.room(task("go1_walk")), constraints=4)
    with physics("mujoco_warp", built, 4, sizes=sizes) as made:
        stand(made, built, 2)
        assert made.failures.tolist() == [0, 0, FROZEN, 0]  # type: ignore[attr-defined]
        (notice,) = made.events(0)
        assert "env 2" in notice
        assert "NEFC" in notice
        assert "physics.constraints_per_env=4 (the worst env has " in notice
        assert "raise physics.constraints_per_env to" in notice
        step(made, np.tile(built.model.ctrl_offset, (4, 1)))
        assert made.failures[2] == FROZEN  # type: ignore[attr-defined]
        assert made.events(0) == ()  # said once


def test_a_full_pool_of_contacts_is_everybodys_and_names_its_key() -> None:
    built = task("go1_walk")
    with physics("mujoco_warp", built, 4, sizes=ContactSizes(1, 64)) as made:
        stand(made, built, 0, 1, 2, 3)
        assert not made.failures.any()  # type: ignore[attr-defined]
        (notice,) = made.events(0)
        assert "all 4 envs" in notice
        assert "physics.contacts_per_env" in notice


def test_overflow_can_stop_the_run() -> None:
    built, sizes = task("go1_walk"), replace(parity.room(task("go1_walk")), constraints=4)
    with (
        physics("mujoco_warp", built, 4, sizes=sizes, on_overflow="raise") as made,
        pytest.raises(PhysicsError, match=r"constraints_per_env.*\(envs 2\)"),
    ):
        stand(made, built, 2)


# -- bad input ----------------------------------------------------------------------------------


def test_a_feature_that_mujoco_warp_lacks_is_named_before_a_step(tmp_path: Path) -> None:
    file = tmp_path / "robot.xml"
    file.write_text(
        '<mujoco><option solver="PGS"/><worldbody><body><joint name="j"/><geom size="0.1"/></body>'
        '</worldbody><actuator><motor joint="j"/></actuator></mujoco>'
    )
    built = replace(task("cartpole"), robot=compile_robot(file))
    with (
        pytest.raises(ConfigError, match=r"PGS.*physics\.backend=mujoco_cpu"),
        physics("mujoco_warp", built, 1, sizes=ContactSizes(0, 8)),
    ):
        pass


def test_versions_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from unilab.physics.mujoco_warp import backend

    monkeypatch.setattr(mujoco, "__version__", "4.7.0")
    with pytest.raises(ConfigError, match=r"does not fit mujoco 4\.7\.0.*mujoco-warp==4\.7"):
        backend.check_versions()


def test_memory_is_estimated_from_the_arrays_of_a_world() -> None:
    from unilab.physics.mujoco_warp.memory import bytes_per_world

    model, few = task("go1_walk").robot.model, parity.room(task("go1_walk"))
    more = replace(few, constraints=2 * few.constraints)
    assert 10_000 < bytes_per_world(model, few) < bytes_per_world(model, more) < 2_000_000


def test_the_cpu_device_needs_no_gpu_runtime() -> None:
    with physics("mujoco_warp", task("cartpole"), 1) as made:
        assert made.device == "cpu"  # type: ignore[attr-defined]
        assert not torch.cuda.is_initialized()


def test_balls_rest_on_each_of_two_height_fields_that_are_not_the_first_geom() -> None:
    """PHY-11 of the field reports: heights were looked up by the wrong index on the GPU."""
    fields = "".join(
        f'<hfield name="{name}" nrow="{n}" ncol="{n}" size="1 1 {2 * height} 0.1"/>'
        for name, n, height in (("a", 5, 0.2), ("b", 9, 0.4))
    )
    model = mujoco.MjModel.from_xml_string(
        f"<mujoco><asset>{fields}</asset><worldbody><geom type='plane' size='9 9 .1' pos='0 0 -5'/>"
        "<geom type='hfield' hfield='a'/><geom type='hfield' hfield='b' pos='3 0 0'/>"
        "<body pos='0 0 .6'><freejoint/><geom size='.1'/></body>"
        "<body pos='3 0 1'><freejoint/><geom size='.1'/></body></worldbody></mujoco>"
    )
    model.hfield_data[:] = 0.5
    made = MujocoWarp(
        model, num_envs=1, groups=(slice(0, 1),), substeps=10, takes_max=np.zeros(0, bool),
        sizes=ContactSizes(32, 128), device=CPU, kernel_cache=cache_dir().parent / "warp",
    )  # fmt: skip
    try:
        begin(made, model.qpos0[None], np.zeros((1, model.nv)))
        for _ in range(100):
            made.wait(made.submit(0, made.ctrl))
        np.testing.assert_allclose(made.state[0, 0, [3, 10]], [0.3, 0.5], atol=1e-3)
        assert made.events(0) == ()
    finally:
        made.close()


def test_low_friction_is_said_since_the_solver_may_diverge() -> None:
    built = task("go1_walk")
    model = copy.copy(built.robot.model)
    model.geom_friction[:, 0] = 1e-3
    slippery = replace(built, robot=replace(built.robot, model=model))
    with physics("mujoco_warp", slippery, 1) as made:
        (notice,) = made.events(0)
        assert "friction" in notice
        assert "0.001" in notice


def refuse(*_args: Any, **_options: Any) -> None:
    raise RuntimeError("Warp CUDA error 900: operation not permitted when stream is capturing")


def test_a_refused_graph_is_said_and_the_step_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warp, "ScopedCapture", refuse)
    with physics("mujoco_warp", task("cartpole"), 1) as made:
        assert "no graph (Warp CUDA error 900" in made.describe()
        (notice,) = made.events(0)
        assert "several times slower" in notice
        step(made, np.zeros((1, 1)))
        assert np.isfinite(made.state).all()
    with (
        pytest.raises(ConfigError, match=r"cuda_graph=on: cpu refuses.*cuda_graph=auto"),
        physics("mujoco_warp", task("cartpole"), 1, cuda_graph="on"),
    ):
        pass


def test_too_little_memory_says_how_many_envs_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from unilab.physics.mujoco_warp.memory import bytes_per_world, check_device_memory

    built, device = task("go1_walk"), torch.device("cuda", 0)
    each = bytes_per_world(built.robot.model, parity.room(built))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (10 * each, 20 * each))
    check_device_memory(built.robot.model, parity.room(built), 10, device)
    with pytest.raises(ConfigError, match=r"num_envs=11: .*lower physics\.num_envs to 10 or less"):
        check_device_memory(built.robot.model, parity.room(built), 11, device)


@pytest.mark.parametrize("bit", [b for b in warp_physics.OverflowType if b.bit_count() == 1])
def test_what_an_overflow_says_can_be_set(bit: Any) -> None:
    """OVF-08 of the field reports: a key that is named is a key of the config."""
    room = ContactSizes(8, 16)
    found = read_overflow(np.array([0, int(bit)], np.int32), np.array([40, 99], np.int32), room, 64)
    if bit.name in ("ITERATIONS", "LS_ITERATIONS"):
        assert found is None  # a setting of the model, not a memory
        return
    assert found is not None
    assert bit.name in found.message
    for key in re.findall(r"physics\.(\w+)", found.message):
        assert key in PhysicsConfig.model_fields


def test_selfcheck_without_a_gpu_says_so_before_anything_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unilab.cli", "selfcheck", "--gpu"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "no such device" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_goes_on_with_its_own_backend_only(tmp_path: Path) -> None:
    train = [
        "train", "cartpole", "physics.backend=mujoco_warp", "device=cpu", "physics.num_envs=64",
        "learners.ppo.num_steps=4", "evaluation.at_end=false", "evaluation.video=false",
        "train.iterations=1", f"log.dir={tmp_path}",
    ]  # fmt: skip

    def unilab(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "unilab.cli", *words]
        return subprocess.run(command, capture_output=True, text=True)

    assert unilab(*train).returncode == 0
    resume = ["train", "--resume", "latest", "train.iterations=2", f"log.dir={tmp_path}"]
    other = unilab(*resume, "physics.backend=mujoco_cpu")
    assert other.returncode == 2
    assert "another physics backend" in other.stderr
    assert "physics.backend=mujoco_warp" in other.stderr
    assert "Traceback" not in other.stderr
    assert unilab(*resume).returncode == 0
