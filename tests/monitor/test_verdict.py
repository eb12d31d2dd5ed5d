"""What a run is bound by: every verdict from made numbers, and its gain by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.monitor.support import CPU, PLAN, SETUP, totals
from unilab.monitor.gpu import GpuReading
from unilab.monitor.rows import StageTotals
from unilab.monitor.verdict import TITLES, Measured, find_costs, judge, learner_flops

STAGES = {"physics": 50.0, "kernel": 4.0, "reset": 2.0, "policy": 6.0, "buffer": 3.0, "learn": 30.0,
          "log": 2.0, "snapshot": 1.0, "other": 2.0}  # fmt: skip


@pytest.mark.parametrize(
    ("stage", "bound_by"),
    [
        ("physics", "physics"),
        ("kernel", "kernel"),
        ("reset", "kernel"),
        ("policy", "policy"),
        ("buffer", "buffer"),
        ("transfer", "transfer"),
        ("learn", "learner"),
        ("checkpoint", "bookkeeping"),
        ("new_stage", "other"),
    ],
)
def test_the_stage_that_takes_most_names_the_verdict(stage, bound_by):
    verdict = judge(Measured(totals({**STAGES, stage: 300.0}), SETUP, CPU))
    assert verdict.bound_by == verdict.stage == bound_by
    assert verdict.sentence.startswith(f"bound by {TITLES[bound_by]}: ")


def test_gain_balance_and_share_are_those_of_the_hand():
    verdict = judge(Measured(totals(STAGES), SETUP, CPU))
    assert (verdict.stage, verdict.second) == ("physics", "learner")
    assert verdict.balance == pytest.approx(50.0 / 30.0)
    assert verdict.costs["physics"].speedup == pytest.approx(100.0 / 50.0)
    assert verdict.costs["learner"].speedup == pytest.approx(100.0 / 70.0)
    assert verdict.costs["kernel"].exposed_ms == pytest.approx(6.0)
    assert "50% of an iteration of 100 ms, 1.7 x the next, the learner" in verdict.sentence
    assert "2.00 x as fast" in verdict.sentence


def test_stages_that_cost_the_same_are_in_balance():
    verdict = judge(Measured(totals({"physics": 50.0, "learn": 45.0, "other": 5.0}), SETUP, CPU))
    assert "in balance with the learner (1.11 x)" in verdict.sentence


def test_with_overlap_a_stage_that_hides_behind_physics_gains_nothing():
    # Collecting takes 100: the host works for 40 of them, and waits 60 for physics, always busy.
    exposed = {"physics": 60.0, "kernel": 30.0, "policy": 10.0, "learn": 20.0}
    sums = totals(exposed, {"physics": 100.0, "kernel": 30.0, "policy": 10.0, "learner": 20.0})
    costs = find_costs(sums, overlap=True)
    assert costs["kernel"].saved_ms == 0.0
    assert costs["kernel"].speedup == 1.0
    assert costs["physics"].saved_ms == pytest.approx(60.0)
    assert costs["physics"].speedup == pytest.approx(120.0 / 60.0)
    assert costs["learner"].saved_ms == pytest.approx(20.0)
    assert find_costs(sums, overlap=False)["kernel"].saved_ms == pytest.approx(30.0)


def test_with_overlap_the_host_can_be_what_binds():
    # Physics is busy for 50 of the 100 that collecting takes; the host works nearly all of them.
    exposed = {"physics": 5.0, "kernel": 80.0, "policy": 15.0, "learn": 20.0}
    sums = totals(exposed, {"physics": 50.0, "kernel": 80.0, "policy": 15.0, "learner": 20.0})
    plan = replace(PLAN, overlap=True, groups=2)
    verdict = judge(Measured(sums, replace(SETUP, plan=plan), CPU))
    assert verdict.bound_by == "kernel"
    assert verdict.costs["kernel"].saved_ms == pytest.approx(50.0)  # then physics is waited for


def test_too_many_threads_of_the_run_itself_come_before_any_stage():
    crowded = replace(CPU, cores=1.9, runnable=9.0, wait_share=0.79, forced_per_s=3000.0)
    plan = replace(PLAN, physics=16, learner=16)
    verdict = judge(Measured(totals(STAGES), replace(SETUP, plan=plan), crowded))
    assert verdict.bound_by == "oversubscribed threads"
    assert verdict.stage == "physics"
    assert "9.0 threads wanted to run at once on 2 cores; the plan has 16 for 2 CPUs" in (
        verdict.evidence
    )
    assert "of the stages most goes into physics" in verdict.sentence


def test_a_run_that_waits_because_others_take_the_cores_is_bound_by_their_load():
    loaded = replace(CPU, cores=1.0, other_cores=0.98, runnable=1.9, wait_share=0.47)
    verdict = judge(Measured(totals(STAGES), SETUP, loaded))
    assert verdict.bound_by == "other load"
    assert "other processes used 0.98 of the 2 cores" in verdict.evidence[0]
    assert "at most 1.89 x as fast" in verdict.sentence


def test_waiting_on_a_machine_that_looks_idle_points_to_a_quota():
    throttled = replace(CPU, cores=0.5, other_cores=0.0, runnable=1.9, wait_share=0.7)
    verdict = judge(Measured(totals(STAGES), SETUP, throttled))
    assert verdict.bound_by == "other load"
    assert any("quota" in text for text in verdict.evidence)


@pytest.mark.parametrize(
    ("forced", "physics", "bound_by"),
    [(3000.0, 16, "oversubscribed threads"), (30.0, 16, "physics"), (3000.0, 2, "physics")],
)
def test_where_waits_are_not_counted_plan_and_switches_tell(forced, physics, bound_by):
    cpu = replace(CPU, runnable=None, wait_share=None, forced_per_s=forced)
    plan = replace(PLAN, physics=physics)
    assert judge(Measured(totals(STAGES), replace(SETUP, plan=plan), cpu)).bound_by == bound_by


def test_a_plan_that_is_too_large_is_noted_where_no_counters_were_seen():
    plan = replace(PLAN, learner=16)
    verdict = judge(Measured(totals(STAGES), replace(SETUP, plan=plan)))
    assert verdict.bound_by == "physics"
    assert any("16 threads run at once on 2 CPUs" in text for text in verdict.notes)


def test_threads_of_physics_that_idle_are_seen():
    # 10 iterations of 50 ms on 2 threads: 1 s of CPU time there could be; 0.05 * 10 s there was.
    pools = {**CPU.pools, "physics pool": replace(CPU.pools["physics pool"], cores=0.05)}
    verdict = judge(Measured(totals(STAGES), SETUP, replace(CPU, pools=pools)))
    assert "while physics runs, its 2 threads are busy 50% of it" in verdict.evidence


def test_without_an_iteration_there_is_no_verdict_but_a_sentence():
    verdict = judge(Measured(StageTotals(), SETUP, CPU))
    assert verdict.bound_by is None
    assert "no iteration is done" in verdict.sentence
    assert verdict.costs == {}


def test_flops_are_over_the_learners_own_time():
    assert learner_flops(Measured(totals(STAGES), SETUP)) == pytest.approx(2e9 / 0.030)
    on_gpu = replace(SETUP, device="cuda:0")  # the read of the results waits for the device
    assert learner_flops(Measured(totals(STAGES), on_gpu)) == pytest.approx(2e9 / 0.032)
    assert learner_flops(Measured(totals(STAGES), replace(SETUP, update_flops=None))) is None


def test_flops_are_held_against_the_measured_peak():
    verdict = judge(Measured(totals(STAGES), SETUP, CPU, matmul_flops=1e11))
    assert "66.7 GFLOP/s, 67% of the 100 GFLOP/s of a matrix product" in verdict.notes[0]


def test_a_busy_gpu_is_not_called_a_well_used_one():
    gpu = GpuReading(
        busy_fraction=0.93, sm_active_fraction=0.21, power_w=182.0, power_limit_w=700.0
    )
    verdict = judge(Measured(totals(STAGES), replace(SETUP, device="cuda:0"), CPU, gpu))
    (text,) = [note for note in verdict.notes if "GPU busy" in note]
    assert "not that the GPU was well used" in text
    assert "21% of its multiprocessors" in text
    assert "182 of 700 W" in text
