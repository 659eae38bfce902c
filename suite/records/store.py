"""The store: records as files that are never torn, never overwritten and merge by copying folders.

A record lies at `<root>/<experiment>/<scale>/<source>/<point id>/<revision>-<launch>.json`.
"""

import errno
import math
import os
import re
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import Field, ValidationError
from pydantic_core import from_json

from suite.records.schema import SCHEMA_VERSION, Record, Source

SOURCES: tuple[str, ...] = get_args(Source)

_FILE = re.compile(r"(?P<revision>.+)-(?P<launch>\d+)\.json")
_PLAIN = re.compile(r"[\w.+=-]+")
_SAMPLES = ("iterations", "ranks", "breakdown_seconds")  # the parts whose lists hold floats
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)


class StoredRecord(Record):
    """A record as read back, with where it lay; the three fields here are not part of the file."""

    file: str = Field(exclude=True)  # the path that was read
    revision: str = Field(exclude=True)  # short commit, with -dirty where the tree was
    launch: int = Field(exclude=True)


@dataclass(frozen=True, order=True)
class Problem:
    """A file that was skipped: its path and, in words, why."""

    file: str
    reason: str


class Store:
    """A folder that holds one folder per experiment, such as `results/runs` or `results/reference`."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def folder(self, record: Record) -> Path:
        """The folder of the record's point. Raises ValueError where a name could leave the store."""
        return self._folder(record.experiment, record.scale, record.source, record.point_id)

    def next_launch(self, experiment: str, scale: str, source: str, point_id: str, revision: str) -> int:
        """The number after the highest launch present under `revision`; 0 where there is none.

        Only `write` claims a number: between this answer and a write another process may take it.
        """
        found = (_FILE.fullmatch(name) for name in _names(self._folder(experiment, scale, source, point_id)))
        taken = [int(match["launch"]) for match in found if match and match["revision"] == revision]
        return max(taken, default=-1) + 1

    def write(self, record: Record, revision: str, launch: int | None = None, only: bool = False) -> Path:
        """Writes the record under the first free launch number from `launch` on, and returns its path.

        With `only`, under that number or not at all.

        The file appears whole or not at all, and an existing file is never touched: the text goes to a
        temporary name, to the disk, and is then linked under the claimed name. Samples that are not
        finite become null, which JSON has, and read back as NaN.

        Raises:
            ValueError: a part of the path is empty or holds more than letters, digits and `._+=-`.
            FileExistsError: with `only`, the number is taken.
            OSError: the disk refused.
        """
        folder = self.folder(record)
        _plain(revision)
        if launch is None:
            launch = self.next_launch(record.experiment, record.scale, record.source, record.point_id, revision)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{uuid.uuid4().hex}.tmp"
        text = record.model_dump_json(by_alias=True, indent=1)  # pydantic writes NaN and inf as null
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            while not _claim(temporary, path := folder / f"{revision}-{launch}.json"):
                if only:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
                launch += 1
        finally:
            temporary.unlink(missing_ok=True)
        _sync_folder(folder)
        return path

    def experiments(self) -> list[str]:
        """Names of the experiments that have a folder here."""
        return [name for name in _names(self.root) if (self.root / name).is_dir() and name[0] != "."]

    def read(
        self, experiment: str, scale: str | None = None, source: str | None = None
    ) -> tuple[list[StoredRecord], list[Problem]]:
        """Every record of the experiment, and every file that was skipped.

        A torn, foreign, misplaced or newer file is a problem, never an exception. Names that begin with
        a dot and folders inside a point's folder (where jobs keep their logs) are passed over.
        """
        return read_stores([self.root], experiment, scale, source)

    def _folder(self, experiment: str, scale: str, source: str, point_id: str) -> Path:
        return self.root.joinpath(*(_plain(part) for part in (experiment, scale, source, point_id)))


def read_stores(
    roots: Sequence[Path | str], experiment: str, scale: str | None = None, source: str | None = None
) -> tuple[list[StoredRecord], list[Problem]]:
    """Reads an experiment from several stores as if they were one; see `Store.read`.

    The same relative path with the same content in two stores is a copy and counts once. With differing
    content it is two launches that took the same number on two machines: both count.
    """
    records: list[StoredRecord] = []
    problems: list[Problem] = []
    seen: dict[Path, list[StoredRecord]] = {}
    for root in dict.fromkeys(Path(root) for root in roots):
        for path, reason in _candidates(root / _plain(experiment), scale, source):
            relative = path.relative_to(root)
            result = load(path, relative) if reason is None else reason
            if isinstance(result, str):
                problems.append(Problem(str(path), result))
                continue
            namesakes = seen.setdefault(relative, [])
            if not any(_same(result, other) for other in namesakes):
                namesakes.append(result)
                records.append(result)
    records.sort(key=_order)
    return records, sorted(problems)


def _order(record: StoredRecord) -> tuple[str, int, str, str, int, str]:
    source = SOURCES.index(record.source)
    return record.scale, source, record.point_id, record.revision, record.launch, record.file


def _candidates(folder: Path, scale: str | None, source: str | None) -> Iterator[tuple[Path, str | None]]:
    """Files that should be records (reason None), and files and folders that cannot be (with the reason)."""
    levels = [folder]
    for depth, wanted in enumerate((scale, source, None)):
        below: list[Path] = []
        for level in levels:
            for name in _names(level):
                path = level / name
                if name.startswith("."):
                    continue
                if path.is_dir():
                    if depth == 1 and name not in SOURCES:
                        yield path, f"foreign folder: a source is one of {', '.join(SOURCES)}"
                    elif wanted in (None, name):
                        below.append(path)
                elif path.suffix == ".json":
                    yield path, "misplaced: a record lies in <scale>/<source>/<point id>/ of its experiment"
        levels = below
    for level in levels:
        for name in _names(level):
            if not name.startswith(".") and not (level / name).is_dir():
                named_well = _FILE.fullmatch(name) is not None
                yield level / name, None if named_well else "foreign file: not <revision>-<launch>.json"


def load(path: Path, relative: Path) -> StoredRecord | str:
    """The record at `path`, or why it is none. `relative` is the path within its store."""
    match = _FILE.fullmatch(path.name)
    if match is None:
        return "foreign file: not <revision>-<launch>.json"
    try:
        raw = from_json(path.read_bytes())
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except ValueError as error:
        return f"torn or not JSON: {error}"
    if not isinstance(raw, dict) or "schema" not in raw:
        return "not a record: no field 'schema'"
    if raw["schema"] != SCHEMA_VERSION:
        return f"schema {raw['schema']!r}, and this version of the suite reads schema {SCHEMA_VERSION}"
    place = {"file": str(path), "revision": match["revision"], "launch": int(match["launch"])}
    try:
        record = _validated({**raw, **place})
    except ValidationError as error:
        first = error.errors()[0]
        return f"not a record: {'.'.join(map(str, first['loc']))}: {first['msg']}"
    inside = (record.experiment, record.scale, record.source, record.point_id)
    if inside != relative.parts[:4]:
        return f"misplaced: the record says {'/'.join(inside)}"
    return record


def _validated(raw: dict[str, Any]) -> StoredRecord:
    """The record; only where it is none as it stands, samples that were not finite are put back as NaN."""
    try:
        return StoredRecord.model_validate(raw)
    except ValidationError:
        return StoredRecord.model_validate(
            {key: _null_to_nan(value) if key in _SAMPLES else value for key, value in raw.items()}
        )


def _null_to_nan(value: Any) -> Any:
    """Puts NaN where a list of samples holds null; a field that is null stays null."""
    if isinstance(value, dict):
        return {key: _null_to_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [math.nan if item is None else _null_to_nan(item) for item in value]
    return value


def _same(one: Record, other: Record) -> bool:
    return one.model_dump_json() == other.model_dump_json()  # as text, so that NaN equals NaN


def _claim(temporary: Path, path: Path) -> bool:
    """Gives the temporary file its name, or says that the name is taken."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        temporary.replace(path)
    return True


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _plain(part: str) -> str:
    if not _PLAIN.fullmatch(part) or part.startswith("."):
        raise ValueError(f"{part!r} cannot name a folder or file of the store")
    return part
