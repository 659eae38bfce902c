"""Lowered programs: both ends of every pair of ranks agree, nothing hangs, and every message is handled once."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suite.pipeline.generators.gpipe import gpipe
from suite.pipeline.generators.interleaved import allowed_groups, interleaved
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.lowering import KIND_BITS, RECEIVE, RECEIVE_AHEAD, RUN, SEND, SETTLE, Op, lower
from suite.pipeline.program import Action, ScheduleError
from suite.pipeline.proof import prove_messages
from suite.pipeline.timeline import Costs, timeline


@st.composite
def schedules(draw):
    p, m = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    kind = draw(st.sampled_from(["gpipe", "1f1b", "interleaved"]))
    if kind != "interleaved":
        return gpipe(p, m) if kind == "gpipe" else one_f_one_b(p, m)
    return interleaved(p, m, draw(st.integers(1, 4)), draw(st.sampled_from(allowed_groups(p, m))))


def peer_of(rank, message):
    return message.destination if message.source == rank else message.source


def index(ops):
    """Where each instruction is: by kind and action or message."""
    return {(op.kind, op.action or op.message): place for place, op in enumerate(ops)}


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_ranks_run_their_programs_in_order(schedule):
    for program, ops in zip(schedule.programs, lower(schedule).ops, strict=True):
        assert tuple(op.action for op in ops if op.kind == "run") == program


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_every_dependency_between_ranks_is_one_message(schedule):
    lowered = lower(schedule)
    last = schedule.virtual_stages - 1
    expected = {}
    for action in (action for program in schedule.programs for action in program):
        if action.kind == "F" and action.stage > 0:
            expected[action] = action._replace(stage=action.stage - 1)
        if action.kind == "BW" and action.stage < last:
            expected[action] = action._replace(stage=action.stage + 1)
    crossing = {
        consumer: producer
        for consumer, producer in expected.items()
        if schedule.rank_of(consumer) != schedule.rank_of(producer)
    }
    assert {m.consumer: m.producer for m in lowered.inputs.values()} == crossing
    for consumer, message in lowered.inputs.items():
        assert message.consumer == consumer
        assert message.source == schedule.rank_of(message.producer)
        assert message.destination == schedule.rank_of(consumer)


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_every_message_is_sent_received_and_settled_once_by_its_own_ends(schedule):
    lowered = lower(schedule)
    for rank, ops in enumerate(lowered.ops):
        counts = Counter((op.kind, op.message) for op in ops if op.kind != "run")
        expected = Counter()
        for message in lowered.inputs.values():
            if message.source == rank:
                expected.update([("send", message), ("settle", message)])
            if message.destination == rank:
                expected.update([("receive", message)])
        assert counts == expected


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_both_ends_of_a_pair_issue_their_messages_in_one_order(schedule):
    lowered = lower(schedule)
    streams = {}
    for rank, ops in enumerate(lowered.ops):
        for op in ops:
            if op.kind in ("send", "receive"):
                streams.setdefault((rank, peer_of(rank, op.message)), []).append(op.message)
    for (rank, peer), stream in streams.items():
        assert stream == streams[peer, rank]


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_a_receive_is_posted_before_its_run_and_a_send_starts_after_its_run(schedule):
    lowered = lower(schedule)
    places = [index(ops) for ops in lowered.ops]
    for message in lowered.inputs.values():
        here, there = places[message.source], places[message.destination]
        assert there["receive", message] < there["run", message.consumer]
        assert here["run", message.producer] < here["send", message] < here["settle", message]


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_a_send_starts_before_the_next_action_and_is_settled_only_when_it_must_have_arrived(schedule):
    lowered = lower(schedule)
    places = [index(ops) for ops in lowered.ops]
    for rank, ops in enumerate(lowered.ops):
        known = set()  # actions of other ranks that must have run by now
        last = max((place for place, op in enumerate(ops) if op.kind == "run"), default=0)
        ran = None
        for place, op in enumerate(ops):
            if op.kind == "run":
                ran = op.action
                incoming = lowered.inputs.get(op.action)
                if incoming:
                    there = lowered.ops[incoming.source]
                    until = places[incoming.source]["run", incoming.producer]
                    known.update(earlier.action for earlier in there[: until + 1] if earlier.kind == "run")
            elif op.kind == "send":
                assert op.message.producer == ran
            elif op.kind == "settle":
                assert op.message.consumer in known or place > last
        assert rank == schedule.rank_of(ran)


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_only_the_last_backward_of_each_stage_is_final(schedule):
    for rank, ops in enumerate(lower(schedule).ops):
        finals = [op.action for op in ops if op.final]
        backwards = [op.action for op in ops if op.kind == "run" and op.action.kind == "BW"]
        hosted = [stage for stage, host in enumerate(schedule.placement[0]) if host == rank]
        assert sorted(action.stage for action in finals) == hosted
        for action in finals:
            assert [a for a in backwards if a.stage == action.stage][-1] == action


@settings(max_examples=150, deadline=None)
@given(schedules())
def test_a_receive_is_posted_by_the_time_its_message_is_produced_unless_enough_are_posted(schedule):
    unit = float(schedule.chunks)
    times = {span.action: span for row in timeline(schedule, Costs(unit, unit, unit)).ranks for span in row}
    lowered = lower(schedule)
    for ops in lowered.ops:
        now, unread, posted = 0.0, Counter(), Counter()  # posted: unread when the last action started
        for op in ops:
            if op.kind == "run":
                now, posted = times[op.action].end, unread.copy()
                if op.action in lowered.inputs:
                    unread[lowered.inputs[op.action].source] -= 1
            elif op.kind == "receive":
                peer = op.message.source
                assert now <= times[op.message.producer].end or posted[peer] >= RECEIVE_AHEAD
                unread[peer] += 1


def test_activations_are_received_at_least_one_action_ahead_in_steady_state():
    """Gradients come just in time: in the stream of the pair they stand behind the activation before them."""
    for rank, ops in list(enumerate(lower(one_f_one_b(4, 8)).ops))[1:]:
        ran = [op.action for op in ops if op.kind == "run"]
        for place, op in enumerate(ops):
            if op.kind == "receive" and op.message.consumer.kind == "F" and op.message.consumer.microbatch >= 2:
                already = sum(earlier.kind == "run" for earlier in ops[:place])
                assert ran.index(op.message.consumer) - already >= 1, f"rank {rank}, {op.message}"


@settings(max_examples=50, deadline=None)
@given(schedules())
def test_every_receive_is_read_and_few_are_posted_ahead_of_the_first_action(schedule):
    lowered = lower(schedule)
    for ops in lowered.ops:
        unread = Counter()
        for op in ops:
            if op.kind == "receive":
                unread[op.message.source] += 1
            if op.action in lowered.inputs:
                unread[lowered.inputs[op.action].source] -= 1
        assert not any(unread.values())
    first = lower(one_f_one_b(2, 12)).ops[1]
    before = first[: next(place for place, op in enumerate(first) if op.kind == "run")]
    assert len(before) == RECEIVE_AHEAD


def test_a_third_of_a_microbatch_does_not_upset_the_order_of_messages():
    """Chunk costs of 1/3 do not add up exactly in floating point; the order of messages must not depend on it."""
    for m, group in ((3, 3), (10, 6), (11, 4), (12, 12)):
        prove_messages(lower(interleaved(3, m, 3, group)))


def exchange():
    """One microbatch over two stages: F 0.0 goes to rank 1, BW 1.0 comes back."""
    lowered = lower(gpipe(2, 1))
    (activation,) = (m for m in lowered.inputs.values() if m.source == 0)
    (gradient,) = (m for m in lowered.inputs.values() if m.source == 1)
    return lowered, activation, gradient


def run(kind, stage):
    return Op("run", Action(kind, stage, 0))


def changed(lowered, *programs):
    """The lowered schedule with other instructions, one program a rank."""
    graph = lowered.schedule.graph
    kinds = {"run": RUN, "receive": RECEIVE, "send": SEND, "settle": SETTLE}

    def code(op):
        number = op.message.number if op.kind != "run" else graph.actions.index(op.action)
        return number << KIND_BITS | kinds[op.kind]

    return replace(lowered, codes=tuple(tuple(map(code, program)) for program in programs))


def test_the_proof_accepts_a_lowered_program():
    prove_messages(exchange()[0])


def test_a_pair_of_ranks_that_disagrees_on_the_order_is_refused():
    lowered, activation, gradient = exchange()
    zero = [
        Op("receive", message=gradient),
        run("F", 0),
        Op("send", message=activation),
        run("BW", 0),
    ]
    with pytest.raises(ScheduleError, match="ranks 0 and 1 do not agree on the order of their messages"):
        prove_messages(changed(lowered, zero, lowered.ops[1]))


def test_a_message_that_one_end_does_not_know_of_is_refused():
    lowered, _, gradient = exchange()
    one = tuple(op for op in lowered.ops[1] if op.message != gradient)
    with pytest.raises(ScheduleError, match="ranks 0 and 1 do not agree"):
        prove_messages(changed(lowered, lowered.ops[0], one))


def test_sends_that_wait_for_each_other_are_refused():
    """Three ranks in a ring, each sending before it posts its receive: fine if sends are buffered, else stuck."""
    lowered = lower(interleaved(3, 1, 2))
    ring = [next(m for m in lowered.inputs.values() if m.producer == Action("F", r, 0)) for r in range(3)]
    assert [m.destination for m in ring] == [1, 2, 0]
    programs = [(Op("send", message=ring[r]), Op("receive", message=ring[r - 1])) for r in range(3)]
    with pytest.raises(ScheduleError, match=r"deadlocks with blocking sends: rank 0 cannot send the activation"):
        prove_messages(changed(lowered, *programs))


def test_an_action_before_its_receive_is_refused():
    lowered, activation, gradient = exchange()
    one = (
        run("F", 1),
        Op("receive", message=activation),
        run("BW", 1),
        Op("send", message=gradient),
        Op("settle", message=gradient),
    )
    with pytest.raises(ScheduleError, match=r"rank 1 cannot run F 1\.0: it waits for the activation of F 0\.0"):
        prove_messages(changed(lowered, lowered.ops[0], one))


def test_a_settlement_before_the_other_end_can_have_received_is_refused():
    lowered, activation, gradient = exchange()
    zero = (Op("settle", message=activation), run("F", 0), Op("send", message=activation))
    zero += (Op("receive", message=gradient), run("BW", 0))
    with pytest.raises(ScheduleError, match="rank 0 cannot settle the activation"):
        prove_messages(changed(lowered, zero, lowered.ops[1]))
