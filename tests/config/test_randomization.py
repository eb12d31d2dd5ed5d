"""The `randomization` block: off by default, typed, and clear about what is not valid."""

from __future__ import annotations

import pytest

from unilab.config import load_config, load_resolved, save_resolved
from unilab.config.randomization import ModelEntry, RandomizationConfig
from unilab.errors import ConfigError

BLOCK = "randomization."


def load(*overrides: str) -> RandomizationConfig:
    return load_config("go1_walk", [BLOCK + text for text in overrides]).config.randomization


def test_nothing_is_on_by_default() -> None:
    for task in ("cartpole", "go1_walk", "g1_walk"):
        assert list(load_config(task, []).config.randomization.entries()) == []


def test_an_entry_is_on_where_a_range_is_given() -> None:
    block = load("body_mass.scale=[0.8, 1.2]", "action_delay.substeps=[0, 4]")
    assert [name for name, _ in block.entries()] == ["body_mass", "action_delay"]
    assert [name for name, _ in block.model_entries()] == ["body_mass"]
    assert block.body_mass.bodies == ("*",)
    assert block.body_mass.mode == "startup"


def test_a_resolved_config_reads_back_as_it_was(tmp_path) -> None:
    loaded = load_config(
        "go1_walk", ["randomization.gravity.scale=[0.9, 1.1]", "randomization.gravity.mode=reset"]
    )
    save_resolved(loaded.config, tmp_path / "config.yaml")
    assert load_resolved(tmp_path / "config.yaml").config == loaded.config


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["body_mass.scale=[1.2, 0.8]"], ["randomization.body_mass.scale", "low <= high"]),
        (["body_mass.scale=[0.0, 1.0]"], ["randomization.body_mass.scale", "above 0"]),
        (["body_mass.scale=0.5"], ["randomization.body_mass.scale", "list of numbers"]),
        (["body_mass.scale=[0.5]"], ["randomization.body_mass.scale", "valid: [low, high]"]),
        (["body_mass.mode=reset"], ["nothing is drawn", "scale, add_kg"]),
        (["body_mass.scale=[0.9, 1.1]", "body_mass.mode=interval"],
         ["randomization.body_mass.mode", "interval", "startup | reset", "events.push"]),
        (["action_delay.substeps=[0, 2]", "action_delay.mode=interval"], ["interval"]),
        (["action_delay.substeps=[-1, 2]"], ["randomization.action_delay.substeps", ">= 0"]),
        (["action_delay.substeps=[0.5, 2]"], ["randomization.action_delay.substeps", "integer"]),
        (["geom_friction.slide=[-0.1, 1]"], ["randomization.geom_friction.slide", "0 or more"]),
        (["geom_friction.slide=[0, 1]", "geom_friction.distribution=log_uniform"],
         ["randomization.geom_friction", "log_uniform"]),
        (["body_mas.scale=[0.9, 1.1]"], ["did you mean 'randomization.body_mass"]),
        (["body_mass.scales=[0.9, 1.1]"], ["randomization.body_mass.scale"]),
        (["body_mass.scale=[0.9, .inf]"], ["randomization.body_mass.scale"]),
        (["startup_variants=0"], ["randomization.startup_variants", ">= 1"]),
        (["body_mass.bodies=[]"], ["randomization.body_mass.bodies"]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_valid_is_named(overrides: list[str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load(*overrides)
    for word in words:
        assert word in str(error.value), str(error.value)


def test_every_entry_has_a_mode_and_its_ranges_are_keys_of_it() -> None:
    entries = {
        name: info.annotation
        for name, info in RandomizationConfig.model_fields.items()
        if hasattr(info.annotation, "RANGES")
    }
    assert len(entries) == 12
    for name, entry in entries.items():
        assert set(entry.RANGES) <= set(entry.model_fields), name
        assert "mode" in entry.model_fields
    assert sum(issubclass(entry, ModelEntry) for entry in entries.values()) == 9
