"""Megatron's .bin/.idx files, written here byte by byte from the format's description."""

import struct
import subprocess
import sys
from itertools import accumulate, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import point

from suite.experiment.cluster import Cluster
from suite.experiment.megatron_file import megatron_problem
from suite.experiment.validity import violations
from suite.training.data import Batches, open_source
from suite.training.megatron_data import MegatronTokens

LOCAL = Cluster(name="local", max_ranks=16)
CODES = {1: "B", 2: "b", 3: "h", 4: "i", 5: "q", 8: "H"}  # struct's letters of the integer types
FLOATS = {6: "d", 7: "f"}
S = 8


def write(folder, documents, code=8, name="corpus", version=1, magic=b"MMIDIDX\x00\x00", modes=False):
    """A pair as the format describes it, one sequence a document; returns the common part of the names."""
    letter = {**CODES, **FLOATS}[code]
    size = struct.calcsize(letter)
    lengths = [len(document) for document in documents]
    places = [0, *accumulate(length * size for length in lengths)][: len(lengths)]
    index = magic + struct.pack("<QBQQ", version, code, len(lengths), len(lengths) + 1)
    index += struct.pack(f"<{len(lengths)}i", *lengths)
    index += struct.pack(f"<{len(lengths)}q", *places)
    index += struct.pack(f"<{len(lengths) + 1}q", *range(len(lengths) + 1))
    index += bytes(len(lengths)) if modes else b""
    prefix = folder / name
    prefix.with_suffix(".idx").write_bytes(index)
    prefix.with_suffix(".bin").write_bytes(b"".join(struct.pack(f"<{len(d)}{letter}", *d) for d in documents))
    return str(prefix)


def corpus(lengths=(5, 11, 3, 0, 20, 1, 9, 14), limit=100):
    """Documents of these lengths whose tokens are all different where there is room."""
    tokens = iter(range(10**6))
    return [[next(tokens) % limit for _ in range(length)] for length in lengths]


def stream(documents, seed, epochs):
    """The concatenated tokens of the epochs, and the generators with which their samples are shuffled."""
    tokens, generators = [], []
    for epoch in range(epochs):
        numbers = np.random.RandomState([seed, epoch] if epoch else seed)
        order = np.arange(len(documents), dtype=np.int32)
        numbers.shuffle(order)
        tokens += [token for document in order for token in documents[document]]
        generators.append(numbers)
    return tokens, generators


def expected(documents, seed, s, epochs):
    """The samples of whole epochs, in order, by making everything at once."""
    tokens, generators = stream(documents, seed, epochs)
    total = len(tokens) // epochs
    found = []
    for epoch, numbers in enumerate(generators):
        first, end = len(found), ((epoch + 1) * total - 1) // s
        order = np.arange(first, end, dtype=np.uint32)
        numbers.shuffle(order)
        found += [tokens[i * s : i * s + s + 1] for i in order.tolist()]
    return found


def sequences(source, count):
    return [source.sequence(number).tolist() for number in range(count)]


@pytest.mark.parametrize("code", CODES)
def test_every_integer_type_is_read(tmp_path, code):
    documents = corpus(limit=100)
    source = MegatronTokens(write(tmp_path, documents, code), 1, S, 100)
    assert sequences(source, 15) == expected(documents, 1, S, 2)[:15]
    assert source.sequence(0).dtype == torch.int64
    assert source.sequence(0).shape == (S + 1,)


def test_one_epoch_is_what_megatron_shows(tmp_path):
    """Megatron's construction for one epoch, literally: one generator, documents first, then samples."""
    documents, seed = corpus((7, 30, 12, 25, 9), limit=1000), 1234
    numbers = np.random.RandomState(seed)
    order = np.arange(5, dtype=np.int32)
    numbers.shuffle(order)
    tokens = [token for document in order for token in documents[document]]
    samples = np.arange((len(tokens) - 1) // S, dtype=np.uint32)
    numbers.shuffle(samples)
    source = MegatronTokens(write(tmp_path, documents), seed, S, 1000)
    assert sequences(source, len(samples)) == [tokens[i * S : i * S + S + 1] for i in samples.tolist()]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=9).filter(lambda lengths: sum(lengths) > 1),
    st.integers(0, 2**32 - 1),
    st.integers(1, 30),
)
def test_any_file_has_the_samples_of_the_rule(tmp_path_factory, lengths, seed, s):
    s = min(s, sum(lengths) - 1)
    documents = corpus(lengths, limit=60000)
    source = MegatronTokens(write(tmp_path_factory.mktemp("pair"), documents), seed, s, 60000)
    wanted = expected(documents, seed, s, 4)
    assert sequences(source, len(wanted)) == wanted


def test_an_epoch_predicts_every_token_once_and_samples_share_one_token(tmp_path):
    documents = corpus((40, 25, 16), limit=60000)  # 81 tokens, 10 samples of 8 + 1
    source = MegatronTokens(write(tmp_path, documents), 3, S, 60000)
    samples = sequences(source, 10)
    predicted = sorted(token for sample in samples for token in sample[1:])
    assert len(set(predicted)) == 80
    by_start = {sample[0]: sample for sample in samples}
    walk = [next(sample for sample in samples if sample[0] not in predicted)]
    while walk[-1][-1] in by_start:
        walk.append(by_start[walk[-1][-1]])
    assert len(walk) == 10, "the samples follow each other through the whole stream"
    assert all(one[-1] == next_[0] for one, next_ in pairwise(walk))
    assert walk != samples, "and are shuffled"


def test_epochs_have_orders_of_their_own_and_seeds_too(tmp_path):
    path = write(tmp_path, corpus((40, 25, 16), limit=60000))
    source = MegatronTokens(path, 3, S, 60000)
    first, second = (sequences(source, 20)[start : start + 10] for start in (0, 10))
    assert first != second
    assert sequences(MegatronTokens(path, 4, S, 60000), 10) != first


def test_a_sequence_depends_on_its_number_only(tmp_path):
    path = write(tmp_path, corpus())
    forwards = sequences(MegatronTokens(path, 1, S, 100), 60)
    late = MegatronTokens(path, 1, S, 100)
    assert [late.sequence(number).tolist() for number in reversed(range(60))] == forwards[::-1]


@pytest.mark.parametrize("end", ["", ".bin", ".idx"])
def test_the_path_is_the_common_part_or_either_file(tmp_path, end):
    path = write(tmp_path, corpus())
    assert megatron_problem(path + end, S, 1) is None


def test_names_with_dots_and_modes_after_the_index_are_fine(tmp_path):
    prefix = tmp_path / "corpus.v1_text"
    path = write(tmp_path, corpus(), name="x", modes=True)
    for end in (".bin", ".idx"):
        (tmp_path / f"x{end}").rename(f"{prefix}{end}")
    assert megatron_problem(path, S, 1) is not None
    assert megatron_problem(str(prefix), S, 1) is None


def test_tokens_stay_on_disk(tmp_path):
    source = MegatronTokens(write(tmp_path, corpus()), 1, S, 100)
    assert isinstance(source.file.ids, np.memmap)
    assert isinstance(source.file.lengths, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        source.file.ids[0] = 1
    assert source.sequence(0).add_(1) is not None  # its own memory


def test_the_digest_tells_files_apart(tmp_path):
    documents = corpus((30, 40))
    one, same = (MegatronTokens(write(tmp_path, documents, name=name), 1, S, 100) for name in "ab")
    documents[1][-1] += 1
    other = MegatronTokens(write(tmp_path, documents, name="c"), 1, S, 100)
    assert one.digest == same.digest != other.digest
    assert len(one.digest) == 16


def cut(path, end, length):
    file = f"{path}{end}"
    with open(file, "r+b") as stream:
        stream.truncate(length)


def damaged(folder, what):
    """A pair with something wrong."""
    documents = corpus()  # 63 tokens in 8 documents
    path = write(folder, documents)
    match what:
        case "no idx":
            (folder / "corpus.idx").unlink()
        case "no bin":
            (folder / "corpus.bin").unlink()
        case "magic":
            write(folder, documents, magic=b"TNTIDX\x00\x00\x00")
        case "empty idx":
            cut(path, ".idx", 0)
        case "header cut":
            cut(path, ".idx", 20)
        case "version":
            write(folder, documents, version=2)
        case "float":
            write(folder, documents, code=7)
        case "type":
            index = bytearray((folder / "corpus.idx").read_bytes())
            index[17] = 77
            (folder / "corpus.idx").write_bytes(index)
        case "counts":
            index = bytearray((folder / "corpus.idx").read_bytes())
            index[18:26] = struct.pack("<Q", 2**61)
            (folder / "corpus.idx").write_bytes(index)
        case "idx cut":
            cut(path, ".idx", 34 + 12 * 8 + 8 * 9 - 1)
        case "bin cut":
            cut(path, ".bin", 125)
        case "length":
            index = bytearray((folder / "corpus.idx").read_bytes())
            index[34:38] = struct.pack("<i", -5)
            (folder / "corpus.idx").write_bytes(index)
        case "no documents":
            write(folder, [])
        case "short":
            write(folder, [[1, 2, 3], [4, 5]])
    return path


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("no idx", "data.path={0}: there is no file {0}.idx; the two files corpus.bin and corpus.idx, as Megatron "
                   "writes them, would work"),
        ("no bin", "data.path={0}: there is no file {0}.bin; the two files corpus.bin and corpus.idx, as Megatron "
                   "writes them, would work"),
        ("magic", r"data.path: {0}.idx is no index of Megatron's: it begins with b'TNTIDX\x00\x00\x00', not with "
                  r"b'MMIDIDX\x00\x00'; an .idx file as Megatron writes it would work"),
        ("empty idx", r"data.path: {0}.idx is no index of Megatron's: it begins with b'', not with "
                      r"b'MMIDIDX\x00\x00'; an .idx file as Megatron writes it would work"),
        ("header cut", "data.path: {0}.idx is truncated: it has 20 of the header's 34 bytes; the whole file "
                       "would work"),
        ("version", "data.path: {0}.idx has version 2 of the format; version 1 would work"),
        ("float", "data.path: {0}.idx has ids of type code 7 (float32), and token ids are integers; one of 1 (uint8), "
                  "2 (int8), 3 (int16), 4 (int32), 5 (int64), 8 (uint16) would work"),
        ("type", "data.path: {0}.idx has ids of type code 77 (unknown), and token ids are integers; one of 1 (uint8), "
                 "2 (int8), 3 (int16), 4 (int32), 5 (int64), 8 (uint16) would work"),
        ("counts", "data.path: {0}.idx is truncated: it has 202 of the 27670116110564327530 bytes that its header "
                   "announces; the whole file would work"),
        ("idx cut", "data.path: {0}.idx is truncated: it has 201 of the 202 bytes that its header announces; the "
                    "whole file would work"),
        ("bin cut", "data.path: {0}.bin is truncated: it has 125 of the 126 bytes that {0}.idx lists; the whole file "
                    "would work"),
        ("length", "data.path: {0}.idx is damaged: a length or a place in it is not a count of token ids; the "
                   "original file would work"),
        ("no documents", "data.path: {0}.idx lists no sequences; a file with text in it would work"),
        ("short", "data.path: {0}.bin has 5 tokens, model.seq_length=8 needs more than that; model.seq_length=4 "
                  "would work"),
    ],
)  # fmt: skip
def test_a_bad_file_is_refused_in_one_sentence_at_plan_time_and_by_the_ranks(tmp_path, what, sentence):
    path = damaged(tmp_path, what)
    wanted = sentence.replace("{0}", path)
    at = point(model={"seq_length": S, "vocab_size": 100}, data={"source": "megatron", "path": path})
    assert violations(at, LOCAL) == [wanted]
    with pytest.raises(ValueError) as error:  # noqa: PT011  (the whole text is compared)
        open_source(at)
    assert str(error.value) == wanted


def test_a_good_file_is_a_valid_point_and_what_is_proposed_works(tmp_path):
    path = write(tmp_path, [[1, 2, 3], [4, 5]])
    data = {"source": "megatron", "path": path}
    assert violations(point(model={"seq_length": 4}, data=data), LOCAL) == []
    assert sequences(MegatronTokens(path, 1, 4, 100), 3) == expected([[1, 2, 3], [4, 5]], 1, 4, 3)


@pytest.mark.parametrize(("code", "token", "works"), [(8, 100, "model.vocab_size=101"), (3, -1, "without negative")])
def test_a_token_outside_the_vocabulary_is_refused_where_it_is_read(tmp_path, code, token, works):
    documents = corpus((30, 40), limit=50)
    documents[1][20] = token
    path = write(tmp_path, documents, code)
    source = MegatronTokens(path, 1, S, 100)
    with pytest.raises(ValueError, match="would work") as error:
        sequences(source, 8)
    assert f"{path}.bin" in str(error.value)
    assert f"token id {token}" in str(error.value)
    assert works in str(error.value)


def test_the_global_batch_is_the_same_for_every_split(tmp_path):
    data = {"source": "megatron", "path": write(tmp_path, corpus(limit=67))}

    def batch(ranks, microbatch):
        at = point((1, 1, ranks), batch=8, microbatch=microbatch, data=data)
        parts = [Batches(at, rank, torch.device("cpu")) for rank in range(ranks)]
        return [
            column.tolist()
            for part in parts
            for index in range(at.microbatches)
            for column in part.microbatch(2, index).tokens.t()
        ]

    assert batch(1, 8) == batch(4, 2) == batch(2, 1)


def test_planning_without_megatron_data_needs_no_numpy():
    code = "import suite.experiment.validity, sys; assert not {'numpy', 'torch', 'tokenizers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
