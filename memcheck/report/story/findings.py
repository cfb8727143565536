"""Findings as excerpts: what is wrong, with the source lines and the places on them.

A serving engine's answer in words, as a bar for each rank, and as a table of its terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import gib, plural
from memcheck.job.engines.types import EngineAnswer, Term
from memcheck.memory.engine import COMPONENT, NAMES
from memcheck.plan.finding import Finding, Location
from memcheck.report.story import Prose
from memcheck.report.story.blocks import (
    Bar,
    Chart,
    Excerpt,
    Excerpts,
    Scale,
    Section,
    Segment,
    SourceFile,
    SourceLine,
    SourceMark,
    Table,
)
from memcheck.rules.result import PlanResult, Report

FIXABLE = "[*]"
"""The mark of a finding that ``--fix`` can repair."""
TONES = {"error": "bad", "warning": "warn", "info": "note"}
LONG_NOTE = 160
"""Characters of a note that is shown whole. A longer one, which lists what was assumed, has a brief form."""
MOST_OF_NOTE = 2000
"""Characters of a note that its brief form is made of."""
_REASONS = r" \([^()]*(?:\([^()]*\)[^()]*)*\)"


def is_long(finding: Finding) -> bool:
    """Whether a finding is a note of more than :data:`LONG_NOTE` characters."""
    return finding.severity == "info" and len(finding.message) > LONG_NOTE


def brief(message: str) -> str:
    """A message without the reasons in parentheses."""
    import re  # needed for notes alone, and slow to load

    return re.sub(_REASONS, "", message[:MOST_OF_NOTE])


def section(plan: PlanResult, ids: Mapping[int, str]) -> Section | None:
    """Every finding of a plan with its lines. ``ids``: the id of each finding, by the identity of the finding."""
    if not plan.findings:
        return None
    excerpts = tuple(excerpt(plan, finding, ids.get(id(finding), "")) for finding in plan.findings)
    return Section("findings", f"{plural(len(excerpts), 'finding')} in the plan", (Excerpts(excerpts),))


def excerpt(plan: PlanResult, finding: Finding, id: str = "") -> Excerpt:
    """One finding as an excerpt."""
    return Excerpt(
        id=id,
        severity=finding.severity,
        tone=TONES[finding.severity],
        code=finding.code,
        name=finding.name,
        message=finding.message,
        files=source_files(finding, plan.sources),
        whole_file=is_whole_file(finding.location),
        help=finding.help,
        fix=finding.fix if plan.fixable(finding) else (),
        brief=brief(finding.message) if is_long(finding) else "",
    )


def is_whole_file(where: Location) -> bool:
    """Whether a place stands for the whole file: no line of it says more than the others."""
    return where.span.is_empty and (where.span.line, where.span.column) == (1, 1) and not where.note


def source_files(finding: Finding, sources: Mapping[str, tuple[str, ...]]) -> tuple[SourceFile, ...]:
    """The files that a finding points into, its own first, each with the lines that have a mark.

    ``sources``: the lines of every file that was read.
    """
    own = finding.location
    others = [(label, where) for label, where in finding.related if not (is_whole_file(own) and where == own)]
    places = [(own.note, own, True), *((_label(label, where.note), where, False) for label, where in others)]
    alone = len(places) == 1 and is_whole_file(own)
    found: list[SourceFile] = []
    for path in dict.fromkeys(where.path for _, where, _ in places):
        here = [(where, label, primary) for label, where, primary in places if where.path == path]
        here.sort(key=lambda place: (place[0].span.line, place[0].span.column))
        lead = next((where for where, _, primary in here if primary), here[0][0]).span
        lines = () if alone else _lines(here, sources.get(path, ()))
        found.append(SourceFile(path=path, line=lead.line, column=lead.column, lines=lines))
    return tuple(found)


def _label(label: str, note: str) -> str:
    return f"{label} ({note})" if label and note else label or note


def _lines(places: Sequence[tuple[Location, str, bool]], source: Sequence[str]) -> tuple[SourceLine, ...]:
    """The marked lines of a file in order, and the line between two of them where that is a single one."""
    marks: dict[int, list[SourceMark]] = {}
    for where, label, primary in places:
        span = where.span
        text = source[span.line - 1] if span.line <= len(source) else ""
        goes_on = span.end_line != span.line
        end = len(text.rstrip()) + 1 if goes_on else span.end_column
        marks.setdefault(span.line, []).append(
            SourceMark(column=span.column, end_column=end, label=label, primary=primary, goes_on=goes_on)
        )
    found: list[SourceLine] = []
    before = 0
    for number, here in marks.items():
        if before and number == before + 2 and number <= len(source):
            found.append(SourceLine(number - 1, source[number - 2], ()))
        if number <= len(source):
            before = number
        found.append(SourceLine(number, source[number - 1] if number <= len(source) else None, tuple(here)))
    return tuple(found)


def fixes(report: Report) -> str:
    """``[*] 4 of 6 findings can be fixed with --fix, 1 more with --fix --unsafe-fixes``; empty where none can."""
    shown = sum(len(plan.findings) for plan in report.plans)
    safe = sum(plan.fixable(finding) for plan in report.plans for finding in plan.findings)
    unsafe = sum(
        plan.written_by_unsafe_fixes(finding) is not None for plan in report.plans for finding in plan.findings
    )
    if not safe and not unsafe:
        return ""
    if safe:
        more = f", {unsafe} more with --fix --unsafe-fixes" if unsafe else ""
        return f"{FIXABLE} {safe} of {plural(shown, 'finding')} can be fixed with --fix{more}"
    return f"{unsafe} of {plural(shown, 'finding')} can be fixed with --fix --unsafe-fixes"


WORDS = {"boots": "boots", "does_not_boot": "does not boot", "depends": "may boot"}
"""The three answers."""


def line(answer: EngineAnswer) -> str:
    """``vllm 0.33.0 boots: KV cache 25.23 GiB, 206,672 tokens, 1.58 requests of 131,072 at once``."""
    settings, pool = answer.settings, answer.pool
    word = WORDS[answer.answer]
    if answer.answer == "depends":
        word += f", which depends on {', '.join(NAMES[name] for name in answer.depends_on)}"
    room = answer.graphs_room_bytes
    if room is not None:
        word = f"boots unless CUDA graphs take more than {gib(room)} GiB"
    text = f"{settings.name} {settings.version} {word}"
    if pool is None:
        return f"{text}: one request needs {gib(answer.request_bytes)} GiB of KV cache"
    at_most = "at most " if answer.answer == "depends" else ""
    return (
        f"{text}: {at_most}{gib(answer.pool_bytes)} GiB of KV cache, {pool.tokens:,} tokens,"
        f" {pool.concurrency:.2f} requests of {pool.length:,} at once"
    )


def rows(answer: EngineAnswer) -> tuple[tuple[str, str], ...]:
    """The figures that people ask for first, each with its name."""
    settings, pool = answer.settings, answer.pool
    found = [("Engine", f"{settings.name} {settings.version} {WORDS[answer.answer]}")]
    if pool is not None:
        low, high = answer.pool_interval_bytes
        found += [
            ("KV cache", f"{gib(answer.pool_bytes)} GiB, between {gib(max(0, low))} and {gib(high)}"),
            ("Tokens", f"{pool.tokens:,} in {pool.blocks:,} blocks"),
            ("At once", f"{pool.concurrency:.2f} requests of {pool.length:,} tokens"),
        ]
    found.append(("Longest request", f"{answer.longest:,} tokens" if answer.longest else ""))
    if answer.share_needed is not None:
        found.append(("Smallest share", f"{answer.share_needed:g}"))
    if settings.demand is not None and pool is not None:
        sequences, length = settings.demand
        word = "held" if answer.demand_held else "not held"
        found.append(("Demand", f"{sequences:,} requests of {length:,} tokens: {word}"))
    return tuple(found)


def chart(estimate: Estimate) -> Chart | None:
    """A bar for each pipeline rank with its terms and the KV cache, the share and the capacity as lines."""
    answer = estimate.engine
    if answer is None:
        return None
    capacity, share = estimate.capacity_bytes, answer.settings.share
    bars = []
    for number, terms in enumerate(answer.ranks):
        parts = _segments(terms, answer)
        total = sum(part.bytes for part in parts)
        bars.append(Bar(label=f"rank {number}", segments=parts, figure=f"{gib(total)} GiB"))
    scale = Scale(max(capacity, 1, *(bar.bytes for bar in bars)), capacity, int(capacity * share) if share else 0)
    title = "GPU of each pipeline rank: weights, profile run, outside of torch, KV cache (GiB)"
    return Chart(id="engine-ranks", title=title, bars=tuple(bars), scale=scale)


def _segments(terms: tuple[Term, ...], answer: EngineAnswer) -> tuple[Segment, ...]:
    """The terms of one rank by component, then the KV cache."""
    sizes: dict[str, int] = {}
    for term in terms:
        sizes[COMPONENT[term.name]] = sizes.get(COMPONENT[term.name], 0) + term.expected_bytes
    sizes["kv_cache"] = max(0, answer.pool_bytes if answer.pool is not None else answer.request_bytes)
    return tuple(Segment(name, count) for name, count in sizes.items() if count)


def table(answer: EngineAnswer) -> Table:
    """The terms of the first rank, each with its interval and source, then the KV cache."""
    found = [
        (
            NAMES[term.name],
            gib(term.expected_bytes),
            gib(term.low_bytes),
            "unknown" if term.high_bytes is None else gib(term.high_bytes),
            term.source,
        )
        for term in answer.ranks[0]
    ]
    low, high = answer.pool_interval_bytes
    source = "stated" if answer.settings.pool_bytes is not None else "what the share leaves"
    found.append(("KV cache", gib(max(0, answer.pool_bytes)), gib(max(0, low)), gib(max(0, high)), source))
    return Table(
        "what the engine holds on a GPU (GiB)",
        ("term", "expected", "at least", "at most", "source"),
        tuple(found),
        right=(1, 2, 3),
        optional=(4,),
        flow="wrap",
    )


def engine_section(estimate: Estimate) -> Section | None:
    """The engine's answer with its chart and table; None for plans without an engine."""
    answer, drawn = estimate.engine, chart(estimate)
    if answer is None or drawn is None:
        return None
    return Section("engine", "Will the engine boot", (Prose(f"{line(answer)}."), drawn, table(answer)))
