"""Will it boot: the terms of every rank against the share, and what the planner makes of the rest.

Source: vLLM ``v1/worker/gpu_worker.py`` (``determine_available_memory``), ``v1/worker/utils.py`` (``request_memory``).
"""

from __future__ import annotations

from math import ceil

from memcheck.autograd.tensor import ceil_div
from memcheck.job.engines.types import (
    CacheGroup,
    Captures,
    EngineAnswer,
    EngineSettings,
    KvPool,
    Refusal,
    Term,
    Transients,
)
from memcheck.job.engines.vllm.caches import layer_caches
from memcheck.job.engines.vllm.defaults import capture_sizes
from memcheck.job.engines.vllm.planner import (
    block_bytes,
    gib,
    grouped,
    has_layers,
    longest_length,
    on_rank,
    pages_of,
    planned,
)
from memcheck.job.engines.vllm.refusals import refused, require_modelled
from memcheck.job.engines.vllm.terms import terms_of
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
    captures: Captures


def verdict(architecture: Architecture, settings: EngineSettings, card: EngineGpu, seen: Transients) -> EngineAnswer:
    """Say whether the engine boots, for a known version, or for both versions around an unknown one."""
    versions = enclosing(settings.version)
    answers = [_of_version(architecture, settings, card, seen, version) for version in versions]
    newest = answers[-1]
    if order(settings.version) == order(versions[0].name):
        return newest
    pairs = [(version.name, answer.answer) for version, answer in zip(versions, answers, strict=True)]
    newest = newest._replace(enclosing=tuple(pairs))
    if len({answer.answer for answer in answers}) > 1:  # the versions around an unknown one differ
        depends_on = ["version"]
        for answer in answers:
            depends_on += answer.depends_on
        return newest._replace(answer=DEPENDS, depends_on=tuple(dict.fromkeys(depends_on)))
    is_before_all = (order(settings.version) or UNORDERED) < (order(known()[0].name) or UNORDERED)
    if is_before_all and newest.answer == BOOTS and settings.pool_bytes is None:
        return newest._replace(answer=DEPENDS, depends_on=("version",))
    return newest


UNORDERED = (0, 0, 0)
"""What stands for the numbers of a version that has none."""


def _of_version(
    architecture: Architecture, settings: EngineSettings, card: EngineGpu, seen: Transients, version: Version
) -> EngineAnswer:
    """Say whether the engine boots with one version of vLLM.

    If it ends before any question of memory, such as heads that do not divide, sizes are reported for one GPU.
    """
    require_modelled(architecture, version, settings.pipeline)
    early = refused(architecture, settings, version, card.arch)
    if early is not None:
        settings = settings._replace(tensor=1, pipeline=1)
    built = _build(architecture, settings, card, seen, version)
    if early is not None:
        return _answer(built, card, FAILS, early, (), PoolBytes(least=0, expected=0, most=0))
    return _judged(built, card)


def _build(
    architecture: Architecture, settings: EngineSettings, card: EngineGpu, seen: Transients, version: Version
) -> _Built:
    """Compute the cache groups of every pipeline rank, and the terms of its memory, for one version."""
    caches = layer_caches(architecture, settings, version, card.arch)
    groups = grouped(caches.layers, version)
    cuts = stages(len(caches.layers), settings.pipeline)
    ranks = tuple([on_rank(groups, first, last) for first, last in cuts])
    terms = tuple(
        [terms_of(architecture, held, settings, version, seen) for held in rank_bytes(architecture, settings, version)]
    )
    return _Built(
        settings=settings,
        version=version,
        groups=ranks,
        terms=terms,
        block=caches.block,
        captures=capture_sizes(architecture, settings, version, card.arch),
    )


class PoolBytes(Record):
    """Bytes that pipeline ranks have for their KV cache, by the interval of the terms before it."""

    least: int
    """With every term at the upper end of its interval; a term without one counts as its lower end."""
    expected: int
    most: int
    """With every term at the lower end of its interval."""


def pools_of(built: _Built, card: EngineGpu, terms: tuple[Term, ...]) -> PoolBytes:
    """Return the bytes that one rank has for its KV cache. ``terms``: the parts of its memory before it.

    A stated pool replaces everything. Otherwise the share of the whole GPU, less every term within it.
    """
    settings = built.settings
    if settings.pool_bytes is not None:
        return PoolBytes(least=settings.pool_bytes, expected=settings.pool_bytes, most=settings.pool_bytes)
    requested = _requested_bytes(settings, card)
    within_share = [term for term in terms if term.name != "graphs" or built.version.graphs_in_share]
    least = requested
    for term in within_share:
        least -= term.low_bytes if term.high_bytes is None else term.high_bytes
    return PoolBytes(
        least=least,
        expected=requested - sum(term.expected_bytes for term in within_share),
        most=requested - sum(term.low_bytes for term in within_share),
    )


def _requested_bytes(settings: EngineSettings, card: EngineGpu) -> int:
    """Return the bytes of one GPU that ``gpu_memory_utilization`` asks for; 0 where the plan states the pool."""
    return ceil(card.memory_bytes * settings.share) if settings.share else 0


def _judged(built: _Built, card: EngineGpu) -> EngineAnswer:
    """Decide whether the engine boots, from the KV pools at both ends of the terms' intervals.

    It fails if it does so with the largest pools, and depends on the uncertain terms if it fails with the smallest.
    """
    settings, version = built.settings, built.version
    pools = [pools_of(built, card, terms) for terms in built.terms]
    smallest = PoolBytes(
        least=min(pool.least for pool in pools),
        expected=min(pool.expected for pool in pools),
        most=min(pool.most for pool in pools),
    )
    depends = []
    if settings.pool_bytes is None:
        requested = _requested_bytes(settings, card)
        least_context, most_context = card.context_bytes
        if requested + least_context > card.memory_bytes:
            return _answer(built, card, FAILS, _no_room(built, card, least_context), (), smallest)
        if requested + most_context > card.memory_bytes:
            depends.append("context")
    larger_card = int(card.memory_bytes * LARGER_CARD * settings.share) if settings.share else 0
    at_most = planned(built.groups, [pool.most + larger_card for pool in pools], settings, version)
    if isinstance(at_most, Refusal):
        expected = planned(built.groups, [pool.expected for pool in pools], settings, version)
        refusal = expected if isinstance(expected, Refusal) else at_most
        return _answer(built, card, FAILS, refusal, (), smallest)
    at_least = planned(built.groups, [pool.least for pool in pools], settings, version)
    if isinstance(at_least, Refusal):
        depends += _deciding(built, card)
    elif settings.pool_bytes is None and version.graphs_in_share and _has_unbounded_term(built):
        depends.append("graphs")
    answer = DEPENDS if depends else BOOTS
    possible_refusal = at_least if isinstance(at_least, Refusal) else None
    return _answer(built, card, answer, possible_refusal, tuple(dict.fromkeys(depends)), smallest)


def _has_unbounded_term(built: _Built) -> bool:
    """Say whether a term of a rank has no upper end, as CUDA graphs have none."""
    return any(term.high_bytes is None for terms in built.terms for term in terms)


def _deciding(built: _Built, card: EngineGpu) -> list[str]:
    """Return the names of the uncertain terms, the widest first; a term without an upper end is as wide as the GPU."""
    widths: dict[str, int] = {}
    for terms in built.terms:
        for term in terms:
            if term.high_bytes is None:
                if built.version.graphs_in_share:
                    widths[term.name] = card.memory_bytes
            elif term.high_bytes > term.low_bytes:
                widths[term.name] = max(widths.get(term.name, 0), term.high_bytes - term.low_bytes)
    return sorted(widths, key=lambda name: -widths[name])


def _no_room(built: _Built, card: EngineGpu, context_bytes: int) -> Refusal:
    """Return the error about a share that is larger than what is free at the start.

    ``context_bytes``: what the process holds on the GPU by then.
    """
    share = built.settings.share or 0.0
    requested, free = _requested_bytes(built.settings, card), card.memory_bytes - context_bytes
    words = built.version.words["free"].format(
        free=gib(free), total=gib(card.memory_bytes), share=share, requested=gib(requested)
    )
    return Refusal(
        kind="free",
        words=words,
        needed_bytes=requested,
        available_bytes=free,
        longest=0,
        pointer="/inference/gpu_memory_utilization",
    )


def _share_needed(built: _Built, card: EngineGpu, request_bytes: int) -> float | None:
    """Return the smallest share of the GPU with which the expected terms leave one request's bytes; None above 1.

    It is rounded up to thousandths.
    """
    if built.settings.pool_bytes is not None:
        return None
    most = 0
    for terms in built.terms:
        within_share = [term for term in terms if term.name != "graphs" or built.version.graphs_in_share]
        most = max(most, sum(term.expected_bytes for term in within_share))
    thousandths = ceil_div(1000 * (most + request_bytes), card.memory_bytes)
    return thousandths / 1000 if thousandths <= 1000 else None


def _answer(
    built: _Built,
    card: EngineGpu,
    answer: str,
    refusal: Refusal | None,
    depends: tuple[str, ...],
    pools: PoolBytes,
) -> EngineAnswer:
    """Return the answer with everything that reports show, at the expected pool.

    ``answer``: whether the engine boots; ``refusal``: its error; ``depends``: names of the terms that decide.
    ``pools``: of the rank that has least.
    """
    settings, version = built.settings, built.version
    pool = planned(built.groups, [pools.expected] * len(built.groups), settings, version)
    length = pool.length if isinstance(pool, KvPool) else settings.length or settings.longest
    ranks = [groups for groups in built.groups if has_layers(groups)]
    held_back = 1 if version.null_block else 0
    request_pages = request_bytes = demand_pages = 0
    longest = settings.longest
    for groups in ranks:
        pages = pages_of(groups, length, settings, version)
        request_pages = max(request_pages, pages)
        request_bytes = max(request_bytes, (pages + held_back) * block_bytes(groups))
        available = max(0, pools.expected - held_back * block_bytes(groups))
        longest = min(longest, longest_length(groups, available, settings.longest, settings, version))
    if settings.demand is not None and ranks:
        sequences, tokens = settings.demand
        demand_pages = sequences * pages_of(ranks[0], min(tokens, length), settings, version)
    return EngineAnswer(
        settings=settings,
        answer=answer,
        refusal=refusal,
        depends_on=depends,
        pool=pool if isinstance(pool, KvPool) and answer != FAILS else None,
        pool_bytes=pools.expected,
        pool_interval_bytes=(pools.least, pools.most),
        groups=built.groups[0],
        block=built.block,
        request_bytes=request_bytes,
        request_pages=request_pages,
        ranks=built.terms,
        longest=longest,
        share_needed=_share_needed(built, card, request_bytes),
        captures=built.captures,
        demand_pages=demand_pages,
    )
