"""Parts of a run: devices, and the symmetry put together from the mirrors of a task."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from unilab.config import load_config
from unilab.errors import ConfigError
from unilab.runners.backends import choose_device
from unilab.runners.build import make_symmetry
from unilab.tasks.base import BuiltTask, MirrorSpec, build_task


def with_mirrors(changes: dict[str, MirrorSpec | None], *overrides: str) -> BuiltTask:
    """The cart-pole with some of its mirrors replaced, or left out."""
    built = build_task(load_config("cartpole", overrides).config)
    changed = {**built.model.mirrors, **changes}
    mirrors = {name: mirror for name, mirror in changed.items() if mirror is not None}
    return replace(built, model=replace(built.model, mirrors=mirrors))


def flip(size: int) -> MirrorSpec:
    return MirrorSpec(np.arange(size), -np.ones(size, np.float32))


def test_mirrors_are_joined_in_the_order_of_the_terms() -> None:
    symmetry = make_symmetry(with_mirrors({}))
    assert symmetry is not None
    assert symmetry.obs.permutation.tolist() == [0, 1, 2, 3, 4]
    assert symmetry.obs.sign.tolist() == [-1, -1, 1, -1, -1]
    assert symmetry.action.sign.tolist() == [-1]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("action", "the action (1 numbers)"),
        ("pole_state", "the observation term 'pole_state' (3 numbers)"),
    ],
)
def test_a_missing_mirror_is_refused_only_where_symmetry_is_on(name: str, what: str) -> None:
    assert make_symmetry(with_mirrors({name: None})) is None
    with pytest.raises(ConfigError, match=re.escape(f"no mirror for {what}")):
        make_symmetry(with_mirrors({name: None}, "learners.ppo.symmetry=augment"))


@pytest.mark.parametrize("symmetry", ["none", "augment"])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"action": flip(2)}, "'action' has 2 indices and 2 signs; the action has 1 numbers"),
        (
            # As many numbers in all: only a check of each term sees it.
            {"cart_state": flip(3), "pole_state": flip(2)},
            "'cart_state' has 3 indices and 3 signs; the observation term 'cart_state' has 2",
        ),
        (
            {"pole_state": MirrorSpec(np.arange(3), np.ones(1, np.float32))},
            "'pole_state' has 3 indices and 1 signs",
        ),
    ],
)
def test_a_mirror_of_another_size_is_refused(
    symmetry: str, changes: dict[str, MirrorSpec | None], words: str
) -> None:
    built = with_mirrors(changes, f"learners.ppo.symmetry={symmetry}")
    with pytest.raises(ConfigError, match=re.escape(words)):
        make_symmetry(built)


def test_a_device_that_is_not_there_is_refused() -> None:
    assert choose_device("cpu").type == "cpu"
    with pytest.raises(ConfigError, match="device=cuda:64: there is no such device"):
        choose_device("cuda:64")
