"""Will it boot: the terms of every rank against the share, and what the planner makes of the rest.

Source: vLLM ``v1/worker/gpu_worker.py`` (``determine_available_memory``), ``v1/worker/utils.py`` (``request_memory``).

What a rank holds before its KV cache, term by term, each with the interval that its sources leave.

Exact: weights and buffers (:mod:`memcheck.job.engines.vllm.weights`). Uncertain: the profile run, what lies outside of
torch, CUDA graphs. Public readings behind the intervals are in ``docs/internals/engines.md``.
"""

from __future__ import annotations

from math import ceil

from memcheck.autograd.tensor import ceil_div
from memcheck.job.engines.types import (
    GRAPHS_SEEN,
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
from memcheck.job.engines.vllm.planner import (
    block_bytes,
    gib,
    grouped,
    has_layers,
    longest_length,
    on_rank,
    pages_of,
    planned,
    refused,
    require_modelled,
)
from memcheck.job.engines.vllm.versions import Version, capture_sizes, enclosing, known, order
from memcheck.job.engines.vllm.weights import RankBytes, rank_bytes, stages
from memcheck.models.types import Architecture
from memcheck.record import Record

GIB, MIB = 2**30, 2**20
FIT_TENTHS = 384
"""Tenths of a byte per sequence and word of the vocabulary in the sampler's dummy run up to 0.11: logits, their fp32
copy, sorted values and int64 indices, probabilities and sums. Fitted on four public boots (H100, 1,024 sequences),
within 0.4 %; two more agree."""
FIT_ERROR = 0.02
"""Relative error of the fit, in either direction."""


class Interval(Record):
    """A number that is known up to an interval."""

    low: int
    expected: int
    high: int


SAMPLER = Interval(low=4, expected=14, high=18)
"""Bytes per sequence and word from 0.20 on: fp32 logits; with the bf16 ones, probabilities and noise; with processed
log-probabilities. Read in the code, not checked against a log."""
OUTSIDE_MIB = Interval(low=100, expected=134, high=310)
"""What the driver sees grow while the model loads and runs once on one GPU, beyond torch: 0.13 to 0.14 GiB in three
boots (llm-d-planner's list, vLLM 0.11.0). The upper end is twice the highest."""
OUTSIDE_SEVERAL_MIB = Interval(low=200, expected=563, high=1700)
"""What the driver sees grow on each of several GPUs: 0.55 GiB in one boot of two. The upper end is three times that."""
SEGMENTS_MIB = 512
"""From 0.26 on the driver's view counts segments of the allocator as well (vLLM 49208): split at 20 MiB while loading.
The size is not published; this is the most that is assumed."""


def terms_of(
    architecture: Architecture, resident: RankBytes, settings: EngineSettings, version: Version, transients: Transients
) -> tuple[Term, ...]:
    """List the terms of one pipeline rank: weights, buffers, towers, profile run, outside of torch, CUDA graphs.

    ``resident``: the rank's bytes before any cache. ``transients``: peaks of the profile run, of which the tower's is
    on the rank that has it.
    """
    terms = [_exact("weights", resident.weights_bytes, "shapes of the engine's modules")]
    if resident.buffers_bytes:
        terms.append(_exact("buffers", resident.buffers_bytes, "rotary tables and scales"))
    has_tower = resident.towers_bytes > 0
    if has_tower:
        terms.append(_exact("towers", resident.towers_bytes, "shapes of vision and audio towers"))
    else:
        transients = transients._replace(tower=0)
    terms += [
        profile(architecture, settings, version, transients, pictures=has_tower),
        outside(settings, version),
        graphs(settings),
    ]
    return tuple(terms)


def _exact(name: str, count: int, source: str) -> Term:
    """Return a term of ``count`` bytes that leaves no interval."""
    return Term(name=name, low_bytes=count, high_bytes=count, source=source, expected_bytes=count)


def profile(
    architecture: Architecture, settings: EngineSettings, version: Version, transients: Transients, *, pictures: bool
) -> Term:
    """Estimate the transient bytes of vLLM's profile run: the highest of a layer, of the tower and of the sampler.

    ``pictures``: the tower runs, too. Early versions are a fit to published logs, with its error as the interval.
    """
    logits = settings.sequences * architecture.vocab_size
    states_bytes = 2 * settings.batched_tokens * architecture.hidden_size  # the last hidden states, in 16 bits
    if version.profile == "fit":
        fitted = logits * FIT_TENTHS // 10 + states_bytes
        low, expected, high = int(fitted * (1 - FIT_ERROR)), fitted, int(fitted * (1 + FIT_ERROR))
        high = max(high, transients.layer + states_bytes)
        if pictures:  # the one public boot with a tower, Mistral Small 3.2, shows a layer's pass, and less than the fit
            low, expected, high = (
                states_bytes,
                max(transients.layer, transients.tower),
                max(high, transients.tower + fitted),
            )
        source = "vLLM up to 0.11: 38.4 x max_num_seqs x vocabulary + 2 T H"
    else:
        model_bytes = max(transients.layer, transients.tower)
        expected = max(model_bytes, states_bytes + SAMPLER.expected * logits)
        low = min(states_bytes + SAMPLER.low * logits, expected)
        high = max(2 * model_bytes, states_bytes + SAMPLER.high * logits, expected)
        source = "one layer on max_num_batched_tokens, or the sampler on max_num_seqs x vocabulary; no log to check it"
    return Term(name="profile", low_bytes=low, high_bytes=high, source=source, expected_bytes=expected)


def outside(settings: EngineSettings, version: Version) -> Term:
    """Return the memory outside torch's allocator, as the driver sees it: kernels, workspaces, communicators."""
    gpus = settings.tensor * settings.pipeline
    outside_mib = OUTSIDE_MIB if gpus == 1 else OUTSIDE_SEVERAL_MIB
    segments_mib = SEGMENTS_MIB if version.graphs_in_share else 0
    return Term(
        name="outside",
        low_bytes=outside_mib.low * MIB,
        high_bytes=(outside_mib.high + segments_mib) * MIB,
        source="four public boots of vLLM 0.11.0",
        expected_bytes=outside_mib.expected * MIB,
    )


def graphs(settings: EngineSettings) -> Term:
    """Return the memory of CUDA graphs: exact where it is stated or graphs are off, else an interval from 0 to
    unknown.
    """
    if settings.graphs_bytes is None:
        return Term(
            name="graphs",
            low_bytes=0,
            high_bytes=None,
            source=f"no formula is known: {GRAPHS_SEEN}",
            expected_bytes=0,
        )
    source = "enforce_eager: none are made" if settings.eager else "stated: graphs_gib"
    return _exact("graphs", settings.graphs_bytes, source)


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


def verdict(
    architecture: Architecture, settings: EngineSettings, card: EngineGpu, transients: Transients
) -> EngineAnswer:
    """Say whether the engine boots, for a known version, or for both versions around an unknown one."""
    versions = enclosing(settings.version)
    answers = [_of_version(architecture, settings, card, transients, version) for version in versions]
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
    architecture: Architecture, settings: EngineSettings, card: EngineGpu, transients: Transients, version: Version
) -> EngineAnswer:
    """Say whether the engine boots with one version of vLLM.

    If it ends before any question of memory, such as heads that do not divide, sizes are reported for one GPU.
    """
    require_modelled(architecture, version, settings.pipeline)
    early = refused(architecture, settings, version, card.arch)
    if early is not None:
        settings = settings._replace(tensor=1, pipeline=1)
    built = _build(architecture, settings, card, transients, version)
    if early is not None:
        return _answer(built, card, FAILS, early, (), PoolBytes(least=0, expected=0, most=0))
    return _judged(built, card)


def _build(
    architecture: Architecture, settings: EngineSettings, card: EngineGpu, transients: Transients, version: Version
) -> _Built:
    """Compute the cache groups of every pipeline rank, and the terms of its memory, for one version."""
    caches = layer_caches(architecture, settings, version, card.arch)
    groups = grouped(caches.layers, version)
    cuts = stages(len(caches.layers), settings.pipeline)
    ranks = tuple([on_rank(groups, first, last) for first, last in cuts])
    resident = rank_bytes(architecture, settings, version)
    terms = [terms_of(architecture, of_rank, settings, version, transients) for of_rank in resident]
    return _Built(
        settings=settings,
        version=version,
        groups=ranks,
        terms=tuple(terms),
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
