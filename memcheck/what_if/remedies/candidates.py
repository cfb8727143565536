"""Changes of a training plan that may free memory on the same hardware, among them those that its schema states.

Changes of an inference plan that may free memory: how it is stored, where it runs, and what can be served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.catalog.names import compute_capability, lacks_bf16, lacks_fp8
from memcheck.frameworks.torch.data_parallel import accumulates_unsharded, uses_fsdp
from memcheck.frameworks.torch.ddp import buckets
from memcheck.frameworks.torch.fsdp_limits import padded_layer, ranks_without_padding
from memcheck.frameworks.transformers.liger import FAMILIES, modelled
from memcheck.job.changes import written
from memcheck.job.framework import Framework
from memcheck.job.objective import chunks_supervised_loss
from memcheck.job.types import DTYPE_BYTES, InferenceJob, TrainingJob
from memcheck.models.types import Architecture
from memcheck.rules.types import RuleContext
from memcheck.what_if.remedies.changes import (
    EQUIVALENT,
    HARDWARE,
    METHOD,
    NUMERICS,
    OTHER,
    CandidateChange,
    critical,
    loading_and_saving,
)
from memcheck.what_if.remedies.engines import BITS, BLACKWELL, MOST_RANKS, engine_changes, less
from memcheck.what_if.remedies.memory_keys import LOWER

OPTIONS = "training.options."
SAME = "same"


def annotated(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield one alternative per value that frees more than the plan's own; a kind of change for each key.

    Keys that this job does not read are left out: to price a plan that they do not change takes as long as any other.
    """
    framework = context.framework
    if framework is None:
        return
    for key, (result, values) in LOWER.items():
        if not _has(framework, key) or not READ.get(key, _always)(context, job):
            continue
        now = _now(context, key)
        for value, words in _lower(now, values):
            same = result == SAME
            yield CandidateChange(
                key, words, {key: value}, cost=0 if same else NUMERICS, numerics=EQUIVALENT if same else OTHER
            )


def _has(framework: Framework, key: str) -> bool:
    """Say whether the framework reads the key, and its memory has a model."""
    if not key.startswith(OPTIONS):
        return key not in framework.lacks
    name = key.removeprefix(OPTIONS)
    return name in framework.options and name not in framework.harmless and name not in framework.unmodelled


def _now(context: RuleContext, key: str) -> object:
    """Return what the plan states, else what was assumed; None where neither says anything."""
    stated = written(context.document, key)
    if stated is not None:
        return stated
    return next((each.value for each in context.resolved.assumptions if each.key == key), None)


def _lower(now: object, values: tuple[tuple[object, str], ...]) -> list[tuple[object, str]]:
    """Return the values after the plan's own; of a number, those below it, and none where a word stands for the
    number.
    """
    if type(values[0][0]) is int and now is not None:
        return [each for each in values if isinstance(now, int) and each[0] < now]  # type: ignore[operator]
    known = [value for value, _ in values]
    return list(values[known.index(now) + 1 :]) if now in known else list(values)


def _always(context: RuleContext, job: TrainingJob) -> bool:
    return True


def _compares(context: RuleContext, job: TrainingJob) -> bool:
    """Whether a second copy of the model runs forward in every step."""
    return any(each.role == "reference" for each in job.auxiliary_models)


def _gathers_reference(context: RuleContext, job: TrainingJob) -> bool:
    return _compares(context, job) and uses_fsdp(job)


def _flattens_adapters(context: RuleContext, job: TrainingJob) -> bool:
    return job.fsdp_version == 1 and uses_fsdp(job) and job.method != "full"


def _sees(context: RuleContext, job: TrainingJob) -> bool:
    return isinstance(job.architecture, Architecture) and job.architecture.vision is not None


def _evaluates(context: RuleContext, job: TrainingJob) -> bool:
    return job.evaluation is not None and "evaluation" in critical(context)


def _steps_in_backward(context: RuleContext, job: TrainingJob) -> bool:
    able = context.framework is not None and context.framework.optimizers.in_backward
    return able and job.gradient_accumulation_steps == 1 and not job.clip_grad_norm


def _sharded(context: RuleContext, job: TrainingJob) -> bool:
    return job.layout.zero_stage == 3


def _stated(name: str) -> Callable[[RuleContext, TrainingJob], bool]:
    """Whether the plan states an option."""
    return lambda context, job: job.option(name) is not None


def _slow_kernels(context: RuleContext, job: TrainingJob) -> bool:
    return job.ssm_kernels == "fallback"


def _quantised(context: RuleContext, job: TrainingJob) -> bool:
    training = context.plan.training
    return training is not None and training.base is not None and training.base.double is False


STATED = (
    "bias_swiglu_fusion",
    "apply_rope_fusion",
    "memory_efficient_layer_norm",
    "deallocate_pipeline_outputs",
    "overlap_grad_reduce",
    "overlap_comm",
    "tp_linear_async_communication",
    "reduce_bucket_size",
    "stage3_param_persistence_threshold",
)
"""Options whose default frees as much as any value: only a plan that states another one can change them."""
READ: dict[str, Callable[[RuleContext, TrainingJob], bool]] = {
    **{f"{OPTIONS}{name}": _stated(name) for name in STATED},
    "training.reference": _compares,
    "training.base.double": _quantised,
    "training.evaluation.logits": _evaluates,
    "training.optimizer.in_backward": _steps_in_backward,
    "training.kernels.ssm": _slow_kernels,
    "training.options.reference_fsdp": _gathers_reference,
    "training.options.wraps_adapters": _flattens_adapters,
    "training.options.vit_gradient_checkpointing": _sees,
    "training.options.stage3_max_live_parameters": _sharded,
    "training.options.suggested_communication_unit_size": _sharded,
    "training.options.fsdp_double_buffer": _sharded,
}
"""Whether a job reads a key; a key that is not listed is read by every job of its frameworks."""


FOREACH_CLASS = ("adamw", "adam")
EIGHT_BIT = {"adamw": "adamw-8bit", "adam": "adamw-8bit", "lion": "lion-8bit"}
STAGE_WORDS = {
    1: "the optimizer states",
    2: "optimizer states and gradients",
    3: "parameters, gradients and optimizer states",
}
PARAMETERS, STAGE, SHARDED = "training.offload.parameters", "parallelism.zero_stage", 3
RESHARD, SYNC = "parallelism.reshard_after_forward", "parallelism.gradient_sync"
BUCKETS = "parallelism.gradient_as_bucket_view"
MOST_CHUNKS = 64
"""Parts of the tokens from which on the logits are no large part of the memory."""
LEAST_SEQUENCE = 1024
"""Tokens below which no shorter sequences are suggested."""
FREE = ("attention", "implementation", "kernels", "allocator", "logits", "buckets", "sync", "reshard", "sequence")
"""Kinds of change whose cost is small for every plan: a search makes all of them, or none."""


def same_hardware(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield everything that needs no other GPU; illegal ones are sorted out when they are priced."""
    yield from loading_and_saving(
        context, job
    )  # first: what decides a moment that is too much is what a finding points at
    yield from annotated(context, job)
    yield from _kernels(context, job)
    yield from _loss(context, job)
    yield from _sharding(context, job)
    yield from _micro_batch(job)
    yield from _recompute(context, job)
    yield from _optimizer(context, job)
    yield from _offload(context, job)
    yield from _precision(context, job)
    yield from _adapters(context, job)
    yield from _sequence_length(job)


def _kernels(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield fused attention and optimizer kernels, Liger's kernels, and growing allocator segments."""
    framework = context.framework
    if job.attention == "eager":
        for kernel in _fused_attention(job):
            change = {"training.attention": kernel}
            title = f"compute attention in a fused kernel ({kernel})"
            yield CandidateChange("attention", title, change, numerics=EQUIVALENT)
    chooses = framework is not None and "training.optimizer.implementation" not in framework.lacks
    if chooses and job.optimizer.implementation == "foreach" and job.optimizer.name in FOREACH_CLASS:
        change = {"training.optimizer.implementation": "fused"}
        yield CandidateChange("implementation", "update with the fused optimizer kernel", change, numerics=EQUIVALENT)
    if framework is not None and framework.runs_transformers:
        yield from _liger(job)
    if not job.expandable_segments and framework is not None and "expandable" in framework.allocators:
        title = "let the allocator grow its segments (PYTORCH_ALLOC_CONF=expandable_segments:True)"
        yield CandidateChange("allocator", title, {"training.expandable_segments": True})


def _fused_attention(job: TrainingJob) -> tuple[str, ...]:
    """Return kernels that keep no matrix of attention: scores that are capped are computed by two of them alone."""
    a = job.architecture
    capped = isinstance(a, Architecture) and any(getattr(block.mixer, "softcap", False) for block, _ in a.blocks)
    return ("flash", "flex") if capped else ("sdpa",)


def _liger(job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield norms and gated layers in Liger's kernels, where they have a model for all of the model's."""
    a = job.architecture
    if job.compile or job.liger or job.layout.tensor > 1:
        return
    if isinstance(a, Architecture) and a.model_type in FAMILIES and "glu" in modelled(a):
        title = "run norms, gated layers and rotary embeddings in Liger's kernels"
        yield CandidateChange("kernels", title, {"training.kernels.liger": True}, numerics=EQUIVALENT)


def _loss(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield losses that keep fewer bytes of logits: chunked, fused with the head, or on shards of the vocabulary."""
    framework = context.framework
    losses = framework.losses.kinds if framework else ()
    if job.loss.kind == "vocab-parallel" and job.layout.tensor > 1:
        return
    if job.loss.keep_logits:
        change: dict[str, object] = {"training.loss.keep_logits": False}
        yield CandidateChange("logits", "drop the model's output before backward", change)
    if job.loss.kind == "standard" and "vocab-parallel" in losses and job.layout.tensor > 1:
        change = {"training.loss.kind": "vocab-parallel"}
        yield CandidateChange("loss", "compute the loss on shards of the vocabulary", change, numerics=EQUIVALENT)
    if job.objective.loss_in_model:
        return
    trainer = context.plan.training.trainer if context.plan.training else None
    if job.objective.reads_logits and chunks_supervised_loss(trainer.version if trainer else None):
        title = "compute head and loss in chunks (`loss_type: chunked_nll`, since TRL 1.4, its default since 1.7)"
        yield CandidateChange("loss", title, {"training.loss.kind": "chunked"}, numerics=EQUIVALENT)
        return
    if job.loss.kind != "fused-linear" and "fused-linear" in losses:
        title = "compute head and loss in one kernel (Liger, cut cross-entropy)"
        yield CandidateChange("loss", title, {"training.loss.kind": "fused-linear"}, numerics=EQUIVALENT)
    elif job.loss.kind == "standard" and "chunked" in losses:
        change = {"training.loss.kind": "chunked"}
        yield CandidateChange("loss", "compute head and loss in chunks", change, numerics=EQUIVALENT)
    elif job.loss.kind == "chunked" and job.loss.chunks < MOST_CHUNKS:
        title = f"compute head and loss in {MOST_CHUNKS} chunks instead of {job.loss.chunks}"
        yield CandidateChange("loss", title, {"training.loss.chunks": MOST_CHUNKS}, numerics=EQUIVALENT)
    if job.loss.kind == "standard" and "in-place" in losses:
        title = "put the gradient of the logits where the logits were (the cross-entropy of Liger or Unsloth)"
        yield CandidateChange("loss", title, {"training.loss.kind": "in-place"}, numerics=EQUIVALENT)


def _sharding(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield higher ZeRO stages, larger sharding groups, and settings that free unsharded tensors earlier."""
    layout, framework = job.layout, context.framework
    ranks = layout.data * layout.context
    if ranks == 1 or framework is None:
        return
    for stage in framework.parallelism.zero_stages:
        if stage > layout.zero_stage:
            title = f"shard {STAGE_WORDS[stage]} over {ranks} ranks (ZeRO stage {stage})"
            yield CandidateChange("zero", title, {"parallelism.zero_stage": stage}, numerics=EQUIVALENT)
    if layout.zero_stage and layout.shard_group < ranks:
        title = f"shard over all {ranks} ranks instead of groups of {layout.shard_group}"
        yield CandidateChange("group", title, {"parallelism.shard_group": ranks}, numerics=EQUIVALENT)
    yield from _unpadded(job)
    if layout.zero_stage == 3 and not layout.reshard_after_forward and RESHARD not in framework.lacks:
        title = "free gathered parameters after forward"
        yield CandidateChange("reshard", title, {RESHARD: True})
    if accumulates_unsharded(job) and layout.gradient_sync == "last" and SYNC not in framework.lacks:
        title = "reduce gradients after every micro-batch"
        yield CandidateChange("sync", title, {SYNC: "every"}, numerics=EQUIVALENT)
    if BUCKETS not in framework.lacks and buckets(job).exist and not layout.gradient_as_bucket_view:
        title = "let gradients be views of DDP's buckets"
        yield CandidateChange("buckets", title, {BUCKETS: True})


def _unpadded(job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield fewer shards, where FSDP2 pads experts to as many."""
    a = job.architecture
    layer = padded_layer(job, a) if isinstance(a, Architecture) and job.layout.expert == 1 else None
    if layer is None:
        return
    ranks = ranks_without_padding(job, layer)
    title = f"shard over groups of {ranks} ranks, to which FSDP2 need not pad {layer.experts} experts"
    yield CandidateChange("group", title, {"parallelism.shard_group": ranks}, numerics=EQUIVALENT)


def _micro_batch(job: TrainingJob) -> Iterator[CandidateChange]:
    """Halve the micro-batch and accumulate twice as often, keeping the global batch."""
    size, factor = job.micro_batch_size, 1
    while size > 1 and size % 2 == 0:
        size, factor = size // 2, factor * 2
        title = f"micro-batch {job.micro_batch_size} -> {size}, accumulated {factor} times as often (same global batch)"
        yield CandidateChange("micro-batch", title, {"training.micro_batch_size": size}, numerics=EQUIVALENT)


def _recompute(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield more activation checkpointing: selective, then of every block."""
    framework, mode = context.framework, job.checkpointing.mode
    if framework is None or mode == "full":
        if framework is not None:
            yield from _more_recompute(framework, job)
        if job.base_format is not None and job.base_format.name == "int8" and not job.checkpointing.reentrant:
            title = "checkpoint with use_reentrant, without a graph that holds the inputs of int8 products"
            yield CandidateChange("reentrant", title, {"training.activation_checkpointing.reentrant": True})
        return
    key = "training.activation_checkpointing.mode"
    if mode == "none" and framework.selective_recompute:
        yield CandidateChange("recompute", "recompute selectively in backward", {key: "selective"})
    yield CandidateChange("recompute", "recompute every block in backward", {key: "full"})
    yield from _more_recompute(framework, job)


def _more_recompute(framework: Framework, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield every block instead of some, and what checkpoints keep in host memory."""
    key, now = "training.activation_checkpointing.", job.checkpointing
    if now.mode != "none" and now.every_n_layers > 1:
        title = f"recompute every block, not one of each {now.every_n_layers}"
        yield CandidateChange("recompute", title, {f"{key}every_n_layers": 1})
    if now.offload == "none" and f"{key}offload" not in framework.lacks:
        title = "keep the inputs of recomputed blocks in host memory"
        full = {} if now.mode == "full" else {f"{key}mode": "full"}
        title = title if not full else "recompute every block in backward, and keep its input in host memory"
        yield CandidateChange("recompute", title, {**full, f"{key}offload": "cpu"})


def _optimizer(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield the optimizer with 8-bit states, if there is one."""
    smaller = EIGHT_BIT.get(job.optimizer.name)
    if smaller is None or context.framework is None or not context.framework.optimizers.bitsandbytes:
        return
    title = f"keep the optimizer states in 8 bits ({smaller})"
    change = {"training.optimizer.name": smaller}
    yield CandidateChange("optimizer", title, change, cost=NUMERICS, numerics=OTHER)


def _precision(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield fewer bytes of states and activations; a rule decides whether the GPU and the framework have it."""
    smaller = {"fp32": (("bf16-mixed", NUMERICS), ("bf16-pure", METHOD)), "bf16-mixed": (("bf16-pure", METHOD),)}
    for recipe, cost in smaller.get(job.recipe.recipe, ()) if context.framework is not None else ():
        title = f"train in {recipe} instead of {job.recipe.recipe}"
        yield CandidateChange("precision", title, {"training.precision.recipe": recipe}, cost=cost, numerics=OTHER)


def _sequence_length(job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield shorter sequences, as many of them: another training."""
    length = job.sequence_length
    if (
        isinstance(job.architecture, Architecture)
        and job.architecture.encoder
        and job.architecture.encoder.rows_per_sample
    ):
        return  # its rows are as many whatever the plan says
    while length % 2 == 0 and length > LEAST_SEQUENCE:
        length //= 2
        title = f"train on sequences of {length} tokens instead of {job.sequence_length}"
        change = {"training.sequence_length": length}
        yield CandidateChange("sequence-length", title, change, cost=METHOD, numerics=OTHER)


def _offload(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield optimizer states, or also parameters, in host memory."""
    framework = context.framework
    if framework is None:
        return
    if job.optimizer.offload == "none" and framework.data_parallel != "torch":  # FSDP2 offloads it with parameters
        change: dict[str, object] = {"training.optimizer.offload": "cpu"}
        yield CandidateChange("offload", "keep the optimizer states in host memory", change, numerics=EQUIVALENT)
    if job.parameter_offload == "none" and framework.offloads_parameters:
        title = "keep the sharded parameters and states in host memory"
        change = {PARAMETERS: "cpu"}
        reaches = job.layout.zero_stage < SHARDED <= max(framework.parallelism.zero_stages)
        if reaches and job.layout.data * job.layout.context > 1:
            title, change = "shard parameters and states, and keep them in host memory", {STAGE: SHARDED, **change}
        yield CandidateChange("offload-parameters", title, change, numerics=EQUIVALENT)


def base_stated(context: RuleContext) -> bool:
    """Say whether the plan says what its frozen base is held in."""
    training = context.plan.training
    return training is not None and training.base is not None


def _adapters(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield LoRA in place of full training, and a base in 4 bits."""
    framework = context.framework
    if framework is None or job.freeze:
        return
    if job.method == "full" and "lora" in framework.methods:
        yield CandidateChange(
            "method", "train LoRA adapters only", {"training.method": "lora"}, cost=METHOD, numerics=OTHER
        )
    if job.method != "full" and not job.has_four_bit_base and base_stated(context):
        if "nf4" in framework.adapters.base_formats:
            change: dict[str, object] = {"training.base": "nf4"}
            yield CandidateChange("method", "hold the base in 4 bits", change, cost=METHOD, numerics=OTHER)
    elif not job.base_format and "qlora" in framework.methods:
        title = "train LoRA adapters over a 4-bit base"
        yield CandidateChange("method", title, {"training.method": "qlora"}, cost=METHOD, numerics=OTHER)


LARGEST_MICRO_BATCH = 64


def either_way(context: RuleContext, job: TrainingJob) -> Iterator[CandidateChange]:
    """Yield changes that may need more memory and save time: other micro-batches, less recompute, nothing offloaded."""
    for exponent in range(LARGEST_MICRO_BATCH.bit_length()):
        size = 1 << exponent
        if size != job.micro_batch_size:
            title = f"micro-batch {job.micro_batch_size} -> {size} (same global batch)"
            yield CandidateChange("micro-batch", title, {"training.micro_batch_size": size}, numerics=EQUIVALENT)
    framework, mode = context.framework, job.checkpointing.mode
    selective = framework is not None and bool(framework.selective_recompute)
    modes = ("none", "selective", "full") if selective else ("none", "full")
    for other in modes:
        if other != mode:
            title = "keep every activation" if other == "none" else f"recompute {other}"
            yield CandidateChange("recompute", title, {"training.activation_checkpointing.mode": other})
    if framework is not None:
        yield from _more_recompute(framework, job)
    if job.optimizer.offload != "none":
        change = {"training.optimizer.offload": "none"}
        yield CandidateChange("offload", "keep the optimizer states on the GPU", change, numerics=EQUIVALENT)


LEAST_CONTEXT = 1024
"""Tokens below which no shorter contexts are suggested."""


def serving(context: RuleContext, job: InferenceJob) -> Iterator[CandidateChange]:
    """Yield more tensor ranks; fewer sequences at a time; smaller weights, a smaller cache; shorter contexts.

    With fewer sequences at a time, every request is answered as before: it costs time alone. Shorter contexts refuse
    requests, and cost as much as another training does. A serving engine has limits of its own in their place.
    """
    if job.engine is not None:
        yield from engine_changes(context, job)
        return
    yield from _tensor(job)
    yield from _stored(context, job)
    for size in less(job.batch_size, 1):
        title = (
            f"serve {size} {'sequence' if size == 1 else 'sequences'} at a time instead of {job.batch_size}: "
            "other requests wait"
        )
        slower = job.batch_size / size - 1
        yield CandidateChange("batch", title, {"inference.batch_size": size}, slowdown=slower)
    for tokens in less(job.context_length, LEAST_CONTEXT):
        title = (
            f"serve contexts of up to {tokens} tokens instead of {job.context_length}: longer requests cannot be served"
        )
        yield CandidateChange("context", title, {"inference.context_length": tokens}, slowdown=0.0, cost=METHOD)


def _stored(context: RuleContext, job: InferenceJob) -> Iterator[CandidateChange]:
    """Yield fewer bits of the weights and of the cache, as far as the GPU multiplies them or a kernel unpacks them."""
    gpu = context.resolved.gpu
    short, byte = "fp16" if lacks_bf16(gpu) else "bf16", "int8" if lacks_fp8(gpu) else "fp8"
    four = ("fp4", "int4") if (compute_capability(gpu) or 0) >= BLACKWELL else ("int4",)
    now = BITS.get(job.weights, 8 * DTYPE_BYTES.get(job.weights, 2))
    for dtype in (short, byte, *four):
        if BITS.get(dtype, 16) < now:
            title = f"keep the weights in {dtype}" if dtype == short else f"quantise the weights to {dtype}"
            yield CandidateChange(
                "weights", title, {"inference.weights": dtype}, slowdown=0.0, cost=NUMERICS, numerics=OTHER
            )
    for dtype in (short, byte):
        if DTYPE_BYTES[dtype] < DTYPE_BYTES[job.kv_cache]:
            title = f"keep the KV cache in {dtype}"
            yield CandidateChange(
                "cache", title, {"inference.kv_cache": dtype}, slowdown=0.0, cost=NUMERICS, numerics=OTHER
            )


def _tensor(job: InferenceJob) -> Iterator[CandidateChange]:
    """Yield larger tensor degrees of a served model, each twice the one before; more GPUs in a node if need be."""
    layout = job.layout
    degree = layout.tensor * 2
    while degree <= MOST_RANKS:
        change: dict[str, object] = {"parallelism.tensor": degree}
        hardware = degree > layout.gpus_per_node
        if hardware:
            change["hardware.gpus_per_node"] = degree
        for name in ("expert", "expert_tensor"):  # experts that are placed over the tensor ranks stay so
            if 1 < getattr(layout, name) == layout.tensor:
                change[f"parallelism.{name}"] = degree
        title = f"split the model over {degree} GPUs (tensor parallelism)"
        yield CandidateChange(
            "tensor", title, change, slowdown=0.0, cost=HARDWARE if hardware else 0, numerics=EQUIVALENT
        )
        degree *= 2
