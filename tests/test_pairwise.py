"""Every pair of option values meets in some configuration, and each configuration is held to the single process.

Relative to the global gradient norm: fp64 to 1e-10, fp32 to 1e-5, and 16 bits to 8 times the unit roundoff (the reason
stands in test_precision.py).
"""

import functools
import itertools
from typing import Any

import pytest
from layouts import gradients, point
from test_parity import assert_parity

OPTIONS: dict[str, tuple[Any, ...]] = {
    "tensor": (1, 2),
    "pipeline": (1, 2, 4),
    "data": (1, 2),
    "schedule": ("gpipe", "1f1b", ("interleaved", 2), ("interleaved", 3)),
    "sequence": (False, True),
    "recompute": ("none", "selective", "full"),
    "precision": ("fp64", "fp32", "bf16", "fp16"),
    "scatter_gather": (False, True),
    "sharding": ("none", "zero1"),
    "tied_embeddings": (True, False),
}
TOLERANCE = {"fp64": 1e-10, "fp32": 1e-5, "bf16": 8 * 2.0**-8, "fp16": 8 * 2.0**-11}
MOST_RANKS = 8

Row = dict[str, Any]


def allowed(row: Row) -> bool:
    return row["tensor"] * row["pipeline"] * row["data"] <= MOST_RANKS


def pairs(row: Row) -> set[tuple[str, Any, str, Any]]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(OPTIONS, 2)}


def covering_rows() -> list[Row]:
    """Rows chosen greedily until every pair of values stands in one; each new row takes the value that adds most."""
    values = OPTIONS.items()
    missing = {(a, x, b, y) for (a, xs), (b, ys) in itertools.combinations(values, 2) for x in xs for y in ys}
    rows: list[Row] = []
    while missing:
        a, x, b, y = min(missing, key=str)
        row: Row = {a: x, b: y}
        for name, choices in values:
            if name not in row:
                row[name] = max(choices, key=lambda choice, name=name: _gain({**row, name: choice}, missing))
        rows.append(row)
        missing -= pairs(row)
    return rows


def _gain(row: Row, missing: set[tuple[str, Any, str, Any]]) -> int:
    """New pairs that a row so far brings; too many ranks bring none."""
    if not allowed({"tensor": 1, "pipeline": 1, "data": 1, **row}):
        return -1
    return sum(row.get(a) == x and row.get(b) == y for a, x, b, y in missing if a in row and b in row)


ROWS = covering_rows()


def _name(row: Row) -> str:
    return "-".join(str(value).replace(" ", "") for value in row.values())


def test_the_rows_cover_every_pair():
    seen = set().union(*(pairs(row) for row in ROWS))
    for (a, xs), (b, ys) in itertools.combinations(OPTIONS.items(), 2):
        assert {(a, x, b, y) for x in xs for y in ys} <= seen
    assert all(allowed(row) for row in ROWS)


@functools.cache
def single(layers: int, tied: bool) -> dict[str, Any]:
    return gradients(point(model={"layers": layers, "tied_embeddings": tied}))


@pytest.mark.processes
@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_configuration_has_the_single_process_gradients(row):
    name, chunks = row["schedule"] if isinstance(row["schedule"], tuple) else (row["schedule"], 1)
    layers = row["pipeline"] * chunks + 1
    at = point(
        (row["tensor"], row["pipeline"], row["data"]),
        {"name": name, "chunks": chunks},
        model={"layers": layers, "tied_embeddings": row["tied_embeddings"]},
        parallel={key: row[key] for key in ("tensor", "pipeline", "data", "sequence", "scatter_gather", "sharding")},
        training={"precision": row["precision"], "recompute": row["recompute"]},
    )
    assert_parity(gradients(at), single(layers, row["tied_embeddings"]), TOLERANCE[row["precision"]])
