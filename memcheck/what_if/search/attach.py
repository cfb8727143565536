"""Remedies for the findings of `check`: the same search as `suggest`, without its last resort."""

from __future__ import annotations

import os

from memcheck.plan.finding import Finding, Remedy
from memcheck.record import Record
from memcheck.rules.types import RuleContext, is_written, place
from memcheck.what_if.remedies.budget import MOST, Budget, Effort
from memcheck.what_if.remedies.changes import Priced, join, loading_and_saving
from memcheck.what_if.remedies.price import DATA, GROUP, STEPS, Pricer, with_margin
from memcheck.what_if.search.explore import drained
from memcheck.what_if.search.fit import Fit
from memcheck.what_if.search.rank import offered, remedy_of, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.what_if.search.explore import Steps

SHOWN = 5
REMEMBERED = 64
"""Families of equal plans whose remedies are kept at most."""
TOO_MUCH = frozenset({"MEM101", "MEM102", "MEM701"})
FOLLOW = frozenset({STEPS, DATA, GROUP})
ROWS = "MEM108"
OPEN = frozenset({ROWS, "MEM702"})
"""A plan whose rows may be too long, and a serving engine whose start depends on a term: as an uncertain plan."""
CLOSE, UNCERTAIN, HOST = "MEM103", "MEM104", "MEM106"


FURTHER = "not every change was tried: `memcheck suggest` searches on"


class Search(Record):
    """The result of one search for remedies, and whether it ended early."""

    changes: list[Priced]
    ended_early: bool = False
    """Whether the search used up its steps before it had tried every change."""


class Searches:
    """What the last searches of a run found: the plans of a repository are often equal but for names and comments."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Search] = {}

    def answers(self, question: str, context: RuleContext) -> Search:
        """Return the least changes after which a finding is gone, as many as are shown; searched for once per
        family.
        """
        return self.known(question, context) or self.keep(
            question, context, drained(RemedySearch(question, context).steps())
        )

    def known(self, question: str, context: RuleContext) -> Search | None:
        """What was found for an equal plan; None where nobody asked."""
        return self._found.get((question, *_family(context)))

    def keep(self, question: str, context: RuleContext, found: Search) -> Search:
        """Remember what was found; returns it."""
        key = (question, *_family(context))
        if key not in self._found and len(self._found) >= REMEMBERED:
            del self._found[next(iter(self._found))]
        self._found[key] = found
        return found


SEARCHES = Searches()


def attach(findings: list[Finding], context: RuleContext) -> list[Finding]:
    """Put the remedies on the findings about an amount of memory, each at the key that ends it most cheaply."""
    found: dict[str, tuple[tuple[Remedy, ...], bool]] = {}
    return [_mended(finding, context, found) for finding in findings]


def _family(context: RuleContext) -> tuple[object, ...]:
    """Return what a search is a function of: equal for plans that differ in nothing but their names and how they are
    written.

    Values are told apart as they are printed, which tells 1 from 1.0 and from true. The job holds what is read from
    other files.
    """
    values = context.document.values
    told = {key: value for key, value in values.items() if key != "name"} if isinstance(values, dict) else values
    resolved = context.resolved
    return (
        os.path.dirname(context.document.path),
        repr(told),
        context.plan.policy,
        (resolved.job, resolved.gpu, resolved.overhead),
        (context.fail_above, context.warn_above, context.host_bytes),
    )


def question_of(finding: Finding, context: RuleContext) -> str:
    """Return the question that a search answers for a finding; empty where there is none."""
    question = "MEM101" if finding.code in TOO_MUCH else UNCERTAIN if finding.code in OPEN else finding.code
    if question not in {"MEM101", CLOSE, UNCERTAIN, HOST}:
        return ""
    if question == CLOSE and context.estimate is not None and context.estimate.utilization <= context.warn_above:
        return ""  # the plan need not change, but say what it leaves open
    return question


def _mended(finding: Finding, context: RuleContext, found: dict[str, tuple[tuple[Remedy, ...], bool]]) -> Finding:
    """Return one finding with what the search found for its question; ``found`` remembers the answers."""
    question = question_of(finding, context)
    if not question:
        return finding
    if question not in found:
        search = SEARCHES.answers(question, context)
        found[question] = tuple(remedy_of(each, context.document) for each in search.changes), search.ended_early
    remedies, ended_early = found[question]
    if remedies:
        gain = _gain(remedies[0], context, question)
        help = f"{gain}; {FURTHER}" if ended_early else gain
        if finding.code == ROWS:  # it stays at the limit, and its other way out changes no memory: the longest row
            return finding._replace(remedies=remedies, help=f"{help}\n{finding.help}")
        return _with(finding, remedies, help, context)
    if question != "MEM101":
        return finding._replace(help=FURTHER) if ended_early and not finding.help else finding
    help = "no change that is quickly found makes it fit; `memcheck suggest` searches every layout of this hardware"
    return finding._replace(help=help)


class RemedySearch:
    """The search for the least changes after which one finding is gone, re-computed by the engine."""

    def __init__(self, question: str, context: RuleContext) -> None:
        limit = context.fail_above
        if question == UNCERTAIN:
            pricer = with_margin(context)
        else:
            if question == CLOSE:
                context = context._replace(fail_above=min(limit, context.warn_above))
            pricer = Pricer(context)
            pricer.whole = limit
        pricer.budget = Budget(effort=Effort(context.job), steps=MOST)
        self.fit = Fit(pricer, thorough=False)
        self._question, self._context = question, context

    @property
    def so_far(self) -> list[Priced]:
        """What fits of the changes that were tried so far."""
        return shown(offered(self.fit.mildest(self.fit.found)), SHOWN)

    @property
    def tried(self) -> int:
        """How many changed plans were priced or refused so far."""
        return sum(self.fit.pricer.counts.values())

    def steps(self) -> Steps[Search]:
        """Return the search, with control given back after each candidate."""
        pricer = self.fit.pricer
        found = yield from self.fit.steps()
        if self._question == HOST:
            less: list[Priced] = []
            with pricer.budget.part():
                yield from _less_on_the_host(self.fit, self._context, less)
            found = offered(self.fit.mildest(found + less))
        return Search(shown(found, SHOWN), pricer.budget.spent)


def _less_on_the_host(search: Fit, context: RuleContext, found: list[Priced]) -> Steps[None]:
    """Put plans that fit with less on the host, alone or with one more change, into ``found``."""
    job = context.training
    if job is None:
        return
    less = list(loading_and_saving(context, job))
    more = [join(one, other) for one in less for other in search.tried if not set(one.kinds) & set(other.kinds)]
    for each in [*less, *more]:
        priced = search.pricer.price(each)
        yield
        if priced is not None and search.pricer.fits(priced):
            found.append(priced)


def _gain(best: Remedy, context: RuleContext, question: str) -> str:
    """Return what the cheapest remedy does, in one line."""
    if context.estimate is None:
        return best.title
    if context.estimate.engine is not None:
        return best.title
    if question == HOST:
        now, then = context.estimate.host_bytes_per_node / 2**30, best.host_bytes_per_node / 2**30
        return f"{best.title}: {now:,.2f} -> {then:,.2f} GiB of host memory in a node"
    if question == UNCERTAIN:
        now = context.estimate.needed_interval_bytes[1] / context.estimate.capacity_bytes
        return f"{best.title}: up to {best.high_utilization:.1%} of the capacity instead of {now:.1%}"
    return f"{best.title}: {context.estimate.utilization:.1%} -> {best.utilization:.1%}"


def _with(finding: Finding, remedies: tuple[Remedy, ...], help: str, context: RuleContext) -> Finding:
    """Return the finding with its remedies, at the written key of the cheapest of them that changes one."""
    finding = finding._replace(remedies=remedies, help=help)
    if context.estimate is not None and context.estimate.engine is not None:
        return finding  # at the key that the engine names
    pointer = next((p for each in remedies for key in each.set if (p := _decides(key, context))), "")
    if not pointer or pointer == finding.pointer:
        return finding
    here = place(context.document, pointer)
    related = tuple(r for r in finding.related if r[1] != here)
    return finding._replace(pointer=pointer, location=here, related=related)


def _decides(key: str, context: RuleContext) -> str:
    """Return the pointer of a key, or of the one-word form that it is a field of; empty when the plan writes neither.

    Keys that only follow, to keep the global batch and the number of GPUs, are no place to start.
    """
    if key in FOLLOW:
        return ""
    pointer = "/" + key.replace(".", "/")
    while pointer.count("/") > 1 and not is_written(context.document, pointer):
        pointer = pointer.rpartition("/")[0]
    return pointer if pointer.count("/") > 1 and is_written(context.document, pointer) else ""
