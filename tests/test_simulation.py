"""The event simulation with messages and costs per stage, against closed forms and a second, slower simulator."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedules import built

from suite.pipeline.generators.interleaved import interleaved
from suite.pipeline.generators.one_f_one_b import one_f_one_b
from suite.pipeline.program import Action
from suite.pipeline.timeline import Costs, Link, Network, critical_path, timeline

NAMES = ["gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-v", "v-half", "chimera", "dualpipe-v", "2bp-1f1b"]


@pytest.mark.parametrize("p", [2, 3, 5])
@pytest.mark.parametrize("latency", [0.0, 0.25, 2.0])
def test_one_microbatch_pays_every_hop_there_and_back(p, latency):
    network = Network(1.0, Link(latency, bandwidth=4.0))
    assert timeline(one_f_one_b(p, 1), Costs(1, 1, 1), network).makespan == pytest.approx(
        3 * p + 2 * (p - 1) * (latency + 0.25)
    )


def test_a_link_carries_one_message_at_a_time():
    """Rank 1 cannot start microbatch i before i + 1 transfers of 5, though rank 0 makes one a unit of time."""
    times = timeline(built("gpipe", 2, 6), Costs(1, 1, 1), Network(5.0, Link(bandwidth=1.0)))
    starts = [span.start for span in times.ranks[1] if span.action.kind == "F"]
    assert starts == [1 + 5 * (i + 1) for i in range(6)]


def test_without_overlap_both_ends_spend_the_transfers_time():
    """The sender's next action waits until the message is out, and so does the receiver's until it is in."""
    network = Network(1.0, Link(bandwidth=2.0), overlap=False)
    times = timeline(built("gpipe", 2, 2), Costs(1, 1, 1), network)
    first, second = (span for span in times.ranks[0] if span.action.kind == "F")
    assert (first.end, second.start) == (1.0, 1.5)
    there = [span for span in times.ranks[1] if span.action.kind == "F"]
    assert (there[0].start, there[1].start) == (1.5, 3.0)


def test_links_may_differ():
    slow = Network(1.0, Link(), {(0, 1): Link(latency=10.0)})
    times = timeline(one_f_one_b(3, 1), Costs(1, 1, 1), slow)
    assert times.makespan == 9 + 10


def test_costs_of_single_stages_are_theirs_alone():
    times = timeline(interleaved(2, 2, 2), Costs(2, 2, 2, {("F", 3): 5.0}))
    lengths = {(s.action.kind, s.action.stage): s.end - s.start for row in times.ranks for s in row}
    assert lengths == {
        (kind, stage): 5.0 if (kind, stage) == ("F", 3) else {"F": 1.0, "BW": 2.0}[kind]
        for kind in ("F", "BW")
        for stage in range(4)
    }


def slow_simulation(schedule, costs, network):
    """Relaxation: push every start as late as something before it demands, until nothing moves."""
    table, graph = costs.table(schedule), schedule.graph
    duration = [table[action.kind, action.stage] for action in graph.actions]
    start = [0.0] * len(duration)
    sent = {o: n for n, needed in enumerate(graph.needs) for o in needed if graph.rank[o] != graph.rank[n]}
    incoming = {n: o for o, n in sent.items()}
    while True:
        end = [s + d for s, d in zip(start, duration, strict=True)]
        begin = {}  # of the transfer of each producer's message
        for r in range(len(schedule.programs)):
            free = {}
            for n in range(graph.first[r], graph.first[r + 1]):
                if n in sent:
                    link = (r, graph.rank[sent[n]])
                    begin[n] = max(end[n], free.get(link, 0.0))
                    free[link] = begin[n] + network.between(*link)[1]
        new = []
        for n, rank in enumerate(graph.rank):
            ready = [0.0, *(end[o] for o in graph.needs[n] if graph.rank[o] == rank)]
            if n > graph.first[rank]:
                ready.append(end[n - 1])
            if n in incoming:
                o = incoming[n]
                ready.append(begin[o] + sum(network.between(graph.rank[o], rank)))
            new.append(max(ready))
        if new == start:
            return start
        start = new


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    p=st.sampled_from([2, 4]),
    m=st.sampled_from([8, 10]),
    costs=st.tuples(*[st.sampled_from([1.0, 1.5, 0.5, 2.0])] * 3),
    latency=st.sampled_from([0.0, 0.25, 3.0]),
    bandwidth=st.sampled_from([1.0, 8.0, float("inf")]),
)
def test_a_second_simulator_agrees(name, p, m, costs, latency, bandwidth):
    if name == "interleaved" and m % p:
        m = 8
    schedule, network = built(name, p, m), Network(1.0, Link(latency, bandwidth))
    times = timeline(schedule, Costs(*costs), network)
    starts = [span.start for row in times.ranks for span in row]
    assert starts == pytest.approx(slow_simulation(schedule, Costs(*costs), network))


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    p=st.sampled_from([2, 4]),
    costs=st.tuples(*[st.sampled_from([1.0, 1.5, 0.5, 2.0])] * 3),
    latency=st.sampled_from([0.0, 0.25, 3.0]),
    overlap=st.booleans(),
)
def test_the_critical_path_is_a_chain_without_gaps_as_long_as_the_iteration(name, p, costs, latency, overlap):
    schedule = built(name, p, 8)
    network = Network(1.0, Link(latency, 4.0), overlap=overlap)
    times = timeline(schedule, Costs(*costs), network)
    path = critical_path(schedule, times)
    assert path[0].start == 0
    assert path[-1].end == pytest.approx(times.makespan)
    arrival = {(t.producer, t.consumer): t.end for t in times.transfers}
    for before, after in pairwise(path):
        if before.rank != after.rank:
            assert after.start >= arrival[before.action, after.action] - 1e-9
        else:
            assert after.start >= before.end - 1e-9
        if overlap:
            due = arrival.get((before.action, after.action), before.end) if before.rank != after.rank else before.end
            assert after.start == pytest.approx(due)


def test_memory_over_time_ends_at_nothing_and_peaks_where_the_proof_says():
    from suite.pipeline.proof import prove

    for name in NAMES:
        schedule = built(name, 4, 8)
        times, proof = timeline(schedule), prove(schedule)
        for rank in range(4):
            history = times.live_chunks(rank)
            assert history[-1][1] == 0
            assert max(live for _, live in history) <= proof.peak_chunks[rank]
        assert times.live_chunks(0)[0] == (times.ranks[0][0].start, 1)
    assert timeline(one_f_one_b(2, 1)).live_chunks(1) == [(1.0, 1), (4.0, 0)]
    assert Action("F", 0, 0) == timeline(one_f_one_b(2, 1)).ranks[0][0].action
