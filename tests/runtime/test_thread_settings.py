"""No thread setting that the config accepts crashes, hangs or aborts the process.

Numba's threading layer cannot change once it runs, so each layer gets a process of its own, in
which every combination is either refused with a ConfigError or steps a real task.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime.test_threads import run_python
from unilab.config.schema import RuntimeConfig
from unilab.errors import ConfigError
from unilab.runtime.threading_layer import check_installed
from unilab.runtime.threads import available_cpus, make_plan

SHARDS, PER_SHARD, THREADS, GROUPS = (1, 2, 5), (1, 3), (1, 4), (1, 3)
COMBINATIONS = len(SHARDS) * len(PER_SHARD) * len(THREADS) * len(GROUPS) * 2

SWEEP = f"""
    import itertools, os
    from unilab.config.schema import RuntimeConfig
    from unilab.runtime.threads import make_plan, prepare_environment
    layer = os.environ["LAYER"]
    prepare_environment(RuntimeConfig(threads_per_shard=3, threading_layer=layer))
    import numpy as np
    from tests.runtime.support import (
        Recorder, built_task, difference, rows, running, step_all, waves,
    )
    from unilab.errors import ConfigError
    ran, refused, first = 0, 0, None
    for shards, per_shard, threads, groups, overlap in itertools.product(
        {SHARDS}, {PER_SHARD}, {THREADS}, {GROUPS}, (False, True)
    ):
        config = RuntimeConfig(
            shards=shards, threads_per_shard=per_shard, threads=threads, groups=groups,
            overlap=overlap, learner_threads=2, threading_layer=layer, allow_oversubscription=True,
        )
        try:
            plan = make_plan(config, 256)
        except ConfigError as error:
            assert "runtime.threading_layer" in str(error), error
            refused += 1
            continue
        with running(built_task("cartpole"), 256, plan) as pipeline:
            for t in range(3):
                step_all(pipeline, waves(t, slice(0, 256), 1))
            state = rows(pipeline).copy()
        first = state if first is None else first
        assert np.array_equal(state, first), config
        ran += 1
    print(ran, refused)
"""


def is_installed(layer: str) -> bool:
    try:
        check_installed(layer)
    except ConfigError:
        return False
    return True


@pytest.mark.parametrize("layer", ["omp", "tbb", "workqueue"])
def test_every_combination_runs_with_equal_bits_or_is_refused(layer: str) -> None:
    ran, refused = map(int, run_python(SWEEP, LAYER=layer).split())
    assert ran + refused == COMBINATIONS
    if layer == "workqueue":  # serial kernels need no layer
        assert ran == COMBINATIONS // len(PER_SHARD)
    else:
        assert ran == (COMBINATIONS if is_installed(layer) else 0)


def test_auto_never_takes_the_unsafe_layer_that_the_environment_asks_for() -> None:
    ran, refused = run_python(SWEEP, LAYER="auto", NUMBA_THREADING_LAYER="workqueue").split()
    assert (int(ran), int(refused)) == (COMBINATIONS, 0)


def test_numbers_of_every_size_are_refused_or_planned() -> None:
    """The plan alone, for sizes that a test cannot start; what it accepts is bounded."""
    sizes = ("auto", 1, 2, 64, 255, 10_000, 10**12)
    accepted = 0
    for threads in sizes:
        for shards in sizes:
            for learner in sizes:
                for overlap in (False, True):
                    config = RuntimeConfig(
                        threads=threads,
                        shards=shards,
                        learner_threads=learner,
                        overlap=overlap,
                        allow_oversubscription=True,
                    )
                    try:
                        plan = make_plan(config, 100_000)
                    except ConfigError:
                        continue
                    accepted += 1
                    assert plan.started <= max(256, 16 * available_cpus())
    assert accepted > 50


@pytest.mark.skipif(is_installed("tbb"), reason="tbb is installed here")
def test_a_layer_that_is_not_installed_is_refused_with_the_fix() -> None:
    """In a process of its own: a layer that already runs in this one is another mistake."""
    script = """
        from unilab.config.schema import RuntimeConfig
        from unilab.errors import ConfigError
        from unilab.runtime.threads import make_plan
        for per_shard in ("auto", 1, 2):
            config = RuntimeConfig(
                threading_layer="tbb", threads_per_shard=per_shard, allow_oversubscription=True
            )
            try:
                make_plan(config, 512)
            except ConfigError as error:
                assert "runtime.threading_layer=tbb: " in str(error), error
                assert "pip install tbb" in str(error), error
            else:
                raise SystemExit("accepted")
    """
    run_python(script)


def test_a_process_in_which_numba_already_runs_unsafely_is_refused() -> None:
    """Parallel kernels from two threads would abort it."""
    script = """
        import numba
        numba.config.THREADING_LAYER = "workqueue"
        numba.get_num_threads()
        from unilab.config.schema import RuntimeConfig
        from unilab.errors import ConfigError
        from unilab.runtime.shards import Shards
        from unilab.runtime.threads import make_plan
        config = RuntimeConfig(shards=2, threads_per_shard=2, allow_oversubscription=True)
        for make in (lambda: make_plan(config, 512), lambda: Shards(2, 2)):
            try:
                make()
            except ConfigError as error:
                assert "already runs on its workqueue layer" in str(error)
                assert "threads_per_shard=1" in str(error)
            else:
                raise SystemExit("accepted")
        print(make_plan(config.model_copy(update={"threads_per_shard": 1}), 512).shards)
    """
    assert run_python(script, NUMBA_NUM_THREADS="2") == "2"


def test_more_threads_per_shard_than_numba_was_loaded_with_are_refused() -> None:
    script = """
        import numba
        from unilab.config.schema import RuntimeConfig
        from unilab.errors import ConfigError
        from unilab.runtime.shards import Shards
        from unilab.runtime.threads import make_plan, prepare_environment
        config = RuntimeConfig(threads_per_shard=3, allow_oversubscription=True)
        prepare_environment(config)  # too late
        for make in (lambda: make_plan(config, 512), lambda: Shards(1, 3)):
            try:
                make()
            except ConfigError as error:
                assert "Numba was loaded with 2 thread(s)" in str(error)
                assert "prepare_environment" in str(error)
            else:
                raise SystemExit("accepted")
        Shards(1, 2).close()
        print("ok")
    """
    assert run_python(script, NUMBA_NUM_THREADS="2") == "ok"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_says_so_instead_of_hanging() -> None:
    script = """
        import os
        from unilab.errors import UnilabError
        from unilab.runtime.shards import Shards
        shards, alone, ran = Shards(3, min_blocks=1), Shards(1), []
        kernel = lambda first, last, num_envs: ran.append(first)
        shards.run(kernel, 0, 6, 384, ())
        child = os.fork()
        if child == 0:
            try:
                shards.run(kernel, 0, 6, 384, ())
            except UnilabError as error:
                assert "spawn" in str(error)
                alone.run(kernel, 0, 6, 384, ())  # needs no thread
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(ran))
        shards.run(kernel, 0, 6, 384, ())
        shards.close()
    """
    assert run_python(script) == "7 3"


def test_an_interrupt_amid_parallel_shards_ends_the_process_in_order() -> None:
    script = """
        import os, signal, threading
        from unilab.config.schema import RuntimeConfig
        from unilab.runtime.threads import make_plan, prepare_environment
        config = RuntimeConfig(
            shards=2, threads_per_shard=2, threads=2, groups=2, overlap=True,
            allow_oversubscription=True,
        )
        prepare_environment(config)
        from tests.runtime.support import built_task, running, step_all, waves
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
        interrupted = False
        with running(built_task("cartpole"), 256, make_plan(config, 256)) as pipeline:
            step_all(pipeline, waves(0, slice(0, 256), 1))
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                for t in range(1_000_000):
                    step_all(pipeline, waves(t, slice(0, 256), 1))
            except KeyboardInterrupt:
                interrupted = True
        print(interrupted, len([t for t in threading.enumerate() if t.name.startswith("unilab")]))
    """
    assert run_python(script) == "True 0"


def train(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    tiny = (
        "physics.num_envs=256",
        "learners.ppo.num_steps=4",
        "train.iterations=1",
        "evaluation.episodes=4",
        "evaluation.episode_length_s=0.2",
        "evaluation.video=false",
    )
    return subprocess.run(
        [sys.executable, "-m", "unilab.cli", "train", "cartpole", *tiny, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_run_with_every_pool_oversubscribed_trains_to_its_end(tmp_path: Path) -> None:
    done = train(
        tmp_path, "runtime.threads=20", "runtime.shards=4", "runtime.threads_per_shard=4",
        "runtime.groups=4", "runtime.overlap=true", "runtime.learner_threads=10",
        "runtime.allow_oversubscription=true",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "kernel 4 x 4, learner 10 threads; 4 group(s), overlap on" in done.stdout


def test_a_run_with_absurd_numbers_ends_with_a_line_before_anything_is_written(
    tmp_path: Path,
) -> None:
    done = train(tmp_path, "runtime.threads=100000", "runtime.allow_oversubscription=true")
    assert done.returncode == 2
    assert done.stderr.startswith("error: runtime.threads=100000 + ")
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
