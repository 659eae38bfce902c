"""Rows of published or measured throughput, as in `results/published/*.csv`, whose README says what the columns hold.

One row is one metric of one configuration. A column that a file does not have and an empty cell are None: the source
does not say. Columns that are not known here are left alone.
"""

import csv
import math
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from suite.resources import resource_dir

SCHEDULES = {
    "1F1B": "1f1b",
    "1F1B-interleaved": "interleaved",
    "ZB-H1": "zb-h1",
    "ZB-H2": "zb-h2",
}  # the suite's names of what sources call their schedules
SECONDS = {"s": 1.0, "ms": 1e-3}
NOT_ROWS = ("claims", "calibration_")  # files of `results/published` with columns of their own begin so


class BadRowsError(ValueError):
    """A file of rows cannot be used; `problems` has a sentence for each thing that is wrong."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRow:
    """One metric of one configuration. Fields are named as the columns; `line` is where the row begins in its file."""

    line: int
    source: str
    metric: str
    value: float
    unit: str
    table: str | None = None
    model: str | None = None
    params_b: float | None = None  # billions
    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    seq: int | None = None
    vocab: int | None = None
    gpu: str | None = None
    n_gpus: int | None = None
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    vpp: int | None = None  # model chunks per stage
    microbatch: int | None = None  # sequences
    global_batch: int | None = None  # sequences
    schedule: str | None = None  # as the source calls it
    recompute: str | None = None
    seq_parallel: bool | None = None
    provenance: str | None = None
    zero_stage: Literal[0, 1, 2, 3] | None = None
    precision: str | None = None
    flash_attn: bool | None = None
    interconnect: str | None = None
    config_id: str | None = None
    notes: str | None = None
    scatter_gather: bool | None = None
    fused: bool | None = None
    reduction: Literal["overlapped", "after"] | None = None
    series: str | None = None
    x: str | None = None
    printed: str = ""  # the value as its source prints it: its digits say how far it was rounded

    @property
    def iteration_seconds(self) -> float | None:
        """Seconds per iteration, where that is what the row holds."""
        return self.value * SECONDS[self.unit] if self.metric == "iteration_time" else None

    @property
    def schedule_name(self) -> str | None:
        """The suite's name of the schedule; None where the source has another, or no pipeline, or does not say."""
        return SCHEDULES.get(self.schedule or "")


def read_rows(path: Path) -> list[PublishedRow]:
    """The rows of a CSV file. A file without the column `source` has its own name there.

    Raises:
        BadRowsError: with every problem of the file.
        OSError: it cannot be read.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _Reading(path).rows(csv.reader(file))
    except UnicodeDecodeError:
        raise BadRowsError([f"{path}: it is not UTF-8 text; a CSV file saved as UTF-8 would work"]) from None
    except csv.Error as error:
        raise BadRowsError([f"{path}: it is no CSV file: {error}; commas between cells would work"]) from None


def published_files() -> dict[str, Path]:
    """The suite's own files of rows by the name that an experiment's `paper.published.source` has."""
    files = sorted(resource_dir("published").glob("*.csv"))
    return {file.stem: file for file in files if not file.stem.startswith(NOT_ROWS)}


def published(name: str) -> list[PublishedRow]:
    """The rows of one of the suite's own files. Raises KeyError where there is none of the name."""
    return read_rows(published_files()[name])


# What a cell must hold, by the type of its field, with a value that would work.
_COUNT = "it must be a whole number of at least 1; 8 would work"
_NUMBER = "it must be a finite number of at least 0; 163.5 would work"


def _count(cell: str) -> int | None:
    """A count; 8.0 is one, because tables with gaps are often written so."""
    number = _number(cell)
    return int(number) if number is not None and number >= 1 and number.is_integer() else None


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _flag(cell: str) -> bool | None:
    return {"yes": True, "no": False}.get(cell)


def _stage(cell: str) -> int | None:
    number = _number(cell)
    return int(number) if number in (0, 1, 2, 3) else None


def _reduction(cell: str) -> str | None:
    return cell if cell in ("overlapped", "after") else None


_READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    str: (str, ""),
    float: (_number, _NUMBER),
    int | None: (_count, _COUNT),
    float | None: (_number, _NUMBER),
    str | None: (str, ""),
    bool | None: (_flag, "it must be yes or no; no would work"),
    Literal[0, 1, 2, 3] | None: (_stage, "it must be 0, 1, 2 or 3; 0 would work"),
    Literal["overlapped", "after"] | None: (_reduction, "it must be overlapped or after; after would work"),
}
_FIELDS = {field.name: field for field in fields(PublishedRow) if field.name not in ("line", "printed")}
_NEEDED = [name for name, field in _FIELDS.items() if field.default is MISSING and name != "source"]
_HEADER = "source,layers,hidden,heads,seq,tp,pp,dp,microbatch,global_batch,metric,value,unit"


class _Reading:
    """One pass over a file, with what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[str] = []

    def rows(self, reader: Any) -> list[PublishedRow]:
        header = [name.strip() for name in next(reader, [])]
        self._check_header(header)
        found = list(self._read(reader, header)) if not self.problems else []
        if self.problems:
            raise BadRowsError(self.problems)
        return found

    def _check_header(self, header: list[str]) -> None:
        if not any(header):
            self._say(1, f"it is empty; a first line such as {_HEADER} would work")
            return
        for name in dict.fromkeys(name for name in header if name in _FIELDS and header.count(name) > 1):
            self._say(1, f"column {name}: it is there {header.count(name)} times; once would work")
        missing = [name for name in _NEEDED if name not in header]
        if missing:
            which = f"the column{'s' * (len(missing) > 1)} {', '.join(missing)}"
            self._say(1, f"{which} must be there; a first line such as {_HEADER} would work")

    def _read(self, reader: Any, header: list[str]) -> Iterator[PublishedRow]:
        line = reader.line_num + 1
        for cells in reader:
            if any(cell.strip() for cell in cells):  # not an empty line
                row = self._row(line, header, [cell.strip() for cell in cells])
                if row is not None:
                    yield row
            line = reader.line_num + 1

    def _row(self, line: int, header: list[str], cells: list[str]) -> PublishedRow | None:
        before = len(self.problems)
        if len(cells) != len(header):
            self._say(
                line, f"it has {len(cells)} cells; it must have the header's {len(header)}, and quotes around commas"
            )
            return None
        given = {name: cell for name, cell in zip(header, cells, strict=True) if name in _FIELDS}
        values: dict[str, Any] = {"source": self.path.stem}
        for name, cell in given.items():
            if not cell:
                if name in _NEEDED and name != "unit":
                    self._say(line, f"column {name}: it is empty; {self._example(name)}")
                continue
            read, rule = _READERS[_FIELDS[name].type]
            values[name] = read(cell)
            if values[name] is None:
                self._say(line, f"column {name}: got {cell!r}; {rule}")
        values.setdefault("unit", "")
        if values.get("metric") == "iteration_time" and values["unit"] not in SECONDS:
            self._say(line, f"column unit: got {values['unit']!r}; an iteration_time is in s or ms; s would work")
        return PublishedRow(line=line, printed=given["value"], **values) if len(self.problems) == before else None

    def _example(self, name: str) -> str:
        return "iteration_time would work" if name == "metric" else _NUMBER

    def _say(self, line: int, sentence: str) -> None:
        self.problems.append(f"{self.path}:{line}: {sentence}")
