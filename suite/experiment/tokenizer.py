"""Text to tokens with a file of the `tokenizers` library (`data.tokenizer`, a tokenizer.json)."""

from pathlib import Path
from typing import TYPE_CHECKING

from suite.experiment.text import find_text, too_short

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_SAMPLE = 64  # bytes of text per token wanted that are tokenised to see whether a text is long enough


def load_tokenizer(path: str) -> "Tokenizer":
    """The tokenizer in a file, set to neither cut nor pad what it is given.

    Raises:
        ValueError: the library is not installed, or the file is missing or not a tokenizer's.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise ValueError(
            f"data.tokenizer={path}: reading it needs the package tokenizers, which is not installed; "
            "pip install 'ptdp-suite[text]' or data.tokenizer=null (bytes) would work"
        ) from None
    if not Path(path).is_file():
        raise ValueError(f"data.tokenizer={path}: there is no such file; the path of a tokenizer.json would work")
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises no narrower class
        reason = " ".join(str(error).split())
        raise ValueError(
            f"data.tokenizer={path}: the tokenizers library cannot read it ({reason}); a tokenizer.json would work"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def tokenized(path: str | None, tokenizer: "Tokenizer", start: int | None = None) -> list[int]:
    """Token ids of the text behind `data.path`, without tokens that mark its ends; of its first `start` bytes only.

    Raises:
        ValueError: the text is not found or not UTF-8.
    """
    file = find_text(path)
    with file.open("rb") as stream:
        content = stream.read(start)
    try:
        # A start may end inside a character, which is then left out.
        text = content.decode(errors="strict" if start is None else "ignore")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"data.path: {file} is not UTF-8 at byte {error.start}; "
            "a UTF-8 text or data.tokenizer=null (bytes) would work"
        ) from None
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def vocabulary(tokenizer: "Tokenizer") -> int:
    """The vocabulary that a model needs: the largest token id and one."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)


def tokenizer_problem(path: str | None, tokenizer_path: str, seq_length: int, vocab_size: int) -> str | None:
    """Why this text and tokenizer cannot train a model of this sequence length and vocabulary; None where they can."""
    try:
        tokenizer = load_tokenizer(tokenizer_path)
        needed = vocabulary(tokenizer)
        if vocab_size < needed:
            return (
                f"model.vocab_size={vocab_size}: data.tokenizer={tokenizer_path} has token ids up to {needed - 1}; "
                f"model.vocab_size={needed} would work"
            )
        # A long text is not tokenised as a whole only to see that it is long.
        if len(tokenized(path, tokenizer, start=_SAMPLE * (seq_length + 2))) > seq_length:
            return None
        return too_short(len(tokenized(path, tokenizer)), "tokens", seq_length)
    except ValueError as error:
        return str(error)
