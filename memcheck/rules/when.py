"""What a plan has to say before a rule can find something: most say none of it, and the module stays unread.

Each condition is the first one of the rules that name it (``Rule.when``), and reads what is resolved already. Where it
does not hold, their checks find nothing; where it holds, they may. Only rules that read the batch may name one that
does.
"""

from __future__ import annotations

from memcheck.job.types import InferenceJob
from memcheck.memory.fit import FITS, gpu_fit
from memcheck.models.types import Moe
from memcheck.plan.types import Plan
from memcheck.rules.types import RuleContext


def always(context: RuleContext) -> bool:
    """Any plan."""
    return True


def governed(context: RuleContext) -> bool:
    """A configuration that lays something down for every plan."""
    return context.governance is not None


def locked(context: RuleContext) -> bool:
    """Limits that a plan may not loosen."""
    return context.limits is not None


def strained(context: RuleContext) -> bool:
    """A need above the threshold for warnings, or one whose interval ends above the limit."""
    estimate = context.estimate
    return estimate is not None and (
        estimate.utilization > context.warn_above or gpu_fit(estimate, context.fail_above) != FITS
    )


def limited_rows(context: RuleContext) -> bool:
    """Rows that are not packed, and fit only up to a length."""
    return context.estimate is not None and context.estimate.longest_row > 0


def wasteful(context: RuleContext) -> bool:
    """A need below what the plan wants to use at least."""
    estimate, least = context.estimate, context.waste_below
    return estimate is not None and least is not None and estimate.utilization < least


def states_host_memory(context: RuleContext) -> bool:
    """A node whose memory is known."""
    return context.plan.hardware.host_memory_gib is not None


def foreign_card(context: RuleContext) -> bool:
    """A GPU with figures of the plan's own."""
    return not context.resolved.gpu.from_catalog


def miscounted(context: RuleContext) -> bool:
    """Degrees whose product is not the number of GPUs."""
    layout = context.layout
    return layout.tensor * layout.context * layout.pipeline * layout.data != layout.world_size


def split(context: RuleContext) -> bool:
    """A layer that is divided over ranks."""
    layout = context.layout
    return layout.tensor != 1 or layout.context != 1 or layout.expert != 1 or layout.expert_tensor != 1


def parallel(context: RuleContext) -> bool:
    """A model that is divided over ranks, in whatever way."""
    return split(context) or context.layout.pipeline != 1


def pipelined(context: RuleContext) -> bool:
    """Stages."""
    return context.layout.pipeline != 1


def staged(context: RuleContext) -> bool:
    """Stages, or options that may speak of them."""
    return context.layout.pipeline != 1 or context.layout.virtual_stages != 1 or states_options(context)


def idle_stage(context: RuleContext) -> bool:
    """A ZeRO stage without other ranks to divide the states over."""
    layout = context.layout
    return layout.zero_stage != 0 and (layout.data * layout.context <= 1 or layout.shard_group <= 1)


def unknown_stage(context: RuleContext) -> bool:
    """A ZeRO stage that the framework does not have."""
    framework = context.framework
    return framework is not None and context.layout.zero_stage not in framework.zero_stages


def states_sequence(context: RuleContext) -> bool:
    """Sequence parallelism, asked for."""
    return bool(context.plan.parallelism.sequence)


def states_group(context: RuleContext) -> bool:
    """A sharding group, asked for."""
    return context.plan.parallelism.shard_group is not None


def wraps_layers(context: RuleContext) -> bool:
    """Training under FSDP that may fail in a step: two dtypes in a unit, a head after the model, or Adafactor."""
    job, layout = context.training, context.layout
    if job is None or layout.zero_stage < 2 or layout.shard_group <= 1:
        return False
    plain = job.recipe.params == "fp32" and job.lora is None and job.fsdp == 2
    return not plain or job.optimizer.name == "adafactor"


def shards_experts(context: RuleContext) -> bool:
    """Experts whose parameters are divided over ranks."""
    layout, model = context.layout, context.architecture
    if layout.zero_stage < 2 or layout.shard_group <= 1 or model is None:
        return False
    return any(isinstance(block.mlp, Moe) for block, _ in model.blocks)


def beyond_positions(context: RuleContext) -> bool:
    """A sequence longer than the model's positions. Reads the batch."""
    model, job = context.architecture, context.job
    length = job.context_length if isinstance(job, InferenceJob) else job.sequence_length
    limit = model.max_position_embeddings if model is not None else 0
    if model is not None and model.encoder is not None and model.encoder.length:
        return False  # the positions are those of the decoder
    return bool(limit) and length > limit


def states_global_batch(context: RuleContext) -> bool:
    """A global batch, in sequences."""
    stated = context.plan.training
    return stated is not None and stated.global_batch_size is not None


def no_framework(context: RuleContext) -> bool:
    """Training under a framework that the plan leaves open."""
    stated = context.plan.training
    return stated is not None and stated.framework is None


def states_options(context: RuleContext) -> bool:
    """Options of the framework, stated or read off something else."""
    stated, job = context.plan.training, context.training
    return bool(stated is not None and stated.options) or bool(job is not None and job.options)


def names_modules(context: RuleContext) -> bool:
    """Names of modules: to adapt, to freeze, to recompute, or as an option."""
    job = context.training
    return job is not None and (
        job.lora is not None or bool(job.freeze or job.checkpointing.modules) or states_options(context)
    )


def freezes(context: RuleContext) -> bool:
    """Frozen parts."""
    job = context.training
    return job is not None and bool(job.freeze)


def idle_adapters(context: RuleContext) -> bool:
    """Settings of adapters under full training."""
    stated, job = context.plan.training, context.training
    return stated is not None and stated.lora is not None and job is not None and job.method == "full"


def offloads(context: RuleContext) -> bool:
    """Optimizer or parameters off the GPU."""
    job = context.training
    return job is not None and (job.optimizer.offload != "none" or job.parameter_offload != "none")


def unknown_recipe(context: RuleContext) -> bool:
    """A recipe of precision that the framework does not offer."""
    framework, job = context.framework, context.training
    return framework is not None and job is not None and job.recipe.recipe not in framework.recipes


def recipe_ignored(context: RuleContext) -> bool:
    """A mixed recipe that computes in fp32."""
    job = context.training
    return job is not None and job.recipe.compute == "fp32" and job.recipe.recipe.endswith("-mixed")


def flash(context: RuleContext) -> bool:
    """FlashAttention's kernels."""
    job = context.training
    return job is not None and job.attention == "flash"


def no_bf16(context: RuleContext) -> bool:
    """Training in bf16 on a GPU that is known to lack it."""
    job = context.training
    if job is None or "bf16" not in (job.recipe.compute, job.recipe.params):
        return False
    from memcheck.rules.gpu_abilities import lacks_bf16

    return lacks_bf16(context.resolved.gpu)


def fp8(context: RuleContext) -> bool:
    """Training in fp8."""
    job = context.training
    return job is not None and job.recipe.recipe == "fp8-mixed"


def unoffered(context: RuleContext) -> bool:
    """A setting that the framework may not have."""
    framework, job = context.framework, context.training
    if framework is None or job is None:
        return False
    return (
        bool(framework.lacks or job.held_in)
        or job.method not in framework.methods
        or job.loss.kind not in framework.losses
        or job.attention not in framework.attentions
        or job.checkpointing.mode not in framework.recompute
        or job.checkpoint.offload == "none"
        or job.checkpoint.asynchronous
    )


def may_idle(context: RuleContext) -> bool:
    """A plan with a key that has an effect only under conditions, or a plan of inference."""
    return context.training is None or bool(keys_that_may_idle(context.plan))


def objective(context: RuleContext) -> bool:
    """Training that is not plain next-token prediction over packed rows with an optimizer step after backward."""
    job, stated = context.training, context.plan.training
    if job is None or stated is None:
        return False
    named = (stated.objective, stated.trainer, stated.reference, stated.teacher, stated.head, stated.evaluation)
    return (
        any(each is not None for each in named)
        or job.head.kind != "lm"
        or job.objective.name != "sft"
        or job.sequences != "packed"
        or job.evaluation is not None
        or job.optimizer.in_backward
    )


PRECISION = ("reduce", "gradients", "optimizer_states", "master")
"""Keys of ``precision`` that count under conditions."""


def keys_that_may_idle(plan: Plan) -> list[str]:
    """The keys that a plan states and that count under conditions; most state none."""
    p, t = plan.parallelism, plan.training
    found = []
    if p.reshard_after_forward is False:
        found.append("parallelism.reshard_after_forward")
    if p.gradient_sync == "last":
        found.append("parallelism.gradient_sync")
    if p.gradient_as_bucket_view:
        found.append("parallelism.gradient_as_bucket_view")
    if p.pipeline_schedule is not None:
        found.append("parallelism.pipeline_schedule")
    if p.expert_tensor is not None and p.expert_tensor != 1:
        found.append("parallelism.expert_tensor")
    if t is None:
        return found
    if t.loss is not None and t.loss.upcast is False:
        found.append("training.loss.upcast")
    if t.loss is not None and t.loss.keep_logits:
        found.append("training.loss.keep_logits")
    if t.activation_checkpointing is not None and (t.activation_checkpointing.every_n_layers or 1) > 1:
        found.append("training.activation_checkpointing.every_n_layers")
    if t.expert_imbalance is not None and t.expert_imbalance != 1:
        found.append("training.expert_imbalance")
    if t.freeze:
        found.append("training.freeze")
    if t.precision is not None:
        found += [f"training.precision.{key}" for key in PRECISION if getattr(t.precision, key) is not None]
    return found
