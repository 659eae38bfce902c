"""The claims of a paper as listed in `results/published/claims.csv`, in this project's own words."""

import csv
import re
from dataclasses import dataclass
from pathlib import Path

from suite.resources import resource_dir


@dataclass(frozen=True)
class Claim:
    """One statement: where it stands, what it says, how it is checked, and what the paper's own numbers say of it."""

    id: str
    where: str
    kind: str  # quantity, direction or inconsistency
    scale_needed: str
    claim: str
    check: str
    value: str
    tolerance: str
    supported_by_paper: str
    note: str

    def number(self, unit: str) -> float:
        """The number before `unit` in the claim's text. Raises ValueError where there is none."""
        match = re.search(rf"(\d+(?:\.\d+)?)\s?{re.escape(unit)}", self.claim)
        if match is None:
            raise ValueError(f"{self.id}: the claim has no number of {unit}")
        return float(match[1])

    def after(self, words: str) -> float:
        """The number that follows the words in the claim's text. Raises ValueError where there is none."""
        return float(self.claim.partition(words)[2].split()[0].rstrip(".,"))


def read_claims(path: Path | None = None) -> list[Claim]:
    """The shipped claims, or those of a file, in order."""
    with (path or resource_dir("published") / "claims.csv").open(newline="", encoding="utf-8") as file:
        return [Claim(**row) for row in csv.DictReader(file)]
