"""Names of threads that the system knows, so that `htop`, `perf` and a monitor can tell them apart.

On Linux a thread inherits the name of the thread that starts it. MuJoCo's and OpenMP's pools never
name themselves, so whoever starts such a pool bears its name for that moment. Elsewhere nothing
happens. What torch starts keeps the name of the process: its pool comes and goes with every change
of `torch.set_num_threads`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

# At most 15 bytes each; longer ones are cut by the system.
MUJOCO_POOL = "unilab-mujoco"  # MuJoCo's pool
PHYSICS_CALLER = "unilab-physics"  # with overlap, the thread that waits for the pool
COLLECTOR = "unilab-collect"  # steps the envs beside a learner that learns meanwhile
SHARD = "unilab-shard"  # workers of the kernel's shards, and Numba threads that they start
KERNEL_POOL = "unilab-kernel"  # Numba threads of kernels that run in the main thread

_MAX_BYTES = 15


@contextlib.contextmanager
def children_named(name: str) -> Iterator[None]:
    """Let the threads that this thread starts meanwhile, in any library, bear a name."""
    before = _read(threading.get_native_id())
    name_thread(name)
    try:
        yield
    finally:
        if before:
            name_thread(before)


def name_thread(name: str, native_id: int | None = None) -> None:
    """Name a thread of this process, the calling one unless its id is given."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # a thread that has ended; no /proc
        _path(native_id or threading.get_native_id()).write_text(name[:_MAX_BYTES])


def name_python_threads() -> None:
    """Give Python's threads the names that Python has for them. Not the main thread: the process
    goes by its name."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread.native_id is not None:
            name_thread(thread.name, thread.native_id)


def _path(native_id: int) -> Path:
    return Path(f"/proc/self/task/{native_id}/comm")


def _read(native_id: int) -> str:
    try:
        return _path(native_id).read_text().strip()
    except OSError:
        return ""
