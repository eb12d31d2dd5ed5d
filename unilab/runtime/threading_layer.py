"""Numba's threading layer: what runs parallel kernels. A process has one, for as long as it lives.

Only plans with `threads_per_shard` above 1 need it: they call parallel kernels from several threads
at once. `omp` and `tbb` can do that; `workqueue` aborts the process.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from unilab.errors import ConfigError

SAFE = ("omp", "tbb")  # in the order in which "auto" tries them
INSTALL = {
    "omp": "omp needs the OpenMP library: libgomp1 on Debian, `pip install intel-openmp` on macOS",
    "tbb": "`pip install tbb`, with the environment's lib folder on LD_LIBRARY_PATH",
}


def check_installed(layer: str) -> None:
    """Refuse a layer that was asked for by name and cannot be loaded here.

    Args:
      layer: value of `runtime.threading_layer`.

    Raises:
      ConfigError: it cannot; says how to install it.
    """
    if layer in SAFE and not _loads(layer):
        raise ConfigError(
            f"runtime.threading_layer={layer}: Numba cannot load it on this machine; install it "
            f"({INSTALL[layer]}), or use runtime.threading_layer=auto"
        )


def start_layer(layer: str, threads_per_shard: int) -> str:
    """Start a layer that parallel kernels may be called on from several threads.

    Done once a process; comes before torch's threads are set, since both may share one OpenMP.

    Args:
      layer: "omp", "tbb", or "auto" for the first of them that there is.
      threads_per_shard: Numba threads that one caller uses.

    Returns:
      The layer's name.

    Raises:
      ConfigError: there is none, another one runs in this process, or Numba was loaded with fewer
        threads.
    """
    import numba  # what it reads from the environment must be set before

    most = int(numba.config.NUMBA_NUM_THREADS)
    if threads_per_shard > most:
        raise ConfigError(
            f"runtime.threads_per_shard={threads_per_shard}: Numba was loaded with {most} "
            "thread(s) in this process, and keeps them; lower it, or call "
            "unilab.runtime.threads.prepare_environment before anything imports numba"
        )
    running = _running(numba)
    wanted = SAFE if layer == "auto" else (layer,)
    if running is None:
        chosen = next((name for name in wanted if _loads(name)), None)
        if chosen is None:
            check_installed(layer)
            raise ConfigError(
                f"runtime.threads_per_shard={threads_per_shard} needs Numba's omp or tbb layer, "
                f"and this machine has neither; {INSTALL['tbb']}, or use "
                "runtime.threads_per_shard=1"
            )
        numba.config.THREADING_LAYER = chosen
        try:
            numba.get_num_threads()  # starts it
        except ValueError as error:  # such as a tbb that is too old
            raise ConfigError(
                f"runtime.threading_layer={chosen}: Numba cannot start it ({error}); install it "
                f"anew ({INSTALL[chosen]}), or use runtime.threads_per_shard=1"
            ) from None
        running = chosen
    if running not in wanted:
        raise ConfigError(
            f"runtime.threading_layer={layer}: Numba already runs on its {running} layer in this "
            f"process, and cannot change; start a new process, use "
            f"{'runtime.threading_layer=' + running + ', ' if running in SAFE else ''}"
            "or runtime.threads_per_shard=1"
        )
    return running


def _running(numba: ModuleType) -> str | None:
    """Return the layer that runs; None before the first parallel call of the process."""
    try:
        return str(numba.threading_layer())
    except ValueError:
        return None


def _loads(layer: str) -> bool:
    try:
        importlib.import_module(f"numba.np.ufunc.{layer}pool")
    except ImportError:
        return False
    return True
