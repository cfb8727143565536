"""A serving engine's plan: its profile run, its answer, the estimate of every rank; and a lower bound of any peak."""

from __future__ import annotations

from memcheck.accounts.estimate import Estimate, Formula, RankEstimate, TensorGroup
from memcheck.accounts.program import Timeline
from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.frameworks.registry import stack_of
from memcheck.job.engines.types import EngineAnswer, EngineSettings, Term
from memcheck.job.engines.vllm.verdict import EngineGpu, verdict
from memcheck.job.types import DTYPE_BYTES, InferenceJob, TrainingJob
from memcheck.memory.inference import profile_run
from memcheck.memory.overhead import communicator_terms, context_terms
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture, Rough
from memcheck.record import Record

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
    """Estimate a plan that a serving engine runs: what vLLM would allocate on every pipeline rank of that GPU.

    Raises:
        UnsupportedError: memcheck has no model of this architecture in the engine.
    """
    settings, a = job.engine, job.architecture
    if settings is None or not isinstance(a, Architecture):
        raise UnsupportedError("the plan names no engine", "add `engine: vllm`", "/inference")
    context_bytes = sum(term.bytes for term in context_terms(gpu))
    with_nccl_bytes = context_bytes + sum(term.bytes for term in communicator_terms(job, gpu))
    engine_gpu = EngineGpu(gpu.memory_bytes, gpu.arch, (context_bytes, with_nccl_bytes))
    answer = verdict(a, settings, engine_gpu, profile_run(job, a))
    ranks = tuple([_rank(i, terms, answer) for i, terms in enumerate(answer.ranks)])
    worst = max(ranks, key=lambda rank: rank.peak.allocated_bytes)
    allocated = worst.peak.allocated_bytes
    terms = answer.ranks[worst.pipeline_rank]
    errors = _term_errors(answer, terms)
    # whether NCCL has made its communicators by then is not known: the lower end leaves them out
    needed = (allocated + context_bytes - errors.below, allocated + with_nccl_bytes + errors.above)
    components = dict(worst.peak.components_bytes)
    components["context_and_nccl"] = components.get("context_and_nccl", 0) + with_nccl_bytes
    formulas = _formulas(answer, terms) if inventory else ()
    return Estimate(
        allocated_bytes=allocated,
        reserved_bytes=allocated,
        device_bytes=allocated + with_nccl_bytes,
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
    """Return the bytes of the KV cache that vLLM allocates.

    If the engine does not boot because its pool is smaller than one request, the bytes of that request.
    """
    if answer.pool is None:
        return max(answer.request_bytes, answer.pool_bytes, 0)
    return max(answer.pool_bytes, 0)


def _rank(number: int, terms: tuple[Term, ...], answer: EngineAnswer) -> RankEstimate:
    """Return the estimate of one pipeline rank at two moments: weights loaded, and the KV cache allocated on top.

    ``number``: the rank. ``terms``: what vLLM allocates on it besides the KV cache, with bytes.
    """
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
    weights = next(term for term in terms if term.name == "weights")
    parameters = weights.expected_bytes // DTYPE_BYTES["bf16"]  # as if none were quantised
    return RankEstimate(pipeline_rank=number, instants=timeline.instants(), parameters=parameters)


class ErrorBytes(Record):
    """How many bytes less and more than expected a rank may take."""

    below: int = 0
    above: int = 0


def _term_errors(answer: EngineAnswer, terms: tuple[Term, ...]) -> ErrorBytes:
    """Add up how far the terms of a rank may be from what is expected.

    Both are 0 under ``gpu_memory_utilization``: the KV cache takes whatever the other terms leave of that share. Only a
    KV cache of stated size leaves their errors visible.
    """
    if answer.settings.pool_bytes is None:
        return ErrorBytes()
    below = above = 0
    for term in terms:
        below += term.expected_bytes - term.low_bytes
        if term.high_bytes is not None:
            above += term.high_bytes - term.expected_bytes
    captures_graphs = any(term.name == "graphs" for term in terms)
    return ErrorBytes(below=below, above=above if captures_graphs else 0)


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
    """Return a formula for each allocation of vLLM with its interval and source, then one for the KV cache."""
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
    """Return the tokens of the longest request: vLLM's own choice for the pool, else ``max_model_len``."""
    return answer.pool.length if answer.pool is not None else settings.length or settings.longest


def _interval(t: Term) -> str:
    high = "unknown" if t.high_bytes is None else f"{t.high_bytes:,} B"
    return f"between {t.low_bytes:,} B and {high}"


def states_floor(job: TrainingJob) -> int:
    """Return the bytes of resident states on the fullest rank: no peak of the job is lower. 0: no bound is known."""
    if isinstance(job.architecture, Rough):
        return 0
    return stack_of(job.framework).states_floor(job, job.architecture)
