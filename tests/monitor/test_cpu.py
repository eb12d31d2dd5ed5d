"""CPU counters: differences by hand, and the real ones of this process and its threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest

from unilab.monitor.cpu import Counters, CpuSampler, use_between
from unilab.monitor.recording import CpuMean
from unilab.monitor.threads import (
    MAIN,
    OTHER,
    UNNAMED,
    ThreadCounters,
    read_threads,
    role_of,
)
from unilab.runtime.thread_names import MUJOCO_POOL, SHARD, children_named, name_thread

linux = pytest.mark.skipif(sys.platform != "linux", reason="threads have names on Linux only")


def counters(time_s, cpu_s, threads, busy=(0.0, 0.0), stolen=(0.0, 0.0), monitor=0.0):
    return Counters(time_s, "running", cpu_s, 1000, threads, (0, 1), busy, stolen, monitor)


def thread(role, cpu_s, wait_s=0.0, voluntary=0, forced=0):
    return ThreadCounters(role, cpu_s, wait_s, voluntary, forced)


def test_uses_are_the_differences_over_the_time():
    before = counters(10.0, 5.0, {1: thread(MAIN, 5.0, 1.0, 100, 10)}, (50.0, 60.0), (1.0, 0.0))
    after = counters(
        14.0,
        11.0,
        {1: thread(MAIN, 8.0, 2.0, 140, 30), 2: thread("physics pool", 3.0, 1.0, 0, 20)},
        (53.8, 63.8),
        (1.2, 0.0),
        monitor=0.04,
    )
    use = use_between(before, after)
    assert use.cores == pytest.approx(6.0 / 4)
    assert use.pools["main"].cores == pytest.approx(3.0 / 4)
    assert use.pools["physics pool"].cores == pytest.approx(3.0 / 4)  # born meanwhile
    assert use.runnable == pytest.approx((6.0 + 2.0) / 4)
    assert use.wait_share == pytest.approx(2.0 / 8.0)
    assert use.other_cores == pytest.approx((7.6 - 6.0 - 0.04) / 4)
    assert use.stolen_cores == pytest.approx(0.2 / 4)
    assert (use.voluntary_per_s, use.forced_per_s) == (10.0, 10.0)
    assert use.per_core == pytest.approx((0.95, 0.95))


def test_without_counted_waits_they_are_unknown():
    one = {1: ThreadCounters(OTHER, 1.0, None, 0, 0)}
    use = use_between(counters(0.0, 0.0, {}), counters(1.0, 1.0, one))
    assert (use.runnable, use.wait_share) == (None, None)


def test_means_weigh_by_time():
    mean = CpuMean()
    assert mean.mean() is None
    start = counters(0.0, 0.0, {1: thread(MAIN, 0.0)})
    half = counters(1.0, 1.0, {1: thread(MAIN, 1.0, 1.0)}, (1.0, 0.0))
    end = counters(5.0, 1.0, {1: thread(MAIN, 1.0, 1.0)}, (1.0, 0.0))
    mean.add(use_between(start, half))
    mean.add(use_between(half, end))
    found = mean.mean()
    assert found is not None
    assert found.seconds == pytest.approx(5.0)
    assert found.cores == pytest.approx(0.2)
    assert found.pools["main"].cores == pytest.approx(0.2)
    assert found.wait_share == pytest.approx(0.5)


def test_roles_come_from_names():
    assert role_of("anything", "anything", is_main=True) == MAIN
    assert role_of(MUJOCO_POOL, "python", is_main=False) == "physics pool"
    assert role_of(f"{SHARD}_1", "python", is_main=False) == "kernel shards"
    assert role_of("python", "python", is_main=False) == UNNAMED
    assert role_of("pt_autograd_0", "python", is_main=False) == "torch"
    assert role_of("strange", "python", is_main=False) == OTHER


@linux
def test_counters_of_this_process_see_a_thread_that_works_and_one_that_waits():
    stop = threading.Event()

    def work() -> None:
        name_thread(MUJOCO_POOL)
        while not stop.is_set():
            sum(range(1000))

    def wait() -> None:
        name_thread(SHARD)
        stop.wait()

    threads = [threading.Thread(target=target) for target in (work, wait)]
    for made in threads:
        made.start()
    try:
        sampler = CpuSampler(psutil.Process())
        time.sleep(0.05)
        before = sampler.read()
        time.sleep(0.4)
        use = use_between(before, sampler.read())
    finally:
        stop.set()
        for made in threads:
            made.join()
    assert use.pools["physics pool"].threads == 1
    wanted = use.pools["physics pool"].cores + (use.pools["physics pool"].wait_cores or 0.0)
    assert wanted > 0.5  # it computed, or waited for a core on a loaded machine
    assert use.pools["kernel shards"].cores < 0.05
    assert use.available == len(os.sched_getaffinity(0))
    assert use.rss_bytes > 1e6


@linux
def test_a_library_thread_takes_over_the_name_of_who_starts_it():
    code = (
        "import os, psutil\n"
        "from unilab.runtime.thread_names import MUJOCO_POOL, children_named\n"
        "from unilab.monitor.threads import read_threads\n"
        "from mujoco import rollout\n"
        "with children_named(MUJOCO_POOL): pool = rollout.Rollout(nthread=3)\n"
        "roles = [t.role for t in read_threads(psutil.Process()).values()]\n"
        "assert roles.count('physics pool') == 3, roles\n"
        "assert roles.count('main') == 1, roles\n"
        "name = open(f'/proc/self/task/{os.getpid()}/comm').read()\n"
        "assert not name.startswith('unilab-mujoco'), name\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@linux
def test_a_name_is_given_back_after_an_error():
    path = f"/proc/self/task/{threading.get_native_id()}/comm"
    with open(path) as file:
        before = file.read()
    meanwhile = []

    def fail() -> None:
        with children_named("unilab-test"):
            with open(path) as file:
                meanwhile.append(file.read().strip())
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert meanwhile == ["unilab-test"]
    with open(path) as file:
        assert file.read() == before


def test_a_process_that_is_gone_is_said_to_be():
    gone = subprocess.Popen([sys.executable, "-c", "pass"])
    process = psutil.Process(gone.pid)
    gone.wait()
    with pytest.raises(psutil.NoSuchProcess):
        CpuSampler(process).read()
    with pytest.raises(psutil.NoSuchProcess):
        read_threads(process)
