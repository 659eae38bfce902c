"""The page of a whole paper: how near the simulation is, every figure beside its published values, and every claim."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import suite
from suite.experiment.spec import Experiment
from suite.measure.flops import FLOPS_VERSION
from suite.records.store import Problem
from suite.report.claims.evidence import Evidence
from suite.report.claims.judge import Verdict, claims_table, judge, summary
from suite.report.claims.listed import read_claims
from suite.report.grid import Grid, Heading
from suite.report.paper.comparison import HERE, Comparison
from suite.report.paper.difference import Accuracy
from suite.report.paper.plot import heading
from suite.report.paper.section import Section, paper_sections
from suite.report.paper.simulator import fitted_constants, other_papers
from suite.report.summary import PointRow
from suite.report.templates import templates

_OWN = "narayanan2021"  # the file of this paper's rows
_ORDER = ("table", "figure", "section")  # of what the experiments reproduce
_SWEEPS = tuple(f"Figure {number}" for number in range(11, 19))  # those with times of several devices
_FIGURE = re.compile(r"[\w.-]+-(paper|breakdown-[\w.-]+)\.(svg|png)")


@dataclass(frozen=True)
class Part:
    """One experiment on the page."""

    name: str
    heading: str
    title: str
    sections: Sequence[Section]
    comparison: Comparison | None


@dataclass(frozen=True)
class PaperPage:
    """What was written and what it shows."""

    paths: tuple[Path, ...]
    accuracy: Grid
    verdicts: tuple[Verdict, ...]
    problems: tuple[Problem, ...]
    records: int  # points with records


def in_order(experiments: Mapping[str, Experiment]) -> dict[str, Experiment]:
    """Tables, figures and sections by their numbers; what reproduces none of them last."""

    def place(item: tuple[str, Experiment]) -> tuple[int, list[int], str]:
        name, experiment = item
        kind = next((kind for kind in _ORDER if kind in experiment.paper), None)
        numbers = [int(part) for part in re.findall(r"\d+", str(experiment.paper[kind]))] if kind else []
        return _ORDER.index(kind) if kind else len(_ORDER), numbers, name

    return dict(sorted(experiments.items(), key=place))


def write_paper_page(experiments: Mapping[str, Experiment], folders: Sequence[Path], out: Path) -> PaperPage:
    """Writes `index.html`, `report.md` and `figures/` into `out`, made if it is not there.

    Figures of an earlier page are removed; other files stay.

    Raises:
        BadInput: a file's `paper.plot` cannot be read; nothing is written.
        ImpossibleEfficiencyError: a record claims more than 100 % of peak; nothing is written.
        OSError: the folder cannot be written.
    """
    evidence = Evidence(experiments, folders)
    read = {name: evidence.read(name) for name in experiments}
    rows = [row for found, _ in read.values() for row in found]
    parts = [_part(name, experiment, read[name][0]) for name, experiment in in_order(experiments).items()]
    verdicts = judge(read_claims(), evidence)
    problems = sorted(problem for _, found in read.values() for problem in found)
    figures = out / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.iterdir():
        if _FIGURE.fullmatch(old.name):
            old.unlink()
    accuracy = accuracy_table(parts)
    page = {
        "title": f"Reproduced: {evidence.rows[0].source}",
        "facts": _facts(rows),
        "accuracy": accuracy,
        "others": other_papers(_OWN),
        "constants": fitted_constants(),
        "parts": [
            (part, [(one, one.figure.write(figures)) for one in part.sections]) for part in parts if part.sections
        ],
        "undrawn": [part for part in parts if not part.sections],
        "claims": claims_table(verdicts),
        "claims_summary": summary(verdicts),
        "problems": problems,
        "flops_version": FLOPS_VERSION,
        "suite_version": suite.__version__,
    }
    paths = [out / "index.html", out / "report.md"]
    for path, template in zip(paths, ("paper.html.jinja", "paper.md.jinja"), strict=True):
        path.write_text(templates().get_template(template).render(page), encoding="utf-8")
    drawn = [one.figure.name for part in parts for one in part.sections]
    images = [figures / f"{name}.{kind}" for name in drawn for kind in ("svg", "png")]
    return PaperPage((*paths, *images), accuracy, tuple(verdicts), tuple(problems), len(rows))


def _part(name: str, experiment: Experiment, rows: Sequence[PointRow]) -> Part:
    comparison, sections = paper_sections(experiment, rows, prefix=f"{name}-")
    return Part(name, heading(experiment.paper) or name, experiment.title, sections, comparison)


def accuracy_table(parts: Sequence[Part]) -> Grid:
    """A row per figure and source with the errors over its points, and the mean over those of sweeps."""
    columns = (
        Heading("figure", "The table, figure or section."),
        Heading("source", "Where the values are from that are held against the published ones."),
        Heading("points", "Points with both values.", numeric=True),
        Heading("MAPE", "Mean absolute percentage error against the printed values.", numeric=True),
        Heading("largest", "The largest absolute error.", numeric=True),
        Heading("MAPE beyond rounding", "From the nearest edge of what rounds to the printed value.", numeric=True),
        Heading("largest beyond rounding", "The largest of those.", numeric=True),
        Heading("MAPE by series", "The same per curve of the figure."),
    )
    body: list[list[str]] = []
    for source in HERE:
        found = [(part, errors) for part in parts if (errors := _accuracy(part, source)) is not None]
        body += [[part.heading, source, *_errors(errors), _by_series(part, source)] for part, errors in found]
        figures = [errors for part, errors in found if part.heading in _SWEEPS]
        if len(figures) > 1:
            body.append([f"mean of {len(figures)} of figures 11 to 18", source, *_errors(_mean(figures)), ""])
    return Grid(columns, body)


def _accuracy(part: Part, source: str) -> Accuracy | None:
    return part.comparison.accuracy(source) if part.comparison else None


def _errors(found: Accuracy) -> Iterator[str]:
    yield str(found.points)
    yield from (f"{error:.2f}%" for error in (found.mape, found.largest, found.mape_beyond, found.largest_beyond))


def _mean(figures: Sequence[Accuracy]) -> Accuracy:
    """Every figure counts the same; the largest error is that of all their points."""
    return Accuracy(
        sum(one.points for one in figures),
        fmean(one.mape for one in figures),
        max(one.largest for one in figures),
        fmean(one.mape_beyond for one in figures),
        max(one.largest_beyond for one in figures),
    )


def _by_series(part: Part, source: str) -> str:
    if part.comparison is None:
        return ""
    names = list(dict.fromkeys(name for _, name in part.comparison.series))
    found = ((name, part.comparison.accuracy(source, name)) for name in names if len(names) > 1)
    return ", ".join(f"{name} {errors.mape:.2f}%" for name, errors in found if errors is not None)


def _facts(rows: Sequence[PointRow]) -> list[tuple[str, str]]:
    """What the page is made of: records by source, code, and the devices that were simulated or measured."""
    if not rows:
        return [("Records", "none: only published numbers are shown")]
    records = [row.best.record for row in rows]
    sources = Counter(record.source for record in records)
    devices = dict.fromkeys(
        f"{record.environment.get('device')} ({record.source})"
        for record in records
        if record.environment.get("device") not in (None, "cpu")
    )
    return [
        ("Records", ", ".join(f"{number} points {source}" for source, number in sorted(sources.items()))),
        ("Code revision", ", ".join(sorted({record.revision for record in records}))),
        *([("Devices", ", ".join(devices))] if devices else []),
    ]
