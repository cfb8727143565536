"""Changes of a serving engine's plan after which it may boot: its share, its limits, its cache, its ranks."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from memcheck.catalog.names import compute_capability, lacks_fp8
from memcheck.job.engines.types import EngineAnswer, EngineSettings
from memcheck.job.types import InferenceJob
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.changes import EQUIVALENT, HARDWARE, METHOD, NUMERICS, OTHER, CandidateChange

LARGEST_SHARE = 0.98
"""The largest share that is suggested: what is left is for the context and for graphs outside the share."""
LEAST_LENGTH, LEAST_SEQUENCES, LEAST_TOKENS = 1024, 8, 512
"""Limits of an engine below which no smaller ones are suggested."""
MOST_RANKS = 8
"""Tensor ranks of a served model: those of a usual node."""
BLACKWELL = 100
"""The compute capability from which matrix products take NVFP4."""
BITS = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "fp4": 4.5, "int4": 4}


def less(number: int, least: int) -> Iterator[int]:
    """Yield three quarters of it and half of it, and so on: the most first."""
    half = number
    while half > least:
        half //= 2
        for each in dict.fromkeys((half * 3 // 2, half)):
            if least <= each < number:
                yield each


def engine_changes(context: RuleContext, job: InferenceJob) -> Iterator[CandidateChange]:
    """Yield single changes of the keys of ``inference``, by kind; each is priced by the engine's own arithmetic.

    A larger share, smaller passes and fewer sequences at once serve the same requests. Shorter requests and fewer bits
    do not. CUDA graphs that nobody can size are left out with ``enforce_eager``.
    """
    settings = job.engine
    if settings is None:
        return
    answer = context.estimate.engine if context.estimate is not None else None
    yield from _shares(settings, answer)
    for size in less(settings.batched_tokens, LEAST_TOKENS):
        now = settings.batched_tokens
        title = f"read at most {size:,} tokens per pass instead of {now:,}: long prompts take more passes"
        yield CandidateChange("tokens", title, {"inference.max_num_batched_tokens": size})
    for size in less(settings.sequences, LEAST_SEQUENCES):
        title = f"serve at most {size:,} sequences at once instead of {settings.sequences:,}: other requests wait"
        yield CandidateChange("sequences", title, {"inference.max_num_seqs": size})
    if not settings.eager and settings.graphs_bytes is None:
        title = "make no CUDA graphs, whose size no formula tells: small batches are slower"
        yield CandidateChange("graphs", title, {"inference.enforce_eager": True}, numerics=EQUIVALENT)
    yield from _ranks(context, settings)
    yield from _stored(context, settings)
    yield from _lengths(settings, answer)


def _shares(settings: EngineSettings, answer: EngineAnswer | None) -> Iterator[CandidateChange]:
    """Yield the share that one request needs by the expected figures, then larger ones; smaller ones where it is not
    free.
    """
    share = settings.share
    if share is None or answer is None:
        return
    crowded = answer.refusal is not None and answer.refusal.kind == "free"
    if crowded or "context" in answer.depends_on:
        shares = [round(share - step / 100, 2) for step in (1, 2, 5, 10) if share - step / 100 > 0]
    else:
        needed = answer.share_needed
        first = [] if needed is None else [ceil(needed * 100) / 100]
        shares = [each for each in dict.fromkeys((*first, 0.9, 0.92, 0.95, LARGEST_SHARE)) if each > share]
    for each in sorted(shares, reverse=shares[:1] < [share]):
        if each <= max(LARGEST_SHARE, share):
            title = f"let the engine use {each:.0%} of the GPU instead of {share:g}"
            yield CandidateChange("share", title, {"inference.gpu_memory_utilization": each})


def _ranks(context: RuleContext, settings: EngineSettings) -> Iterator[CandidateChange]:
    """Yield more tensor-parallel ranks: on the GPUs of the plan, else on more of them."""
    layout = context.layout
    degree = settings.tensor * 2
    while degree <= MOST_RANKS:
        change: dict[str, object] = {"inference.tensor": degree}
        hardware = degree * settings.pipeline > layout.gpus_per_node
        if hardware:
            change["hardware.gpus_per_node"] = degree * settings.pipeline
        title = f"split the model over {degree} GPUs (tensor parallelism)"
        cost = HARDWARE if hardware else 0
        yield CandidateChange("tensor", title, change, cost=cost, numerics=EQUIVALENT)
        degree *= 2


def _stored(context: RuleContext, settings: EngineSettings) -> Iterator[CandidateChange]:
    """Yield an fp8 cache, and fewer bits of the weights, as far as the GPU multiplies them or a kernel unpacks them."""
    gpu = context.resolved.gpu
    if settings.kv_cache != "fp8" and not lacks_fp8(gpu):
        change: dict[str, object] = {"inference.kv_cache": "fp8"}
        yield CandidateChange("cache", "keep the KV cache in fp8", change, cost=NUMERICS, numerics=OTHER)
    byte = "int8" if lacks_fp8(gpu) else "fp8"
    four = ("fp4", "int4") if (compute_capability(gpu) or 0) >= BLACKWELL else ("int4",)
    for dtype in (byte, *four):
        if BITS[dtype] < BITS.get(settings.weights, 16):
            change = {"inference.weights": dtype}
            title = f"serve a checkpoint in {dtype}"
            yield CandidateChange("weights", title, change, cost=NUMERICS, numerics=OTHER)


def _lengths(settings: EngineSettings, answer: EngineAnswer | None) -> Iterator[CandidateChange]:
    """Yield shorter requests: the longest that fits by the expected figures, then three quarters, half and so on."""
    now = settings.length or settings.longest
    fits = answer.longest // LEAST_LENGTH * LEAST_LENGTH if answer is not None else 0
    for tokens in dict.fromkeys((*([fits] if LEAST_LENGTH <= fits < now else []), *less(now, LEAST_LENGTH))):
        title = f"serve requests of up to {tokens:,} tokens instead of {now:,}: longer ones are refused"
        yield CandidateChange("length", title, {"inference.max_model_len": tokens}, cost=METHOD)
