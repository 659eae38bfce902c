"""Checkpoints: saved under one layout, loaded under any other; a kill during a save loses nothing but that save."""

import os
import re
import signal
from pathlib import Path

import pytest
import torch
from layouts import point, training_step
from ranks import run_ranks

from suite.experiment.checkpoint_folder import STATE_FILE
from suite.experiment.cluster import Cluster
from suite.experiment.validity import violations
from suite.training.checkpoint import Checkpoints

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process needs none

TRAINING = {"optimizer": "adamw", "precision": "fp32", "gradient_clip": 1.0, "learning_rate": 1e-3}


def at(layout, schedule="1f1b", **sections):
    names = ("tensor", "pipeline", "data")
    sections = {**sections, "parallel": {**dict(zip(names, layout, strict=True)), **sections.get("parallel", {})}}
    sections["training"] = {**TRAINING, **sections.get("training", {})}
    return point(layout, schedule, batch=4, model={"layers": 5}, **sections)


def train_and_save(where, folder, before, after):
    step = training_step(where)
    checkpoints = Checkpoints(Path(folder), step)
    losses = [step.run(k).loss for k in range(before)]
    timing = checkpoints.save(before)
    return losses + [step.run(k).loss for k in range(before, before + after)], timing


def load_and_train(where, folder, after):
    step = training_step(where)
    timing = Checkpoints(Path(folder), step).load()
    assert timing is not None
    start = timing.iteration
    return [step.run(k).loss for k in range(start, start + after)], timing


LOADED = [
    at((1, 1, 1)),
    at((4, 1, 2)),
    at((1, 4, 2)),
    at((2, 2, 2), "interleaved", parallel={"sharding": "zero1", "sequence": True}),
]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("saved", "layouts"),
    [(at((2, 2, 2), "interleaved"), LOADED), (at((1, 2, 2), parallel={"sharding": "zero1"}), LOADED[::3])],
    ids=["plain", "zero1"],
)
def test_any_layout_goes_on_where_another_stopped(tmp_path, saved, layouts):
    results = run_ranks(saved.parallel.ranks, train_and_save, saved, tmp_path, 2, 3)
    expected = results[0][0][2:]
    for loaded in layouts:
        losses, _ = run_ranks(loaded.parallel.ranks, load_and_train, loaded, tmp_path, 3)[0]
        assert losses == pytest.approx(expected, rel=1e-5), loaded.parallel


@pytest.mark.processes
def test_bytes_are_the_weights_and_moments_without_padding(tmp_path):
    _, timing = run_ranks(4, train_and_save, at((2, 1, 2)), tmp_path, 1, 0)[0]
    h, layers, vocab, s = 16, 5, 67, 12
    parameters = layers * (12 * h * h + 13 * h) + (vocab + s) * h + 2 * h
    assert timing.bytes == parameters * 4 * 3
    assert timing.seconds > 0


def test_fp16_keeps_its_master_weights_and_loss_scale(tmp_path):
    where = at((1, 1, 1), training={"precision": "fp16", "loss_scale": "dynamic"})
    step = training_step(where)
    step.loss_scale.value = 1024.0
    step.run(0)
    Checkpoints(tmp_path, step).save(1)
    other = training_step(where)
    Checkpoints(tmp_path, other).load()
    assert other.loss_scale.value == 1024.0
    assert other.optimizer.steps == 1
    for mine, theirs in zip(other.optimizer.pieces, step.optimizer.pieces, strict=True):
        assert torch.equal(mine.master, theirs.master)
        assert torch.equal(mine.values, theirs.values)


def die_while_saving(where, folder):
    step = training_step(where)
    checkpoints = Checkpoints(Path(folder), step)
    step.run(0)
    checkpoints.save(1)
    step.run(1)
    checkpoints._write_state = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    checkpoints.save(2)


def test_a_kill_during_a_save_leaves_the_last_good_checkpoint(tmp_path):
    where = at((1, 1, 1))
    child = os.fork()
    if child == 0:
        die_while_saving(where, tmp_path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert (tmp_path / "iteration-00000002.writing").is_dir()
    timing = Checkpoints(tmp_path, training_step(where)).load()
    assert timing is not None
    assert timing.iteration == 1


@pytest.mark.parametrize(("field", "stored", "wanted"), [("layers", 5, 4), ("heads", 4, 2)])
def test_a_checkpoint_of_another_model_is_refused_by_field_even_where_every_shape_fits(tmp_path, field, stored, wanted):
    Checkpoints(tmp_path, training_step(at((1, 1, 1)))).save(0)
    other = point(
        model={"layers": 5, "dropout": 0.0, field: wanted},
        training=TRAINING,
        checkpoint={"load": True, "path": str(tmp_path)},
    )
    sentence = (
        f"model.{field}={wanted}: the checkpoint {tmp_path / 'iteration-00000000'} has {stored}; "
        f"model.{field}={stored} would work"
    )
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Checkpoints(tmp_path, training_step(other)).load()
    assert violations(other, Cluster(name="local", max_ranks=16)) == [sentence]


@pytest.mark.parametrize(
    ("saved", "loaded", "sentence"),
    [
        ("sgd", "adamw", "the checkpoint has no .*/first_moment"),
        ("adamw", "sgd", "the checkpoint has .*/first_moment, which this model and optimizer do not"),
    ],
)
def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path, saved, loaded, sentence):
    Checkpoints(tmp_path, training_step(at((1, 1, 1), training={"optimizer": saved}))).save(0)
    other = training_step(at((1, 1, 1), training={"optimizer": loaded}))
    with pytest.raises(ValueError, match=sentence):
        Checkpoints(tmp_path, other).load()


def test_a_checkpoint_that_does_not_say_its_model_is_refused(tmp_path):
    step = training_step(at((1, 1, 1)))
    Checkpoints(tmp_path, step).save(0)
    (tmp_path / "iteration-00000000" / STATE_FILE).write_text('{"iteration": 0}')
    with pytest.raises(ValueError, match="does not say of which model it is"):
        Checkpoints(tmp_path, step).load()


def test_no_checkpoint_is_none_and_old_ones_go(tmp_path):
    step = training_step(at((1, 1, 1)))
    checkpoints = Checkpoints(tmp_path, step)
    assert checkpoints.load() is None
    for iteration in range(4):
        checkpoints.save(iteration)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["iteration-00000002", "iteration-00000003"]
