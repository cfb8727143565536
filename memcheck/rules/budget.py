"""The memory budget in words, shared by the MEM1xx rules.

Numbers and names as people read them.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isqrt

from memcheck.accounts.estimate import Estimate, HostMoment
from memcheck.edge.screen import between
from memcheck.errors import closest
from memcheck.job.types import TrainingJob
from memcheck.memory.fit import UNCERTAIN, verdict_of
from memcheck.rules.types import RuleContext, stated

GIB = 2**30


def gib(count: int) -> str:
    """Bytes as GiB: ``12.34 GiB``."""
    return f"{count / GIB:,.2f} GiB"


def percent(fraction: float) -> str:
    """A fraction as a percentage with one decimal: ``97.1%``."""
    return f"{fraction * 100:.1f}%"


def component(name: str) -> str:
    """A component of the estimate: ``optimizer states``, ``KV cache``."""
    return {"kv_cache": "KV cache", "context_and_nccl": "context and NCCL"}.get(name, name.replace("_", " "))


def listed(words: Iterable[object], last: str = "and") -> str:
    """Return ``a, b and c``."""
    items = [str(w) for w in words]
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def shown(value: object) -> str:
    """Return a value as the plan writes it, cut where it is long."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def divisors(number: int, most: int) -> tuple[int, ...]:
    """Return the divisors of a number up to ``most``, ascending."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(d for d in sorted({*small, *(number // d for d in small)}) if d <= most)


def multiples(number: int, of: int) -> str:
    """Return the nearest multiples of ``of`` around a number that is none: ``24 or 32``."""
    below = number // of * of
    return f"{below} or {below + of}" if below else str(of)


def close_to(word: str, known: Iterable[str]) -> str:
    """Return a did-you-mean for a misspelt word, or an empty string."""
    found = closest(word, known, 3)
    return f"did you mean {listed((f'`{f}`' for f in found), 'or')}?" if found else ""


STATES = ("parameters", "gradients", "master_weights", "optimizer_states")
OUTSIDE = {
    "load": ("/training/initialization/place", "/training/initialization", "/training/method"),
    "save": ("/training/checkpoint/offload", "/training/checkpoint"),
}
"""Keys that decide what happens before and after the steps."""
BATCH = ("activations", "logits_and_loss", "temporaries")


def need(context: RuleContext, estimate: Estimate) -> str:
    """Return ``needs 96.31 GiB of the 79.10 GiB of h100-80gb (121.8%)``."""
    capacity = f"{gib(estimate.capacity_bytes)} of {context.resolved.gpu.name}"
    return f"needs {gib(estimate.needed_bytes)} of the {capacity} ({percent(estimate.utilization)})"


def doubt(context: RuleContext, estimate: Estimate) -> str:
    """Return ``; uncertain: it may be between 73.6 and 89.7 GiB``, for a need above the limit whose interval crosses
    it.
    """
    if verdict_of(estimate, context.fail_above) != UNCERTAIN:
        return ""
    return f"; uncertain: it may be {between(estimate.needed_interval_bytes)} GiB{settling(context)}"


def settling(context: RuleContext) -> str:
    """``; to settle it: ...``, where that is known of an uncertain plan."""
    return f"; to settle it: {context.settled_by}" if context.settled_by else ""


def lacking(moment: HostMoment, host_bytes: int, gpus: int) -> str:
    """Return ``a node needs 2,102.66 GiB of host memory in load (8 processes making the model), and has 512.00 GiB,
    ...``.

    ``gpus``: of a node.
    """
    missing = gib(moment.bytes - host_bytes)
    return (
        f"a node needs {gib(moment.bytes)} of host memory {in_host(moment, gpus)}, and has {gib(host_bytes)},"
        f" {missing} too little"
    )


def in_host(moment: HostMoment, gpus: int) -> str:
    """Return ``for what is offloaded by its 8 GPUs`` | ``in load (8 processes making the model)``."""
    if moment.name == "step":
        return f"for what is offloaded by its {gpus} GPUs" if gpus > 1 else "for what is offloaded by its GPU"
    return f"in {moment.name} ({moment.operation})"


def peak(context: RuleContext, estimate: Estimate) -> str:
    """Say where and when the peak is, and what it is made of."""
    rank = ""
    if context.layout.pipeline > 1:
        rank = f"pipeline rank {estimate.pipeline_rank} of {context.layout.pipeline} peaks "
    else:
        rank = "the peak is "
    operation = f" ({estimate.operation})" if estimate.operation and estimate.operation != estimate.instant else ""
    return f"{rank}in {estimate.instant}{operation}; largest: {largest(estimate)}"


def largest(estimate: Estimate, count: int = 2) -> str:
    """Return the biggest components with their bytes."""
    ordered = sorted(estimate.needed_parts_bytes.items(), key=lambda item: -item[1])
    return listed(f"{component(name)} {gib(b)}" for name, b in ordered[:count] if b > 0)


def key_pointer(context: RuleContext, estimate: Estimate) -> str:
    """Return the written key that decides most of the peak: the batch when activations lead, the sharding when states
    lead.
    """
    if context.training is None:
        serving = context.plan.inference
        by_cache = ("/inference/batch_size", "/inference/context_length")
        if serving is None or serving.batch_size in {None, 1}:
            by_cache = by_cache[::-1]
        return stated(context.document, *by_cache, "/hardware/gpu")
    parts = estimate.components_bytes
    batch, states = sum(parts.get(n, 0) for n in BATCH), sum(parts.get(n, 0) for n in STATES)
    by_batch = ("/training/micro_batch_size", "/training/sequence_length", "/training/activation_checkpointing")
    by_state = ("/parallelism/zero_stage", "/parallelism/tensor", "/parallelism/pipeline", "/training/optimizer")
    if batch > states and context.training.micro_batch_size == 1:
        by_batch = ("/training/activation_checkpointing", "/training/sequence_length", "/training/micro_batch_size")
    order = (*by_batch, *by_state) if batch > states else (*by_state, *by_batch)
    return stated(context.document, *OUTSIDE.get(estimate.instant, ()), *order, "/hardware/gpu")


def related(context: RuleContext) -> tuple[tuple[str, str], ...]:
    """Return places of the keys that decide the plan's memory, each with a label that says what the key contributes."""
    labels = [(f"{gib(context.resolved.gpu.memory_bytes)} usable", stated(context.document, "/hardware/gpu"))]
    job = context.training
    if job is not None:
        tokens = job.micro_batch_size * job.sequence_length
        labels += [
            (f"{job.micro_batch_size} x {job.sequence_length} = {tokens} tokens", "/training/micro_batch_size"),
            (f"{job.micro_batch_size} x {job.sequence_length} = {tokens} tokens", "/training/sequence_length"),
            (recomputed(job), "/training/activation_checkpointing"),
            (sharded(job), "/parallelism/zero_stage"),
        ]
        if job.expert_imbalance > 1:
            busiest = f"the busiest rank gets {job.expert_imbalance:g} x the mean"
            labels.append((busiest, "/training/expert_imbalance"))
    else:
        serving = context.plan.inference
        if serving is not None and serving.context_length is not None:
            cached = f"{serving.batch_size or 1} x {serving.context_length} tokens in the cache"
            labels += [(cached, "/inference/batch_size"), (cached, "/inference/context_length")]
    return tuple(labels)


def recomputed(job: TrainingJob) -> str:
    """Return ``all activations are kept`` | ``recompute full``."""
    mode = job.checkpointing.mode
    return "all activations are kept" if mode == "none" else f"recompute {mode}"


SHARDED = {1: "optimizer states", 2: "optimizer states and gradients", 3: "all states"}
"""What each ZeRO stage divides."""


def sharded(job: TrainingJob) -> str:
    """Return ``all states divided over 8 ranks`` | ``every GPU holds all states``."""
    ranks = job.layout.shard_group
    if not job.layout.zero_stage or ranks == 1:
        return "every GPU holds all states"
    return f"{SHARDED[job.layout.zero_stage]} divided over {ranks} ranks"
