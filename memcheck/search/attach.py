"""Remedies for the findings of `check`: the same search as `suggest`, without its last resort."""

from __future__ import annotations

from memcheck.finding import Finding, Remedy
from memcheck.remedies.price import Pricer
from memcheck.rules.place import place
from memcheck.rules.types import Context
from memcheck.search.fit import Fit
from memcheck.search.remedy import remedy_of

SHOWN = 5
CODES = frozenset({"MEM101", "MEM102"})


def attach(findings: list[Finding], context: Context) -> list[Finding]:
    """Put the remedies on the findings that say that the plan needs too much (MEM101, MEM102)."""
    if not any(f.code in CODES for f in findings):
        return findings
    found = Fit(Pricer(context), thorough=False).run()[:SHOWN]
    remedies = tuple(remedy_of(priced, context.document) for priced in found)
    if not remedies:
        help = "no change that is quickly found makes it fit; `memcheck suggest` searches every layout of this hardware"
    else:
        best = remedies[0]
        before = context.estimate.utilization if context.estimate else 0.0
        help = f"{best.title}: {before:.1%} -> {best.utilization:.1%}"
    return [_with(f, remedies, help, context) if f.code in CODES else f for f in findings]


def _with(finding: Finding, remedies: tuple[Remedy, ...], help: str, context: Context) -> Finding:
    """The finding with its remedies, at the written key that the cheapest of them changes."""
    finding = finding._replace(remedies=remedies, help=help)
    keys = remedies[0].set if remedies else {}
    pointer = next((p for k in keys if (p := "/" + k.replace(".", "/")) in context.document.marks), None)
    if pointer is None or pointer == finding.pointer:
        return finding
    here = place(context.document, pointer)
    related = tuple(r for r in finding.related if r[1] != here)
    return finding._replace(pointer=pointer, location=here, related=related)
