"""Loading: precedence, origins, errors that name the place, round trip of a saved config."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.files import BALANCE, write_task
from unilab.config import diff_configs, load_config, load_resolved, save_resolved
from unilab.errors import ConfigError


@pytest.fixture
def task(tmp_path: Path) -> str:
    return write_task(tmp_path)


def load_error(task: str, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(task, overrides)
    return str(caught.value)


def test_each_layer_wins_over_the_one_before(task):
    plain = load_config(task).config
    assert plain.episode.length_s == 20.0  # schema default
    assert plain.learners.ppo.gamma == 0.9  # file
    assert plain.physics.num_envs == 64  # overrides of the learner, over the file's 16
    assert load_config(task, ["physics.num_envs=8"]).config.physics.num_envs == 8


def test_every_resolved_value_has_its_origin(task):
    loaded = load_config(task, ["learners.ppo.epochs=2", "rewards.upright.weight=3"])
    file = task.removesuffix(".py") + ".yaml"
    origins = loaded.origins
    assert origins["episode.length_s"] == "default"
    assert origins["description"] == f"{file}:1"
    assert origins["learners.ppo.gamma"] == f"{file}:12"
    assert origins["terminations.tilt"] == f"{file}:9"
    assert origins["physics.num_envs"] == f"learners.ppo.overrides ({file}:14)"
    assert origins["learners.ppo.epochs"] == "command line"
    assert origins["rewards.upright.weight"] == "command line"
    assert origins["rewards.upright.std"] == f"{file}:5"
    assert "rewards.effort.weight" not in origins
    assert "rewards.effort" not in origins


def test_a_task_file_is_stored_by_its_absolute_path(task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("balance.py").config.task == str(Path(task).resolve())


def test_a_robot_file_is_stored_by_its_absolute_path(tmp_path, monkeypatch):
    folder, desk = tmp_path / "tasks", tmp_path / "desk"
    folder.mkdir()
    desk.mkdir()
    write_task(folder, "physics: {model: robots/mine.xml}\n")
    monkeypatch.chdir(tmp_path)
    config = load_config("tasks/balance.py").config
    assert config.physics.model == str(folder / "robots" / "mine.xml")
    monkeypatch.chdir(desk)
    given = load_config("../tasks/balance.py", ["physics.model=other.xml"])
    assert given.config.physics.model == str(desk / "other.xml")
    assert given.origins["physics.model"] == "command line"
    save_resolved(config, folder / "config.yaml")
    again = load_resolved(folder / "config.yaml").config
    assert again == config
    changed = load_resolved(folder / "config.yaml", ["physics.model=other.xml"]).config
    assert changed.physics.model == str(desk / "other.xml")
    assert load_config("../tasks/balance.py", ["physics.model=null"]).config.physics.model is None


def test_a_robot_file_in_the_home_folder_is_found(task, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = load_config(task, ["physics.model=~/mine.xml"]).config.physics.model
    assert model == str(tmp_path / "mine.xml")


def test_a_term_without_parameters_is_an_empty_mapping(task):
    assert load_config(task).config.terminations == {"tilt": {}}


def test_terms_keep_the_order_of_the_file(tmp_path):
    names = ["zeta", "alpha", "mid"]
    body = "observations:\n  actor:\n" + "".join(f"    {name}:\n" for name in names)
    config = load_config(write_task(tmp_path, body)).config
    assert list(config.observations.actor) == names
    save_resolved(config, tmp_path / "saved.yaml")
    assert list(load_resolved(tmp_path / "saved.yaml").config.observations.actor) == names


def test_the_command_line_adds_replaces_and_removes_terms(task):
    config = load_config(
        task,
        ["rewards.alive={weight: 1}", "rewards.upright={weight: 5}", "terminations.tilt=null"],
    ).config
    assert config.rewards == {"upright": {"weight": 5.0}, "alive": {"weight": 1.0}}
    assert config.terminations == {}
    assert load_config(task, ["rewards=null"]).config.rewards == {}


def test_removing_a_term_that_is_not_there_is_an_error(task):
    message = load_error(task, "rewards.uprigth=null")
    assert "rewards.uprigth=null" in message
    assert "did you mean 'upright'" in message


def test_null_is_a_value_where_the_schema_has_it(task):
    assert load_config(task, ["seed=5", "seed=null"]).config.seed is None


def test_the_chosen_learner_of_the_command_line_is_checked(task):
    assert "did you mean 'ppo'" in load_error(task, "learner=ppoo")


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("physics.num_envs=0", ["physics.num_envs", "got 0", "integer >= 1"]),
        ("physics.num_envs=many", ["physics.num_envs", "got 'many' (text)", "integer >= 1"]),
        ("physics.num_envs=true", ["physics.num_envs", "got true", "integer >= 1"]),
        ("episode.length_s=.nan", ["episode.length_s", "got nan", "number > 0"]),
        ("episode.length_s=1e-9", ["episode.length_s", "control step", "physics.timestep_s"]),
        ("runtime.threads=autoo", ["runtime.threads", "or auto", "did you mean 'auto'"]),
        ("device=gpu", ["device", "got 'gpu'", "auto | cpu | cuda or cuda:NUMBER"]),
        ("device=mps", ["device", "got 'mps'", "auto | cpu | cuda or cuda:NUMBER"]),
        ("learners.ppo.actor_hidden=[8, x]", ["learners.ppo.actor_hidden", "position 2"]),
        ("rewards.upright.weight=high", ["rewards.upright.weight", "got 'high'", "number"]),
        ("rewards.upright=3", ["rewards.upright", "got 3", "mapping"]),
        ("physics.backend=warp", ["got 'warp'", "auto | mujoco_cpu | mujoco_warp"]),
        ("physics.contacts_per_env=-1", ["physics.contacts_per_env", "got -1", "or auto"]),
        ("physics.cuda_graph=true", ["physics.cuda_graph", "auto | on | off"]),
        ("learners.ppo.minibatches=99999", ["learners.ppo.minibatches=99999", "64 * 24 = 1536"]),
        ("runtime.groups=65", ["runtime.groups=65", "physics.num_envs=64"]),
        ("learners.ppo.mirror_coef=1", ["mirror_coef", "symmetry=mirror_loss"]),
        ("log.dir=7", ["log.dir", "got 7", "text (in quotes: '7')"]),
    ],
)
def test_a_wrong_value_names_key_what_came_and_what_is_valid(task, override, parts):
    message = load_error(task, override)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("yaml", "parts"),
    [
        ("physics:\n  num_env: 4\n", [":2: physics.num_env", "did you mean 'physics.num_envs'"]),
        ("num_envs: 4\n", [":1: num_envs", "did you mean 'physics.num_envs'"]),
        ("physics:\n  num_envs: '4'\n", [":2: physics.num_envs", "got '4' (text)"]),
        ("physics.num_envs: 4\n", [":1: ", "nested blocks"]),
        ("seed: 1\nseed: 2\n", [":2: ", "duplicate key"]),
        ("rewards: [a]\n", [":1: rewards", "valid: mapping"]),
        ("- 1\n", ["holds a list"]),
        ("a: [1\n", ["not valid YAML"]),
        ("task: other\n", [":1: task", "valid: 'balance'"]),
        ("learner: trpo\n", [":1: learner", "appo, flashsac, ppo, sac, td3"]),
        ("learners: {ppo: {overrides: {learner: ppo}}}", ["overrides.learner", "not allowed"]),
        ("learners: {ppo: {overrides: 3}}", ["learners.ppo.overrides", "got 3"]),
        (
            "learners:\n  ppo:\n    overrides:\n      physics: {num_env: 3}\n",
            ["learners.ppo.overrides (", ":4)", "did you mean 'physics.num_envs'"],
        ),
        (
            "learners:\n  ppo:\n    overrides:\n      rewards: {slip: null}\n",
            ["learners.ppo.overrides (", ":4)", "rewards.slip=null"],
        ),
    ],
)
def test_a_mistake_in_the_file_is_shown_with_its_line(tmp_path, yaml, parts):
    message = load_error(write_task(tmp_path, yaml))
    assert "balance.yaml" in message
    for part in parts:
        assert part in message


def test_many_mistakes_are_reported_at_once(tmp_path):
    message = load_error(write_task(tmp_path, "seed: -1\nphysics: {num_envs: 0, substeps: x}\n"))
    for key in ("seed", "physics.num_envs", "physics.substeps"):
        assert f": {key}: got" in message
    assert len(message.splitlines()) == 3


def test_empty_blocks_and_empty_files_mean_the_defaults(tmp_path):
    empty = load_config(write_task(tmp_path, "")).config
    blocks = load_config(write_task(tmp_path, "physics:\nrewards:\nlog:\n")).config
    assert empty == blocks
    assert empty.physics.num_envs == 1024


def test_yaml_is_version_1_2(tmp_path):
    loaded = load_config(write_task(tmp_path, "description: on\nepisode: {length_s: 1e1}\n"))
    assert loaded.config.description == "on"
    assert loaded.config.episode.length_s == 10.0


def test_the_task_itself_can_be_wrong(tmp_path, task):
    assert "does not exist" in load_error(str(tmp_path / "none.py"))
    Path(task).with_suffix(".yaml").unlink()
    assert "put 'balance.yaml' beside it" in load_error(task)
    assert "unknown task 'no_such_task'" in load_error("no_such_task")
    assert "unilab train TASK seed=1" in load_error("seed=1")


def test_a_saved_config_loads_equal(task, tmp_path):
    config = load_config(
        task,
        [
            "seed=7",
            "learners.ppo.learning_rate=1e-5",
            "evaluation.points=[[1, 0, 0], [0, 0.5, 0]]",
            "evaluation.thresholds.episode/return=250",
            "description='on: 1e3'",
            "train.max_time_s=1e16",
        ],
    ).config
    path = tmp_path / "config.yaml"
    save_resolved(config, path)
    loaded = load_resolved(path)
    assert loaded.config == config
    assert loaded.origins["seed"].startswith(f"{path}:")
    assert [p.name for p in tmp_path.glob("*.partial")] == []


def test_a_saved_config_takes_overrides_over_those_of_the_learner(task, tmp_path):
    path = tmp_path / "config.yaml"
    save_resolved(load_config(task, ["physics.num_envs=8"]).config, path)
    assert load_resolved(path).config.physics.num_envs == 8
    changed = load_resolved(path, ["train.iterations=3"])
    assert changed.config.train.iterations == 3
    assert changed.origins["train.iterations"] == "command line"
    with pytest.raises(ConfigError, match=r"did you mean 'train\.iterations'"):
        load_resolved(path, ["train.iteration=3"])


def test_a_missing_saved_config_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_resolved(tmp_path / "config.yaml")


def test_with_value_checks_and_records_the_origin(task):
    loaded = load_config(task)
    seeded = loaded.with_value("seed", 42, "drawn at start")
    assert (seeded.config.seed, loaded.config.seed) == (42, None)
    assert seeded.origins == {**loaded.origins, "seed": "drawn at start"}
    with pytest.raises(ConfigError, match="drawn at start: seed: got -1"):
        loaded.with_value("seed", -1, "drawn at start")


def test_diff_lists_dotted_differences(task):
    first = load_config(task).config
    second = load_config(task, ["actions.scale=0.5", "rewards.alive={weight: 1}"]).config
    assert diff_configs(first, first) == []
    assert [str(d) for d in diff_configs(first, second)] == [
        "actions.scale: 1.0 -> 0.5",
        "rewards.alive.weight: None -> 1.0",
    ]


def test_the_config_of_a_task_is_read_anew_each_time(task):
    load_config(task)
    Path(task).with_suffix(".yaml").write_text(BALANCE.replace("gamma: 0.9", "gamma: 0.8"))
    assert load_config(task).config.learners.ppo.gamma == 0.8
