"""Will it boot: the terms of every rank against the share, and what the planner makes of the rest.

Source: vLLM ``v1/worker/gpu_worker.py`` (``determine_available_memory``), ``v1/worker/utils.py`` (``request_memory``).
"""

from __future__ import annotations

from math import ceil

from memcheck.job.engines.types import CacheGroup, EngineAnswer, EngineSettings, KvPool, Refusal, Term
from memcheck.job.engines.vllm.caches import layer_caches
from memcheck.job.engines.vllm.defaults import capture_sizes
from memcheck.job.engines.vllm.planner import block_bytes, gib, grouped, longest_length, on_rank, pages_of, planned
from memcheck.job.engines.vllm.refusals import refused, require_modelled
from memcheck.job.engines.vllm.terms import Transients, terms_of
from memcheck.job.engines.vllm.versions import Version, enclosing, known, order
from memcheck.job.engines.vllm.weights import rank_bytes, stages
from memcheck.models.types import Architecture
from memcheck.record import Record

LARGER_CARD = 0.003
"""How much more of it a GPU of one kind may have than the least that is published: 79.10 to 79.33 GiB of an H100."""
BOOTS, FAILS, DEPENDS = "boots", "does_not_boot", "depends"


class EngineGpu(Record):
    """The GPU as the engine sees it."""

    memory_bytes: int
    arch: str | None
    context_bytes: tuple[int, int]
    """What the process holds before the engine looks: context and communicators, at least and at most."""


class _Built(Record):
    """What does not depend on the pool: groups of each rank and their terms."""

    settings: EngineSettings
    version: Version
    groups: tuple[tuple[CacheGroup, ...], ...]
    terms: tuple[tuple[Term, ...], ...]
    block: int
    captures: tuple[int, int]


def verdict(architecture: Architecture, settings: EngineSettings, card: EngineGpu, seen: Transients) -> EngineAnswer:
    """Say whether the engine boots, for a known version, or for both versions around an unknown one."""
    near = enclosing(settings.version)
    answers = [_of_version(architecture, settings, card, seen, version) for version in near]
    answer = answers[-1]
    if len(answers) > 1:
        pairs = tuple([(v.name, each.answer) for v, each in zip(near, answers, strict=True)])
        answer = answer._replace(enclosing=pairs)
        if len({each.answer for each in answers}) > 1:
            depends = dict.fromkeys(["version", *(name for each in answers for name in each.depends_on)])
            answer = answer._replace(answer=DEPENDS, depends_on=tuple(depends))
    elif (order(settings.version) or (0, 0, 0)) < (order(known()[0].name) or (0, 0, 0)):
        answer = answer._replace(enclosing=((near[0].name, answer.answer),))
        if answer.answer == BOOTS and settings.pool_bytes is None:
            answer = answer._replace(answer=DEPENDS, depends_on=("version",))
    elif order(settings.version) != order(near[0].name):
        answer = answer._replace(enclosing=((near[0].name, answer.answer),))
    return answer


def _of_version(
    architecture: Architecture, settings: EngineSettings, card: EngineGpu, seen: Transients, version: Version
) -> EngineAnswer:
    """Say whether the engine boots with one version of vLLM."""
    require_modelled(architecture, version, settings.pipeline)
    early = refused(architecture, settings, version, card.arch)
    ways = settings if early is None else settings._replace(tensor=1, pipeline=1)
    built = _build(architecture, ways, card, seen, version)
    if early is not None:
        return _answer(built, card, FAILS, early, (), (0, 0, 0))
    return _judged(built, card)


def _build(
    architecture: Architecture, settings: EngineSettings, card: EngineGpu, seen: Transients, version: Version
) -> _Built:
    """Compute the cache groups of every pipeline rank, and the terms of its memory, for one version."""
    layers, block = layer_caches(architecture, settings, version, card.arch)
    groups = grouped(layers, version)
    cuts = stages(len(layers), settings.pipeline)
    ranks = tuple([on_rank(groups, first, last) for first, last in cuts])
    terms = tuple(
        [terms_of(architecture, held, settings, version, seen) for held in rank_bytes(architecture, settings, version)]
    )
    return _Built(
        settings=settings,
        version=version,
        groups=ranks,
        terms=terms,
        block=block,
        captures=capture_sizes(architecture, settings, version, card.arch),
    )


def pools_of(built: _Built, card: EngineGpu, terms: tuple[Term, ...]) -> tuple[int, int, int]:
    """Return the bytes that one rank has for its KV cache: at least, expected and at most. The unknown counts as its
    floor.

    A stated pool replaces everything. Otherwise the share of the whole GPU, less every term within it.
    """
    settings = built.settings
    if settings.pool_bytes is not None:
        return settings.pool_bytes, settings.pool_bytes, settings.pool_bytes
    requested = ceil(card.memory_bytes * (settings.share or 0.0))
    within = [t for t in terms if t.name != "graphs" or built.version.graphs_in_share]
    low = requested - sum(t.low_bytes if t.high_bytes is None else t.high_bytes for t in within)
    return low, requested - sum(t.expected_bytes for t in within), requested - sum(t.low_bytes for t in within)


def _judged(built: _Built, card: EngineGpu) -> EngineAnswer:
    """Decide from the KV pools at both ends of the terms' intervals."""
    settings, version = built.settings, built.version
    pools = [pools_of(built, card, terms) for terms in built.terms]
    least, likely, most = ([pool[i] for pool in pools] for i in range(3))
    figures = (min(least), min(likely), min(most))
    if settings.pool_bytes is None:
        requested = ceil(card.memory_bytes * (settings.share or 0.0))
        low, high = card.context_bytes
        if requested + low > card.memory_bytes:
            return _answer(built, card, FAILS, _no_room(built, card, low), (), figures)
        crowded = requested + high > card.memory_bytes
    else:
        crowded = False
    larger = int(card.memory_bytes * LARGER_CARD * (settings.share or 0.0))
    at_most = planned(built.groups, [count + larger for count in most], settings, version)
    if isinstance(at_most, Refusal):
        expected = planned(built.groups, likely, settings, version)
        return _answer(built, card, FAILS, expected if isinstance(expected, Refusal) else at_most, (), figures)
    at_least = planned(built.groups, least, settings, version)
    depends = []
    if crowded:
        depends.append("context")
    if isinstance(at_least, Refusal):
        depends += _deciding(built, card)
    elif settings.pool_bytes is None and version.graphs_in_share and _unknown(built):
        depends.append("graphs")
    refusal = at_least if isinstance(at_least, Refusal) else None
    return _answer(built, card, DEPENDS if depends else BOOTS, refusal, tuple(dict.fromkeys(depends)), figures)


def _unknown(built: _Built) -> bool:
    return any(t.high_bytes is None for terms in built.terms for t in terms)


def _deciding(built: _Built, card: EngineGpu) -> list[str]:
    """Return the names of the uncertain terms, the widest first, and of those that are unknown above a floor."""
    widths: dict[str, int] = {}
    for terms in built.terms:
        for t in terms:
            if t.high_bytes is None:
                if built.version.graphs_in_share:
                    widths[t.name] = card.memory_bytes
            elif t.high_bytes > t.low_bytes:
                widths[t.name] = max(widths.get(t.name, 0), t.high_bytes - t.low_bytes)
    return sorted(widths, key=lambda name: -widths[name])


def _no_room(built: _Built, card: EngineGpu, held: int) -> Refusal:
    """Return the error about a share that is larger than what is free at the start."""
    share = built.settings.share or 0.0
    requested = ceil(card.memory_bytes * share)
    words = built.version.words["free"].format(
        free=gib(card.memory_bytes - held), total=gib(card.memory_bytes), share=share, requested=gib(requested)
    )
    return Refusal(
        kind="free",
        words=words,
        needed_bytes=requested,
        available_bytes=card.memory_bytes - held,
        longest=0,
        pointer="/inference/gpu_memory_utilization",
    )


def _share_needed(built: _Built, card: EngineGpu, request: int) -> float | None:
    """Return the smallest share, in thousandths, with which the expected terms leave one request's bytes; None above
    1.
    """
    if built.settings.pool_bytes is not None:
        return None
    graphs = built.version.graphs_in_share
    most = max(sum(t.expected_bytes for t in terms if t.name != "graphs" or graphs) for terms in built.terms)
    share = -(-1000 * (most + request) // card.memory_bytes)
    return share / 1000 if share <= 1000 else None


def _answer(
    built: _Built,
    card: EngineGpu,
    answer: str,
    refusal: Refusal | None,
    depends: tuple[str, ...],
    figures: tuple[int, int, int],
) -> EngineAnswer:
    """Return the answer with everything that reports show, at the expected pool."""
    settings, version = built.settings, built.version
    low, likely, high = figures
    pool = planned(built.groups, [likely] * len(built.groups), settings, version)
    length = pool.length if isinstance(pool, KvPool) else settings.length or settings.longest
    used = [g for g in built.groups if any(group.layers for group in g)]
    pages = max((pages_of(g, length, settings, version) for g in used), default=0)
    needs = [(pages_of(g, length, settings, version) + version.null_block) * block_bytes(g) for g in used]
    request = max(needs, default=0)
    wanted = 0
    if settings.demand is not None and used:
        sequences, tokens = settings.demand
        wanted = sequences * pages_of(used[0], min(tokens, length), settings, version)
    longest = settings.longest
    if used:
        longest = min(
            longest_length(g, max(0, likely - version.null_block * block_bytes(g)), settings.longest, settings, version)
            for g in used
        )
    return EngineAnswer(
        settings=settings,
        answer=answer,
        refusal=refusal,
        depends_on=depends,
        pool=pool if isinstance(pool, KvPool) and answer != FAILS else None,
        pool_bytes=likely,
        pool_interval_bytes=(low, high),
        groups=built.groups[0],
        block=built.block,
        request_bytes=request,
        request_pages=pages,
        ranks=built.terms,
        longest=longest,
        share_needed=_share_needed(built, card, request),
        captures=built.captures,
        demand_pages=wanted,
    )
