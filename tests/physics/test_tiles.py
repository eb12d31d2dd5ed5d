"""Tiles of uneven ground: what each kind looks like, in numbers one can check by hand."""

from __future__ import annotations

import numpy as np
import pytest

from unilab.config.terrain import TerrainConfig
from unilab.physics.tiles import grid_shape, make_heights, make_tile

KINDS = ("flat", "rough", "slope_up", "slope_down", "stairs_up", "stairs_down", "waves")
# 8 m in cells of 0.25 m: 33 nodes; the platform is 2 m, so walking out takes 3 m.
CONFIG = TerrainConfig(
    kinds=KINDS, levels=3, tile_m=8.0, cell_m=0.25, border_m=1.0, platform_m=2.0,
    rough_m=(0.0, 0.1), slope=(0.0, 0.4), stairs_m=(0.05, 0.15), stair_width_m=0.5,
    waves_m=(0.0, 0.2), wave_length_m=2.0,
)  # fmt: skip
MIDDLE = 16
PLATFORM = slice(MIDDLE - 4, MIDDLE + 5)


def tile(kind: str, difficulty: float) -> np.ndarray:
    return make_tile(CONFIG, kind, difficulty, np.random.default_rng(0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("difficulty", [0.0, 0.5, 1.0])
def test_a_tile_is_0_along_its_edges_and_flat_on_its_platform(kind, difficulty):
    heights = tile(kind, difficulty)
    assert heights.shape == (33, 33)
    for edge in (heights[0], heights[-1], heights[:, 0], heights[:, -1]):
        np.testing.assert_array_equal(edge, 0.0)
    platform = heights[PLATFORM, PLATFORM]
    np.testing.assert_allclose(platform, platform[0, 0], atol=1e-12)


@pytest.mark.parametrize("kind", ["flat", "rough", "slope_up", "slope_down", "waves"])
def test_a_kind_that_begins_at_0_is_flat_on_the_first_level(kind):
    assert not tile(kind, 0.0).any()


def test_slopes_rise_by_their_grade_over_the_way_out():
    down = tile("slope_down", 1.0)
    assert down[MIDDLE, MIDDLE] == pytest.approx(0.4 * 3.0)  # walked down: the middle is high
    np.testing.assert_allclose(np.diff(down[MIDDLE, :13]), 0.4 * 0.25)
    np.testing.assert_allclose(tile("slope_up", 1.0), -down)
    assert tile("slope_down", 0.5)[MIDDLE, MIDDLE] == pytest.approx(0.2 * 3.0)


def test_stairs_have_equal_steps_of_the_given_width():
    down = tile("stairs_down", 1.0)
    # 3 m are six steps of 0.5 m (two cells) and 0.15 m; the level falls with the cell's first node.
    inward = down[MIDDLE, : MIDDLE + 1]
    np.testing.assert_allclose(
        inward / 0.15, [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 6, 6, 6, 6], atol=1e-9
    )
    np.testing.assert_allclose(tile("stairs_up", 1.0), -down)
    assert tile("stairs_down", 0.0).max() == pytest.approx(6 * 0.05)


def test_stairs_that_do_not_fill_the_way_leave_the_rest_flat_at_the_edge():
    config = CONFIG.model_copy(update={"stair_width_m": 0.75, "platform_m": 2.5})  # 2.75 m: 3 steps
    heights = make_tile(config, "stairs_down", 1.0, np.random.default_rng(0))
    np.testing.assert_allclose(heights[MIDDLE, :4] / 0.15, [0, 0, 0, 1], atol=1e-9)
    assert heights.max() == pytest.approx(3 * 0.15)


def test_rough_ground_and_waves_stay_within_their_amplitude_and_reach_most_of_it():
    for kind, amplitude in (("rough", 0.1), ("waves", 0.2)):
        heights = tile(kind, 1.0)
        assert np.abs(heights).max() <= amplitude + 1e-12
        assert np.abs(heights).max() > 0.7 * amplitude
        assert len(np.unique(heights)) > 10


def test_the_grid_holds_levels_along_x_and_kinds_along_y_within_a_flat_border():
    heights = make_heights(CONFIG)
    assert heights.shape == grid_shape(CONFIG) == (7 * 32 + 9, 3 * 32 + 9)
    for edge in (heights[:5], heights[-5:], heights[:, :5], heights[:, -5:]):
        assert not edge.any()
    column, level = KINDS.index("stairs_down"), 2
    found = heights[4 + 32 * column : 4 + 32 * column + 33, 4 + 32 * level : 4 + 32 * level + 33]
    np.testing.assert_array_equal(found, tile("stairs_down", 1.0))


def test_the_same_config_gives_the_same_ground_and_another_seed_another_rough_one():
    first, other = make_heights(CONFIG), make_heights(CONFIG.model_copy(update={"seed": 1}))
    np.testing.assert_array_equal(first, make_heights(CONFIG))
    rough = slice(4 + 32, 4 + 64)
    assert not np.array_equal(first[rough], other[rough])
    np.testing.assert_array_equal(np.delete(first, rough, 0), np.delete(other, rough, 0))


def test_one_level_alone_is_the_easiest():
    config = CONFIG.model_copy(update={"levels": 1, "kinds": ("slope_up", "flat")})
    assert not make_heights(config).any()
