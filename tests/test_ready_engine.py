"""Readiness: late messages stop nobody who has other work, lost peers stop everybody, and the cap holds."""

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ranks import run_ranks
from schedules import built

from suite.experiment.point import Schedule as Options
from suite.measure.clock import HostClock
from suite.parallel.topology import Group
from suite.pipeline.generators import generate, why_not
from suite.pipeline.names import default_chunks
from suite.pipeline.program import Action, Schedule, ScheduleError
from suite.pipeline.proof import prove
from suite.pipeline.readiness import settled
from suite.pipeline.ready_engine import ReadyEngine
from suite.pipeline.timeline import Costs, timeline
from suite.pipeline.transport import Transport

Pause = Callable[[Action], float]  # seconds that an action takes
RELEASE = ("BW", "W")


class Coded:
    """A worker whose messages say who made them, and that refuses a message of anyone else."""

    def __init__(self, schedule: Schedule, pause: Pause) -> None:
        self.last, self.pause = schedule.virtual_stages - 1, pause

    def run(self, action: Action, value: torch.Tensor | None, final: bool) -> torch.Tensor | None:
        forward, stage = action.kind == "F", action.stage
        if action.kind == "W" or stage == (0 if forward else self.last):
            assert value is None
        else:
            assert value is not None
            producer = action._replace(stage=stage - 1 if forward else stage + 1)
            assert value.flatten().tolist() == code(producer).tolist(), f"{action} got another's message"
        time.sleep(self.pause(action))
        return None if action.kind == "W" or stage == (self.last if forward else 0) else code(action)

    def reduce(self, action: Action) -> None:
        """Nothing is reduced."""


def code(action: Action) -> torch.Tensor:
    """What the action sends: a whole and a split backward send the same."""
    kind = float(action.kind == "F")
    return torch.tensor([kind, action.stage, action.microbatch, action.replica], dtype=torch.float64)


def engine_on(schedule: Schedule, pause: Pause, handle: dist.ProcessGroup | None = None) -> ReadyEngine:
    """This rank's engine, inside an initialised process group."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = Group(size, rank, tuple(range(size)), handle or dist.group.WORLD)
    transport = Transport(group, (4,), torch.float64, torch.device("cpu"))
    return ReadyEngine(prove(schedule).lowered, rank, Coded(schedule, pause), transport, HostClock())


class Gates:
    """Lets an action end only when another one, of whatever rank, has: speeds without a clock."""

    def __init__(self, schedule: Schedule, after: dict[str, str]) -> None:
        context = multiprocessing.get_context("fork")
        self.after = after
        self.ended = {str(action): context.Event() for program in schedule.programs for action in program}

    def __call__(self, action: Action) -> float:
        """Wait for the gate to open; the action then ends."""
        other = self.after.get(str(action))
        assert other is None or self.ended[other].wait(20), f"{action} never saw the end of {other}"
        self.ended[str(action)].set()
        return 0.0


def orders(schedule: Schedule, after: dict[str, str]) -> list[list[str]]:
    """Every rank's order where some actions end only after others."""
    return run_ranks(schedule.stages, order_here, schedule, Gates(schedule, after))


def order_here(schedule: Schedule, pause: Pause) -> list[str]:
    engine = engine_on(schedule, pause)
    engine.run()
    marks = engine.clock.seconds()
    assert all(marks[one.start] <= marks[one.end] for one in (*engine.executed, *engine.waited))
    waits = [one.message.consumer for one in engine.waited]
    assert len(set(waits)) == len(waits) <= sum(action in engine.inputs for action in engine.hint)
    return [str(one.action) for one in engine.executed]


def hinted(schedule: Schedule, rank: int) -> list[str]:
    return [str(action) for action in schedule.programs[rank]]


def forwards(stage: int, count: int) -> list[str]:
    return [f"F {stage}.{i}" for i in range(count)]


# Late messages.


@pytest.mark.processes
def test_a_rank_whose_gradient_is_late_runs_forwards_up_to_the_cap():
    schedule = built("readiness", 2, 6, cap=4)
    first, _ = orders(schedule, {"F 1.0": "F 0.3"})
    assert first[:5] == [*forwards(0, 4), "BW 0.0"]
    assert hinted(schedule, 0)[:3] == [*forwards(0, 2), "BW 0.0"]


@pytest.mark.processes
def test_a_rank_whose_gradient_is_late_waits_at_the_cap_although_a_forward_is_ready():
    schedule = built("readiness", 2, 6, cap=2)
    found = run_ranks(2, order_here, schedule, lambda action: 0.3 * (action == Action("F", 1, 0)))
    assert found == [hinted(schedule, 0), hinted(schedule, 1)]


@pytest.mark.processes
def test_a_rank_between_a_fast_and_a_slow_one_takes_what_comes():
    schedule = built("readiness", 3, 6, cap=5)
    _, middle, last = orders(schedule, {"F 2.0": "F 1.4"})
    assert middle[:6] == [*forwards(1, 5), "BW 1.0"]
    assert middle != hinted(schedule, 1)
    assert last == hinted(schedule, 2), "its backwards are ready at once and come first in the hint"


@pytest.mark.processes
def test_a_rank_whose_activation_is_late_goes_back_instead():
    schedule = built("readiness", 2, 4, cap=4, base="gpipe")
    _, last = orders(schedule, {"F 0.2": "BW 1.1"})
    assert last.index("BW 1.1") < last.index("F 1.2")
    assert hinted(schedule, 1)[:4] == forwards(1, 4)


@pytest.mark.processes
def test_a_stream_listens_longer_than_the_groups_timeout():
    """Its first message may be made late in an iteration in which every rank works all the time."""
    schedule = built("readiness", 2, 2, cap=2)
    found = run_ranks(2, order_within, schedule, lambda action: 3.0 * (action == Action("F", 0, 0)), 2.0)
    assert found == [hinted(schedule, 0), hinted(schedule, 1)]


def order_within(schedule: Schedule, pause: Pause, limit: float) -> list[str]:
    engine = engine_on(schedule, pause, dist.new_group(timeout=timedelta(seconds=limit)))
    engine.run()
    return [str(one.action) for one in engine.executed]


# Orders, messages and caps under unequal speeds.

HINTS = {
    "1f1b": {"cap": 3},
    "gpipe": {"cap": 2},
    "interleaved": {"cap": 4, "chunks": 3},
    "zb-h1": {"cap": 2},
    "zb-v": {"cap": 5, "chunks": 2},
    "chimera": {"cap": 2},
    "dualpipe-v": {"cap": 3, "chunks": 2},
}
P, M, ROUNDS = 4, 8, 2


def hint(base: str) -> Schedule:
    return built("readiness", P, M, base=base, **HINTS[base])


def jittered() -> dict[str, list[list[Action]]]:
    """By hint, the orders of this rank over several rounds at changing speeds."""
    found = {}
    for base in HINTS:
        draw = random.Random(f"{base} {dist.get_rank()}")
        engine = engine_on(hint(base), lambda _, draw=draw: draw.choice([0.0, 0.001, 0.004]), dist.new_group())
        found[base] = []
        for _ in range(ROUNDS):
            engine.run()
            found[base].append([one.action for one in engine.executed])
    return found


def assert_follows(schedule: Schedule, rank: int, order: list[Action]) -> None:
    """Every action of the hint once, each stage's kinds in the hint's order, and never more in flight than the cap."""
    program = schedule.programs[rank]
    assert Counter(order) == Counter(program)
    for stream in {(action.kind, action.stage, action.replica) for action in program}:
        ours, theirs = ([a for a in one if (a.kind, a.stage, a.replica) == stream] for one in (order, program))
        assert ours == theirs
    for replica in {action.replica for action in program}:
        first = min(action.stage for action in program if action.replica == replica)
        live = 0
        for action in order:
            if (action.stage, action.replica) == (first, replica):
                live += (action.kind == "F") - (action.kind in RELEASE)
                assert live <= schedule.cap


@pytest.mark.processes
def test_whatever_the_speeds_messages_find_their_actions_and_the_cap_holds():
    ranks = run_ranks(P, jittered)
    assert any(order != list(hint(base).programs[r]) for r in range(P) for base in HINTS for order in ranks[r][base])
    for base in HINTS:
        for rank, found in enumerate(ranks):
            assert len(found[base]) == ROUNDS
            for order in found[base]:
                assert_follows(hint(base), rank, order)


# A peer that dies.


def work_until_killed(rank: int, size: int, store: str, victim: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)

    def pause(action: Action) -> float:
        if rank == victim and action.microbatch == 2:
            pipe.send("stuck")
            return 600.0
        return 0.0

    try:
        engine_on(built("readiness", size, 6, cap=4), pause).run()
        pipe.send("ended")
    except RuntimeError as error:
        pipe.send(str(error))
    os._exit(0)


@pytest.mark.processes
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_peer_that_dies_makes_every_other_rank_raise_within_seconds(victim, tmp_path):
    context, size = multiprocessing.get_context("fork"), 3
    pipes = [context.Pipe(duplex=False) for _ in range(size)]
    processes = [
        context.Process(target=work_until_killed, args=(rank, size, tmp_path / "store", victim, pipes[rank][1]))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        readers = [reader for reader, _ in pipes]
        assert readers[victim].poll(20)
        assert readers[victim].recv() == "stuck"
        time.sleep(0.3)
        others = [reader for rank, reader in enumerate(readers) if rank != victim]
        assert not any(reader.poll() for reader in others), "they wait as long as it lives"
        os.kill(processes[victim].pid, signal.SIGKILL)
        end = time.monotonic() + 5
        for reader in others:
            assert reader.poll(max(0.0, end - time.monotonic())), "it still waits"
            assert reader.recv().startswith("a message was lost: ")
    finally:
        for process in processes:
            process.kill()
            process.join()


# The order that the simulation takes.

BASES = [
    "1f1b", "gpipe", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "interleaved-zb", "zb-v", "v-min", "v-half",
    "chimera", "2bp-1f1b", "hanayo", "dualpipe", "dualpipe-v", "list",
]  # fmt: skip


@st.composite
def hints(draw: st.DrawFn) -> Schedule:
    base = draw(st.sampled_from(BASES))
    p, m, cap = draw(st.integers(1, 5)), draw(st.integers(1, 10)), draw(st.integers(1, 11))
    chunks = default_chunks(base)
    if base in ("interleaved", "looped-bfs", "interleaved-zb", "list"):
        chunks = draw(st.integers(1, 3))
    options = Options(name="readiness", base=base, cap=max(m, cap), chunks=chunks)
    assume(why_not(options, p, m) is None)
    return replace(generate(options, p, m), cap=cap)  # with less, a plan would refuse what locks up


def order_of(schedule: Schedule, costs: Costs) -> Schedule | str:
    """The settled schedule, or why there is none."""
    try:
        return settled(schedule, costs)
    except ScheduleError as error:
        return str(error)


@settings(max_examples=120, deadline=None)
@given(schedule=hints(), draw=st.randoms(use_true_random=False))
def test_a_hint_settles_into_a_schedule_that_proves_or_names_what_locks_up_at_any_speed(schedule, draw):
    stages = {(kind, s): draw.choice([0.5, 1.0, 3.0]) for kind in ("F", "B", "W", "BW")
              for s in range(schedule.virtual_stages)}  # fmt: skip
    unit, uneven = order_of(schedule, Costs()), order_of(schedule, Costs(stages=stages))
    if isinstance(unit, str):
        # What can run at all does not depend on who is fast: nothing that is ready ever ceases to be.
        assert uneven == unit
        rank, action = unit.split(": rank ")[1].split("; ")[0].split(" cannot run ")
        assert action in [str(one) for one in schedule.programs[int(rank)]]
        with pytest.raises(ScheduleError, match="locks up"):
            prove(schedule)
        assert settled(replace(schedule, cap=schedule.microbatches), Costs()), "as the sentence says"
        return
    for one in (unit, uneven):
        assert isinstance(one, Schedule)
        assert one.cap is None
        proof = prove(one)
        assert timeline(one).makespan > 0
        for rank, program in enumerate(one.programs):
            assert_follows(schedule, rank, list(program))
            if schedule.chunks == schedule.replicas == 1:
                assert proof.peak_chunks[rank] <= schedule.cap


def test_a_hint_that_goes_back_in_reverse_locks_up_below_all_microbatches():
    assert hinted(built("readiness", 1, 2, cap=2, base="looped-bfs"), 0) == ["F 0.0", "F 0.1", "BW 0.1", "BW 0.0"]
    sentence = (
        "readiness locks up with 1 microbatches in flight: rank 0 cannot run F 0.1; a larger schedule.cap would work, "
        "at most the 2 microbatches"
    )
    with pytest.raises(ScheduleError) as refused:
        prove(replace(built("readiness", 1, 2, cap=2, base="looped-bfs"), cap=1))
    assert str(refused.value) == sentence
    with pytest.raises(ValueError, match=r"schedule.cap=1: .* cannot run F 0.1; schedule.cap=2 would work"):
        built("readiness", 1, 2, cap=1, base="looped-bfs")


@pytest.mark.parametrize("costs", [(1, 1, 1), (1, 1.5, 0.5), (1, 0.5, 0.5)])
def test_with_a_microbatch_for_every_stage_in_flight_1f1b_as_a_hint_is_as_fast_as_can_be(costs):
    """No order of whole backwards is faster than (m + p - 1)(F + B + W): the last stage begins after p - 1 forwards of
    the first microbatch, works on m, and then p - 1 backwards of the last one are left. With fewer than min(p, m) in
    flight the first rank has to wait for one of them to come back.
    """
    for p in range(1, 7):
        for m in range(1, 11):
            for cap in range(1, 2 * p + 1):
                best = (m + p - 1) * sum(costs)
                found = timeline(settled(built("readiness", p, m, cap=cap), Costs(*costs)), Costs(*costs)).makespan
                assert found == best if cap >= min(p, m) else found > best
