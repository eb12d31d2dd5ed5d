"""The ground of a task: the `terrain` block of the config."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, Strict, model_validator

from unilab.config.base import FloatTuple, Section

TileKind = Literal["flat", "rough", "slope_up", "slope_down", "stairs_up", "stairs_down", "waves"]
TileKinds = Annotated[tuple[TileKind, ...], Strict(False)]
# What a kind has on the easiest and on the hardest level.
EasyHard = Annotated[FloatTuple, Field(min_length=2, max_length=2)]


class TerrainConfig(Section):
    """The ground: square tiles, one column a kind and one row a level; none = the model's floor.

    Every tile has a flat platform in its middle and is at height 0 along its edges; up and down are
    those of a robot that walks outward from the platform.
    """

    kinds: TileKinds = Field(
        default=(),
        description="Columns of tiles, in order; a kind may come twice. Empty = the model's own "
        "floor, no terrain.",
    )
    levels: int = Field(
        default=8, ge=1, le=100, description="Rows of tiles, from the easiest to the hardest."
    )
    tile_m: float = Field(default=8.0, gt=0, description="Side of a tile, m.")
    cell_m: float = Field(
        default=0.1,
        gt=0,
        description="Distance of two heights of the grid, m. Finer is truer, and slower: a foot "
        "then meets more triangles.",
    )
    border_m: float = Field(
        default=4.0, ge=0, description="Width of the flat ground around all tiles, m."
    )
    platform_m: float = Field(
        default=2.0, ge=0, description="Side of the flat square in the middle of a tile, m."
    )
    rough_m: EasyHard = Field(
        default=(0.0, 0.08),
        description="rough: heights are drawn from +- this, m; on the first and on the last level.",
    )
    slope: EasyHard = Field(
        default=(0.0, 0.4), description="slopes: rise over run, on the first and the last level."
    )
    stairs_m: EasyHard = Field(
        default=(0.02, 0.15), description="stairs: height of a step, m, first and last level."
    )
    stair_width_m: float = Field(default=0.4, gt=0, description="stairs: depth of a step, m.")
    waves_m: EasyHard = Field(
        default=(0.0, 0.15), description="waves: amplitude, m, on the first and on the last level."
    )
    wave_length_m: float = Field(default=2.0, gt=0, description="waves: length of a wave, m.")
    seed: int = Field(
        default=0, ge=0, description="Of the random heights; apart from the run's seed."
    )
    scan_rows: int = Field(
        default=9, ge=1, description="Points of the height scan along the robot's heading."
    )
    scan_columns: int = Field(default=7, ge=1, description="Points of the height scan across it.")
    scan_spacing_m: float = Field(
        default=0.15, gt=0, description="Distance of two points of the height scan, m."
    )

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if not self.kinds:
            return self
        if self.cell_m > 0.25 * self.tile_m:
            raise ValueError(
                f"terrain.cell_m={self.cell_m:g} is too coarse for tiles of terrain.tile_m="
                f"{self.tile_m:g} m; valid: at most a quarter, {0.25 * self.tile_m:g}"
            )
        cells = self.tile_m / self.cell_m
        if abs(cells - round(cells)) > 1e-6:
            raise ValueError(
                f"terrain.tile_m={self.tile_m:g} is not a whole number of terrain.cell_m="
                f"{self.cell_m:g}; change one of them"
            )
        if self.platform_m > self.tile_m - 2 * self.cell_m:
            raise ValueError(
                f"terrain.platform_m={self.platform_m:g} fills the tile; valid: at most "
                f"terrain.tile_m - 2 * terrain.cell_m = {self.tile_m - 2 * self.cell_m:g}"
            )
        for name in ("rough_m", "slope", "stairs_m", "waves_m"):
            if min(getattr(self, name)) < 0:
                raise ValueError(
                    f"terrain.{name}={list(getattr(self, name))}: valid: two numbers >= 0, of the "
                    "first and of the last level"
                )
        return self
