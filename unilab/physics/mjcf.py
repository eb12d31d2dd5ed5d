"""Reading and compiling of MJCF files, and what is said of one that is wrong.

Only MuJoCo's own parser and compiler read MJCF; text is searched for the words of an error alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco

from unilab.errors import ConfigError, nearest
from unilab.physics.names import name_of

_JOINT_QPOS = {0: 7, 1: 4, 2: 1, 3: 1}  # mjtJoint -> numbers in qpos


def load_spec(path: str | os.PathLike[str]) -> Any:
    """Parse an MJCF file.

    Args:
      path: an .xml file; what it includes and its meshes are found from where it lies.

    Returns:
      The `mujoco.MjSpec`, not compiled.

    Raises:
      ConfigError: no such file, a folder, an empty file, or XML that MuJoCo refuses (with its
        element and line).
    """
    file = Path(path).expanduser().absolute()
    if not file.exists():
        others = [p.name for p in file.parent.glob("*.xml")] if file.parent.is_dir() else []
        where = f"in {file.parent}: {nearest(file.name, others)}" if others else "check the path."
        raise ConfigError(f"{file}: robot file not found; {where}")
    if file.is_dir():
        found = ", ".join(sorted(p.name for p in file.glob("*.xml"))) or "no .xml file"
        raise ConfigError(f"{file}: is a folder, an MJCF .xml file is needed; it holds: {found}")
    if file.suffix.lower() != ".xml":
        raise ConfigError(f"{file}: '{file.suffix}' file came, an MJCF .xml file is needed.")
    if not file.read_bytes().strip():
        raise ConfigError(f"{file}: the file is empty, an MJCF model is needed.")
    try:
        return mujoco.MjSpec.from_file(str(file))
    except (ValueError, mujoco.FatalError) as error:
        raise ConfigError(_refused(file, error)) from error


def compile_base(spec: Any, file: Path) -> Any:
    """Compile the file as it is and check its keyframes, which may be what fails to compile.

    Raises:
      ConfigError: see `compile_spec`; a keyframe that is not as long as the model.
    """
    keys = _key_lengths(spec)
    try:
        model = compile_spec(spec, file)
    except ConfigError as error:
        if "keyframe" in str(error):
            bare = load_spec(file)
            for key in list(bare.keys):
                bare.delete(key)
            _check_keyframes(compile_spec(bare, file), keys, file)
        raise
    _check_keyframes(model, keys, file)
    return model


def compile_spec(spec: Any, file: Path) -> Any:
    """Compile a spec that was read from `file`. Returns the MjModel.

    Raises:
      ConfigError: what MuJoCo says against it; for a mesh or image not found, every place tried.
    """
    try:
        return spec.compile()
    except (ValueError, mujoco.FatalError) as error:
        missing = re.search(r"Error opening file '(.*?)'", str(error))
        if missing:
            raise ConfigError(_asset_missing(spec, file, missing.group(1))) from error
        raise ConfigError(_refused(file, error)) from error


def _refused(file: Path, error: Exception) -> str:
    text = " | ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return f"{file}: MuJoCo {mujoco.__version__} refuses this model: {text}"


def _asset_missing(spec: Any, file: Path, opened: str) -> str:
    """Explain a mesh, texture or height field that was not found: every place, and a way out."""
    lost = (file.parent / opened).absolute()
    textures = [Path(f).name for t in spec.textures for f in (t.file, *t.cubefiles) if f]
    key = "texturedir" if lost.name in textures else "meshdir"
    # MuJoCo looks in the top file's meshdir, then beside the included file.
    first = file.parent / (spec.texturedir if key == "texturedir" else spec.meshdir)
    tried = list(dict.fromkeys([first / lost.name, lost]))
    lines = [f"{file}: file '{lost.name}' of the model was not found."]
    lines += [f"  tried: {place}" for place in tried]
    candidates = [file.parent]
    for include, line in _includes(file):
        text = include.read_text(errors="replace") if include.is_file() else ""
        lines.append(f"  included: {include} (line {line} of {file.name})")
        dirs = re.findall(r"\b(?:meshdir|assetdir|texturedir)\s*=\s*[\"'](.*?)[\"']", text)
        candidates += [include.parent / d for d in (*dirs, "")]
    found = next((c for c in candidates if (c / lost.name).is_file()), None)
    wanted = os.path.relpath(found, file.parent) if found else "FOLDER_OF_THE_FILE"
    lines.append(
        f'  fix: {key} counts from the folder of the top file; put <compiler {key}="{wanted}"/> '
        f"into {file.name}, after its <include> lines"
        + (f" (the file lies in {found})." if found else ".")
    )
    return "\n".join(lines)


def _includes(file: Path) -> list[tuple[Path, int]]:
    """List the files a file includes with their line: for the text of an error only."""
    found = []
    for line, text in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        for name in re.findall(r"<include\b[^>]*\bfile\s*=\s*[\"'](.*?)[\"']", text):
            found.append((file.parent / name, line))
    return found


def _key_lengths(spec: Any) -> list[tuple[str, dict[str, int]]]:
    """Read how many numbers each keyframe holds, as written: compiling fills short ones up."""
    parts = ("qpos", "qvel", "act", "ctrl", "mpos", "mquat")
    return [
        (key.name or f"#{i}", {part: len(getattr(key, part)) for part in parts})
        for i, key in enumerate(spec.keys)
    ]


def _check_keyframes(model: Any, keys: Sequence[tuple[str, dict[str, int]]], file: Path) -> None:
    """Refuse a keyframe that is not as long as the model: MuJoCo takes short ones silently."""
    sizes = {"qpos": model.nq, "qvel": model.nv, "act": model.na, "ctrl": model.nu}
    sizes |= {"mpos": 3 * model.nmocap, "mquat": 4 * model.nmocap}
    for key, lengths in keys:
        for part, came in lengths.items():
            if came in (0, sizes[part]):
                continue
            layout = ", ".join(
                f"{name_of(model, 'joint', j)}: {_JOINT_QPOS[int(model.jnt_type[j])]}"
                for j in range(model.njnt)
            )
            raise ConfigError(
                f"{file}: keyframe '{key}' has {came} numbers in {part}, this model needs "
                f"{sizes[part]}. Fix: write all of them in the order of the model"
                + (f" ({layout})." if part == "qpos" else ".")
            )
