"""Where generated kernels live on disk, and how they are compiled and loaded.

A generated module is written once, under the hash of its text, in the kernel cache directory:
``$UNILAB_CACHE_DIR``, else ``~/.cache/unilab``, else a folder in the system's temporary directory
(a read-only install or a missing home never breaks a run). Numba's own cache lies beside it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import tempfile
import warnings
from pathlib import Path
from types import ModuleType

# reassoc/contract/arcp/nsz are as fast as full fastmath and keep isfinite honest.
PRELUDE = """
import os

os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")  # equal results across machines

import numpy as np
from numba import njit, prange

f32 = np.float32
u64 = np.uint64
i64 = np.int64
_OPTIONS = {
    "nogil": True,
    "cache": True,
    "no_cfunc_wrapper": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}
_HELPER = {**_OPTIONS, "cache": False, "no_cpython_wrapper": True, "forceinline": True}
"""


_FIXED_TIME_S = 1_000_000_000  # of every generated file: Numba's cache goes by it and the size


def cache_dir() -> Path:
    """Return a writable folder for generated kernels, made if need be.

    A folder that the user named but that cannot be used costs a warning, never the run.
    """
    home = os.environ.get("UNILAB_CACHE_DIR")
    if home:
        folder = Path(home).expanduser() / "kernels"
        if _is_usable(folder):
            return folder
        warnings.warn(
            f"UNILAB_CACHE_DIR={home} is not writable; using another folder", stacklevel=2
        )
    xdg = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    for candidate in (
        Path(os.path.expanduser(xdg)) / "unilab" / "kernels",
        Path(tempfile.gettempdir()) / f"unilab-{os.getuid()}" / "kernels",
    ):
        if _is_usable(candidate):
            return candidate
    return Path(tempfile.mkdtemp(prefix="unilab-"))


def write_module(name: str, source: str) -> Path:
    """Write `source` under its hash (if it is not there yet) and return the path.

    Several processes may do this at once: the file appears by an atomic rename, and always with the
    same time stamp, so that what one process compiled is valid for all.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = cache_dir() / f"{name}_{digest}.py"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        os.utime(temporary, (_FIXED_TIME_S, _FIXED_TIME_S))
        os.replace(temporary, path)
    return path


def load_module(path: Path) -> ModuleType:
    """Import a generated module (once per process)."""
    name = f"_unilab_generated_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_usable(folder: Path) -> bool:
    """Say whether we can write to the folder and nobody else put it there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid()
    except OSError:
        return False
