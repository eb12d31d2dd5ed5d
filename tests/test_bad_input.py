"""What a person gets wrong: exit code 2, one clear message, and nothing written or lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runners.fixtures import finished, trained  # noqa: F401  fixtures are found by name
from tests.runners.support import TINY, cli, files
from unilab.tasks.base import ASSETS

ROBOT = """\
<mujoco>
  <worldbody>
    <body name="cart">
      <joint name="slider" type="slide" axis="1 0 0" range="-2 2"/>
      <geom name="cart" type="box" size=".2 .1 .1"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0"/>
        <geom name="pole" type="capsule" fromto="0 0 0 0 0 1" size=".05"/>
      </body>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="slider" ctrlrange="-1 1"/></actuator>
</mujoco>
"""
FREE = '<body name="{0}"><freejoint/><geom size=".1"/></body>'
ROBOTS = {
    "broken.xml": "<mujoco><worldbody></mujoco>",
    "empty.xml": "",
    "nothing_moves.xml": "<mujoco/>",
    "mesh.xml": ROBOT.replace(
        "<worldbody>", '<asset><mesh name="m" file="lost.stl"/></asset><worldbody>'
    ).replace('type="box" size=".2 .1 .1"', 'type="mesh" mesh="m"'),
    "two_free.xml": ROBOT.replace(
        "<worldbody>", "<worldbody>" + FREE.format("one") + FREE.format("two")
    ),
    "no_range.xml": ROBOT.replace(' ctrlrange="-1 1"', ""),
    "no_actuator.xml": ROBOT.replace('<motor name="push" joint="slider" ctrlrange="-1 1"/>', ""),
    "short_key.xml": ROBOT.replace(
        "</mujoco>", '<keyframe><key name="home" qpos="0"/></keyframe></mujoco>'
    ),
    "other_joint.xml": ROBOT.replace('"slider"', '"rail"'),
    "unknown_attribute.xml": ROBOT.replace('name="hinge"', 'name="hinge" frobnicate="1"'),
}

# Where `{sac}` stands in an override: a small one, of 800 transitions.
SAC = (
    "learner=sac learners.sac.num_steps=10 learners.sac.replay_capacity=100 "
    "learners.sac.batch_size=16 learners.sac.warmup_steps=4 learners.sac.n_steps=1"
)

# override(s) of `train cartpole` -> what the message must say
TRAIN = [
    # the robot
    ("physics.model=nope.xml", ("nope.xml", "not found")),
    ("physics.model=broken.xml", ("broken.xml", "refuses")),
    ("physics.model=empty.xml", ("empty.xml", "empty")),
    ("physics.model=.", ("is a folder", ".xml")),
    ("physics.model=notes.txt", ("notes.txt", ".xml file is needed")),
    ("physics.model=nothing_moves.xml", ("nothing_moves.xml", "no joint")),
    ("physics.model=mesh.xml", ("lost.stl", "tried", "fix")),
    ("physics.model=two_free.xml", ("2 free joints", "one", "two")),
    ("physics.model=no_range.xml", ("push", "ctrlrange", "Fix")),
    ("physics.model=no_actuator.xml", ("no actuator", "slider")),
    ("physics.model=short_key.xml", ("'home'", "1 numbers", "2")),
    ("physics.model=other_joint.xml", ("no joint is named 'slider'", "rail")),
    ("physics.model=unknown_attribute.xml", ("frobnicate",)),
    # keys, terms and their parameters
    ("physics.num_env=4", ("physics.num_env", "did you mean", "num_envs")),
    ("frobnicate=1", ("frobnicate",)),
    ("rewards.pole_uprigth.weight=1", ("pole_uprigth", "did you mean 'pole_upright'")),
    ("rewards.cart_centered.sdt=1", ("cart_centered", "sdt", "std")),
    ("rewards.cart_centered.std=null", ("cart_centered", "std")),
    ("terminations.pole_fallen=null terminations.fell.limit=1", ("fell", "pole_fallen")),
    ("observations.actor.gravity={}", ("gravity",)),
    ("observations.actor={cart_state: null, pole_state: null}", ("observations.actor",)),
    ("learner=pppo", ("pppo", "ppo")),
    ("evaluation.thresholds.survived=1", ("survived_fraction",)),
    ("learners.ppo.mirror_coef=1.0", ("mirror_coef", "mirror_loss")),
    ("randomization.body_mass.bodies=[pol] randomization.body_mass.scale=[0.9,1.1]",
     ("randomization.body_mass.bodies", "did you mean 'pole'")),
    ("randomization.body_mass.add_kg=[-9,9]", ("randomization.body_mass", "'cart'", "above 0")),
    ("randomization.body_mass.scale=[0.9,1.1] randomization.body_mass.mode=interval",
     ("randomization.body_mass.mode", "interval", "startup | reset")),
    ("randomization.encoder_bias.add_rad=[0,1]", ("randomization.encoder_bias", "joint_pos")),
    # sizes
    ("randomization.gravity.scale=[0.9,1.1] randomization.gravity.mode=reset "
     "randomization.reset_variants=65536 randomization.body_mass.scale=[0.9,1.1] "
     "randomization.startup_variants=65536", ("randomization.", "GiB", "lower")),
    ("physics.num_envs=0", ("physics.num_envs", "0", ">= 1")),
    ("physics.num_envs=-4", ("physics.num_envs", "-4")),
    ("physics.num_envs=1.5", ("physics.num_envs", "1.5")),
    ("physics.num_envs=2000000000", ("physics.num_envs", "GiB", "lower")),
    ("physics.num_envs=99999999999", ("physics.num_envs", "99999999999")),
    ("learners.ppo.num_steps=1000000000", ("num_steps", "GiB", "lower")),
    ("learners.ppo.actor_hidden=[1000000,1000000]", ("actor_hidden", "GiB", "lower")),
    ("learners.ppo.network=residual learners.ppo.actor_hidden=[16,8]",
     ("network=residual", "actor_hidden", "one width")),
    ("learners.ppo.precision=fp16", ("learners.ppo.precision=fp16", "cpu", "bf16")),
    ("learners.ppo.precision=fp8", ("learners.ppo.precision", "fp8", "bf16")),
    ("learners.ppo.compile=true", ("learners.ppo.compile", "on")),
    ("learners.ppo.actor_hidden=[]", ("actor_hidden",)),
    ("learners.ppo.actor_hidden=[0]", ("actor_hidden", "0")),
    ("learners.ppo.minibatches=1000", ("minibatches", "48")),
    ("evaluation.episodes=2000000000", ("evaluation.episodes", "GiB")),
    ("episode.length_s=0.001", ("episode.length_s", "0.02")),
    ("physics.timestep_s=0", ("physics.timestep_s",)),
    # replay
    ("{sac} learners.sac.replay_capacity=2000000000",
     ("learners.sac.replay_capacity=2000000000", "GiB", "lower replay_capacity to")),
    ("{sac} learners.sac.batch_size=800001",
     ("learners.sac.batch_size=800001", "100 * 8 = 800", "lower it to 800")),
    ("{sac} learners.sac.n_steps=21",
     ("learners.sac.n_steps=21", "longer than an episode", "20 control steps", "episode.length_s")),
    ("{sac} learners.sac.n_steps=100", ("replay_capacity=100", "n_steps=100", "replay_capacity >")),
    ("{sac} learners.sac.warmup_steps=101",
     ("warmup_steps=101", "replay_capacity=100", "lower warmup_steps or raise")),
    ("{sac} train.iterations=2 learners.sac.warmup_steps=20",
     ("train.iterations=2", "20 control steps", "after 21", "lower warmup_steps")),
    ("{sac} train.iterations=2 learners.sac.n_steps=20", ("train.iterations=2", "n_steps=20")),
    ("{sac} learners.sac.replay_dtype=fp8", ("learners.sac.replay_dtype", "fp8", "bf16")),
    ("checkpoint.replay=true", ("checkpoint.replay=true", "learner=ppo", "no replay buffer")),
    ("learner=appo checkpoint.replay=true", ("checkpoint.replay=true", "learner=appo")),
    # settings of the off-policy learners
    ("{sac} learners.sac.precision=fp16", ("learners.sac.precision=fp16", "cpu", "auto, fp32")),
    ("{sac} learners.sac.precision=fp8", ("learners.sac.precision", "fp8", "bf16")),
    ("{sac} learners.sac.tau=0", ("learners.sac.tau", "> 0 and <= 1")),
    ("{sac} learners.sac.tau=1.1", ("learners.sac.tau", "1.1", "<= 1")),
    ("{sac} learners.sac.v_min=5", ("learners.sac", "v_min is 5", "v_min < v_max")),
    ("{sac} learners.sac.atoms=1", ("learners.sac.atoms", "1", ">= 2")),
    ("{sac} learners.sac.gamma=-0.1", ("learners.sac.gamma", "-0.1")),
    ("{sac} learners.sac.weight_decay=-1", ("learners.sac.weight_decay", "-1", ">= 0")),
    ("{sac} learners.sac.actor_every=0", ("learners.sac.actor_every", "0", ">= 1")),
    ("{sac} learners.sac.schedule=fre", ("learners.sac.schedule", "fre", "lockstep")),
    ("{sac} learners.sac.network=residual learners.sac.critic_hidden=[8,16]",
     ("network=residual", "critic_hidden", "one width")),
    ("learner=td3 learners.td3.noise_std_min=0.5", ("noise_std_min", "noise_std_max")),
    ("learner=flashsac learners.flashsac.gamma=1", ("learners.flashsac.gamma", "< 1")),
    ("learner=flashsac learners.flashsac.decay_updates=0",
     ("learners.flashsac.decay_updates", ">= 1")),
    ("learner=flashsac learners.flashsac.final_learning_rate=1",
     ("final_learning_rate is 1", "valid: a final one not above it")),
    ("learner=appo learners.appo.c_bar=2", ("c_bar is 2", "lower c_bar or raise rho_bar")),
    ("learner=appo learners.appo.slots=9", ("slots is 9", "max_lag + 1")),
    # types and odd values
    ("physics.num_envs=many", ("physics.num_envs", "many")),
    ("physics.num_envs=true", ("physics.num_envs", "true", "integer")),
    ("log.tensorboard=yes", ("log.tensorboard", "yes", "true or false")),
    ("physics=4", ("physics is a block of keys", "physics.num_envs")),
    ("rewards=[1]", ("rewards",)),
    ("rewards.effort.weight=heavy", ("rewards.effort.weight", "heavy")),
    ("rewards.effort.weight=[1.0,2.0]", ("rewards.effort.weight",)),
    ("observations.actor.cart_state.noise=[1.0]", ("observations.actor.cart_state.noise", "one")),
    ("rewards.effort.weight=.nan", ("rewards.effort.weight", "nan")),
    ("learners.ppo.learning_rate=.inf", ("learners.ppo.learning_rate", "inf")),
    ("learners.ppo.gamma=1.5", ("learners.ppo.gamma", "1.5")),
    ("seed=-1", ("seed", "-1")),
    ("seed=[", ("seed",)),
    ("physics.num_envs", ("key=value",)),
    ("=4", ("=4",)),
    # machine
    ("device=gpu", ("device", "gpu", "auto")),
    ("device=cuda:64", ("device=cuda:64", "no such device", "device=auto")),
    ("device=cuda:99999999999999999999", ("no such device",)),
    ("runtime.threads=4096", ("runtime.threads=4096", "CPU(s)", "allow_oversubscription")),
    ("runtime.shards=4096", ("runtime.shards=4096", "physics.num_envs")),
    ("runtime.groups=3", ("runtime.groups=3", "64")),
    ("physics.backend=warp", ("mujoco_warp", "mujoco_cpu")),
    ("physics.constraints_per_env=-1", ("physics.constraints_per_env", "-1")),
    ("log.dir=notes.txt", ("log.dir=notes.txt", "no run directory can be made")),
    ("--name a/b", ("--name", "a/b")),
]  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the robots of `ROBOTS` and a file that is none."""
    folder = tmp_path_factory.mktemp("desk")
    for name, text in ROBOTS.items():
        (folder / name).write_text(text)
    (folder / "notes.txt").write_text("not a robot\n")
    return folder


def refuse(*arguments: str, cwd: Path) -> str:
    """Run a command that must fail on the person's account, and return what it says."""
    before = files(cwd)
    outcome = cli(*arguments, cwd=cwd)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("error: "), outcome.err
    assert outcome.err.count("error: ") == 1
    assert "Traceback" not in outcome.err
    assert len(outcome.err.splitlines()) <= 8
    assert len(outcome.err) < 1500
    assert files(cwd) == before
    assert not (cwd / "runs").exists()
    return outcome.err


@pytest.mark.parametrize(("words", "parts"), TRAIN, ids=[words for words, _ in TRAIN])
def test_train_refuses(desk, words, parts):
    head = words if words.startswith("observations.actor={") else None
    arguments = [head] if head else words.replace("{sac}", SAC).split()
    message = refuse("train", "cartpole", *TINY, *arguments, cwd=desk)
    for part in parts:
        assert part in message


def test_a_parameter_that_is_a_list_where_a_number_is_wanted_is_refused(tmp_path):
    outcome = cli("train", "cartpole", *TINY, "rewards.cart_centered.std=[1.0,2.0]", cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert "its kernel does not compile" in outcome.err
    assert "cart_centered" in outcome.err
    assert len(outcome.err) < 1500
    assert not (tmp_path / "runs").exists()


TASK_FILE = "from unilab.tasks.cartpole import TASK  # noqa: F401\n"


@pytest.mark.parametrize(
    ("python", "parts"),
    [
        ("x = 1\n", ("my_task.py", "TASK = Task(")),
        ("TASK = 3\n", ("my_task.py", "TASK = Task(")),
        ("import unilab\n\ndef f(:\n", ("my_task.py:3", "SyntaxError")),
        ("import no_such_module\n", ("my_task.py:1", "ModuleNotFoundError", "no_such_module")),
        ("\n\nTASK = undefined\n", ("my_task.py:3", "NameError", "undefined")),
        (
            "from unilab_kernels.terms import observation\n\n\n@observation(size=2)\n"
            "def show(pole_angle):\n    return pole_angle\n",
            ("my_task.py", "'show'", "out"),
        ),
    ],
)
def test_a_task_file_that_is_wrong_is_refused_with_its_line(tmp_path, python, parts):
    (tmp_path / "my_task.py").write_text(python)
    (tmp_path / "my_task.yaml").write_text("rewards: {alive: {weight: 1.0}}\n")
    message = refuse("train", "my_task.py", *TINY, cwd=tmp_path)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("yaml", "parts"),
    [
        (None, ("my_task.yaml", "beside")),
        ("rewards: {alive\n", ("my_task.yaml",)),
        ("rewards: {alive: {weight: 1.0}}\nrewards: {}\n", ("my_task.yaml", "rewards")),
        ("rewardz: {alive: {weight: 1.0}}\n", ("my_task.yaml:1", "rewardz", "rewards")),
        ("- 1\n", ("my_task.yaml",)),
        ("", ("observations.actor",)),
        ("observations: {actor: {pole_state: {}}}\n", ("observations.critic",)),
    ],
)
def test_a_task_config_that_is_wrong_is_refused(tmp_path, yaml, parts):
    (tmp_path / "my_task.py").write_text(TASK_FILE)
    if yaml is not None:
        (tmp_path / "my_task.yaml").write_text(yaml)
    message = refuse("train", "my_task.py", cwd=tmp_path)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("train", "cartpol"), ("cartpol", "cartpole")),
        (("train", "tasks/cartpole"), ("tasks/cartpole", ".py")),
        (("train", "nowhere/my_task.py"), ("nowhere/my_task.py", "does not exist")),
        (("train",), ("task is missing", "cartpole")),
        (("train", "cartpole", "go1_walk"), ("go1_walk", "key=value")),
        (("train", "--resume", "latest"), ("latest", "no runs")),
        (("train", "--resume", "latest", "--name", "x"), ("--name", "--resume")),
        (("eval",), ("latest", "no runs")),
        (("eval", "--run", "nope"), ("nope", "no runs")),
        (("export", "--run", "-2"), ("-2", "no runs")),
        (("export", "physics.num_envs=3"), ("log.dir",)),
        (("explain", "cartpole", "rewards.effort.wieght=1"), ("wieght", "weight")),
    ],
)
def test_commands_refuse(tmp_path, arguments, parts):
    message = refuse(*arguments, cwd=tmp_path)
    for part in parts:
        assert part in message


def test_a_robot_that_the_task_was_not_made_for_is_refused(tmp_path):
    cartpole, go1 = str(ASSETS / "cartpole.xml"), (ASSETS / "go1.xml").read_text()
    message = refuse("train", "go1_walk", f"physics.model={cartpole}", cwd=tmp_path)
    assert "_foot_collision" in message
    (tmp_path / "renamed.xml").write_text(go1.replace("FR_hip_joint", "FR_abduction"))
    message = refuse("train", "go1_walk", "physics.model=renamed.xml", cwd=tmp_path)
    assert "renamed.xml" in message
    assert "FR_abduction" in message


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("eval", "--run", "nope"), ("nope", "newest first")),
        (("eval", "--run", "-2"), ("-2", "newest first")),
        (("eval", "--checkpoint", "77"), ("'77'", "valid: latest, 2, 3, 4, best")),
        (("eval", "--checkpoint", "x.pt"), ("x.pt", "valid: latest")),
        (("eval", "physics.num_env=4"), ("physics.num_env", "num_envs")),
        (("eval", "learners.ppo.actor_hidden=[8]"), ("actor", "shape")),
        (("eval", "learner=sac"), ("learner=sac",)),
        (("eval", "go1_walk"), ("go1_walk", "no runs")),
        (("export", "--checkpoint", "0"), ("'0'", "valid: latest")),
        (("train", "--resume", "latest", "physics.timestep_s=-1"), ("physics.timestep_s", "-1")),
    ],
)
def test_commands_on_a_run_refuse_and_leave_it_as_it_is(
    trained,  # noqa: F811
    tmp_path,
    arguments,
    parts,
):
    before = files(tmp_path)
    outcome = cli(*arguments, cwd=tmp_path)
    assert outcome.code == 2, outcome
    assert outcome.err.startswith("error: ")
    for part in parts:
        assert part in outcome.err
    assert files(tmp_path) == before
