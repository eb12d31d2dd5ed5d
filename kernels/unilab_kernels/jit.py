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
from pathlib import Path
from types import ModuleType

# reassoc/contract/arcp/nsz are as fast as full fastmath and keep isfinite honest.
PRELUDE = '''
import os

os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")  # equal results across machines

import numpy as np
from numba import njit, prange

f32 = np.float32
u64 = np.uint64
_OPTIONS = {
    "nogil": True,
    "cache": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "arcp", "nsz"},
}
'''


def cache_dir() -> Path:
    """Return a writable folder for generated kernels, made if need be."""
    home = os.environ.get("UNILAB_CACHE_DIR")
    candidates = [Path(home)] if home else []
    xdg = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    candidates.append(Path(os.path.expanduser(xdg)) / "unilab")
    candidates.append(Path(tempfile.gettempdir()) / f"unilab-{os.getuid()}")
    for candidate in candidates:
        folder = candidate / "kernels"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="unilab-"))


def write_module(name: str, source: str) -> Path:
    """Write `source` under its hash (if it is not there yet) and return the path.

    Several processes may do this at once: the file appears by an atomic rename.
    """
    digest = hashlib.sha256(source.encode()).hexdigest()[:16]
    path = cache_dir() / f"{name}_{digest}.py"
    if not path.exists():
        handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(handle, "w") as file:
            file.write(source)
        os.replace(temporary, path)
    return path


def load_module(path: Path) -> ModuleType:
    """Import a generated module (once per process)."""
    name = f"_unilab_generated_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
