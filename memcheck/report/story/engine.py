"""A serving engine's answer in words, as a bar for each rank, and as a table of its terms."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate
from memcheck.edge.screen import gib
from memcheck.job.engines.types import EngineAnswer, Term
from memcheck.memory.engine import COMPONENT, NAMES
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Bar, Chart, Scale, Section, Segment, Table

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


def section(estimate: Estimate) -> Section | None:
    """The engine's answer with its chart and table; None for plans without an engine."""
    answer, drawn = estimate.engine, chart(estimate)
    if answer is None or drawn is None:
        return None
    return Section("engine", "Will the engine boot", (Prose(f"{line(answer)}."), drawn, table(answer)))
