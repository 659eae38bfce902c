"""A comparison in writing: text for a terminal, JSON, JUnit XML, a Markdown summary."""

import math
from collections import Counter
from statistics import median
from typing import Any
from xml.etree import ElementTree

from suite.regression.comparison import FAILED, FINE, INCONCLUSIVE, NOT_COMPARABLE, Comparison, Row, Standing
from suite.regression.paired import Effect
from suite.regression.verdict import Verdict

_COLUMNS = ("point", "pairs", "baseline", "candidate", "ratio", "effect", "interval", "p", "tolerance", "verdict")
_ENDING = {
    FINE: "no regression",
    FAILED: "a regression, or a point that failed",
    NOT_COMPARABLE: "not everything could be compared",
    INCONCLUSIVE: "inconclusive",
}


def as_text(found: Comparison, strict: bool) -> str:
    """A table, and a line for everything that it has no room for."""
    rows = [_COLUMNS, *(_cells(row) for row in found.rows if row.effect)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    lines = [f"baseline: {found.baseline}", f"candidate: {found.candidate}", "", *_aligned(rows, widths)]
    return "\n".join([*lines, "", *_remarks(found), _summary(found, strict)])


def as_markdown(found: Comparison, strict: bool) -> str:
    """A summary that can be posted on a pull request."""
    rows = [_cells(row) for row in found.rows if row.effect]
    lines = [f"### Throughput: {_summary(found, strict)}", "", f"`{found.candidate}` against `{found.baseline}`", ""]
    if rows:
        lines += ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
        lines.append("")
    return "\n".join([*lines, *(f"- {remark}" for remark in _remarks(found)), ""])


def as_json(found: Comparison, strict: bool) -> dict[str, Any]:
    """Everything, with ratios and relative effects as fractions; null where an interval is the whole line."""
    return {
        "baseline": found.baseline,
        "candidate": found.candidate,
        "exit_code": found.exit_code(strict),
        "points": [_row_json(row, found) for row in found.rows],
        "skipped": [{"file": problem.file, "reason": problem.reason} for problem in found.problems],
    }


def as_junit(found: Comparison, strict: bool) -> str:
    """A test case per point: failed, in error where it could not be compared, skipped where it is inconclusive."""
    suite = ElementTree.Element("testsuite", name="suite compare", tests=str(len(found.rows)))
    counts: Counter[str] = Counter()
    for row in found.rows:
        case = ElementTree.SubElement(suite, "testcase", classname=row.key.experiment, name=_point(row))
        kind = _junit_kind(row, found, strict)
        if kind:
            counts[kind] += 1
            ElementTree.SubElement(case, kind, message=_sentence(row, found))
        ElementTree.SubElement(case, "system-out").text = _sentence(row, found)
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(counts[kind]))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _junit_kind(row: Row, found: Comparison, strict: bool) -> str | None:
    if row.standing is Standing.FAILED or (row.verdict is Verdict.REGRESSION and not row.waived(found.today)):
        return "failure"
    if row.standing in (Standing.NOT_COMPARABLE, Standing.UNMATCHED):
        return "error"
    if row.verdict is Verdict.INCONCLUSIVE:
        return "failure" if strict else "skipped"
    return "skipped" if row.standing is Standing.FAILED_ALIKE else None


def _cells(row: Row) -> tuple[str, ...]:
    effect, decision = row.effect, row.decision
    assert effect is not None
    assert decision is not None
    seconds = (f"{median(one.seconds for one in side):.4g} s" for side in (row.baseline, row.candidate))
    noisy = row.key.source != "simulated"
    p = min(effect.p_slower, effect.p_faster)
    return (
        _point(row),
        str(effect.pairs),
        *seconds,
        f"{row.ratio:.4f}",
        _percent(effect.estimate),
        f"{_percent(effect.low)} to {_percent(effect.high)}" if noisy else "exact",
        f"{p:.4f} (needs {decision.alpha:.4f})" if noisy else "exact",
        f"{100 * decision.tolerance:g}% ({row.threshold.origin})",
        str(row.verdict),
    )


def _point(row: Row) -> str:
    key = row.key
    return f"{key.experiment}/{key.scale} {row.label} {key.point_id} {key.source}"


def _sentence(row: Row, found: Comparison) -> str:
    """One point in one sentence, without what XML does not take, such as a terminal's colours."""
    parts = [f"{row.standing}: {row.reason}"]
    if row.effect:
        parts = [f"{row.verdict}: {_measured(row.effect)}", *_details(row, found)]
    return "".join(filter(str.isprintable, "; ".join(parts)))


def _measured(effect: Effect) -> str:
    within = f", {100 * effect.coverage:.1f}% within {_percent(effect.low)} to {_percent(effect.high)}"
    return f"time per token {_percent(effect.estimate)}{within}, {effect.pairs} pairs"


def _details(row: Row, found: Comparison) -> list[str]:
    details = list(row.notes)
    if row.decision and row.decision.why:
        details.insert(0, row.decision.why)
    if row.verdict is Verdict.REGRESSION and row.waiver:
        state = "waived" if row.waived(found.today) else "the waiver has expired:"
        details.insert(0, f"{state} until {row.waiver.until}: {row.waiver.reason}")
    return details


def _remarks(found: Comparison) -> list[str]:
    """What the table does not show: why points were not compared, notes on those that were."""
    lines = [f"{_point(row)}: {row.standing}: {row.reason}" for row in found.rows if row.effect is None]
    for row in found.rows:
        if row.effect and (details := _details(row, found)):
            lines.append(f"{_point(row)}: {'; '.join(details)}")
    return lines


def _summary(found: Comparison, strict: bool) -> str:
    counts = Counter(str(row.verdict or row.standing) for row in found.rows)
    waived = sum(row.verdict is Verdict.REGRESSION and row.waived(found.today) for row in found.rows)
    listed = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return f"{_ENDING[found.exit_code(strict)]} ({listed}{f', {waived} waived' if waived else ''})"


def _row_json(row: Row, found: Comparison) -> dict[str, Any]:
    effect, decision = row.effect, row.decision
    fields: dict[str, Any] = {
        "experiment": row.key.experiment,
        "scale": row.key.scale,
        "source": row.key.source,
        "point_id": row.key.point_id,
        "label": row.label,
        "standing": str(row.standing),
        "reason": row.reason or None,
        "verdict": None,
        "tolerance": row.threshold.tolerance,
        "tolerance_from": row.threshold.origin,
        "notes": list(row.notes),
        "waived": row.verdict is Verdict.REGRESSION and row.waived(found.today),
    }
    if effect is None or decision is None:
        return fields
    return fields | {
        "verdict": str(decision.verdict),
        "pairs": effect.pairs,
        "ratio": row.ratio,
        "effect": math.expm1(effect.estimate),
        "interval": [_finite(effect.low), _finite(effect.high)],
        "coverage": effect.coverage,
        "p_slower": effect.p_slower,
        "p_faster": effect.p_faster,
        "alpha": decision.alpha,
        "pairs_to_decide": decision.more_pairs,
    }


def _finite(log: float) -> float | None:
    return math.expm1(log) if math.isfinite(log) else None


def _percent(log: float) -> str:
    if not math.isfinite(log):
        return "?"
    return f"{100 * math.expm1(log):+.2f}%"


def _aligned(rows: list[tuple[str, ...]], widths: list[int]) -> list[str]:
    if len(rows) == 1:
        return ["no point could be compared"]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
