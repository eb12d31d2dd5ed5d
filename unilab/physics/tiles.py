"""Heights of uneven ground: tiles of several kinds, harder from level to level, on one grid."""

from __future__ import annotations

import numpy as np

from unilab.config.terrain import TerrainConfig
from unilab.physics.base import F64

RAMP_M = 0.5  # from flat ground to the full height of rough ground and of waves


def border_cells(config: TerrainConfig) -> int:
    """Width of the border in cells."""
    return round(config.border_m / config.cell_m)


def grid_shape(config: TerrainConfig) -> tuple[int, int]:
    """Return the number of nodes along y and along x."""
    tile, border = round(config.tile_m / config.cell_m), border_cells(config)
    return (
        len(config.kinds) * tile + 2 * border + 1,
        config.levels * tile + 2 * border + 1,
    )


def make_heights(config: TerrainConfig) -> F64:
    """Return the heights of the whole ground, (rows, columns) f64 m: the same for the same config.

    Tile (level l, column k) lies at columns of the grid that begin at l tiles, and at rows that
    begin at k tiles, both after the border. Tiles next to each other share their edge, at 0.
    """
    heights = np.zeros(grid_shape(config))
    tile, border = round(config.tile_m / config.cell_m), border_cells(config)
    for column, kind in enumerate(config.kinds):
        for level in range(config.levels):
            share = level / max(config.levels - 1, 1)
            draw = np.random.Generator(np.random.Philox(key=[config.seed, column * 1000 + level]))
            top, left = border + column * tile, border + level * tile
            heights[top : top + tile + 1, left : left + tile + 1] = make_tile(
                config, kind, share, draw
            )
    return heights


def make_tile(
    config: TerrainConfig, kind: str, difficulty: float, draw: np.random.Generator
) -> F64:
    """Return the heights of one tile, (cells + 1, cells + 1) f64 m.

    Args:
      config: sizes.
      kind: one of `config.terrain.TileKind`.
      difficulty: 0 on the first level to 1 on the last.
      draw: of random heights.
    """
    cells = round(config.tile_m / config.cell_m)
    along = (np.arange(cells + 1) - 0.5 * cells) * config.cell_m
    x, y = np.meshgrid(along, along)
    from_middle = np.maximum(np.abs(x), np.abs(y))
    half, platform = 0.5 * cells * config.cell_m, 0.5 * config.platform_m

    def at(easy_hard: tuple[float, ...]) -> float:
        return easy_hard[0] + difficulty * (easy_hard[1] - easy_hard[0])

    # From the edge of the tile inward, no further than to the platform.
    inward = np.clip(half - from_middle, 0.0, half - platform)
    heights: F64 = np.zeros_like(x)
    if kind in ("slope_up", "slope_down"):
        heights = at(config.slope) * inward
    if kind in ("stairs_up", "stairs_down"):
        # A whole number of steps, whatever is left over lies flat at the edge.
        steps = np.floor((half - platform) / config.stair_width_m + 1e-9)
        flat = (half - platform) - steps * config.stair_width_m
        step = np.ceil((inward - flat) / config.stair_width_m - 1e-6)
        heights = at(config.stairs_m) * np.clip(step, 0.0, steps)
    # Flat at the edge and on the platform, with a ramp between.
    ramp = np.clip(inward / RAMP_M, 0.0, 1.0) * np.clip((from_middle - platform) / RAMP_M, 0.0, 1.0)
    if kind == "rough":
        heights = at(config.rough_m) * draw.uniform(-1.0, 1.0, x.shape) * ramp
    if kind == "waves":
        turn = 2.0 * np.pi / config.wave_length_m
        heights = 0.5 * at(config.waves_m) * (np.sin(turn * x) + np.sin(turn * y)) * ramp
    # Up and down are those of a robot that walks out from the middle.
    return -heights if kind in ("slope_up", "stairs_up") else heights
