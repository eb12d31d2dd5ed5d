"""Terms of tasks on uneven ground: its heights, what is measured from them, tiles and levels.

The ground is one grid of heights, a constant of the task:

* ``height_grid`` (rows * columns,) m, row after row; columns run along x, rows along y;
* ``grid_frame`` (5,): x and y of the first node in m, nodes a metre, columns, rows;
* ``tile_frame`` (5,): x and y of the middle of tile (level 0, column 0) in m, size of a tile in m,
  levels (along x), columns (along y).
"""

# mypy: allow-untyped-defs, allow-untyped-calls

from __future__ import annotations

import math

import numpy as np

from .rng import uniform
from .terms import carry, derived, observation, reset, reward, termination, truncation


def ground_at(height_grid, grid_frame, x, y):
    """Height of the ground at (x, y), m, on the triangles that MuJoCo collides with.

    A cell is cut along the diagonal from its first to its last node. Outside the grid the height of
    the nearest edge holds.
    """
    columns, rows = int(grid_frame[3]), int(grid_frame[4])
    u = min(max((x - grid_frame[0]) * grid_frame[2], 0.0), grid_frame[3] - 1.0)
    v = min(max((y - grid_frame[1]) * grid_frame[2], 0.0), grid_frame[4] - 1.0)
    c, r = min(int(u), columns - 2), min(int(v), rows - 2)
    fu, fv = u - np.float32(c), v - np.float32(r)
    first = r * columns + c
    near = height_grid[max(0, first)]
    far = height_grid[max(0, first + columns + 1)]
    if fu >= fv:
        corner = height_grid[max(0, first + 1)]
        return near + fu * (corner - near) + fv * (far - corner)
    corner = height_grid[max(0, first + columns)]
    return near + fv * (corner - near) + fu * (far - corner)


@derived(size=0)
def ground_height(base_pos, height_grid, grid_frame):
    """Height of the ground under the base origin, m.

    Args:
      base_pos: (3,) m, world frame.
      height_grid, grid_frame: the ground.
    """
    return ground_at(height_grid, grid_frame, base_pos[0], base_pos[1])


@derived(size="feet_contact")
def feet_ground(feet_pos_w, height_grid, grid_frame, out):
    """Height of the ground under each foot, m.

    Args:
      feet_pos_w: (3F,) m, world frame.
      height_grid, grid_frame: the ground.
      out: (F,) m.
    """
    for f in range(len(out)):
        height = ground_at(height_grid, grid_frame, feet_pos_w[3 * f], feet_pos_w[3 * f + 1])
        out[f] = height


@derived(size="scan_x")
def ground_scan(base_pos, base_quat, scan_x, scan_y, height_grid, grid_frame, out):
    """Height of the base origin over the ground at points around it that turn with its heading, m.

    Args:
      base_pos: (3,) m, world frame.
      base_quat: (4,) wxyz, base to world.
      scan_x, scan_y: (P,) m, where the points are, forward and to the left of the base.
      height_grid, grid_frame: the ground.
      out: (P,) m.
    Source: mjlab's and legged_gym's rough velocity tasks.
    """
    w, a, b, c = base_quat[0], base_quat[1], base_quat[2], base_quat[3]
    cos = 1.0 - 2.0 * (b * b + c * c)  # the base's x axis seen from above
    sin = 2.0 * (a * b + w * c)
    norm = max(math.sqrt(cos * cos + sin * sin), 1e-6)
    cos, sin = cos / norm, sin / norm
    for j in range(len(out)):
        x = base_pos[0] + cos * scan_x[j] - sin * scan_y[j]
        y = base_pos[1] + sin * scan_x[j] + cos * scan_y[j]
        height = ground_at(height_grid, grid_frame, x, y)
        out[j] = base_pos[2] - height


@observation(size="scan_x")
def height_scan(ground_scan, out, clip_m=1.0):
    """Height of the base over the ground at the points of the scan, within +-`clip_m`, m."""
    for j in range(len(out)):
        out[j] = min(max(ground_scan[j], -clip_m), clip_m)


@observation(size=1)
def base_height_ground(base_pos, ground_height, out):
    """Height of the base origin over the ground under it, m."""
    out[0] = base_pos[2] - ground_height


@reward
def base_height_low_ground(base_pos, ground_height, min_height_m):
    """How far the base is below `min_height_m` over the ground, m (0 above it)."""
    return max(min_height_m - (base_pos[2] - ground_height), 0.0)


@reward
def feet_clearance_ground(feet_pos_w, feet_ground, feet_vel_w, command, height_m, threshold):
    """Moving feet away from the wanted height over the ground: sum (z - height)^2 |v_xy|.

    Args:
      feet_pos_w: (3F,) m, world frame.
      feet_ground: (F,) m, height of the ground under each foot.
      feet_vel_w: (3F,) m/s, world frame.
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      height_m: height of the foot site over the ground at mid swing.
      threshold: |command| above it means moving; below it the term is 0.
    Source: as `feet_clearance`.
    """
    norm2 = command[0] * command[0] + command[1] * command[1] + command[2] * command[2]
    if norm2 < threshold * threshold:
        return 0.0
    total = 0.0
    for f in range(len(feet_ground)):
        vx, vy = feet_vel_w[3 * f], feet_vel_w[3 * f + 1]
        d = feet_pos_w[3 * f + 2] - feet_ground[f] - height_m
        total += d * d * math.sqrt(vx * vx + vy * vy)
    return total


@termination
def base_low_ground(base_pos, ground_height, height_m):
    """The base origin is lower than `height_m` over the ground under it."""
    return base_pos[2] - ground_height < height_m


@truncation
def terrain_left(base_pos, grid_frame, margin_m):
    """The base is closer than `margin_m` to the end of the terrain."""
    width = (grid_frame[3] - 1.0) / grid_frame[2]
    depth = (grid_frame[4] - 1.0) / grid_frame[2]
    x, y = base_pos[0] - grid_frame[0], base_pos[1] - grid_frame[1]
    return min(min(x, width - x), min(y, depth - y)) < margin_m


@carry
def measure_walk(
    terrain_walk_io,
    base_pos,
    base_quat,
    command,
    terrain_start,
    terminated,
    control_dt,
    episode_length_s,
):
    """How far the env has come in this episode, and how far its commands asked it to.

    Args:
      terrain_walk_io: (6,) x and y from the start, m; x and y that a robot would have come which
        follows every command on the headings of this one, m; distance that a failure left
        undone, m; time, s.
      base_pos: (3,) m, world frame.
      base_quat: (4,) wxyz, base to world.
      command: (3,) vx, vy in m/s, yaw rate in rad/s.
      terrain_start: (2,) x and y at the start, m.
      terminated: the episode ends here as a failure.
      control_dt, episode_length_s: s.
    """
    w, a, b, c = base_quat[0], base_quat[1], base_quat[2], base_quat[3]
    cos = 1.0 - 2.0 * (b * b + c * c)
    sin = 2.0 * (a * b + w * c)
    norm = max(math.sqrt(cos * cos + sin * sin), 1e-6)
    cos, sin = cos / norm, sin / norm
    terrain_walk_io[0] = base_pos[0] - terrain_start[0]
    terrain_walk_io[1] = base_pos[1] - terrain_start[1]
    terrain_walk_io[2] += (cos * command[0] - sin * command[1]) * control_dt
    terrain_walk_io[3] += (sin * command[0] + cos * command[1]) * control_dt
    terrain_walk_io[5] += control_dt
    if terminated:
        speed = math.sqrt(command[0] * command[0] + command[1] * command[1])
        terrain_walk_io[4] = speed * max(episode_length_s - terrain_walk_io[5], 0.0)


@reset
def terrain_spawn(
    qpos_io,
    key,
    env_id,
    episode,
    terrain_level_io,
    terrain_column_io,
    terrain_start_io,
    terrain_walk,
    fixed_tile,
    height_grid,
    grid_frame,
    tile_frame,
    base_qpos_start,
    first_levels=1.0,
):
    """Put the base onto the middle of a tile, a level up or down from the last episode's.

    Up where it came further than half a tile; else down where it came less than half as far as its
    commands asked; a level drawn at random from all where it has passed the last. The column is the
    env's own. List this event after the one that offsets the base.

    Args:
      qpos_io: (nq,) f64, x, y and z of the base are moved.
      key: random key.
      env_id: of this env.
      episode: episodes begun, from 1; in the first the level is drawn.
      terrain_level_io, terrain_column_io: (1,) of the tile.
      terrain_start_io: (2,) x and y of the base, m.
      terrain_walk: (6,) of the old episode, see `measure_walk`.
      fixed_tile: (3,) where [0] > 0 level and column are [1] and [2] (evaluation).
      height_grid, grid_frame, tile_frame: the ground and its tiles.
      base_qpos_start: where the free joint starts in qpos.
      first_levels: first episodes are spread over this many of the easiest levels.
    Source: Rudin et al. 2021 (legged_gym), whose rule takes the last command for all of an episode.
    """
    levels, columns = int(tile_frame[3]), int(tile_frame[4])
    level, column = int(terrain_level_io[0]), env_id % columns
    if fixed_tile[0] > 0.0:
        level, column = int(fixed_tile[1]), int(fixed_tile[2])
    elif episode == 1:
        level = int(uniform(key, 0, 0.0, first_levels))
    else:
        x, y = terrain_walk[0], terrain_walk[1]
        walked = math.sqrt(x * x + y * y)
        x, y = terrain_walk[2], terrain_walk[3]
        asked = math.sqrt(x * x + y * y) + terrain_walk[4]
        if walked > 0.5 * tile_frame[2]:
            level += 1
        elif walked < 0.5 * asked:
            level -= 1
        if level >= levels:
            level = int(uniform(key, 1, 0.0, tile_frame[3]))
    level, column = min(max(level, 0), levels - 1), min(max(column, 0), columns - 1)
    terrain_level_io[0] = level
    terrain_column_io[0] = column
    p = int(base_qpos_start)
    qpos_io[p] += tile_frame[0] + np.float32(level) * tile_frame[2]
    qpos_io[p + 1] += tile_frame[1] + np.float32(column) * tile_frame[2]
    terrain_start_io[0] = qpos_io[p]
    terrain_start_io[1] = qpos_io[p + 1]
    qpos_io[p + 2] += ground_at(height_grid, grid_frame, terrain_start_io[0], terrain_start_io[1])
