"""Megatron's indexed data set: a `.bin` file of token ids and an `.idx` file that says where each sequence lies.

The index, little-endian and without padding: 9 bytes `MMIDIDX\\0\\0`, the version (uint64, always 1), a code for the
ids' type (uint8), the number of sequences n (uint64), the number of entries d of the document index (uint64), then
the sequences' lengths in tokens (int32 [n]), their places in the `.bin` file in bytes (int64 [n]), and the document
index (int64 [d]). What may follow, one byte per sequence in multimodal data, is not needed here.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
INTEGERS = {code: name for code, name in TYPES.items() if not name.startswith("float")}
LARGEST_SEED = 2**32 - 1  # of numpy's RandomState, with which Megatron shuffles
_HEADER = struct.Struct("<9sQBQQ")


@dataclass(frozen=True)
class MegatronFile:
    """An opened pair; its arrays are memory-mapped."""

    bin: Path
    idx: Path
    ids: "np.ndarray"  # token ids [ids in the .bin file]
    lengths: "np.ndarray"  # tokens of each sequence, int32 [sequences]
    places: "np.ndarray"  # bytes of the .bin file before each sequence, int64 [sequences]
    tokens: int  # of all sequences


def open_megatron(path: str | None, seq_length: int, seed: int) -> MegatronFile:
    """Open a pair by what its two names have in common (or by either name); checks that it is whole.

    Raises:
        ValueError: a file is missing, not in this format, shorter than the index says, or has too few tokens for one
            sequence of `seq_length`; or Megatron's shuffling does not take the seed.
    """
    if path is None:
        raise ValueError(
            "data.path=null: data.source=megatron reads a .bin and an .idx file; "
            "data.path=NAME, with the files NAME.bin and NAME.idx, would work"
        )
    if seed > LARGEST_SEED:
        raise ValueError(
            f"training.seed={seed}: Megatron's shuffling takes seeds up to {LARGEST_SEED}; "
            f"training.seed={seed % (LARGEST_SEED + 1)} would work"
        )
    # Imported here: without Megatron data, `suite plan` starts without numpy.
    import numpy as np

    binary, index = megatron_pair(path)
    name, sequences, entries = _read_header(index)
    announced, actual = _HEADER.size + 12 * sequences + 8 * entries, index.stat().st_size
    if actual < announced:
        wrong = f"is truncated: it has {actual} of the {announced} bytes that its header announces"
        raise _refusal(index, wrong, "the whole file")
    if sequences == 0:
        raise _refusal(index, "lists no sequences", "a file with text in it")
    lengths = np.memmap(index, dtype="<i4", mode="r", offset=_HEADER.size, shape=(sequences,))
    places = np.memmap(index, dtype="<i8", mode="r", offset=_HEADER.size + 4 * sequences, shape=(sequences,))
    dtype = np.dtype(name).newbyteorder("<")
    if lengths.min() < 0 or places.min() < 0 or (places % dtype.itemsize).any():
        raise _refusal(index, "is damaged: a length or a place in it is not a count of token ids", "the original file")
    needed = int((places + lengths.astype(np.int64) * dtype.itemsize).max())
    held = binary.stat().st_size
    if held < needed:
        raise _refusal(
            binary, f"is truncated: it has {held} of the {needed} bytes that {index} lists", "the whole file"
        )
    tokens = int(lengths.sum(dtype=np.int64))
    if tokens <= seq_length:
        works = f"model.seq_length={tokens - 1}" if tokens > 1 else "a longer file"
        raise _refusal(binary, f"has {tokens} tokens, model.seq_length={seq_length} needs more than that", works)
    ids = np.memmap(binary, dtype=dtype, mode="r", shape=(held // dtype.itemsize,))
    return MegatronFile(binary, index, ids, lengths, places, tokens)


def megatron_problem(path: str | None, seq_length: int, seed: int) -> str | None:
    """Why these files cannot train a model with this sequence length and seed; None where they can."""
    try:
        open_megatron(path, seq_length, seed)
    except ValueError as error:
        return str(error)
    return None


def megatron_pair(path: str) -> tuple[Path, Path]:
    """The `.bin` and the `.idx` file, by what their names have in common or by either name.

    Raises:
        ValueError: one of them is missing.
    """
    name = path[:-4] if path.endswith((".bin", ".idx")) else path
    binary, index = Path(f"{name}.bin"), Path(f"{name}.idx")
    for file in (index, binary):
        if not file.is_file():
            raise ValueError(
                f"data.path={path}: there is no file {file}; "
                f"the two files {binary.name} and {index.name}, as Megatron writes them, would work"
            )
    return binary, index


def _read_header(index: Path) -> tuple[str, int, int]:
    """Type of the ids, number of sequences, entries of the document index."""
    with index.open("rb") as file:
        head = file.read(_HEADER.size)
    if head[: len(MAGIC)] != MAGIC:
        wrong = f"is no index of Megatron's: it begins with {head[: len(MAGIC)]!r}, not with {MAGIC!r}"
        raise _refusal(index, wrong, "an .idx file as Megatron writes it")
    if len(head) < _HEADER.size:
        raise _refusal(
            index, f"is truncated: it has {len(head)} of the header's {_HEADER.size} bytes", "the whole file"
        )
    _, version, code, sequences, entries = _HEADER.unpack(head)
    if version != VERSION:
        raise _refusal(index, f"has version {version} of the format", f"version {VERSION}")
    name = TYPES.get(code, "unknown")
    if name not in INTEGERS.values():
        works = ", ".join(f"{known} ({integer})" for known, integer in INTEGERS.items())
        raise _refusal(index, f"has ids of type code {code} ({name}), and token ids are integers", f"one of {works}")
    return name, sequences, entries


def _refusal(file: Path, wrong: str, works: str) -> ValueError:
    return ValueError(f"data.path: {file} {wrong}; {works} would work")
