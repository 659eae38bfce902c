"""Tokens and batches: the global batch is the same for every layout, and depends on seed and source only."""

import hashlib

import pytest
import torch
from layouts import point

from suite.training.data import Batches, SyntheticTokens, open_source

CPU = torch.device("cpu")
TEXT = bytes(range(256)) * 2


def global_batch(ranks, microbatch, iteration=0, batch=8, **sections):
    """Tokens and targets of a whole iteration, sequence by sequence, put together from all data ranks."""
    at = point((1, 1, ranks), batch=batch, microbatch=microbatch, **sections)
    tokens, targets, numbers = [], [], []
    for rank in range(ranks):
        batches = Batches(at, rank, CPU)
        for index in range(at.microbatches):
            part = batches.microbatch(iteration, index)
            assert part.tokens.shape == (at.model.seq_length, microbatch)
            tokens += part.tokens.t().tolist()
            targets += part.targets.t().tolist()
            numbers += part.dropout.sequences
    return tokens, targets, numbers


SPLITS = [(data, microbatch) for data in (1, 2, 4, 8) for microbatch in (1, 2, 4, 8) if data * microbatch <= 8]


@pytest.mark.parametrize("iteration", [0, 3])
@pytest.mark.parametrize(("data", "microbatch"), SPLITS)
def test_the_global_batch_is_the_same_for_every_split(data, microbatch, iteration):
    whole = global_batch(1, 8, iteration)
    assert global_batch(data, microbatch, iteration) == whole
    assert whole[2] == list(range(8))


def test_targets_are_the_tokens_shifted_by_one():
    at = point(batch=2, microbatch=2)
    part = Batches(at, 0, CPU).microbatch(1, 0)
    assert torch.equal(part.tokens[1:], part.targets[:-1])
    source = open_source(at)
    for column, number in enumerate((2, 3)):
        sequence = source.sequence(number)
        assert torch.equal(part.tokens[:, column], sequence[:-1])
        assert part.targets[-1, column] == sequence[-1]


def test_iterations_walk_through_the_sequences_without_a_gap():
    source = open_source(point())
    for iteration in range(3):
        tokens = global_batch(2, 2, iteration)[0]
        assert tokens == [source.sequence(8 * iteration + j)[:-1].tolist() for j in range(8)]


def test_data_ranks_have_different_sequences():
    at = point((1, 1, 4), batch=8)
    numbers = [Batches(at, rank, CPU).microbatch(0, i).dropout.sequences for rank in range(4) for i in range(2)]
    assert sorted(number for part in numbers for number in part) == list(range(8))


def test_synthetic_tokens_depend_on_seed_and_number_only():
    first, again = SyntheticTokens(7, 67, 12), SyntheticTokens(7, 67, 12)
    late = again.sequence(5)
    assert torch.equal(first.sequence(5), late)
    assert not torch.equal(first.sequence(6), late)
    assert not torch.equal(SyntheticTokens(8, 67, 12).sequence(5), late)
    assert late.shape == (13,)
    assert first.digest == again.digest != SyntheticTokens(8, 67, 12).digest
    torch.manual_seed(1)
    assert torch.equal(first.sequence(5), late)


def test_synthetic_tokens_use_the_whole_vocabulary():
    drawn = torch.cat([SyntheticTokens(1, 16, 100).sequence(n) for n in range(10)])
    assert drawn.unique().tolist() == list(range(16))


@pytest.fixture
def text_point(tmp_path):
    """A point that trains on the bytes of a file."""
    file = tmp_path / "text.txt"

    def build(content=TEXT, seed=1, **changes):
        file.write_bytes(content)
        return point(
            data={"source": "text", "path": str(file)},
            model={"vocab_size": 256, "seq_length": 10},
            training={"seed": seed},
            **changes,
        )

    return build


def test_text_windows_cover_the_text_once_an_epoch_in_an_order_of_their_own(text_point):
    source = open_source(text_point())
    windows = sorted(tuple(TEXT[start : start + 11]) for start in range(0, 510, 10))
    assert len(windows) == 51
    epochs = [[tuple(source.sequence(51 * e + n).tolist()) for n in range(51)] for e in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [windows] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs[0] != windows


def test_text_order_depends_on_the_seed_and_not_on_what_was_read_before(text_point):
    one, two, other = (open_source(text_point(seed=seed)) for seed in (1, 1, 2))
    forwards = [one.sequence(n).tolist() for n in range(120)]
    backwards = [two.sequence(n).tolist() for n in reversed(range(120))]
    assert forwards == backwards[::-1]
    assert forwards != [other.sequence(n).tolist() for n in range(120)]


def test_text_batches_are_the_same_for_every_split(text_point):
    at = text_point()
    sections = {name: getattr(at, name).model_dump() for name in ("data", "model")}
    whole = global_batch(1, 8, 6, **sections)  # sequences 48..55 cross an epoch of 51
    assert global_batch(4, 1, 6, **sections) == whole
    assert whole[0] != global_batch(1, 8, 0, **sections)[0]


def test_the_digest_of_a_text_is_that_of_its_bytes(text_point):
    source = open_source(text_point())
    assert source.digest == hashlib.sha256(TEXT).hexdigest()[:16]
    assert open_source(text_point(TEXT + b"!")).digest != source.digest
