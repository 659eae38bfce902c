"""Every claim with what was published, what the records say, and a verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from suite.report.claims import arithmetic, inconsistencies, layouts, microbatches, schedules, switches, tables, traffic
from suite.report.claims.check import Check, Computed, Finding, Inconsistency, Seen, Untestable
from suite.report.claims.evidence import LAPTOP, PAPER_SCALE, Evidence, MissingError
from suite.report.claims.listed import Claim
from suite.report.grid import Grid, Heading
from suite.report.numbers import ABSENT

CHECKS: Mapping[str, Check] = dict(
    chain.from_iterable(
        module.checks()
        for module in (arithmetic, inconsistencies, layouts, microbatches, schedules, switches, tables, traffic)
    )
)

REPRODUCED = "reproduced"
NOT_REPRODUCED = "not reproduced"
UNTESTABLE = "not testable here"
MISSING = "records missing"
INCONSISTENT = "the paper disagrees with itself"
_NOT_SUPPORTED = ("no", "disputed", "no trend", "direction only", "weak for small models")  # as claims.csv has it
_SIMULATED = ("simulated", "computed")
_MEASURED = ("measured", f"measured, {LAPTOP}", f"emulated, {LAPTOP}")
VERDICTS = (REPRODUCED, NOT_REPRODUCED, UNTESTABLE, MISSING, INCONSISTENT)


@dataclass(frozen=True)
class Verdict:
    """A claim, what was found for it by source, the verdict and, where it is not `reproduced`, why or with what number.

    `published` is what the same check says of the paper's own numbers; `holds` in it is whether they support the claim.
    `here` has a finding for each source and scale that could answer, `computed` for arithmetic.
    """

    claim: Claim
    verdict: str
    why: str
    published: Finding | None
    here: Mapping[str, Finding]

    @property
    def supported(self) -> bool:
        """Whether the paper's own numbers support the claim: by the check, or where it has none by the list."""
        if self.published is not None and self.published.holds is not None:
            return self.published.holds
        return self.claim.supported_by_paper not in _NOT_SUPPORTED


def judge(claims: Sequence[Claim], evidence: Evidence) -> list[Verdict]:
    """A verdict on every claim, in order."""
    return [_judged(claim, CHECKS.get(claim.id), evidence) for claim in claims]


def _answer(claim: Claim, check: Seen, evidence: Evidence, source: str, scale: str) -> Finding:
    """What a source says. Raises MissingError where it cannot, also because the sweep has other points than needed."""
    try:
        return check.of(claim, evidence.lens(source, scale))
    except (LookupError, ValueError, ZeroDivisionError, StopIteration) as error:  # experiments' files can be changed
        raise MissingError(f"the experiment lacks points that the check needs ({type(error).__name__})") from error


def _judged(claim: Claim, check: Check | None, evidence: Evidence) -> Verdict:
    try:
        match check:
            case Computed():
                found = check.of(claim, evidence)
                return _decided(claim, None, {"computed": found}, found)
            case Untestable():
                return Verdict(claim, UNTESTABLE, check.why(claim, evidence), None, {})
            case Inconsistency():
                return Verdict(claim, INCONSISTENT, check.of(claim, evidence), None, {})
            case Seen():
                return _seen(claim, check, evidence)
    except MissingError as error:
        return Verdict(claim, MISSING, str(error), None, {})
    return Verdict(claim, UNTESTABLE, "the suite has no check of it", None, {})


def _seen(claim: Claim, check: Seen, evidence: Evidence) -> Verdict:
    """What was measured at the paper's scale decides, then the simulation of it, then what a smaller scale shows."""
    places = [("measured", PAPER_SCALE), ("simulated", PAPER_SCALE)]
    if check.anywhere:
        places += [("measured", LAPTOP), ("emulated", LAPTOP)]
    try:
        published = _answer(claim, check, evidence, "published", PAPER_SCALE)
    except MissingError:
        published = None
    here, missing = {}, {}
    for source, scale in places:
        name = source if scale == PAPER_SCALE else f"{source}, {scale}"
        try:
            here[name] = _answer(claim, check, evidence, source, scale)
        except MissingError as error:
            missing[name] = str(error)
    decisive = next((found for found in here.values() if found.holds is not None), None)
    if decisive is None:
        undecided = next(iter(here.values()), None)
        if undecided is not None:
            return Verdict(claim, UNTESTABLE, undecided.text, published, here)
        return Verdict(claim, MISSING, missing.get("simulated", ""), published, here)
    return _decided(claim, published, here, decisive)


def _decided(claim: Claim, published: Finding | None, here: Mapping[str, Finding], found: Finding) -> Verdict:
    if found.holds is None:
        return Verdict(claim, UNTESTABLE, found.text, published, here)
    return Verdict(claim, REPRODUCED if found.holds else NOT_REPRODUCED, found.text, published, here)


def claims_table(verdicts: Sequence[Verdict]) -> Grid:
    """A row per claim; those that were not reproduced stand out."""
    columns = (
        Heading("claim", "Its id in results/published/claims.csv."),
        Heading("where", "Where the paper states it."),
        Heading("what it says", "In this project's words."),
        Heading("published", "The paper's own numbers by the same check, and whether they support the claim."),
        Heading("simulated", "Records simulated at the paper's scale; or computed, where no record is needed."),
        Heading("measured", "Measured records; at laptop scale for statements of direction only."),
        Heading("verdict", "By measured records at the paper's scale, then simulated ones, then a smaller scale's."),
        Heading("why", "With what number, or why not."),
    )
    body = [
        [
            verdict.claim.id,
            verdict.claim.where,
            verdict.claim.claim,
            _published(verdict),
            _said(verdict, _SIMULATED),
            _said(verdict, _MEASURED),
            verdict.verdict,
            _why(verdict),
        ]
        for verdict in verdicts
    ]
    standing_out = (number for number, verdict in enumerate(verdicts) if verdict.verdict in (NOT_REPRODUCED, MISSING))
    return Grid(columns, body, frozenset(standing_out))


def _published(verdict: Verdict) -> str:
    if verdict.published is None:
        return verdict.claim.value
    supports = {True: "", False: "; does not support it", None: ""}[verdict.published.holds]
    return verdict.published.text + supports


def _said(verdict: Verdict, names: Sequence[str]) -> str:
    marks = {True: "holds", False: "does not hold", None: "undecided"}
    parts = []
    for name in names:
        if name in verdict.here:
            found = verdict.here[name]
            label = "" if name == names[0] else f"{name}: "
            parts.append(f"{label}{marks[found.holds]}: {found.text}")
    return "; ".join(parts) or ABSENT


def _why(verdict: Verdict) -> str:
    """The number or the reason; of what was reproduced nothing but that the paper's own numbers say otherwise."""
    if verdict.verdict == REPRODUCED:
        return ABSENT if verdict.supported else "though not by the paper's own numbers"
    if verdict.verdict == NOT_REPRODUCED and not verdict.supported:
        return f"{verdict.why}; nor by the paper's own numbers"
    told = verdict.verdict in (INCONSISTENT, NOT_REPRODUCED) and verdict.claim.note
    note = f"; {verdict.claim.note}" if told else ""
    return verdict.why + note


def claims_text(verdicts: Sequence[Verdict]) -> str:
    """Every claim for a terminal: its verdict, what it says, and what was found, a line each."""
    lines = []
    for verdict in verdicts:
        claim = verdict.claim
        lines.append(f"{claim.id} ({claim.where}) {verdict.verdict}: {claim.claim}")
        told = {
            "published": _published(verdict),
            "simulated": _said(verdict, _SIMULATED),
            "measured": _said(verdict, _MEASURED),
            "why": _why(verdict),
        }
        lines += [f"    {name:<10}{text}" for name, text in told.items() if text != ABSENT]
    return "\n".join([*lines, "", summary(verdicts)])


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many claims came out how, and how many of those that the paper's own numbers support."""
    counts = ", ".join(
        f"{number} {name}" for name in VERDICTS if (number := sum(one.verdict == name for one in verdicts))
    )
    tested = [one for one in verdicts if one.supported and one.verdict in (REPRODUCED, NOT_REPRODUCED)]
    good = sum(one.verdict == REPRODUCED for one in tested)
    supported = f"Of the {len(tested)} tested ones that the paper's own numbers support, {good} are reproduced."
    return f"{len(verdicts)} claims: {counts}. {supported}"
