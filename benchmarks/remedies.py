"""What ``memcheck suggest`` finds for forty plans that do not fit, each applied to its file and checked again.

    python -m benchmarks.remedies [--write] [PLAN...]

``--write`` writes ``benchmarks/remedies.md``. Exit code 1 if a plan neither passes after its first suggestion nor has a
proof that nothing on its hardware fits, or if the first suggestion costs more time than it has to: more than 1.15 times
that of the fastest plan that ``--goal throughput`` finds where every other key is kept, or twice as long as written
where another suggestion with the same results on the same hardware does not.
"""

from __future__ import annotations

import os
import sys
import time

from benchmarks.over_budget import plans
from memcheck.edge.screen import percent, value
from memcheck.judge import Gate, check_file
from memcheck.plan.read import load_documents
from memcheck.plan.value_edits import edited
from memcheck.record import Record
from memcheck.rules.result import PASSED, PlanResult
from memcheck.what_if.search.attach import FOLLOW
from memcheck.what_if.suggest.run import NOTHING_FITS, SUGGESTED, Suggestions, known_keys, suggest

CLOSE = frozenset({"MEM103", "MEM104"})
"""Warnings that a plan which passes is close to the limit; they are counted, not forbidden."""
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "remedies.md")


SLOWER, TWICE = 1.15, 2.0
"""How much longer the first suggestion may take than the fastest with its keys, and than the plan as written."""
TIMED = (
    "dense-7b-1xa100",
    "dense-3b-2x4090",
    "dense-8b-4xa100",
    "dense-14b-8xa100",
    "dense-70b-16xh100",
    "dense-70b-64xa100",
    "dense-175b-128xa100",
    "moe-235b-256xh100",
    "dense-340b-512xh100",
    "dense-405b-512xh100",
    "moe-671b-1024xh100",
    "dense-405b-2048xh100",
)
"""Plans for which the page says how long ``suggest`` takes."""


class Outcome(Record):
    """One plan before and after its first suggestion."""

    name: str
    before: PlanResult
    answer: Suggestions
    after: PlanResult | None
    """The file after the first suggestion; None where there is none."""
    text: str = ""
    """The applied plan."""
    fastest: float | None = None
    """Relative time of the fastest plan that sets no other keys than the first suggestion, with the same results."""
    seconds: float = 0.0
    """How long ``suggest`` took, by the clock."""

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
        if late := too_slow(self):
            return late
        new = {f.code for f in self.after.findings} - {f.code for f in self.before.findings} - CLOSE
        return "" if self.after.status == PASSED and not new else f"the applied plan does not pass: {sorted(new)}"


def too_slow(each: Outcome) -> str:
    """Whether the first suggestion, where it keeps the results, costs more time than it has to; empty if not."""
    first = each.answer.found[0].remedy if each.answer.found else None
    if first is None or not first.safe or first.slowdown is None:
        return ""
    taken = 1 + first.slowdown
    if each.fastest is not None and taken > SLOWER * (1 + each.fastest):
        return f"the first suggestion takes {first.slowdown:+.0%}, and {each.fastest:+.0%} would do with its keys"
    like = [s.remedy for s in each.answer.found if s.remedy.group == first.group]
    others = [remedy.slowdown for remedy in like if remedy.slowdown is not None]
    return f"the first suggestion takes {first.slowdown:+.0%}" if taken > TWICE > 1 + min(others) else ""


def outcome(name: str, text: str) -> Outcome:
    """Suggest, apply, check, and look for something faster with the same keys."""
    path, data = f"{name}.yaml", text.encode()
    (before,), _ = check_file(path, data, Gate())
    begun = time.perf_counter()
    answer = suggest(load_documents(path, data)[0], data, Gate())
    seconds = time.perf_counter() - begun
    if not answer.found or not answer.found[0].remedy.edits:
        return Outcome(name, before, answer, None, seconds=seconds)
    first = answer.found[0].remedy
    changed = edited(data, first.edits)
    (after,), _ = check_file(path, changed, Gate())
    fastest = fastest_with(path, data, set(first.set)) if first.safe and first.slowdown is not None else None
    return Outcome(name, before, answer, after, changed.decode(), fastest=fastest, seconds=seconds)


def fastest_with(path: str, data: bytes, keys: set[str]) -> float | None:
    """Relative time of the fastest plan for which every key but these is kept."""
    free = (*keys, *FOLLOW)
    keep = [k for k in known_keys() if not any(k == f or k.startswith(f"{f}.") or f.startswith(f"{k}.") for f in free)]
    answer = suggest(load_documents(path, data)[0], data, Gate(), goal="throughput", keep=tuple(keep), top=1)
    return answer.found[0].remedy.slowdown if answer.found else None


def row(each: Outcome) -> str:
    """A line of the table."""
    before, answer = each.before, each.answer
    use = percent(before.estimate.utilization) if before.estimate else ""
    job = f"{each.name} | {before.gpus:,} x {before.gpu} | {use}"
    if each.after is None or each.after.estimate is None:
        smallest = answer.smallest
        way_out = f"; the smallest cluster: {smallest.gpus} GPUs" if smallest else ""
        return f"| {job} | nothing fits: {answer.tally.considered:,} plans judged{way_out} | | | |"
    remedy = answer.found[0].remedy
    close = sorted({f.code for f in each.after.findings} & CLOSE)
    changes = "<br>".join(f"`{key}: {value(new)}`" for key, new in remedy.set.items())
    taken = "unknown" if remedy.slowdown is None else f"{remedy.slowdown:+.0%}"
    best = "" if each.fastest is None else f"{each.fastest:+.0%}"
    return f"| {job} | {changes} | {' '.join([percent(each.after.estimate.utilization), *close])} | {taken} | {best} |"


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
    lines += ["Time is the roofline model's, per token; *fastest*: of what `--goal throughput` finds with every other"]
    lines += ["key kept. The plans: [over_budget.py](over_budget.py).", ""]
    lines += ["| plan | GPUs | before | changed | after | time | fastest |", "|---|---|---|---|---|---|---|"]
    lines += map(row, outcomes)
    timed = [each for each in outcomes if each.name in TIMED]
    lines += ["", "## How long it takes", "", "Wall time of `memcheck suggest` without an end, on two busy cores.", ""]
    lines += ["| plan | GPUs | plans looked at | seconds |", "|---|---|---|---|"]
    lines += [f"| {e.name} | {e.before.gpus:,} | {e.answer.tally.considered:,} | {e.seconds:.1f} |" for e in timed]
    return "\n".join(lines) + "\n"


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
