"""What ``memcheck suggest`` finds for forty plans that do not fit, each applied to its file and checked again.

    python -m benchmarks.remedies [--write] [PLAN...]

``--write`` writes ``benchmarks/remedies.md``. Exit code 1 if a plan neither passes after its first suggestion nor has a
proof that nothing on its hardware fits.
"""

from __future__ import annotations

import os
import sys

from benchmarks.over_budget import plans
from memcheck.check import Gate, check_file
from memcheck.edge.text import percent, value
from memcheck.plan.file_edits import edited
from memcheck.plan.load import load_documents
from memcheck.record import Record
from memcheck.result import PASSED, PlanResult
from memcheck.what_if.suggest.run import suggest
from memcheck.what_if.suggest.types import NOTHING_FITS, SUGGESTED, Suggestions

CLOSE = frozenset({"MEM103", "MEM104"})
"""Warnings that a plan which passes is close to the limit; they are counted, not forbidden."""
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "remedies.md")


class Outcome(Record):
    """One plan before and after its first suggestion."""

    name: str
    before: PlanResult
    answer: Suggestions
    after: PlanResult | None
    """The file after the first suggestion; None where there is none."""
    text: str = ""
    """The applied plan."""

    @property
    def problem(self) -> str:
        """Why this is not an answer; empty if it is one."""
        if self.before.status == PASSED or self.before.estimate is None:
            return "the plan is not over budget"
        if self.answer.status == NOTHING_FITS:
            proven = self.answer.exhausted and not self.answer.tally.fitting
            return "" if proven else "nothing was found, and nothing was proven"
        if self.answer.status != SUGGESTED or self.after is None:
            return "the first suggestion cannot be applied"
        new = {f.code for f in self.after.findings} - {f.code for f in self.before.findings} - CLOSE
        return "" if self.after.status == PASSED and not new else f"the applied plan does not pass: {sorted(new)}"


def outcome(name: str, text: str) -> Outcome:
    """Suggest, apply, check."""
    path, data = f"{name}.yaml", text.encode()
    (before,), _ = check_file(path, data, Gate())
    answer = suggest(load_documents(path, data)[0], data, Gate())
    if not answer.found or not answer.found[0].remedy.edits:
        return Outcome(name, before, answer, None)
    changed = edited(data, answer.found[0].remedy.edits)
    (after,), _ = check_file(path, changed, Gate())
    return Outcome(name, before, answer, after, changed.decode())


def row(each: Outcome) -> str:
    """A line of the table."""
    before, answer = each.before, each.answer
    use = percent(before.estimate.utilization) if before.estimate else ""
    job = f"{each.name} | {before.gpus:,} x {before.gpu} | {use}"
    if each.after is None or each.after.estimate is None:
        smallest = answer.smallest
        way_out = f"; the smallest cluster: {smallest.gpus} GPUs" if smallest else ""
        return f"| {job} | nothing fits: {answer.tally.considered:,} plans judged{way_out} | | |"
    remedy = answer.found[0].remedy
    close = sorted({f.code for f in each.after.findings} & CLOSE)
    changes = "<br>".join(f"`{key}: {value(new)}`" for key, new in remedy.set.items())
    time = "unknown" if remedy.slowdown is None else f"{remedy.slowdown:+.0%}"
    return f"| {job} | {changes} | {' '.join([percent(each.after.estimate.utilization), *close])} | {time} |"


def page(outcomes: list[Outcome]) -> str:
    """The page."""
    applied = [each for each in outcomes if each.after is not None]
    passing = sum(not each.problem for each in applied)
    proven = sum(not each.problem for each in outcomes if each.after is None)
    close = sum(any(f.code in CLOSE for f in each.after.findings) for each in applied if each.after is not None)
    lines = [
        "# Remedies of forty plans that do not fit",
        "",
        "<!-- Written by python -m benchmarks.remedies --write -->",
    ]
    others = len(outcomes) - len(applied)
    lines += [
        "",
        "The first suggestion of `memcheck suggest`, written into the file and judged again by `check`:",
        f"{passing} of {len(applied)} pass and break no rule, {close} with a warning that they are close to the",
        f"limit. For {proven} of the other {others} it is proven that nothing on that hardware fits: every plan of the",
        "space was judged.",
    ]
    lines += ["Time is the roofline model's, per token. The plans: [over_budget.py](over_budget.py).", ""]
    lines += ["| plan | GPUs | before | changed | after | time |", "|---|---|---|---|---|---|"]
    return "\n".join([*lines, *map(row, outcomes)]) + "\n"


def main(arguments: list[str]) -> int:
    """Run, print, write."""
    names = [a for a in arguments if not a.startswith("--")]
    outcomes = []
    for name, text in plans().items():
        if names and name not in names:
            continue
        outcomes.append(outcome(name, text))
        sys.stdout.write(f"{name:24} {outcomes[-1].answer.status:14} {outcomes[-1].problem or 'ok'}\n")
        sys.stdout.flush()
    if "--write" in arguments:
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(page(outcomes))
    return 1 if any(each.problem for each in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
