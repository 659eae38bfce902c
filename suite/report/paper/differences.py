"""The table under a paper's figure: every point with the values of all sources, and their errors."""

from collections.abc import Iterator

from suite.report.grid import Grid, Heading
from suite.report.numbers import ABSENT, significant
from suite.report.paper.comparison import Comparison, Entry, sources_of
from suite.report.paper.difference import Accuracy, Difference

_MOST = 60  # characters of a reason in a cell
_SHOWN = 0.05  # percent; below, a sign would be of no digit


def difference_table(comparison: Comparison) -> Grid:
    """A row per point: published, then every source of records with its error in percent, plain and from the edge.

    A source with a value elsewhere in the table and none here says why, or `missing`.
    """
    sources = sources_of(comparison.entries)
    published = any("published" in entry.samples for entry in comparison.entries)
    compared = [
        source
        for source in sources
        if any(comparison.difference(entry, source) is not None for entry in comparison.entries)
    ]
    if published and not compared:  # what would be compared is missing everywhere
        sources = list(dict.fromkeys(["simulated", *sources]))
    scales = len({entry.scale for entry in comparison.entries}) > 1
    unit = f", {comparison.plot.quantity.unit}" if comparison.plot.quantity.unit else ""
    columns = [Heading("scale", "The experiment's scale.")] if scales else []
    columns += [
        Heading("series" if comparison.plot.series else "model", "The curve of the figure, or the point's model."),
        Heading(comparison.plot.x_title, "The place on the horizontal axis."),
    ]
    if published:
        columns.append(Heading(f"published{unit}", "As printed.", numeric=True))
    for source in sources:
        columns.append(Heading(f"{source}{unit}", "Median iteration of its records.", numeric=True))
        if source in compared:
            columns += [
                Heading(f"{source}: error", "Relative to the printed value.", numeric=True),
                Heading("beyond rounding", "From the nearest edge of what rounds to the printed value.", numeric=True),
            ]
    body, failed = [], set()
    for number, entry in enumerate(comparison.entries):
        row = [entry.scale] if scales else []
        row += [comparison.plot.row_of(entry.point), comparison.plot.x_said(entry.x)]
        if published:
            sample = entry.samples.get("published")
            row.append((sample.printed(comparison.plot.quantity.name) if sample else None) or ABSENT)
        for source in sources:
            text = _cell(comparison, entry, source)
            row.append(text)
            if source in compared:
                row += _errors(comparison.difference(entry, source))
            if text == MISSING:
                failed.add(number)
        body.append(row)
    return Grid(columns, body, frozenset(failed))


MISSING = "missing"


def _cell(comparison: Comparison, entry: Entry, source: str) -> str:
    if source in entry.values:
        if source in entry.given and comparison.plot.quantity.of_device:
            highest = max(comparison.given_values(entry.scale))
            return f"{significant(entry.values[source] / highest)} of the highest"
        return significant(entry.values[source], 4)
    sample = entry.samples.get(source)
    if sample is not None:
        trouble = sample.trouble or "no value"
        return trouble if len(trouble) <= _MOST else trouble[: _MOST - 1] + "…"
    return MISSING if source == "simulated" and "published" in entry.samples else ABSENT


def _errors(found: Difference | None) -> list[str]:
    return [ABSENT, ABSENT] if found is None else [_signed(found.plain), _signed(found.beyond)]


def _signed(value: float | None) -> str:
    return (
        ABSENT
        if value is None
        else "0%"
        if value == 0
        else f"{value:+.1f}%"
        if abs(value) >= _SHOWN
        else f"{abs(value):.1f}%"
    )


def accuracy_lines(comparison: Comparison) -> list[str]:
    """The errors of each source against the published values, of the figure and of each series, in words."""
    return [line for source in sources_of(comparison.entries) for line in _lines(comparison, source)]


def _lines(comparison: Comparison, source: str) -> Iterator[str]:
    whole = comparison.accuracy(source)
    if whole is None:
        return
    yield f"{source}: {described(whole)}"
    series = list(dict.fromkeys(name for _, name in comparison.series))
    for name in series if len(series) > 1 else []:
        found = comparison.accuracy(source, name)
        if found is not None:
            yield f"{source}, {name}: {described(found)}"


def described(found: Accuracy) -> str:
    """Errors in words: `MAPE 2.31% over 10 points, at most 4.9%; beyond rounding 2.0% and 4.6%`."""
    points = "1 point" if found.points == 1 else f"{found.points} points"
    return (
        f"MAPE {found.mape:.2f}% over {points}, at most {found.largest:.1f}%; "
        f"beyond rounding {found.mape_beyond:.2f}% and {found.largest_beyond:.1f}%"
    )


def loose_rows(comparison: Comparison) -> list[str]:
    """Published values that are of no point here, and those that several points agree with, in words."""
    kinds = (
        ("no point here has the configuration of", comparison.unmatched),
        ("several points have the configuration of", comparison.ambiguous),
    )
    return [
        f"{what} the published {row.series or row.model or row.table}"
        + (f" at {row.x}" if row.x else "")
        + f": {row.printed} {row.unit}".rstrip()
        for what, rows in kinds
        for row in rows
    ]
