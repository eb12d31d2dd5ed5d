"""The thread plan: who gets how many threads, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from unilab.config.schema import RuntimeConfig
from unilab.errors import ConfigError
from unilab.runtime.cgroup import cpu_quota, free_threads
from unilab.runtime.threads import (
    MOST_THREADS,
    ThreadPlan,
    make_plan,
    make_side_plan,
)

ROOT = Path(__file__).resolve().parents[2]


def config(**values: object) -> RuntimeConfig:
    return RuntimeConfig.model_validate(values)


def run_python(script: str, *prefix: str, **environment: str) -> str:
    """Run a script in a fresh process; return what it printed. Fails unless it exits with 0."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "kernels")])
    done = subprocess.run(
        [*prefix, sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr}"
    return done.stdout.strip()


# -- the plan -----------------------------------------------------------------------------------

#                cpus  envs  cpus physics shards per_shard groups overlap learner
AUTO = [
    pytest.param(1, 4096, ThreadPlan(1, 1, 1, 1, 1, False, 1), id="1 CPU"),
    pytest.param(2, 512, ThreadPlan(2, 2, 1, 1, 1, False, 2), id="2 CPUs, few envs"),
    pytest.param(2, 4096, ThreadPlan(2, 2, 2, 1, 1, False, 2), id="2 CPUs"),
    pytest.param(4, 4096, ThreadPlan(4, 4, 4, 1, 1, False, 4), id="4 CPUs"),
    pytest.param(16, 4096, ThreadPlan(16, 14, 2, 1, 2, True, 16), id="16 CPUs"),
    pytest.param(16, 64, ThreadPlan(16, 16, 1, 1, 1, False, 4), id="16 CPUs, one block"),
    pytest.param(160, 512, ThreadPlan(160, 144, 1, 1, 2, True, 32), id="160 CPUs, few envs"),
    pytest.param(160, 65536, ThreadPlan(160, 140, 20, 1, 2, True, 160), id="160 CPUs"),
]


@pytest.mark.parametrize(("cpus", "num_envs", "expected"), AUTO)
def test_auto_fills_the_plan_from_the_cpus(cpus: int, num_envs: int, expected: ThreadPlan) -> None:
    assert make_plan(config(), num_envs, cpus=cpus) == expected


@pytest.mark.parametrize("cpus", [1, 2, 3, 4, 5, 8, 16, 64, 160])
@pytest.mark.parametrize("num_envs", [1, 64, 65, 1024, 100_000])
def test_auto_never_asks_for_more_than_the_cpus(cpus: int, num_envs: int) -> None:
    plan = make_plan(config(), num_envs, cpus=cpus)
    assert plan.together <= cpus
    assert plan.learner <= cpus
    if plan.overlap:
        assert plan.physics + plan.kernel <= cpus
        assert plan.groups > 1
    else:
        assert max(plan.physics, plan.kernel) <= cpus


def test_with_overlap_the_policy_acts_on_the_cpus_that_physics_leaves() -> None:
    """Kernels and policy take turns in the main thread; physics runs beside them."""
    plan = make_plan(config(), 512, cpus=160)
    assert (plan.physics, plan.kernel, plan.acting, plan.together) == (144, 1, 16, 160)
    assert make_plan(config(threads=150), 512, cpus=160).acting == 10
    assert make_plan(config(learner_threads=4), 512, cpus=160).acting == 4
    assert make_plan(config(shards=20), 512, cpus=160).acting == 20
    assert make_plan(config(overlap=False), 512, cpus=160).acting == 32  # the learner's
    forced = config(threads=8, overlap=True, allow_oversubscription=True)
    assert make_plan(forced, 512, cpus=2).acting == 1


def test_what_is_given_is_kept_and_the_rest_filled_in() -> None:
    plan = make_plan(config(threads=5, overlap=True), 8192, cpus=32)
    assert (plan.physics, plan.shards, plan.groups) == (5, 3, 2)
    plan = make_plan(config(shards=6, overlap=True), 8192, cpus=32)
    assert (plan.physics, plan.shards) == (26, 6)
    plan = make_plan(config(threads_per_shard=2), 8192, cpus=4)
    assert (plan.shards, plan.threads_per_shard, plan.kernel) == (2, 2, 4)
    plan = make_plan(config(groups=4, learner_threads=1), 8192, cpus=4)
    assert (plan.groups, plan.overlap, plan.learner) == (4, False, 1)


def test_the_sum_is_spelled_out_where_overlap_asks_for_too_much() -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(config(threads=3, shards=2, threads_per_shard=2, overlap=True), 512, cpus=4)
    message = str(caught.value)
    assert "runtime.threads=3 + runtime.shards=2 x runtime.threads_per_shard=2 = 7" in message
    assert "4 CPU(s)" in message
    assert "runtime.allow_oversubscription=true" in message


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"threads": 3}, "runtime.threads=3"),
        ({"shards": 3}, "runtime.shards=3 x runtime.threads_per_shard=1 = 3"),
        ({"learner_threads": 3}, "runtime.learner_threads=3"),
    ],
)
def test_without_overlap_the_largest_pool_counts(values: dict[str, int], text: str) -> None:
    with pytest.raises(ConfigError, match="largest of") as caught:
        make_plan(config(**values), 512, cpus=2)
    assert text in str(caught.value)
    assert make_plan(config(**values), 512, cpus=3).cpus == 3
    assert make_plan(config(threads=2, shards=2, learner_threads=2), 512, cpus=2).kernel == 2


def test_oversubscription_may_be_allowed() -> None:
    plan = make_plan(
        config(threads=8, shards=8, groups=4, overlap=True, allow_oversubscription=True),
        512,
        cpus=1,
    )
    assert (plan.physics, plan.kernel, plan.groups, plan.overlap) == (8, 8, 4, True)


def test_more_groups_than_blocks_are_refused_with_both_ways_out() -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(config(groups=3), 128, cpus=2)
    message = str(caught.value)
    assert "runtime.groups=3" in message
    assert "lower runtime.groups to 2" in message
    assert "raise physics.num_envs to 129" in message
    assert make_plan(config(groups=3), 129, cpus=2).groups == 3


@pytest.mark.parametrize("name", ["threads", "shards", "threads_per_shard", "learner_threads"])
@pytest.mark.parametrize("count", [MOST_THREADS + 1, 100_000, 10**30])
def test_oversubscription_has_an_end(name: str, count: int) -> None:
    """50,000 threads hang, 100,000 end the process; no number may get that far."""
    with pytest.raises(ConfigError, match=f"runtime.{name}={count}.*lower them") as caught:
        make_plan(config(allow_oversubscription=True, **{name: count}), 512, cpus=2)
    assert f"the {MOST_THREADS} that" in str(caught.value)


def test_a_side_job_runs_on_fewer_cpus_than_the_run_had() -> None:
    trained = config(threads=14, shards=2, groups=4, overlap=True, learner_threads=16)
    assert make_side_plan(trained, 50, cpus=16) == ThreadPlan(16, 14, 2, 1, 1, False, 16)
    assert make_side_plan(trained, 50, cpus=2) == ThreadPlan(2, 2, 2, 1, 1, False, 2)
    assert make_side_plan(config(), 50, cpus=2) == ThreadPlan(2, 2, 1, 1, 1, False, 2)
    parallel = make_side_plan(config(shards=4, threads_per_shard=4), 4096, cpus=6)
    assert (parallel.shards, parallel.threads_per_shard) == (1, 4)
    assert make_side_plan(config(threads=1, learner_threads=1), 50, cpus=8).together == 1
    forced = config(threads=3, allow_oversubscription=True)
    assert make_side_plan(forced, 50, cpus=2).physics == 3


@pytest.mark.parametrize("allow", [False, True])
def test_workqueue_is_refused_for_parallel_kernels_only(allow: bool) -> None:
    values = {"threading_layer": "workqueue", "allow_oversubscription": allow}
    with pytest.raises(ConfigError, match=r"threading_layer=omp .*threads_per_shard=1"):
        make_plan(config(threads_per_shard=2, **values), 512, cpus=4)
    assert make_plan(config(**values), 512, cpus=4).threads_per_shard == 1


def test_the_plan_is_described_in_one_line() -> None:
    text = make_plan(config(threads_per_shard=2, shards=2, threads=3), 512, cpus=4).describe()
    for part in ("4 CPUs", "physics 3", "kernel 2 x 2", "learner 4", "1 group", "overlap off"):
        assert part in text
    assert "\n" not in text


# -- the CPUs there are -------------------------------------------------------------------------


def cgroup(
    folder: Path,
    membership: str,
    files: dict[str, str],
    read: Callable[[Path, Path], float | None] = cpu_quota,
) -> float | None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "membership").write_text(membership)
    return read(folder, folder / "membership")


def test_a_cgroup_quota_is_read_in_both_versions(tmp_path: Path) -> None:
    assert cgroup(tmp_path / "a", "0::/\n", {"cpu.max": "250000 100000\n"}) == 2.5
    assert cgroup(tmp_path / "b", "0::/\n", {"cpu.max": "max 100000\n"}) is None
    files = {"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cgroup(tmp_path / "c", "4:memory:/x\n3:cpuacct,cpu:/\n0::/\n", files) == 1.5
    files["cpu/cpu.cfs_quota_us"] = "-1\n"
    assert cgroup(tmp_path / "d", "3:cpu:/\n", files) is None


def test_the_tightest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    files = {
        "cpu.max": "800000 100000\n",
        "slice/cpu.max": "200000 100000\n",
        "slice/scope/cpu.max": "max 100000\n",
        "other/cpu.max": "100000 100000\n",
    }
    assert cgroup(tmp_path, "0::/slice/scope\n", files) == 2.0
    assert cgroup(tmp_path, "0::/not/mounted/here\n", files) == 8.0


def test_no_cgroup_is_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path, tmp_path / "missing") is None
    assert cgroup(tmp_path, "0::/\n", {}) is None
    assert cgroup(tmp_path, "0::/\n", {"cpu.max": "nonsense"}) is None


def test_threads_that_a_container_still_allows_are_read(tmp_path: Path) -> None:
    files = {"pids.max": "100\n", "pids.current": "30\n", "a/pids.max": "max\n"}
    assert cgroup(tmp_path / "a", "0::/a\n", files, free_threads) == 70
    files = {"pids/pids.max": "40\n", "pids/pids.current": "41\n"}
    assert cgroup(tmp_path / "b", "8:pids:/\n", files, free_threads) == 0
    assert cgroup(tmp_path / "c", "8:pids:/\n", {"pids/pids.max": "max\n"}, free_threads) is None


def test_a_plan_beyond_what_the_container_allows_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = config(threads=40, allow_oversubscription=True)
    monkeypatch.setattr("unilab.runtime.threads.free_threads", lambda: 20.0)
    with pytest.raises(ConfigError, match=r"runtime.threads=40 .* allows 20 \(pids.max\)"):
        make_plan(values, 512)
    monkeypatch.setattr("unilab.runtime.threads.free_threads", lambda: 60.0)
    assert make_plan(values, 512).physics == 40


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is set with taskset")
def test_the_plan_follows_the_affinity_of_the_process() -> None:
    cpu = str(min(os.sched_getaffinity(0)))
    script = """
        from unilab.config.schema import RuntimeConfig
        from unilab.runtime.threads import make_plan
        print(make_plan(RuntimeConfig(), 4096).describe())
    """
    text = run_python(script, "taskset", "-c", cpu)
    assert text == ("1 CPUs: physics 1, kernel 1, learner 1 threads; 1 group(s), overlap off")


def test_the_environment_is_prepared_before_libraries_load() -> None:
    script = """
        import os
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                     "NUMBA_NUM_THREADS", "NUMBA_THREADING_LAYER"):
            os.environ.pop(name, None)
        os.environ["OMP_WAIT_POLICY"] = "ACTIVE"
        from unilab.config.schema import RuntimeConfig
        from unilab.runtime.threads import available_cpus, prepare_environment
        prepare_environment(RuntimeConfig())
        assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
        assert os.environ["OMP_NUM_THREADS"] == str(available_cpus())
        assert "NUMBA_THREADING_LAYER" not in os.environ
        os.environ["OMP_NUM_THREADS"] = "1"
        prepare_environment(RuntimeConfig(threads_per_shard=300))
        assert os.environ["OMP_NUM_THREADS"] == "1"  # the user's own limit stands
        assert int(os.environ["NUMBA_NUM_THREADS"]) >= 256
        prepare_environment(RuntimeConfig(threads_per_shard=10**9))
        assert int(os.environ["NUMBA_NUM_THREADS"]) < 10**6  # refused later; must not hurt before
        prepare_environment(RuntimeConfig(threads_per_shard=2, threading_layer="tbb"))
        assert os.environ["NUMBA_THREADING_LAYER"] == "tbb"
        import numba
        before = dict(os.environ)
        prepare_environment(RuntimeConfig(threads_per_shard=7, threading_layer="omp"))
        assert dict(os.environ) == before  # Numba refuses to change once it runs
        print("ok")
    """
    assert run_python(script) == "ok"


# -- what the libraries then do -----------------------------------------------------------------

STEP = """
    import sys
    from unilab.config.schema import RuntimeConfig
    from unilab.runtime.threads import prepare_environment
    per_shard = int(sys.argv[1]) if len(sys.argv) > 1 else PER_SHARD
    prepare_environment(RuntimeConfig(threads_per_shard=per_shard, allow_oversubscription=True))
    ORDER
    torch.set_num_threads(1)
    import numpy as np
    from tests.runtime.support import Recorder, built_task, plan, running, step_all, waves
    with running(built_task("cartpole"), 256, plan(shards=SHARDS, per_shard=per_shard)) as pipeline:
        recorder = Recorder(pipeline)
        for t in range(STEPS):
            (step,) = step_all(pipeline, waves(t, slice(0, 256), 1))
            if t < 30:
                recorder.add(step)
                recorder.end_step()
    threads = torch.get_num_threads()
    import hashlib
    everything = b"".join(d[k] for d in recorder.digests for k in sorted(d))
    print(threads, hashlib.sha256(everything).hexdigest(), recorder.done)
"""


def step_script(per_shard: int, shards: int, steps: int, order: str) -> str:
    return (
        STEP.replace("PER_SHARD", str(per_shard)).replace("SHARDS", str(shards))
        .replace("STEPS", str(steps)).replace("ORDER", order)
    )  # fmt: skip


@pytest.fixture(scope="module")
def serial_digest() -> str:
    return run_python(step_script(1, 1, 30, "import torch"))


def test_serial_kernels_run_from_shards_on_the_workqueue_layer(serial_digest: str) -> None:
    script = step_script(1, 4, 1000, "import torch")
    assert run_python(script, NUMBA_THREADING_LAYER="workqueue") == serial_digest


@pytest.mark.parametrize("order", ["import torch, numba", "import numba, torch"])
def test_parallel_kernels_give_equal_bits_and_leave_torchs_threads_alone(
    order: str, serial_digest: str
) -> None:
    assert serial_digest.split()[0] == "1"
    assert run_python(step_script(2, 2, 30, order)) == serial_digest


def test_every_worker_of_a_parallel_kernel_has_the_threads_of_the_plan() -> None:
    script = """
        from unilab.config.schema import RuntimeConfig
        from unilab.runtime.threads import prepare_environment
        prepare_environment(RuntimeConfig(threads_per_shard=2, allow_oversubscription=True))
        import threading, numba
        from unilab.runtime.shards import Shards
        seen = {}
        barrier = threading.Barrier(3)
        def look(first, last, num_envs):
            barrier.wait(30)
            seen[threading.get_ident()] = numba.get_num_threads()
        shards = Shards(3, 2, min_blocks=1)
        shards.run(look, 0, 3, 192, ())
        shards.close()
        print(sorted(seen.values()))
    """
    assert run_python(script) == "[2, 2, 2]"
