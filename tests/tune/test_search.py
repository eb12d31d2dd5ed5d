"""Parts of the search: ladders, budget, plans that fail, what is chosen, and in which words."""

from __future__ import annotations

import math

import pytest

from tests.tune.cost_model import MachineModel, SimulatedProbe, Workload
from unilab.runtime.threads import ThreadPlan
from unilab.tune.candidates import auto_plan, ladder, make_variant, overlapped_start, useful_shards
from unilab.tune.envs import EnvCount, best_count, scan_envs
from unilab.tune.measuring import Budget, MeasureError
from unilab.tune.report import comparison_line, env_count_lines, grid_table, reasons
from unilab.tune.search import Choice, Comparison, search

WORK, N = Workload(), 2048
HUMANOID = Workload(physics_us=220.0, kernel_us=1.0, policy_mflop=0.45)


def run(
    machine: MachineModel, *, budget_s: float = 90.0, noise: float = 0.01, **options: bool
) -> tuple[Choice, SimulatedProbe]:
    probe = SimulatedProbe(machine, WORK, noise=noise)
    return search(probe, machine.cpus, N, Budget(budget_s, probe.now), **options), probe


def test_ladders_rise_and_hold_the_plan_itself() -> None:
    plan = auto_plan(16, N)
    assert plan.overlap
    for setting in ("physics", "shards", "threads_per_shard", "groups", "learner"):
        steps = ladder(plan, setting, N)
        values = [getattr(step, setting) for step in steps]
        assert values == sorted(values)
        assert plan in steps
        assert all(step.together <= 16 for step in steps)
    sequential = make_variant(plan, N, overlap=False, groups=1, physics=16)
    assert sequential is not None
    assert [p.physics for p in ladder(sequential, "physics", N)] == [1, 2, 4, 8, 12, 16]
    assert [p.groups for p in ladder(sequential, "groups", N)] == [1]
    assert [p.groups for p in ladder(plan, "groups", N)] == [2, 3, 4, 6, 8]


def test_physics_gives_up_what_kernels_need_with_overlap() -> None:
    plan = ThreadPlan(16, 14, 1, 1, 2, True, 16)
    more = make_variant(plan, N, threads_per_shard=8)
    assert more is not None
    assert (more.physics, more.kernel) == (8, 8)
    assert make_variant(plan, N, threads_per_shard=16) is None  # nothing left for physics


def test_shards_that_would_stay_idle_are_not_tried() -> None:
    assert useful_shards(512, 1) == 1
    assert useful_shards(1024, 1) == 2
    assert useful_shards(1024, 2) == 1
    assert make_variant(auto_plan(4, 512), 512, shards=2) is None


def test_overlap_needs_two_cpus_and_two_blocks() -> None:
    assert overlapped_start(1, N, 1) is None
    assert overlapped_start(4, 64, 4) is None
    assert overlapped_start(4, 65, 4) is not None


def test_the_time_is_kept_and_what_was_found_by_then_is_the_result() -> None:
    machine = MachineModel(160)
    for budget_s in (3.0, 10.0, 30.0):
        choice, probe = run(machine, budget_s=budget_s)
        assert probe.clock_s <= budget_s + 2.0
        assert choice.complete is False
        assert choice.plan in choice.ratios
        text = reasons(choice, N, "omp", "cpu", {"physics": 1.0})
        assert "--budget SECONDS" in text
    complete, probe = run(MachineModel(2, siblings=False), budget_s=300.0)
    assert complete.complete
    assert probe.clock_s < 120.0  # no more than it needs


def test_a_plan_that_fails_is_shown_and_never_chosen() -> None:
    machine = MachineModel(4)
    good, _ = run(machine)
    probe = SimulatedProbe(machine, WORK, noise=0.01)
    probe.failing = {plan for plan in good.entries if plan.threads_per_shard > 1}
    assert probe.failing
    choice = search(probe, 4, N, Budget(90.0, probe.now))
    assert choice.plan not in probe.failing
    assert "failed: physics " in grid_table(choice, 100)
    assert "made to fail" in grid_table(choice, 100)


def test_nothing_that_works_is_an_error() -> None:
    probe = SimulatedProbe(MachineModel(2), WORK)
    probe.failing = {auto_plan(2, N)}
    with pytest.raises(MeasureError, match="made to fail"):
        search(probe, 2, N, Budget(90.0, probe.now))


def test_among_equals_the_simplest_is_chosen() -> None:
    """All plans take the same time here: what `auto` gives stays."""

    class Flat(SimulatedProbe):
        def collect(self, plan: ThreadPlan, num_envs: int) -> float:
            super().collect(plan, num_envs)
            return 1.0 * math.exp(self.random.gauss(0.0, 0.01))

        def update(self, threads: int, num_envs: int) -> float:
            return 0.1

    for cpus in (2, 16):
        probe = Flat(MachineModel(cpus), WORK)
        choice = search(probe, cpus, N, Budget(200.0, probe.now))
        assert choice.plan == choice.auto
        assert "This is what `auto` gives" in reasons(choice, N, "omp", "cpu", {})


def test_what_cannot_be_varied_is_not_varied() -> None:
    choice, probe = run(MachineModel(4), parallel=False, tune_learner=False)
    assert {plan.threads_per_shard for plan in probe.asked} == {1}
    assert {plan.learner for plan in probe.asked} == {4}
    text = reasons(choice, N, None, "cuda", {"physics": 1.0})
    assert "more needs Numba's omp or tbb layer, which is not here" in text
    assert "the learner runs on cuda" in text


def test_drift_does_not_decide_a_comparison() -> None:
    """The machine gets twice as slow over the search; plans are compared in turns."""

    class Drifting(SimulatedProbe):
        def _burst(self, seconds: float, shortest_s: float = 0.0) -> float:
            return super()._burst(seconds, shortest_s) * (1.0 + self.clock_s / 60.0)

    machine = MachineModel(16)
    probe = Drifting(machine, WORK, noise=0.01)
    choice = search(probe, 16, N, Budget(90.0, probe.now))
    best = min(machine.iteration_s(WORK, plan, N) for plan in machine.every_plan(N))
    assert machine.iteration_s(WORK, choice.plan, N) <= 1.06 * best


# -- number of envs -----------------------------------------------------------------------------


def test_more_envs_are_tried_while_they_pay() -> None:
    machine = MachineModel(16)
    probe = SimulatedProbe(machine, WORK, noise=0.005)
    found = scan_envs(probe, 16, 128, Budget(60.0, probe.now))
    counts = [item.num_envs for item in found]
    assert counts[:3] == [64, 128, 256]
    best = best_count(found, 128)
    assert best.num_envs > 128
    for item in found:  # speeds are those of the model
        base, plan = auto_plan(16, 128), auto_plan(16, item.num_envs)
        true = machine.iteration_s(WORK, base, 128) / machine.iteration_s(WORK, plan, item.num_envs)
        assert item.speed == pytest.approx(true * item.num_envs / 128, rel=0.1)


def test_a_number_of_envs_that_does_not_fit_is_an_entry_not_the_end() -> None:
    class Small(SimulatedProbe):
        def collect(self, plan: ThreadPlan, num_envs: int) -> float:
            if num_envs > 128:
                raise MeasureError("needs 99 GiB")
            return super().collect(plan, num_envs)

    probe = Small(MachineModel(2), WORK)
    found = scan_envs(probe, 2, 128, Budget(60.0, probe.now))
    assert [item.num_envs for item in found] == [64, 128, 256]
    assert found[-1].error == "needs 99 GiB"
    assert best_count(found, 128).num_envs == 128
    text = env_count_lines(found, found[1], 128, written=False)
    assert "256  failed: needs 99 GiB" in text


def test_numbers_of_envs_that_take_too_long_are_not_tried() -> None:
    probe = SimulatedProbe(MachineModel(2), HUMANOID)
    found = scan_envs(probe, 2, 8192, Budget(5.0, probe.now))
    assert [item.num_envs for item in found] == [8192]
    assert probe.clock_s < 10.0
    assert "not tried" in env_count_lines(found, found[0], 8192, written=False)


def test_the_configured_number_stays_unless_another_is_clearly_better() -> None:
    found = [EnvCount(256, 1.04), EnvCount(512, 1.0), EnvCount(1024, 1.03)]
    assert best_count(found, 512).num_envs == 512
    found = [EnvCount(256, 0.7), EnvCount(512, 1.0), EnvCount(1024, 1.4), EnvCount(2048, 1.43)]
    assert best_count(found, 512).num_envs == 1024
    text = env_count_lines(found, found[2], 512, written=False)
    assert "1024 would give 1.40x" in text
    assert "--write-num-envs" in text
    assert "results differ" in env_count_lines(found, found[2], 512, written=True)


# -- words --------------------------------------------------------------------------------------


def test_each_comparison_is_put_in_words() -> None:
    one, two = ThreadPlan(4, 4, 1, 1, 1, False, 4), ThreadPlan(4, 2, 1, 1, 1, False, 4)
    line = comparison_line(Comparison("physics", one, two, 1.5))
    assert line.startswith("threads 4 -> 2: takes 1.50x the time")
    assert "is 2.00x as fast" in comparison_line(Comparison("physics", one, two, 0.5))
    assert "failed" in comparison_line(Comparison("physics", one, two, math.inf))


def test_the_grid_marks_the_choice_and_auto_and_every_key_gets_a_reason() -> None:
    choice, _ = run(MachineModel(2))
    lines = grid_table(choice, 24 * N).splitlines()
    rows = [line for line in lines if line.count("|") == 2][1:]
    assert len(rows) == len(choice.entries)
    assert sum("chosen" in row for row in rows) == 1
    assert sum("auto" in row for row in rows) == 1
    text = reasons(choice, N, "omp", "cpu", {"physics": 3.0, "kernel": 1.0})
    for key in ("threads", "shards", "threads_per_shard", "groups", "overlap", "learner_threads"):
        (line,) = [row for row in text.splitlines() if row.startswith(f"  runtime.{key}=")]
        assert len(line.split(maxsplit=1)[1]) > 10, line
    assert "physics 75%, kernel 25%" in text
