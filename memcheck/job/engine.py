"""From the keys of a serving engine to its settings: every default of the version on that GPU, each written down."""

from __future__ import annotations

from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import EngineSettings
from memcheck.job.engines.vllm.versions import (
    Version,
    batch_defaults,
    default_length,
    default_prefixes,
    enclosing,
    known,
    order,
)
from memcheck.job.lookup import Defaults, JobProblem, ResolutionError
from memcheck.models.types import Architecture, Rough
from memcheck.plan.types import InferenceSpec, ParallelismSpec

GIB = 2**30
ENGINE_KEYS = (
    *("version", "tensor", "pipeline", "gpu_memory_utilization", "kv_cache_bytes", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "block_size", "enforce_eager", "graphs_gib", "prefix_caching", "images", "demand"),
)
OWN_KEYS = ("batch_size", "context_length", "chunk")
"""Keys of a plan without an engine."""
CACHES = ("auto", "bf16", "fp8")


def stray_keys(stated: InferenceSpec, parallelism: ParallelismSpec) -> tuple[JobProblem, ...]:
    """List the keys of ``inference`` that conflict: with each other, or with whether the plan names an engine.

    ``stated``: the plan's ``inference``. ``parallelism``: must be empty with an engine, which has its own degrees.
    """
    found = []
    if stated.engine is None:
        for key in ENGINE_KEYS:
            if getattr(stated, key) is not None:
                message = f"`{key}` is a key of a serving engine, and the plan names none"
                found.append(_conflict(key, message, "add `engine: vllm`, or remove the key"))
        if stated.kv_cache == "auto":
            message = "`kv_cache: auto` is the default of a serving engine, and the plan names none"
            found.append(_conflict("kv_cache", message, "write the dtype, e.g. `kv_cache: bf16`"))
        return tuple(found)
    for key in OWN_KEYS:  # keys of plans without an engine
        if getattr(stated, key) is not None:
            better = {"context_length": "max_model_len", "chunk": "max_num_batched_tokens"}.get(key, "demand")
            message = f"`{key}` is a key of a plan without an engine"
            found.append(_conflict(key, message, f"remove it; {stated.engine} has `{better}`"))
    if stated.kv_cache_bytes is not None and stated.gpu_memory_utilization is not None:
        message = "`kv_cache_bytes` replaces `gpu_memory_utilization`, and the plan states both"
        found.append(_conflict("kv_cache_bytes", message, "keep one of the two"))
    if stated.version is not None and order(stated.version) is None:
        message = f"`{stated.version}` is no version of {stated.engine}"
        help = f'write a release such as `version: "{known()[-1].name}"`'
        found.append(JobProblem("target", "/inference/version", message, help=help))
    if stated.gpu_memory_utilization is not None and stated.gpu_memory_utilization > 1:
        message = f"`gpu_memory_utilization: {stated.gpu_memory_utilization:g}` is more than the whole GPU"
        help = "write a share of the GPU, such as `gpu_memory_utilization: 0.9`"
        found.append(JobProblem("target", "/inference/gpu_memory_utilization", message, help=help))
    if stated.enforce_eager and stated.graphs_gib:
        message = "`enforce_eager: true` makes no CUDA graphs, and `graphs_gib` states their size"
        found.append(_conflict("graphs_gib", message, "keep one of the two"))
    if stated.kv_cache not in (None, *CACHES):
        message = f"memcheck has no model of {stated.engine} with `kv_cache: {stated.kv_cache}`"
        found.append(_conflict("kv_cache", message, f"write one of {', '.join(CACHES)}"))
    stated_degrees = [key for key, value in parallelism._asdict().items() if value is not None]
    for key in stated_degrees:
        pointer = f"/parallelism/{key}"
        message = f"`parallelism.{key}` is set, and the degrees of an engine are keys of `inference`"
        help = f"write `inference.{key}`" if key in ("tensor", "pipeline") else "remove the key"
        found.append(JobProblem("conflict", pointer, message, help=help))
    return tuple(found)


def _conflict(key: str, message: str, help: str) -> JobProblem:
    return JobProblem("conflict", f"/inference/{key}", message, help=help)


def _behaviour_of(version: str, defaults: Defaults) -> Version:
    """Return the known version of vLLM whose behaviour is computed for ``version``, such as ``0.21.0``.

    It is the version itself if memcheck knows it, else the next newer known one; after the newest known version, that.
    A version that memcheck does not know is noted in ``defaults``, with the known ones before and after it.
    """
    nearest = enclosing(version)
    is_known = len(nearest) == 1 and order(nearest[0].name) == order(version)
    if not is_known:
        names = " and ".join(each.name for each in nearest)
        defaults.note("inference.version", names, f"memcheck does not know {version}: computed as the versions near it")
    return nearest[-1]


def _request_length(stated: InferenceSpec, length_of_model: int, defaults: Defaults) -> int:
    """Return the tokens of the longest request: the plan's, or the model's own, which is noted; 0 for ``auto``.

    ``length_of_model``: 0 if the model states none.

    Raises:
        ResolutionError: neither the plan nor the model states a number.
    """
    length = stated.max_model_len
    if length is None:
        length = length_of_model
        if length:
            defaults.note("inference.max_model_len", length, "the model's own")
    if isinstance(length, int):
        return length
    if not length_of_model:
        problem = JobProblem(
            "missing",
            "/inference",
            "inference.max_model_len is missing: the model states no longest request",
            help="write the number of tokens per request, e.g. `max_model_len: 32768`",
        )
        raise ResolutionError((problem,))
    return 0


def _modelled(stated: InferenceSpec, architecture: Architecture | Rough, gpu: Gpu) -> Architecture:
    """Return the model, if memcheck can compute an engine's KV cache and profile run for it on this GPU.

    Raises:
        ResolutionError: the model is a rough one, or the plan states images and it reads none.
        UnsupportedError: memcheck has no model of the engine on that GPU.
    """
    if isinstance(architecture, Rough):
        message = "`rough` models have no attention shape, so that no engine's KV cache can be computed"
        help = "describe the model by name, config or architecture"
        raise ResolutionError((JobProblem("conflict", "/model/rough", message, help=help),))
    if stated.images and architecture.vision is None and not architecture.others:
        message = f"`images: true`, and {architecture.model_type} reads no images"
        problem = JobProblem("conflict", "/inference/images", message, help="remove the key")
        raise ResolutionError((problem,))
    if gpu.arch is not None and not gpu.arch.startswith("sm_"):
        message = f"memcheck has no model of vLLM on {gpu.name}: its attention backends and profile run are others"
        raise UnsupportedError(message, "name an NVIDIA GPU, or size the model without an engine", "/hardware/gpu")
    return architecture


def _graphs_bytes(stated: InferenceSpec, *, eager: bool) -> int | None:
    """Return the bytes of CUDA graphs that the plan states, 0 if ``eager`` makes none; None: they are estimated."""
    if eager:
        return 0
    return None if stated.graphs_gib is None else int(stated.graphs_gib * GIB)


def resolve_engine(
    stated: InferenceSpec, architecture: Architecture | Rough, gpu: Gpu, world: int, defaults: Defaults
) -> EngineSettings:
    """Return the settings of the plan's serving engine; values that it does not state are noted in ``defaults``.

    ``stated``: the plan's ``inference``. ``world``: GPUs of the plan.

    Raises:
        ResolutionError: the model is a rough one or reads no images, or it states no longest request.
        UnsupportedError: memcheck has no model of the engine on that GPU.
    """
    architecture = _modelled(stated, architecture, gpu)
    # the version: a known one, or the known ones before and after it
    newest = known()[-1].name
    version = defaults.stated_or("inference.version", stated.version, newest, "the newest version that memcheck knows")
    behaviour = _behaviour_of(version, defaults)
    limits = batch_defaults(gpu, behaviour)
    why = f"default of vLLM {behaviour.name} for an API server on this GPU"
    length_of_model = default_length(architecture)
    length = _request_length(stated, length_of_model, defaults)
    tokens = limits.tokens
    if architecture.model_type in behaviour.whole_prompts:
        tokens = max(tokens, length_of_model)
    batched = defaults.stated_or("inference.max_num_batched_tokens", stated.max_num_batched_tokens, tokens, why)
    share = stated.gpu_memory_utilization
    if stated.kv_cache_bytes is None:
        share = defaults.stated_or("inference.gpu_memory_utilization", share, behaviour.share, why)
    weights = defaults.stated_or("inference.weights", stated.weights, "bf16")
    eager = defaults.stated_or("inference.enforce_eager", stated.enforce_eager, default=False)
    most_sequences = min(limits.sequences, batched)
    return EngineSettings(
        name=stated.engine or "vllm",
        version=version,
        tensor=defaults.stated_or("inference.tensor", stated.tensor, 1),
        pipeline=defaults.stated_or("inference.pipeline", stated.pipeline, 1),
        share=share,
        pool_bytes=stated.kv_cache_bytes,
        length=length,
        longest=length_of_model or length,
        sequences=defaults.stated_or("inference.max_num_seqs", stated.max_num_seqs, most_sequences, why),
        batched_tokens=batched,
        block=stated.block_size,
        kv_cache=defaults.stated_or("inference.kv_cache", stated.kv_cache, "auto"),
        weights=weights,
        eager=eager,
        graphs_bytes=_graphs_bytes(stated, eager=eager),
        prefix_caching=defaults.stated_or(
            "inference.prefix_caching", stated.prefix_caching, default_prefixes(architecture, behaviour), why
        ),
        pictures=stated.images is not False,
        demand=None if stated.demand is None else (stated.demand.sequences, stated.demand.length),
        world=world,
    )
