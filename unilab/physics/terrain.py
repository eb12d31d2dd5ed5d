"""Uneven ground: one grid of heights, made from the config alone, in place of a model's floor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import psutil

from unilab.config.terrain import TerrainConfig
from unilab.errors import ConfigError, nearest
from unilab.physics.base import F64
from unilab.physics.tiles import border_cells, grid_shape, make_heights

HFIELD = "terrain"  # name of the height field in the model
THICKNESS_M = 1.0  # of the solid below the lowest point
MAX_CONTACTS = 50  # MuJoCo's, of one geom with a height field (mjMAXCONPAIR)
# Of a node, in the model, in the kernel's constants and while these are put together.
BYTES_PER_NODE = 64


@dataclass(frozen=True)
class Terrain:
    """The ground as it is in the compiled model, in the world frame.

    Attributes:
      config: what it was made from.
      heights: (rows, columns) f64 m; rows along y, columns along x.
      origin: x and y of the first node, m.
    """

    config: TerrainConfig
    heights: F64
    origin: tuple[float, float]

    @property
    def grid_frame(self) -> F64:
        """(5,) what the kernel looks heights up with: x, y in m, nodes a metre, columns, rows."""
        rows, columns = self.heights.shape
        return np.array([*self.origin, 1.0 / self.config.cell_m, columns, rows])

    @property
    def tile_frame(self) -> F64:
        """(5,) x, y of the middle of tile (0, 0) and size of a tile, m; levels, columns."""
        config = self.config
        first = border_cells(config) * config.cell_m + 0.5 * config.tile_m
        x, y = self.origin[0] + first, self.origin[1] + first
        return np.array([x, y, config.tile_m, config.levels, len(config.kinds)])

    @property
    def scan_points(self) -> F64:
        """(2, P) x forward and y to the left of the points of the height scan, m.

        Point i * scan_columns + j is in row i, from behind to the front, and in column j, from the
        right to the left.
        """
        config = self.config
        x = (np.arange(config.scan_rows) - 0.5 * (config.scan_rows - 1)) * config.scan_spacing_m
        y = np.arange(config.scan_columns) - 0.5 * (config.scan_columns - 1)
        grid = np.meshgrid(x, y * config.scan_spacing_m, indexing="ij")
        return np.stack([part.ravel() for part in grid])


def add_terrain(spec: Any, config: TerrainConfig, floor: str, file: Path) -> None:
    """Put a height field in the place of a model's floor; the geom keeps its name.

    Args:
      spec: is changed.
      config: the ground; it has kinds.
      floor: name of a geom of the world body.
      file: for the error.

    Raises:
      ConfigError: no such geom, or more heights than memory.
    """
    check_memory(config)
    geom = next((g for g in spec.geoms if g.name == floor), None)
    if geom is None or geom.parent.name != "world":
        names = [g.name for g in spec.worldbody.geoms if g.name]
        raise ConfigError(
            f"{file}: terrain takes the place of the geom '{floor}', which is not among those of "
            f"the world body; {nearest(floor, names)}"
        )
    heights = make_heights(config)
    rows, columns = heights.shape
    low, high = float(heights.min()), float(heights.max())
    size = [0.5 * (columns - 1) * config.cell_m, 0.5 * (rows - 1) * config.cell_m]
    spec.add_hfield(
        name=HFIELD,
        nrow=rows,
        ncol=columns,
        # MuJoCo scales the heights to 0 to 1 and needs a height above 0, even of flat ground.
        size=[*size, max(high - low, 1e-3), THICKNESS_M],
        userdata=heights.ravel().tolist(),
    )
    geom.type = mujoco.mjtGeom.mjGEOM_HFIELD
    geom.hfieldname = HFIELD
    geom.pos = [0.0, 0.0, low]


def read_terrain(model: Any, config: TerrainConfig, floor: str) -> Terrain:
    """Return the ground of a compiled model, with heights exactly as MuJoCo has them.

    Args:
      model: compiled from what `add_terrain` changed.
      config: the ground.
      floor: name of the geom.
    """
    geom = model.geom(floor)
    field = int(geom.dataid[0])
    rows, columns = int(model.hfield_nrow[field]), int(model.hfield_ncol[field])
    start, size = int(model.hfield_adr[field]), model.hfield_size[field]
    shares = model.hfield_data[start : start + rows * columns].astype(np.float64)
    heights = shares.reshape(rows, columns) * size[2] + geom.pos[2]
    heights.setflags(write=False)
    return Terrain(config, heights, (float(geom.pos[0] - size[0]), float(geom.pos[1] - size[1])))


def check_memory(config: TerrainConfig) -> None:
    """Refuse a grid that does not fit in memory.

    Raises:
      ConfigError: more is needed than the machine has free.
    """
    rows, columns = grid_shape(config)
    needed, free = rows * columns * BYTES_PER_NODE, psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"terrain: {rows} x {columns} heights need about {needed / 2**30:,.1f} GiB of memory, "
            f"{free / 2**30:.1f} GiB are free; raise terrain.cell_m={config.cell_m:g} or lower "
            "terrain.levels or terrain.tile_m"
        )


def check_colliders(model: Any, config: TerrainConfig, floor: str, file: Path) -> None:
    """Refuse cells so fine that a geom can meet more triangles than MuJoCo has contacts for.

    MuJoCo drops the contacts beyond its limit without a word, and the geom sinks in: a box of 0.6 m
    that rests on cells of 0.04 m falls through cells of 0.01 m (MuJoCo 4.0.0).

    Raises:
      ConfigError: names the geom, how many there may be and a cell that is coarse enough.
    """
    ground = int(model.geom(floor).id)
    for geom in range(model.ngeom):
        collides = (model.geom_contype[geom] & model.geom_conaffinity[ground]) or (
            model.geom_contype[ground] & model.geom_conaffinity[geom]
        )
        if not collides or model.body_weldid[model.geom_bodyid[geom]] == 0:
            continue
        sides = _footprint(model, geom)
        count = _most_triangles(sides, config.cell_m)
        if count > MAX_CONTACTS:
            fits = config.cell_m
            while _most_triangles(sides, fits) > MAX_CONTACTS:
                fits *= 1.05
            raise ConfigError(
                f"{file}: terrain.cell_m={config.cell_m:g}: geom '{model.geom(geom).name}' of "
                f"{sides[0]:.2f} x {sides[1]:.2f} m can lie on {count} triangles of the ground, "
                f"and MuJoCo keeps {MAX_CONTACTS} contacts of a geom with it; valid: about "
                f"{fits:.3f} or more, or let the geom not collide"
            )


def _most_triangles(sides: tuple[float, float], cell_m: float) -> int:
    """Return how many triangles a rectangle can touch."""
    return 2 * int((np.floor(sides[0] / cell_m) + 2) * (np.floor(sides[1] / cell_m) + 2))


def _footprint(model: Any, geom: int) -> tuple[float, float]:
    """Return the two longer sides of a geom's own box, m: what it can lie down on.

    A round geom touches the ground along a line or at a point; a third of its width is ample for
    what it sinks in.
    """
    kind, size = model.geom_type[geom], model.geom_size[geom]
    geoms = mujoco.mjtGeom
    if kind == geoms.mjGEOM_SPHERE:
        return (2.0 * size[0] / 3.0, 2.0 * size[0] / 3.0)
    if kind in (geoms.mjGEOM_CAPSULE, geoms.mjGEOM_CYLINDER):
        width = 2.0 * size[0]
        return (2.0 * size[1] + width / 3.0, width / 3.0 if kind == geoms.mjGEOM_CAPSULE else width)
    sides = sorted(2.0 * np.asarray(model.geom_aabb[geom][3:], np.float64))
    return (float(sides[2]), float(sides[1]))
