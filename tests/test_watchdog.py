"""A rank that gets no further ends the point, with where every rank was; ranks that do not agree say so."""

import json
import os
import signal
import time

import pytest
from command import start
from layouts import point
from ranks import run_ranks

from suite.launch.watchdog import Board, account
from suite.parallel.agreement import agree
from suite.parallel.topology import build_topology
from suite.pipeline.generators import generate
from suite.pipeline.proof import prove

EXPERIMENT = """
name: stall
model: {layers: 2, hidden_size: 32, heads: 2, vocab_size: 256, seq_length: 16}
parallel: {pipeline: 2}
training: {global_batch: 4}
measure: {iterations: 100000, stall_seconds: 6.0}
"""


@pytest.mark.processes
def test_a_stopped_rank_is_named_with_its_action_and_the_message_others_wait_for(tmp_path):
    (tmp_path / "stall.yaml").write_text(EXPERIMENT)
    run = start("run", "stall.yaml", cwd=tmp_path)
    try:
        progress = _wait_for(lambda: [p for p in tmp_path.rglob("progress.jsonl") if p.read_text().count("\n") > 3])[0]
        os.kill(int((progress.parent / "ranks" / "1").read_text()), signal.SIGSTOP)
        stopped = time.monotonic()
        run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode == 1
    assert time.monotonic() - stopped < 30
    (file,) = (tmp_path / "results" / "runs").glob("stall/laptop/measured/*/*.json")
    record = json.loads(file.read_text())
    assert record["status"] == "failed"
    lines = record["reason"].splitlines()
    states = [line for line in lines if line.startswith("rank ") and " s" in line and "Stalled" not in line]
    assert sorted(state[:6] for state in states[:2]) == ["rank 0", "rank 1"]
    # The oldest first. Not always the stopped one: the other may have begun to wait for it a moment before.
    assert "rank 0: Stalled: got no further within the limit (measure.stall_seconds=6)" in lines[0]


def _wait_for(find, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = find()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it never came")


def test_the_account_names_what_each_rank_is_at_the_longest_first(tmp_path):
    at = point((1, 2, 1))
    lowered = prove(generate(at.schedule, 2, at.microbatches)).lowered
    Board.create(tmp_path / "board", range(2))
    boards = [Board(tmp_path / "board", rank) for rank in range(2)]
    ops = lowered.ops
    computing = next(i for i, op in enumerate(ops[1]) if op.action and str(op.action) == "BW 1.0")
    waiting = next(i for i, op in enumerate(ops[0]) if op.action and str(op.action) == "BW 0.0")
    boards[1].note(2 * computing + 1)
    boards[0].note(2 * waiting)
    now = time.monotonic() + 5
    first, second = account(boards[0].read(), lowered, at.parallel, now).splitlines()
    assert first.startswith("rank 1: in BW 1.0, for 5.")
    assert second.startswith("rank 0: BW 0.0, waiting for the gradient of BW 1.0 from rank 1 to rank 0, for 5.")
    boards[0].note_phase("updating the weights")
    assert "rank 0: updating the weights" in account(boards[1].read(), lowered, at.parallel, now)


def disagree():
    at = point((1, 2, 1))
    world = build_topology(at.parallel, "cpu", [[0, 1]]).world
    try:
        agree(world, {"message shape": (12 + world.index, 1, 16), "torch": "same"})
    except RuntimeError as error:
        return str(error)


@pytest.mark.processes
def test_a_mismatch_is_an_error_on_every_rank_with_both_sides_named():
    sentence = "rank 1 has message shape (13, 1, 16) and rank 0 has (12, 1, 16); they must agree"
    assert run_ranks(2, disagree) == [sentence, sentence]


def test_a_note_is_never_read_half_written(tmp_path):
    """The front reads the board while ranks write: a time of 0 would be a rank that stalled when the host started."""
    file = tmp_path / "board"
    Board.create(file, range(1))
    begun = time.monotonic()
    writer = os.fork()
    if not writer:
        board = Board(file)
        while True:
            board.note(7)
    try:
        board = Board(file)
        oldest = min(since for _ in range(100_000) for _, since in board.read().values())
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
    assert oldest > begun - 1
