"""A table of texts, as pages and terminals show it."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Heading:
    """A column: its heading, what it means, and whether it holds numbers."""

    heading: str
    meaning: str = ""
    numeric: bool = False


@dataclass(frozen=True)
class Grid:
    """Rows of texts under headings; `failed` are the numbers of rows that stand out."""

    columns: Sequence[Heading]
    body: Sequence[Sequence[str]]
    failed_rows: frozenset[int] = field(default_factory=frozenset)

    @property
    def failed(self) -> list[bool]:
        """Of every row, whether it stands out."""
        return [number in self.failed_rows for number in range(len(self.body))]

    @property
    def crowded(self) -> list[bool]:
        """Of every row, whether its ranks share cores: a grid does not say."""
        return [False] * len(self.body)

    def text(self) -> str:
        """For a terminal: columns as wide as they need to be."""
        lines = [[column.heading for column in self.columns], *self.body]
        widths = [max(len(line[index]) for line in lines) for index in range(len(self.columns))]
        lines.insert(1, ["-" * width for width in widths])
        return "\n".join(
            "  ".join(
                cell.rjust(width) if column.numeric else cell.ljust(width)
                for cell, width, column in zip(line, widths, self.columns, strict=True)
            ).rstrip()
            for line in lines
        )
