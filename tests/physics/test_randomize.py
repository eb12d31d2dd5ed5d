"""Variants of a model against models recompiled from an edited specification."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np
import pytest

from unilab.config.randomization import RandomizationConfig
from unilab.errors import ConfigError
from unilab.physics.model_fields import FIELDS
from unilab.physics.randomize import check_randomization, make_variants
from unilab.physics.variants import RUN, Variants, changed_fields, field_names, read_field
from unilab.tasks.base import ASSETS

SIGHT = {"stat.center", "stat.extent", "stat.meansize"}  # of the viewer; nothing computes with them
FEET = "*_foot_collision"


def go1_spec() -> Any:
    return mujoco.MjSpec.from_file(str(ASSETS / "go1.xml"))


@pytest.fixture(scope="module")
def go1() -> Any:
    return go1_spec().compile()


def config(**entries: Any) -> RandomizationConfig:
    return RandomizationConfig.model_validate(entries)


def variants(model: Any, *, seed: int = 3, rank: int = 0, **entries: Any) -> Variants:
    made = make_variants(model, config(**entries), seed=seed, rank=rank)
    assert made is not None
    return made


# -- recompiled from the specification ------------------------------------------------------------


def edit_bodies(spec: Any, old: Any, new: Any) -> None:
    """Give every body of a specification the mass, inertia and centre of a compiled model."""
    for i in range(1, old.nbody):
        if old.body_mass[i] > 0:
            body = spec.body(old.body(i).name)
            body.explicitinertial, body.fullinertia = True, [np.nan] * 6
            body.mass, body.inertia = new.body_mass[i], new.body_inertia[i]
            body.ipos, body.iquat = new.body_ipos[i], new.body_iquat[i]


def edit_geoms(spec: Any, old: Any, new: Any) -> None:
    for i in range(old.ngeom):
        if old.geom(i).name:
            spec.geom(old.geom(i).name).friction = new.geom_friction[i]


def edit_joints(spec: Any, old: Any, new: Any) -> None:
    for i in range(old.njnt):
        joint, dof = spec.joint(old.joint(i).name), old.jnt_dofadr[i]
        joint.armature, joint.frictionloss = new.dof_armature[dof], new.dof_frictionloss[dof]
        joint.damping = [new.dof_damping[dof], 0.0, 0.0]
        joint.actfrcrange = new.jnt_actfrcrange[i]


def edit_actuators(spec: Any, old: Any, new: Any) -> None:
    for i in range(old.nu):
        actuator = spec.actuator(old.actuator(i).name)
        actuator.gainprm = new.actuator_gainprm[i]
        actuator.biasprm = new.actuator_biasprm[i]
        actuator.forcerange = new.actuator_forcerange[i]


def edit_gravity(spec: Any, _old: Any, new: Any) -> None:
    spec.option.gravity = new.opt.gravity


CASES: dict[str, tuple[dict[str, Any], Callable[[Any, Any, Any], None], set[str]]] = {
    "body_mass": (
        {"scale": [0.5, 2.0], "add_kg": [0.0, 0.1]},
        edit_bodies,
        {"body_mass", "body_inertia", "body_subtreemass", "body_invweight0", "dof_invweight0",
         "dof_M0", "actuator_acc0", "stat.meaninertia"},
    ),
    "body_com": (
        {"add_x_m": [-0.05, 0.05], "add_z_m": [-0.02, 0.02]},
        edit_bodies,
        {"body_ipos", "body_invweight0", "dof_invweight0", "dof_M0"},
    ),
    "geom_friction": (
        {"geoms": [FEET], "slide": [0.3, 1.2], "spin_m": [0.001, 0.01], "scale": [0.9, 1.1]},
        edit_geoms,
        {"geom_friction"},
    ),
    "actuator_gains": (
        {"kp_scale": [0.8, 1.2], "kd_scale": [0.5, 2.0]},
        edit_actuators,
        {"actuator_gainprm", "actuator_biasprm"},
    ),
    "joint_armature": (
        {"scale": [0.5, 2.0], "add_kgm2": [0.0, 0.01]},
        edit_joints,
        {"dof_armature", "dof_M0", "dof_invweight0", "actuator_acc0", "stat.meaninertia"},
    ),
    "joint_friction": ({"add_nm": [0.0, 0.3]}, edit_joints, {"dof_frictionloss"}),
    "joint_damping": ({"add_nms": [0.0, 0.3]}, edit_joints, {"dof_damping"}),
    "gravity": ({"scale": [0.9, 1.1], "add_ms2": [-0.3, 0.3]}, edit_gravity, {"opt.gravity"}),
    "actuator_strength": ({"scale": [0.6, 1.1]}, edit_actuators, {"actuator_forcerange"}),
}  # fmt: skip


def test_every_field_has_a_case() -> None:
    assert set(CASES) == set(FIELDS)


@pytest.mark.parametrize("name", CASES)
def test_a_variant_is_the_model_recompiled_with_its_values(go1: Any, name: str) -> None:
    entry, edit, expected = CASES[name]
    table = variants(go1, startup_variants=3, **{name: entry})
    assert expected <= set(table.fields)
    assert set(table.entries[name]) == set(table.fields)
    for variant in table.models:
        spec = go1_spec()
        edit(spec, go1, variant)
        recompiled = spec.compile()
        assert changed_fields(go1, [variant]), "nothing was drawn"
        for field in field_names(go1):
            if field not in SIGHT:
                np.testing.assert_allclose(
                    read_field(variant, field),
                    read_field(recompiled, field),
                    rtol=1e-9,
                    atol=1e-12,
                    err_msg=field,
                )


def test_everything_at_once_is_the_recompiled_model_too(go1: Any) -> None:
    entries = {name: entry for name, (entry, _, _) in CASES.items()}
    table = variants(go1, startup_variants=2, **entries)
    for variant in table.models:
        spec = go1_spec()
        for _, edit, _ in CASES.values():
            edit(spec, go1, variant)
        recompiled = spec.compile()
        for field in set(field_names(go1)) - SIGHT:
            np.testing.assert_allclose(
                read_field(variant, field), read_field(recompiled, field),
                rtol=1e-9, atol=1e-12, err_msg=field,
            )  # fmt: skip


# -- one by one -----------------------------------------------------------------------------------


def test_mass_times_three_is_subtree_times_three_and_inverse_weights_by_three() -> None:
    """RST-02; the armature does not scale along, so the model here has none."""
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body name="a"><joint name="j" axis="0 1 0"/>'
        '<geom type="capsule" fromto="0 0 0 0 0 1" size="0.1"/>'
        '<body name="b" pos="0 0 1"><joint name="k" axis="0 1 0"/>'
        '<geom type="sphere" size="0.1" pos="0.2 0 0"/></body></body></worldbody></mujoco>'
    )
    (tripled,) = variants(model, startup_variants=1, body_mass={"scale": [3.0, 3.0]}).models
    for field, ratio in (
        ("body_mass", 3.0), ("body_inertia", 3.0), ("body_subtreemass", 3.0), ("dof_M0", 3.0),
        ("dof_invweight0", 1 / 3), ("body_invweight0", 1 / 3),
    ):  # fmt: skip
        np.testing.assert_allclose(
            read_field(tripled, field), ratio * read_field(model, field), rtol=1e-9, err_msg=field
        )


def test_inertia_stays_where_that_is_asked_for(go1: Any) -> None:
    entry = {"scale": [2.0, 2.0], "scale_inertia": False}
    (heavy,) = variants(go1, startup_variants=1, body_mass=entry).models
    np.testing.assert_allclose(heavy.body_mass, 2.0 * go1.body_mass)
    np.testing.assert_array_equal(heavy.body_inertia, go1.body_inertia)


def test_servo_gains_stay_consistent(go1: Any) -> None:
    table = variants(go1, actuator_gains={"kp_scale": [0.5, 1.5], "kd_scale": [0.5, 1.5]})
    kp, bias = table.stacked("actuator_gainprm")[..., 0], table.stacked("actuator_biasprm")
    np.testing.assert_array_equal(kp, -bias[..., 1])
    ratio = np.stack([kp / go1.actuator_gainprm[:, 0], bias[..., 2] / go1.actuator_biasprm[:, 2]])
    assert ratio.min() > 0.5
    assert ratio.max() < 1.5
    assert abs(np.corrcoef(ratio[0].ravel(), ratio[1].ravel())[0, 1]) < 0.2


def test_a_velocity_servo_keeps_its_law() -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><joint name="j"/><geom size="0.1"/></body></worldbody>'
        '<actuator><velocity joint="j" kv="2"/></actuator></mujoco>'
    )
    (twice,) = variants(model, startup_variants=1, actuator_gains={"kd_scale": [2.0, 2.0]}).models
    assert twice.actuator_gainprm[0, 0] == 4.0
    assert twice.actuator_biasprm[0, :3].tolist() == [0.0, 0.0, -4.0]


def test_a_joints_force_limit_is_strength_too() -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><worldbody><body><joint name="j" actuatorfrcrange="-3 5"/><geom size="0.1"/>'
        '</body></worldbody><actuator><motor joint="j"/></actuator></mujoco>'
    )
    (weak,) = variants(model, startup_variants=1, actuator_strength={"scale": [0.5, 0.5]}).models
    assert weak.jnt_actfrcrange.tolist() == [[-1.5, 2.5]]


def test_only_what_is_selected_changes(go1: Any) -> None:
    table = variants(
        go1,
        body_mass={"bodies": ["trunk", "*_calf"], "scale": [0.5, 1.5]},
        joint_armature={"joints": ["FR_*"], "scale": [0.5, 1.5]},
    )
    moved = np.ptp(table.stacked("body_mass"), axis=0) > 0
    names = {go1.body(int(i)).name for i in np.flatnonzero(moved)}
    assert names == {"trunk", "FR_calf", "FL_calf", "RR_calf", "RL_calf"}
    dofs = np.flatnonzero(np.ptp(table.stacked("dof_armature"), axis=0))
    assert {go1.joint(int(go1.dof_jntid[d])).name[:2] for d in dofs} == {"FR"}
    assert len(dofs) == 3


def test_together_draws_once_for_all(go1: Any) -> None:
    entry = {"geoms": [FEET], "slide": [0.3, 1.2]}
    feet = [i for i in range(go1.ngeom) if go1.geom(i).name.endswith("_foot_collision")]
    apart = variants(go1, geom_friction=entry).stacked("geom_friction")[:, feet, 0]
    shared = variants(go1, geom_friction={**entry, "together": True})
    together = shared.stacked("geom_friction")[:, feet, 0]
    assert np.all(together == together[:, :1])
    assert together[:, 0].std() > 0.1
    assert apart.std(axis=1).min() > 0.01


# -- the draws ------------------------------------------------------------------------------------


def test_draws_stay_in_range_and_spread_over_it(go1: Any) -> None:
    for distribution, middle in (("uniform", 1.25), ("log_uniform", 1.0)):
        entry = {"scale": [0.5, 2.0], "distribution": distribution}
        table = variants(go1, startup_variants=200, body_mass=entry)
        ratio = table.stacked("body_mass")[:, 1:] / go1.body_mass[1:]
        assert ratio.min() >= 0.5
        assert ratio.max() <= 2.0
        assert abs(np.median(ratio) - middle) < 0.05
        assert np.all(ratio.std(axis=0) > 0.2)


def test_draws_depend_on_seed_and_rank_and_on_nothing_else(go1: Any) -> None:
    entry = {"scale": [0.5, 2.0]}

    def masses(**more: Any) -> Any:
        return variants(go1, **{"body_mass": entry, "startup_variants": 4, **more})

    first = masses().stacked("body_mass")
    np.testing.assert_array_equal(masses().stacked("body_mass"), first)
    beside = masses(joint_armature=entry, startup_variants=9)
    np.testing.assert_array_equal(beside.stacked("body_mass")[:4], first)
    for other in (masses(seed=4), masses(rank=1)):
        assert np.all(other.stacked("body_mass")[:, 1:] != first[:, 1:])


def test_modes_make_a_table_of_startup_by_reset(go1: Any) -> None:
    table = variants(
        go1,
        startup_variants=3,
        reset_variants=4,
        body_mass={"scale": [0.5, 2.0], "mode": "startup"},
        gravity={"scale": [0.5, 2.0], "mode": "reset"},
    )
    assert (len(table.models), table.num_reset) == (12, 4)
    mass = table.stacked("body_subtreemass")[:, 0].reshape(3, 4)
    gravity = table.stacked("opt.gravity")[:, 2].reshape(3, 4)
    assert np.all(mass == mass[:, :1])
    assert len(set(mass[:, 0])) == 3
    assert np.all(gravity == gravity[:1])
    assert len(set(gravity[0])) == 4


def test_sizes_of_the_table_follow_the_modes_in_use() -> None:
    mass, gravity = {"scale": [0.9, 1.1]}, {"scale": [0.9, 1.1], "mode": "reset"}
    assert config(body_mass=mass).num_variants == (64, 1)
    assert config(gravity=gravity).num_variants == (1, 64)
    assert config(body_mass=mass, gravity=gravity).num_variants == (8, 8)
    assert config(body_mass=mass, startup_variants=5).num_variants == (5, 1)
    assert config().num_variants == (1, 1)


def test_startup_draws_go_round_and_reset_draws_follow_the_bits(go1: Any) -> None:
    table = Variants((go1,) * 6, (), {}, num_reset=2)
    draws = np.array([0, 1, 2, 3, 4], np.uint64)
    env_ids = np.array([0, RUN - 1, RUN, 2 * RUN, 3 * RUN], np.int32)
    assert table.ids(env_ids, draws).tolist() == [0, 1, 2, 5, 0]


def test_nothing_to_draw_makes_no_table(go1: Any) -> None:
    assert make_variants(go1, config(), seed=1) is None
    only_hardware = config(action_delay={"substeps": [0, 2]})
    assert make_variants(go1, only_hardware, seed=1) is None


def test_the_nominal_model_and_its_pose_are_left_alone(go1: Any) -> None:
    before = {name: read_field(go1, name).copy() for name in field_names(go1)}
    table = variants(go1, **{name: entry for name, (entry, _, _) in CASES.items()})
    for name, value in before.items():
        np.testing.assert_array_equal(read_field(go1, name), value, err_msg=name)
    for name in ("qpos0", "qpos_spring", "key_qpos", "key_ctrl"):
        assert name not in table.fields


def test_statistics_that_the_file_gives_are_kept() -> None:
    model = mujoco.MjModel.from_xml_string(
        '<mujoco><statistic meaninertia="0.7"/><worldbody><body name="a"><joint/>'
        '<geom size="0.1"/></body></worldbody></mujoco>'
    )
    (heavy,) = variants(model, startup_variants=1, body_mass={"scale": [2.0, 2.0]}).models
    assert heavy.stat.meaninertia == 0.7
    assert heavy.stat.meanmass == pytest.approx(2.0 * model.stat.meanmass)


# -- what is refused ------------------------------------------------------------------------------

MIXED = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 0.1"/>
    <body name="base">
      <freejoint name="root"/>
      <geom name="hull" size="0.1"/>
      <geom name="paint" size="0.2" contype="0" conaffinity="0" mass="0"/>
      <body name="arm" pos="0 0 0.1">
        <joint name="elbow"/>
        <geom name="hand" size="0.05" pos="0.1 0 0"/>
        <body name="marker"/>
      </body>
    </body>
    <body name="ball" pos="2 0 1">
      <joint name="x" type="slide"/>
      <geom name="ball" size="0.1"/>
    </body>
  </worldbody>
  <contact><pair geom1="ball" geom2="floor"/></contact>
  <actuator>
    <motor name="torque" joint="elbow"/>
    <position name="servo" joint="elbow" kp="5"/>
  </actuator>
</mujoco>
"""

REFUSED: list[tuple[dict[str, Any], list[str]]] = [
    ({"body_mass": {"bodies": ["hed"], "scale": [0.9, 1.1]}},
     ["randomization.body_mass.bodies", "'hed'", "valid: arm, ball, base"]),
    ({"body_mass": {"bodies": ["marker"], "scale": [0.9, 1.1]}}, ["'marker'", "has a mass"]),
    ({"body_mass": {"bodies": ["arm"], "add_kg": [-5.0, 5.0]}},
     ["body 'arm'", "above 0", "randomization.body_mass.bodies"]),
    ({"geom_friction": {"geoms": ["paint"], "slide": [0.5, 1.0]}}, ["'paint'", "can collide"]),
    ({"geom_friction": {"slide": [0.5, 1.0]}}, ["<pair>", "geom 'floor'"]),
    ({"body_com": {"add_x_m": [-0.1, 0.1]}}, ["body 'ball'", "diagonal"]),
    ({"joint_armature": {"joints": ["root"], "add_kgm2": [0.0, 0.1]}},
     ["'root'", "hinge or a slide"]),
    ({"joint_armature": {"scale": [0.5, 2.0]}}, ["no effect", "add_kgm2"]),
    ({"joint_friction": {"scale": [0.5, 2.0]}}, ["no effect", "add_nm"]),
    ({"joint_damping": {"add_nms": [-0.1, 0.1]}}, ["joint 'elbow'", "0 or more"]),
    ({"actuator_gains": {"kp_scale": [0.5, 2.0]}}, ["actuator 'torque'", "type motor"]),
    ({"actuator_gains": {"actuators": ["servo"], "kd_scale": [0.5, 2.0]}}, ["kd is 0"]),
    ({"actuator_gains": {"actuators": ["serv"], "kp_scale": [0.5, 2.0]}}, ["did you mean 'servo'"]),
    ({"actuator_strength": {"scale": [0.5, 1.0]}}, ["actuator 'torque'", "no limit"]),
]  # fmt: skip


@pytest.mark.parametrize(("entries", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_is_not_possible_is_refused_by_name(entries: Any, words: list[str]) -> None:
    model = mujoco.MjModel.from_xml_string(MIXED)
    with pytest.raises(ConfigError) as error:
        check_randomization(model, config(**entries))
    for word in words:
        assert word in str(error.value), str(error.value)


def test_a_factor_on_no_gravity_is_refused() -> None:
    model = mujoco.MjModel.from_xml_string(MIXED)
    model.opt.gravity[:] = 0.0
    with pytest.raises(ConfigError, match="add_ms2"):
        check_randomization(model, config(gravity={"scale": [0.9, 1.1]}))


def test_a_backend_names_the_entries_that_it_cannot_do(go1: Any) -> None:
    table = variants(go1, body_mass={"scale": [0.9, 1.1]}, gravity={"scale": [0.9, 1.1]})
    table.require(set(table.fields) - {"cam_poscom0", "stat.meanmass"}, "mujoco_cpu")
    with pytest.raises(ConfigError) as error:
        table.require([f for f in table.fields if f != "opt.gravity"], "other")
    assert "physics.backend=other" in str(error.value)
    assert "randomization.gravity (opt.gravity)" in str(error.value)
    assert "body_mass" not in str(error.value)
