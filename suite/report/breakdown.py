"""What an iteration's seconds were spent on, point by point: stacked bars, and the seconds as a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from matplotlib.patches import Patch

from suite.records.schema import Record
from suite.report.grid import Grid, Heading
from suite.report.labels import clipped
from suite.report.numbers import ABSENT, significant
from suite.report.style import INK, Drawn, legend, new_figure, styled, title

# The parts in the order of the bars, with a colour and what they are.
PARTS: dict[str, tuple[str, str]] = {
    "gemm": ("#2f5f9e", "matrix products"),
    "attention": ("#6d9fd8", "attention cores"),
    "elementwise": ("#9cc79f", "element-wise operators"),
    "launch": ("#4d9a57", "launches of kernels that nothing hides"),
    "tensor_communication": ("#d1742f", "communication between tensor-parallel ranks"),
    "pipeline_communication": ("#eaa965", "messages between pipeline stages that nothing hides"),
    "data_communication": ("#b5495b", "reductions over data-parallel ranks that nothing hides"),
    "bubble": ("#d5dade", "idle time of the schedule"),
    "optimizer": ("#8a63b5", "the update of the weights"),
}
_LABEL = 40  # characters beside a bar


@dataclass(frozen=True)
class Bar:
    """One point of one source: its name, its iteration in seconds, and the seconds of each part."""

    label: str
    seconds: float
    parts: Mapping[str, float]


def parts_of(record: Record) -> dict[str, float]:
    """The median seconds of each part that the record explains its iteration by; empty where it explains none.

    What the engine counts of a measured iteration, with all `actions` in one, overlaps and is no such explanation.
    """
    breakdown = record.breakdown_seconds or {}
    if not breakdown.keys() <= PARTS.keys():
        return {}
    warmup = record.iterations.warmup if record.iterations else 0
    return {part: median(breakdown[part][warmup:]) for part in PARTS if breakdown.get(part, [])[warmup:]}


def breakdown_figure(bars: Sequence[Bar], source: str, name: str = "breakdown") -> Drawn | None:
    """A bar per point, as shares of its iteration time, whose seconds stand at its end; None without bars."""
    shown = [bar for bar in bars if bar.parts and bar.seconds > 0]
    if not shown:
        return None
    parts = _present(shown)
    with styled():
        figure = new_figure(0.9 + 0.2 * len(shown))
        axes = figure.subplots()
        lefts = [0.0] * len(shown)
        for part in parts:
            widths = [100 * bar.parts.get(part, 0.0) / bar.seconds for bar in shown]
            axes.barh(range(len(shown)), widths, 0.78, lefts, color=PARTS[part][0], label=_named(part))
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        for place, bar in enumerate(shown):
            axes.annotate(
                f"{significant(bar.seconds)} s",
                (max(100.0, lefts[place]), place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=INK,
            )
        axes.set_yticks(range(len(shown)), [clipped(bar.label, _LABEL) for bar in shown], fontsize=7)
        axes.set(ylim=(len(shown) - 0.5, -0.5), xlim=(0, 110), xlabel="% of the iteration time")
        axes.set_xticks(range(0, 101, 20))
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        legend(figure, [Patch(color=PARTS[part][0], label=_named(part)) for part in parts], size=7.5)
        title(figure, f"Where the time goes, {source}")
    largest = {part: max(bar.parts.get(part, 0.0) / bar.seconds for bar in shown) for part in parts}
    return Drawn(
        name,
        f"Where the time goes, {source}",
        "Largest shares of an iteration: "
        + ", ".join(f"{_named(part)} {100 * share:.3g} %" for part, share in largest.items()),
        "; ".join(f"{_named(part)}: {PARTS[part][1]}" for part in parts) + ". Iteration seconds at the bars' ends.",
        figure,
    )


def breakdown_table(bars: Sequence[Bar]) -> Grid:
    """The seconds of every part, a row per point; what the parts leave over is the last column, where there is any."""
    parts = _present(bars)
    rest = [bar.seconds - sum(bar.parts.values()) for bar in bars]
    some = any(abs(left) > 1e-6 * bar.seconds for left, bar in zip(rest, bars, strict=True))
    columns = [
        Heading("point"),
        Heading("iteration, s", "Median iteration time.", numeric=True),
        *(Heading(_named(part), f"Seconds of {PARTS[part][1]}.", numeric=True) for part in parts),
        *([Heading("rest", "What the parts do not explain.", numeric=True)] if some else []),
    ]
    body = [
        [
            bar.label,
            significant(bar.seconds, 4),
            *(significant(bar.parts[part]) if part in bar.parts else ABSENT for part in parts),
            *([significant(left)] if some else []),
        ]
        for bar, left in zip(bars, rest, strict=True)
    ]
    return Grid(columns, body)


def _present(bars: Sequence[Bar]) -> list[str]:
    """The parts that take any time in a bar."""
    return [part for part in PARTS if any(bar.parts.get(part) for bar in bars)]


_NAMES = {"gemm": "GEMM", "elementwise": "element-wise", "launch": "kernel launches"}


def _named(part: str) -> str:
    return _NAMES.get(part, part.replace("_", " "))
