"""Text through a file of the tokenizers library."""

import hashlib
import sys

import pytest
import torch
from layouts import point

from suite.experiment.cluster import Cluster
from suite.experiment.point import Point
from suite.experiment.validity import violations
from suite.training.data import open_source

tokenizers = pytest.importorskip("tokenizers", reason="the optional package tokenizers is not installed")

LOCAL = Cluster(name="local", max_ranks=16)
TEXT = "the quick brown fox jumps over the lazy dog, said the fox " * 10


@pytest.fixture
def files(tmp_path):
    """A text and a tokenizer of words with 12 ids, set to cut and pad, which must not happen here."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[UNK]", "[END]", "the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog", ",", "said"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A [END]", special_tokens=[("[END]", 1)])
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=400)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(TEXT)
    words_of_text = TEXT.replace(",", " ,").split()
    return tmp_path, [words.index(word) for word in words_of_text]


def at(folder, **model):
    data = {"source": "text", "path": str(folder / "text.txt"), "tokenizer": str(folder / "tokenizer.json")}
    return point(model={"vocab_size": 12, **model}, data=data)


def test_windows_of_the_tokens_cover_the_text(files):
    folder, ids = files
    assert violations(at(folder), LOCAL) == []
    source = open_source(at(folder))
    windows = (len(ids) - 1) // 12
    found = sorted(source.sequence(number).tolist() for number in range(windows))
    assert found == sorted(ids[start : start + 13] for start in range(0, windows * 12, 12))
    assert source.sequence(0).dtype == torch.int64


def test_the_digest_is_of_text_and_tokenizer(files):
    folder, _ = files
    both = (folder / "text.txt").read_bytes() + (folder / "tokenizer.json").read_bytes()
    assert open_source(at(folder)).digest == hashlib.sha256(both).hexdigest()[:16]


def test_the_tokenizers_path_is_no_part_of_the_identity(files):
    folder, _ = files
    resolved = at(folder).model_dump()
    resolved["data"] = {"source": "text", "path": "elsewhere", "tokenizer": "other.json"}
    assert Point.model_validate(resolved).id == at(folder).id


def test_a_byte_level_tokenizer_reads_a_long_text(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    text = "für jeden größeren Text 日本語 " * 400
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(text)
    size = tokenizer.get_vocab_size()
    assert violations(at(tmp_path, vocab_size=size), LOCAL) == []
    ids = tokenizer.encode(text).ids
    source = open_source(at(tmp_path, vocab_size=size))
    assert source.tokens.tolist() == ids


def test_a_vocabulary_that_is_too_small(files):
    folder, _ = files
    (sentence,) = violations(at(folder, vocab_size=11), LOCAL)
    assert sentence.startswith("model.vocab_size=11: data.tokenizer=")
    assert sentence.endswith("has token ids up to 11; model.vocab_size=12 would work")


def test_a_text_that_is_too_short_for_a_sequence(files):
    folder, ids = files
    assert len(ids) < len(TEXT)
    (sentence,) = violations(at(folder, seq_length=len(ids)), LOCAL)
    assert f"the text has {len(ids)} tokens, model.seq_length={len(ids)} needs more than that" in sentence
    assert sentence.endswith(f"model.seq_length={len(ids) - 1} would work")
    assert violations(at(folder, seq_length=len(ids) - 1), LOCAL) == []
    with pytest.raises(ValueError, match="needs more than that"):
        open_source(at(folder, seq_length=len(ids)))


def test_a_missing_or_damaged_tokenizer(files):
    folder, _ = files
    (folder / "tokenizer.json").write_text("{}")
    (sentence,) = violations(at(folder), LOCAL)
    assert "the tokenizers library cannot read it" in sentence
    assert "\n" not in sentence
    (folder / "tokenizer.json").unlink()
    (sentence,) = violations(at(folder), LOCAL)
    assert sentence.endswith("there is no such file; the path of a tokenizer.json would work")


def test_a_text_that_is_not_utf8(files):
    folder, _ = files
    (folder / "text.txt").write_bytes(b"the fox \xff")
    (sentence,) = violations(at(folder), LOCAL)
    assert sentence.endswith("is not UTF-8 at byte 8; a UTF-8 text or data.tokenizer=null (bytes) would work")


def test_a_missing_text(files):
    folder, _ = files
    (folder / "text.txt").unlink()
    (sentence,) = violations(at(folder), LOCAL)
    assert "neither a file nor a Python module" in sentence


def test_without_the_package_the_plan_says_what_to_install(files, monkeypatch):
    folder, _ = files
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (sentence,) = violations(at(folder), LOCAL)
    assert "needs the package tokenizers, which is not installed; pip install 'ptdp-suite[text]'" in sentence
