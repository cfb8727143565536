"""Changes of a training plan that may free memory on the same hardware."""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.job.types import TrainingJob
from memcheck.remedies import slowdown as cost
from memcheck.remedies.change import setting
from memcheck.remedies.types import METHOD, NUMERICS, Candidate
from memcheck.rules.types import Context

FOREACH_CLASS = ("adamw", "adam")
EIGHT_BIT = {"adamw": "adamw-8bit", "adam": "adamw-8bit", "lion": "lion-8bit"}
STAGE_WORDS = {
    1: "the optimizer states",
    2: "optimizer states and gradients",
    3: "parameters, gradients and optimizer states",
}


def same_hardware(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    """Everything that needs no other GPU; illegal ones are sorted out when they are priced."""
    yield from _kernels(context, job)
    yield from _loss(context, job)
    yield from _sharding(context, job)
    yield from _micro_batch(context, job)
    yield from _recompute(context, job)
    yield from _optimizer(context, job)
    yield from _offload(context, job)
    yield from _adapters(context, job)


def _kernels(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    document = context.document
    if job.attention == "eager":
        yield Candidate("attention", "use a fused attention kernel", {"training.attention": "sdpa"}, 0.0)
    if job.optimizer.implementation == "foreach" and job.optimizer.name in FOREACH_CLASS:
        whole = {"name": job.optimizer.name, "implementation": "fused"}
        change = setting(document, "training.optimizer", "implementation", "fused", whole)
        yield Candidate("implementation", "update with the fused optimizer kernel", change, 0.0)
    if not job.expandable_segments:
        title = "let the allocator grow its segments (PYTORCH_ALLOC_CONF=expandable_segments:True)"
        yield Candidate("allocator", title, {"training.expandable_segments": True}, 0.0)


def _loss(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    document, framework = context.document, context.framework
    losses = framework.losses if framework else ()
    if job.loss.kind == "vocab-parallel" and job.layout.tensor > 1:
        return
    if job.loss.keep_logits:
        whole = {"kind": job.loss.kind, "keep_logits": False}
        change = setting(document, "training.loss", "keep_logits", False, whole)
        yield Candidate("logits", "drop the model's output before backward", change, 0.0)
    if job.loss.kind != "fused-linear" and "fused-linear" in losses:
        change = setting(document, "training.loss", "kind", "fused-linear")
        title = "compute head and loss in one kernel (Liger, cut cross-entropy)"
        yield Candidate("loss", title, change, cost.FUSED_LINEAR_LOSS)
    elif job.loss.kind == "standard" and "chunked" in losses:
        change = setting(document, "training.loss", "kind", "chunked")
        yield Candidate("loss", "compute head and loss in chunks", change, cost.CHUNKED_LOSS)


def _sharding(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    layout, framework = job.layout, context.framework
    ranks = layout.data * layout.context
    if ranks == 1 or framework is None:
        return
    across = cost.ZERO_ACROSS_NODES if ranks * layout.tensor > layout.gpus_per_node else 0.0
    for stage in framework.zero_stages:
        if stage > layout.zero_stage:
            title = f"shard {STAGE_WORDS[stage]} over {ranks} ranks (ZeRO stage {stage})"
            slower = cost.ZERO[stage] + (across if stage == 3 else 0.0)
            yield Candidate("zero", title, {"parallelism.zero_stage": stage}, slower)
    if layout.zero_stage and layout.shard_group < ranks:
        title = f"shard over all {ranks} ranks instead of groups of {layout.shard_group}"
        yield Candidate("group", title, {"parallelism.shard_group": ranks}, across)
    if layout.zero_stage == 3 and not layout.reshard_after_forward:
        title = "free gathered parameters after forward"
        yield Candidate("reshard", title, {"parallelism.reshard_after_forward": True}, cost.RESHARD)
    if layout.gradient_sync == "last" and job.gradient_accumulation_steps > 1:
        title = "reduce gradients after every micro-batch"
        yield Candidate("sync", title, {"parallelism.gradient_sync": "every"}, cost.RESHARD)
    if layout.zero_stage == 0 and not layout.gradient_as_bucket_view and framework.name in {"pytorch", "huggingface"}:
        title = "let gradients be views of DDP's buckets"
        yield Candidate("buckets", title, {"parallelism.gradient_as_bucket_view": True}, 0.0)


def _micro_batch(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    """Halve the micro-batch and accumulate twice as often, keeping the global batch."""
    size, factor, slower = job.micro_batch_size, 1, 0.0
    while size > 1 and size % 2 == 0:
        tokens = size * job.sequence_length // job.layout.context
        slower += cost.MICRO_BATCH_PER_HALVING if tokens > cost.SMALL_TOKENS else cost.MICRO_BATCH_SMALL_PER_HALVING
        size, factor = size // 2, factor * 2
        change = {"training.micro_batch_size": size}
        title = f"micro-batch {job.micro_batch_size} -> {size}, accumulated {factor} times as often (same global batch)"
        yield Candidate("micro-batch", title, change, slower, accumulate=factor)


def _recompute(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    framework, mode = context.framework, job.checkpointing.mode
    if framework is None or mode == "full":
        return
    key, document = "training.activation_checkpointing", context.document
    selective = cost.SELECTIVE_RECOMPUTE if framework.name == "megatron" else cost.PER_OP_RECOMPUTE
    done = selective if mode == "selective" else 0.0
    if mode == "none" and "selective" in framework.recompute and framework.name in {"megatron", "torchtitan"}:
        title = "recompute selectively in backward"
        yield Candidate("recompute", title, setting(document, key, "mode", "selective"), selective)
    title = "recompute every block in backward"
    yield Candidate("recompute", title, setting(document, key, "mode", "full"), cost.FULL_RECOMPUTE - done)


def _optimizer(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    smaller = EIGHT_BIT.get(job.optimizer.name)
    if smaller is None or context.framework is None or context.framework.name in {"megatron", "torchtitan"}:
        return
    change = setting(context.document, "training.optimizer", "name", smaller)
    title = f"keep the optimizer states in 8 bits ({smaller})"
    yield Candidate("optimizer", title, change, cost.EIGHT_BIT_OPTIMIZER, NUMERICS)


def _offload(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    document, layout = context.document, job.layout
    fsdp = job.framework in {"pytorch", "huggingface", "torchtitan"}
    if job.optimizer.offload == "none" and not fsdp:
        whole = {"name": job.optimizer.name, "offload": "cpu"}
        change = setting(document, "training.optimizer", "offload", "cpu", whole)
        title = "keep the optimizer states in host memory"
        yield Candidate("offload", title, change, cost.OPTIMIZER_OFFLOAD)
    if job.parameter_offload == "none" and layout.zero_stage == 3 and job.framework != "megatron":
        title = "keep the sharded parameters and states in host memory"
        yield Candidate("offload-parameters", title, {"training.offload.parameters": "cpu"}, cost.PARAMETER_OFFLOAD)


def _adapters(context: Context, job: TrainingJob) -> Iterator[Candidate]:
    framework = context.framework
    if framework is None or job.freeze:
        return
    if job.method == "full" and "lora" in framework.methods:
        yield Candidate("method", "train LoRA adapters only", {"training.method": "lora"}, 0.0, METHOD)
    if job.method != "qlora" and "qlora" in framework.methods:
        title = "train LoRA adapters over a 4-bit base"
        yield Candidate("method", title, {"training.method": "qlora"}, cost.QUANTISED_BASE, METHOD)
