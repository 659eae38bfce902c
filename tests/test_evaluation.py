"""The loss on held-out tokens: the same for every layout, without dropout, weights untouched."""

import pytest
import torch
from layouts import point
from ranks import run_ranks

from suite.parallel.topology import build_topology
from suite.pipeline.generators import generate
from suite.pipeline.program import ScheduleError, forward_only
from suite.pipeline.proof import prove
from suite.training.data import Batches
from suite.training.evaluation import evaluate
from suite.training.step import TrainingStep


def evaluated(at):
    schedule = generate(at.schedule, at.parallel.pipeline, at.microbatches)
    lowered = prove(schedule).lowered
    topology = build_topology(at.parallel, "cpu", schedule.placement)
    step = TrainingStep(at, lowered, topology, torch.device("cpu"))
    before = [flat.values.clone() for flat in step.flats]
    losses = [evaluate(step, lowered, 2), evaluate(step, lowered, 2)]
    assert all(torch.equal(flat.values, old) for flat, old in zip(step.flats, before, strict=True))
    trained = step.run(0).loss  # the engine for training still works
    return losses, trained


@pytest.fixture(scope="module")
def alone():
    (found,) = run_ranks(1, evaluated, point())
    return found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("layout", "schedule"),
    [
        ((2, 1, 1), "1f1b"),
        ((1, 2, 2), "gpipe"),
        ((2, 2, 1), "interleaved"),
        ((1, 4, 1), "1f1b"),
        ((1, 2, 1), "zb-v"),
        ((1, 2, 2), "chimera"),
        ((1, 2, 1), "dualpipe"),
        ((1, 2, 1), {"name": "readiness", "base": "chimera", "cap": 2}),
    ],
)
def test_every_layout_has_the_single_process_evaluation_loss(alone, layout, schedule):
    (expected, again), trained = alone
    assert expected == again != trained
    for losses, other in run_ranks(point(layout).parallel.ranks, evaluated, point(layout, schedule)):
        assert losses == pytest.approx([expected, expected], rel=1e-12)
        assert other == pytest.approx(trained, rel=1e-12)


def test_held_out_synthetic_tokens_are_others():
    at = point()
    train, held_out = (Batches(at, 0, torch.device("cpu"), held_out=flag) for flag in (False, True))
    assert not torch.equal(train.microbatch(0, 0).tokens, held_out.microbatch(0, 0).tokens)
    assert held_out.microbatch(0, 0).dropout.rate == 0


def test_held_out_text_is_the_validation_file(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"a" * 500)
    (tmp_path / "held-out.txt").write_bytes(b"b" * 500)
    data = {"source": "text", "path": str(tmp_path / "train.txt"), "validation": str(tmp_path / "held-out.txt")}
    held_out = Batches(point(data=data), 0, torch.device("cpu"), held_out=True)
    assert held_out.microbatch(0, 0).tokens.unique().tolist() == [ord("b")]


def test_a_program_without_backward_proves_for_evaluation_only():
    schedule = forward_only(generate(point(schedule="interleaved").schedule, 2, 8))
    assert prove(schedule, forward_only=True).lowered.schedule is schedule
    with pytest.raises(ScheduleError, match="must be either one BW or one B and one W"):
        prove(schedule)
    with pytest.raises(ScheduleError, match="must be left out"):
        prove(generate(point().schedule, 2, 8), forward_only=True)
