"""A short hash of the files that a point's tokens are drawn from: the same data have the same one under any path."""

import hashlib
from pathlib import Path

from suite.experiment.megatron_file import megatron_pair
from suite.experiment.point import Data
from suite.experiment.text import find_text

_BLOCK = 4096  # bytes of each place that a Megatron file's digest looks at
_PLACES = 256


def data_digest(data: Data) -> str | None:
    """The digest of the data of a point; None where tokens are synthetic.

    Raises:
        ValueError, OSError: a file cannot be found or read.
    """
    if data.source == "megatron" and data.path is not None:
        return megatron_digest(*megatron_pair(data.path))
    if data.source == "text":
        tokenizer = Path(data.tokenizer).read_bytes() if data.tokenizer else b""
        return text_digest(find_text(data.path).read_bytes() + tokenizer)
    return None


def text_digest(content: bytes) -> str:
    """Of a text, with its tokenizer's file behind it where it has one."""
    return hashlib.sha256(content).hexdigest()[:16]


def megatron_digest(binary: Path, index: Path) -> str:
    """Of the files' sizes and of blocks spread evenly over them; of all their bytes up to 1 MiB."""
    found = hashlib.sha256()
    for file in (index, binary):
        size = file.stat().st_size
        found.update(size.to_bytes(8, "little"))
        with file.open("rb") as stream:
            step = max(_BLOCK, -(-size // _PLACES))
            for place in range(0, size, step):
                stream.seek(place)
                found.update(stream.read(_BLOCK))
    return found.hexdigest()[:16]
