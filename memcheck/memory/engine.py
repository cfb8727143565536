"""A serving engine's plan: what its profile run replays, its answer, and the estimate of every rank around it."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, Formula, RankEstimate, TensorGroup
from memcheck.accounts.program import Timeline
from memcheck.catalog.types import Gpu
from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import EngineAnswer, EngineSettings, Term
from memcheck.job.engines.vllm.terms import Transients
from memcheck.job.engines.vllm.verdict import EngineGpu, verdict
from memcheck.job.types import InferenceJob
from memcheck.memory.communicators import communicator_terms
from memcheck.memory.inference import profile_run
from memcheck.memory.overhead import context_terms
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture

COMPONENT = {
    "weights": "parameters",
    "buffers": "parameters",
    "towers": "parameters",
    "profile": "activations",
    "outside": "context_and_nccl",
    "graphs": "context_and_nccl",
}
"""The component that each term belongs to in reports."""


def engine_estimate(job: InferenceJob, gpu: Gpu, *, inventory: bool = False) -> Estimate:
    """The answer of the plan's engine, as the estimate of every pipeline rank on that GPU.

    Raises:
        UnsupportedError: memcheck has no model of this architecture in the engine.
    """
    settings, a = job.engine, job.architecture
    if settings is None or not isinstance(a, Architecture):
        raise UnsupportedError("the plan names no engine", "add `engine: vllm`", "/inference")
    low = sum(size for _, size, _ in context_terms(gpu))
    high = low + sum(size for _, size, _ in communicator_terms(job, gpu))
    layer, tower = profile_run(job, a)
    answer = verdict(a, settings, EngineGpu(gpu.memory_bytes, gpu.arch, (low, high)), Transients(layer, tower))
    ranks = tuple([_rank(i, terms, answer) for i, terms in enumerate(answer.ranks)])
    worst = max(ranks, key=lambda rank: rank.peak.allocated_bytes)
    allocated = worst.peak.allocated_bytes
    terms = answer.ranks[worst.pipeline_rank]
    spread = _spread(answer, terms)
    needed = (allocated + low - spread[0], allocated + high + spread[1])
    components = dict(worst.peak.components_bytes)
    components["context_and_nccl"] = components.get("context_and_nccl", 0) + high
    formulas = _formulas(answer, terms) if inventory else ()
    return Estimate(
        allocated_bytes=allocated,
        reserved_bytes=allocated,
        device_bytes=allocated + high,
        capacity_bytes=gpu.memory_bytes,
        interval_bytes=needed,
        needed_interval_bytes=needed,
        instant=worst.peak.name,
        operation=worst.peak.operation,
        pipeline_rank=worst.pipeline_rank,
        components_bytes={name: count for name, count in components.items() if count},
        parameters=count_parameters(a),
        trainable_parameters=0,
        host_bytes_per_node=0,
        ranks=ranks,
        largest=_largest(answer, terms) if inventory else (),
        formulas=formulas,
        engine=answer,
    )


def _pool_bytes(answer: EngineAnswer) -> int:
    """Bytes of the KV cache: the expected pool, or one request where the engine does not boot with it."""
    return max(answer.pool_bytes, 0) if answer.pool is not None else max(answer.request_bytes, answer.pool_bytes, 0)


def _rank(number: int, terms: tuple[Term, ...], answer: EngineAnswer) -> RankEstimate:
    """The estimate of one rank: its weights, then all of its terms with the pool."""
    timeline = Timeline()
    for term in terms:
        if COMPONENT[term.name] == "parameters":
            timeline.hold("parameters", term.expected_bytes)
    timeline.mark("init", "weights at rest")
    for term in terms:
        if COMPONENT[term.name] != "parameters" and term.expected_bytes:
            timeline.hold(COMPONENT[term.name], term.expected_bytes)
    timeline.hold("kv_cache", _pool_bytes(answer))
    timeline.mark("serve", "the allocation of the pool")
    held = next(term for term in terms if term.name == "weights")
    return RankEstimate(pipeline_rank=number, instants=timeline.instants(), parameters=held.expected_bytes // 2)


def _spread(answer: EngineAnswer, terms: tuple[Term, ...]) -> tuple[int, int]:
    """How much less, and more, than expected a rank may hold. Within a share, the pool takes what the terms leave."""
    settings = answer.settings
    graphs = next((t for t in terms if t.name == "graphs"), None)
    if settings.pool_bytes is None:
        return 0, 0
    low = sum(t.expected_bytes - t.low_bytes for t in terms)
    high = sum((t.expected_bytes if t.high_bytes is None else t.high_bytes) - t.expected_bytes for t in terms)
    return low, high if graphs is not None else 0


def _largest(answer: EngineAnswer, terms: tuple[Term, ...]) -> tuple[TensorGroup, ...]:
    """List what a serving engine allocates on one GPU, the KV cache included, the largest first."""
    rows = [
        TensorGroup(name=NAMES[t.name], shape="", copies=1, bytes=t.expected_bytes, component=COMPONENT[t.name])
        for t in terms
        if t.expected_bytes
    ]
    pool = TensorGroup(name="KV cache", shape="", copies=1, bytes=_pool_bytes(answer), component="kv_cache")
    return tuple(sorted([*rows, pool], key=lambda row: -row.bytes))


NAMES = {
    "weights": "weights",
    "buffers": "buffers",
    "towers": "vision and audio towers",
    "profile": "profile run",
    "outside": "outside of torch",
    "graphs": "CUDA graphs",
    "context": "context and communicators",
    "version": "version",
}
"""The terms in words."""


def _formulas(answer: EngineAnswer, terms: tuple[Term, ...]) -> tuple[Formula, ...]:
    """Each term with its interval and source, then the pool and one request."""
    found = [
        Formula(
            component=COMPONENT[t.name],
            formula=NAMES[t.name],
            numbers=_interval(t),
            bytes=t.expected_bytes,
            source=t.source,
        )
        for t in terms
    ]
    pages = f"{answer.request_pages:,} blocks for a request of {_length(answer.settings, answer):,} tokens"
    what = "share x GPU - terms" if answer.settings.pool_bytes is None else "stated"
    source = f"vLLM {answer.settings.version}: determine_available_memory, get_kv_cache_configs"
    return (
        *found,
        Formula(component="kv_cache", formula=what, numbers=pages, bytes=_pool_bytes(answer), source=source),
    )


def _length(settings: EngineSettings, answer: EngineAnswer) -> int:
    return answer.pool.length if answer.pool is not None else settings.length or settings.longest


def _interval(t: Term) -> str:
    high = "unknown" if t.high_bytes is None else f"{t.high_bytes:,} B"
    return f"between {t.low_bytes:,} B and {high}"
