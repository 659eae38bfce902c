"""How the report's figures look, and how they are written so that the same records give the same bytes."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from suite.report.labels import wrapped

WIDTH = 6.4  # inches
INK = "#1f2933"
MUTED = "#6b7785"
PALETTE = ("#3b6fb6", "#d1742f", "#4d9a57", "#8a63b5", "#b5495b", "#3aa6a6", "#a58a1f", "#6b7280")
SOURCE_COLOURS = {"measured": "#3b6fb6", "emulated": "#d1742f", "simulated": "#4d9a57", "published": "#6b7280"}
SOURCE_MARKERS = {"measured": "o", "emulated": "s", "simulated": "^", "published": "D"}

_TITLE = 70  # characters of a title's line
_CHARACTER = 0.62  # a character's width and a legend column's handle and gaps, in units of the font's size
_HANDLE = 5.5

_RC: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.hinting": "none",  # hinted text is wider at some resolutions than where it was laid out
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": "#e3e7eb",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "hatch.linewidth": 0.6,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Drawn:
    """A figure as it goes into the page: file name without ending, heading, description, caption."""

    name: str
    heading: str
    alt: str
    caption: str
    figure: Figure

    def write(self, folder: Path) -> str:
        """Writes `<name>.svg` and `<name>.png` and returns the SVG for a page: ids made unique, no prolog."""
        with mpl.rc_context({**_RC, "svg.hashsalt": self.name}):
            svg, png = folder / f"{self.name}.svg", folder / f"{self.name}.png"
            self.figure.draw_without_rendering()
            self.figure.set_layout_engine("none")  # laid out: both files show the same
            # The canvases' own functions: `savefig` would draw everything once more before each, to lay it out again.
            FigureCanvasSVG(self.figure).print_svg(svg, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
            self.figure.set_dpi(144)
            FigureCanvasAgg(self.figure).print_png(png, metadata={"Software": None})
        text = svg.read_text(encoding="utf-8")
        text = text[text.index("<svg") :]
        text = re.sub(r'\bid="', f'id="{self.name}-', text)
        text = re.sub(r'href="#', f'href="#{self.name}-', text)
        text = re.sub(r"url\(#", f"url(#{self.name}-", text)
        return re.sub(r'(<svg[^>]*?) width="[^"]*"|(<svg[^>]*?) height="[^"]*"', r"\1\2", text)


def new_figure(height: float) -> Figure:
    """An empty figure of the report's width; draw inside `styled()`."""
    return Figure(figsize=(WIDTH, height), layout="constrained")


def title(figure: Figure, text: str) -> None:
    """A title from the figure's left edge, broken into lines that fit; the figure grows by them."""
    lines = wrapped(text, _TITLE)
    figure.suptitle(lines, x=0.01, ha="left", fontsize=10, fontweight="bold")
    figure.set_figheight(figure.get_figheight() + 0.16 * lines.count("\n"))


def legend(figure: Figure, handles: Sequence[Artist], most: int = 5, size: float = 8) -> None:
    """A legend below, in as many columns as fit the figure's width; the figure grows by further lines."""
    room = 0.97 * 72 * WIDTH / size  # in units of the font's size
    names = [wrapped(str(handle.get_label()), int((room - _HANDLE) / _CHARACTER)) for handle in handles]
    widest = max((len(line) for name in names for line in name.split("\n")), default=1)
    columns = max(1, min(most, int(room / (_CHARACTER * widest + _HANDLE))))
    figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=size)
    lines = sum(name.count("\n") + 1 for name in names)
    figure.set_figheight(figure.get_figheight() + 1.45 * size / 72 * max(0, -(-lines // columns) - 1))


def source_handles(sources: Collection[str], colour: str | None = None) -> list[Artist]:
    """The legend's marker of each source, in the source's own colour or in one that stands for none."""
    return [
        Line2D([], [], marker=marker, color=colour or SOURCE_COLOURS[source], linestyle="", markersize=5, label=source)
        for source, marker in SOURCE_MARKERS.items()
        if source in sources
    ]


def styled() -> Any:
    """The context in which figures are drawn: the report's look, whatever the user's matplotlibrc says."""
    return mpl.rc_context({**mpl.rcParamsDefault, **_RC})


def lighter(colour: str, part: float = 0.45) -> str:
    """The colour mixed with white: 0 leaves it, 1 is white."""
    channels = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return "#" + "".join(f"{round(channel + (255 - channel) * part):02x}" for channel in channels)
