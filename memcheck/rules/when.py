"""What a plan has to say before a rule can find something: most say none of it, and the module stays unread.

Each condition is the first one of the rules that name it (``Rule.when``), and reads what is resolved already. Where it
does not hold, their checks find nothing; where it holds, they may. Only rules that read the batch may name one that
does.

A rule whose module is loaded once a plan says what the rule is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memcheck.catalog.names import lacks_bf16
from memcheck.edge.imports import import_module
from memcheck.frameworks.torch.data_parallel import uses_fsdp
from memcheck.job.types import UNPACKED, InferenceJob
from memcheck.memory.fit import FITS, TOO_LARGE, gpu_fit
from memcheck.models.types import Moe
from memcheck.plan.finding import Finding
from memcheck.plan.types import Plan
from memcheck.record import Record
from memcheck.rules.types import Rule, RuleContext


def always(context: RuleContext) -> bool:
    """Whether the rule is asked of every plan: always true."""
    return True


def governed(context: RuleContext) -> bool:
    """Whether the configuration has a policy for every plan."""
    return context.governance is not None


def locked(context: RuleContext) -> bool:
    """Whether the configuration has limits that a plan may not loosen."""
    return context.limits is not None


def strained(context: RuleContext) -> bool:
    """Say whether the need is above the threshold for warnings, or its interval ends above the limit."""
    estimate = context.estimate
    if estimate is not None and estimate.engine is not None:  # its share is its own limit
        return estimate.engine.answer != "does_not_boot" and gpu_fit(estimate, context.fail_above) == TOO_LARGE
    return estimate is not None and (
        estimate.utilization > context.warn_above or gpu_fit(estimate, context.fail_above) != FITS
    )


def engine_fails(context: RuleContext) -> bool:
    """Say whether the plan's serving engine does not boot."""
    answer = context.estimate.engine if context.estimate is not None else None
    return answer is not None and answer.answer == "does_not_boot"


def boot_depends(context: RuleContext) -> bool:
    """Say whether it is open if the plan's serving engine boots."""
    answer = context.estimate.engine if context.estimate is not None else None
    return answer is not None and answer.answer == "depends"


def limited_rows(context: RuleContext) -> bool:
    """Whether the rows are not packed, and the plan fits only up to a length of them."""
    return context.estimate is not None and context.estimate.longest_row > 0


def rows_have_limit(context: RuleContext) -> bool:
    """Say whether ``sequence_length`` is only a limit of the rows: they are not packed, and the longest is not
    stated.
    """
    job, training = context.training, context.plan.training
    if job is None or training is None or training.longest_row is not None:
        return False
    return job.sequences == "padded" or training.sequences in UNPACKED


def wasteful(context: RuleContext) -> bool:
    """Say whether the need is below the least use that the plan or the configuration asks for."""
    estimate, least = context.estimate, context.waste_below
    return estimate is not None and least is not None and estimate.utilization < least


def states_host_memory(context: RuleContext) -> bool:
    """Whether the memory of a node is known."""
    return context.plan.hardware.host_memory_gib is not None


def foreign_card(context: RuleContext) -> bool:
    """Whether the plan states its own figures of the GPU."""
    return not context.resolved.gpu.from_catalog


def miscounted(context: RuleContext) -> bool:
    """Say whether the product of the degrees of parallelism is not the number of GPUs."""
    layout = context.layout
    return layout.tensor * layout.context * layout.pipeline * layout.data != layout.world_size


def serves(context: RuleContext) -> bool:
    """Say whether a serving engine divides the model by its own rules, and says what it refuses."""
    job = context.job
    return isinstance(job, InferenceJob) and job.engine is not None


def overcrowded(context: RuleContext) -> bool:
    """Say whether the plan states requests that a serving engine shall hold at once, and it does not."""
    answer = None if context.estimate is None else context.estimate.engine
    return answer is not None and answer.demand_held is False


def serves_divided(context: RuleContext) -> bool:
    """Say whether a serving engine divides layers over several GPUs."""
    job = context.job
    return isinstance(job, InferenceJob) and job.engine is not None and job.engine.tensor > 1


def split(context: RuleContext) -> bool:
    """Say whether a layer is divided over ranks."""
    layout = context.layout
    if serves(context):
        return False
    return layout.tensor != 1 or layout.context != 1 or layout.expert != 1 or layout.expert_tensor != 1


def parallel(context: RuleContext) -> bool:
    """Whether the model is divided over ranks in any way."""
    return split(context) or context.layout.pipeline != 1


def pipelined(context: RuleContext) -> bool:
    """Whether the model is divided over more than one pipeline rank."""
    return context.layout.pipeline != 1


def staged(context: RuleContext) -> bool:
    """Say whether the plan has pipeline stages, or framework options, which may be about stages."""
    layout, job = context.layout, context.training
    if serves(context):
        return False
    if layout.pipeline != 1 or layout.virtual_stages != 1:
        return True
    return job is not None and any("pipeline" in name for name, _ in job.options)


def idle_stage(context: RuleContext) -> bool:
    """Say whether the plan has a ZeRO stage without other ranks to divide the states over."""
    layout = context.layout
    return layout.zero_stage != 0 and (layout.data * layout.context <= 1 or layout.shard_group <= 1)


def unknown_stage(context: RuleContext) -> bool:
    """Say whether the plan has a ZeRO stage that its framework does not have."""
    framework = context.framework
    return framework is not None and context.layout.zero_stage not in framework.parallelism.zero_stages


def states_sequence(context: RuleContext) -> bool:
    """Whether the plan asks for sequence parallelism."""
    return bool(context.plan.parallelism.sequence)


def states_group(context: RuleContext) -> bool:
    """Whether the plan states the size of a sharding group."""
    return context.plan.parallelism.shard_group is not None


def wraps_layers(context: RuleContext) -> bool:
    """Say whether a step of FSDP may fail: by two dtypes in a unit, a head after the model, or Adafactor."""
    job, layout = context.training, context.layout
    if job is None or layout.zero_stage < 2 or layout.shard_group <= 1:
        return False
    plain = job.recipe.params == "fp32" and job.lora is None and job.fsdp_version == 2
    return not plain or job.optimizer.name == "adafactor"


def shards_experts(context: RuleContext) -> bool:
    """Say whether the parameters of experts are divided over ranks."""
    layout, model = context.layout, context.architecture
    if layout.zero_stage < 2 or layout.shard_group <= 1 or model is None:
        return False
    return any(isinstance(block.mlp, Moe) for block, _ in model.blocks)


def beyond_positions(context: RuleContext) -> bool:
    """Say whether the sequence is longer than the model's positions. Reads the batch."""
    model, job = context.architecture, context.job
    length = job.context_length if isinstance(job, InferenceJob) else job.sequence_length
    limit = model.max_position_embeddings if model is not None else 0
    if model is not None and model.encoder is not None and model.encoder.rows_per_sample:
        return False  # the positions are those of the decoder
    return bool(limit) and length > limit and not serves(context)


def states_global_batch(context: RuleContext) -> bool:
    """Say whether the plan states a global batch, in sequences."""
    stated = context.plan.training
    return stated is not None and stated.global_batch_size is not None


def no_framework(context: RuleContext) -> bool:
    """Say whether the plan trains and does not state its framework."""
    stated = context.plan.training
    return stated is not None and stated.framework is None


def states_options(context: RuleContext) -> bool:
    """Say whether there are framework options, stated or derived from other keys."""
    stated, job = context.plan.training, context.training
    return bool(stated is not None and stated.options) or bool(job is not None and job.options)


def unknown_options(context: RuleContext) -> bool:
    """Say whether the plan states an option that the framework does not have."""
    stated, framework = context.plan.training, context.framework
    if framework is None or stated is None or not stated.options:
        return False
    return not framework.options.keys() >= stated.options.keys()


def restates(context: RuleContext) -> bool:
    """Say whether an option says what a key of the plan says, or asks for a value of one."""
    job = context.training
    return job is not None and any(name in RESTATING for name, _ in job.options)


RESTATING = frozenset(
    {
        "accumulate_allreduce_grads_in_fp32",
        "data_parallel_sharding_strategy",
        "enable_cpu_offload",
        "fsdp_reshard_after_forward",
        "grad_accum_dtype",
        "overlap_moe_expert_parallel_comm",
        "overlap_param_gather",
        "recompute_granularity",
        "selective_ac_option",
        "sync_each_batch",
        "use_distributed_optimizer",
        "use_megatron_fsdp",
        "use_precision_aware_optimizer",
    }
)
"""The options that rule MEM409 compares with the plan's keys."""


def names_modules(context: RuleContext) -> bool:
    """Say whether the plan names modules: to adapt, to freeze, to recompute, or in an option."""
    job = context.training
    return job is not None and (
        job.lora is not None or bool(job.freeze or job.checkpointing.modules) or states_options(context)
    )


def freezes(context: RuleContext) -> bool:
    """Say whether parts of the model are frozen."""
    job = context.training
    return job is not None and bool(job.freeze)


def idle_adapters(context: RuleContext) -> bool:
    """Say whether the plan has settings of adapters under full training."""
    stated, job = context.plan.training, context.training
    return stated is not None and stated.lora is not None and job is not None and job.method == "full"


def offloads(context: RuleContext) -> bool:
    """Say whether the optimizer or parameters are offloaded from the GPU."""
    job = context.training
    return job is not None and (job.optimizer.offload != "none" or job.parameter_offload != "none")


def unknown_recipe(context: RuleContext) -> bool:
    """Say whether the plan has a recipe of precision that its framework does not offer."""
    framework, job = context.framework, context.training
    return framework is not None and job is not None and job.recipe.recipe not in framework.precisions.recipes


def recipe_ignored(context: RuleContext) -> bool:
    """Say whether a mixed recipe computes in fp32."""
    job = context.training
    return job is not None and job.recipe.compute == "fp32" and job.recipe.recipe.endswith("-mixed")


def flash(context: RuleContext) -> bool:
    """Whether attention runs in FlashAttention's kernels."""
    job = context.training
    return job is not None and job.attention == "flash"


def no_bf16(context: RuleContext) -> bool:
    """Say whether the plan trains in bf16 on a GPU that is known to lack it."""
    job = context.training
    if job is None or "bf16" not in (job.recipe.compute, job.recipe.params):
        return False
    return lacks_bf16(context.resolved.gpu)


def fp8(context: RuleContext) -> bool:
    """Say whether the plan trains in fp8."""
    job = context.training
    return job is not None and job.recipe.recipe == "fp8-mixed"


def unoffered(context: RuleContext) -> bool:
    """Say whether the plan has a setting that its framework may not have."""
    framework, job = context.framework, context.training
    if framework is None or job is None:
        return False
    return (
        bool(framework.lacks or job.base_format)
        or job.method not in framework.methods
        or job.loss.kind not in framework.losses.kinds
        or job.attention not in framework.attentions
        or (context.plan.training is not None and context.plan.training.attention not in (None, job.attention))
        or job.checkpointing.mode not in framework.recompute
        or job.checkpoint.offload == "none"
        or job.checkpoint.asynchronous
    )


def may_idle(context: RuleContext) -> bool:
    """Say whether a key of the plan may have no effect: one that needs conditions, or any plan of inference."""
    job, found = context.training, keys_that_may_idle(context.plan)
    if job is None or found != [RESHARD] or job.layout.zero_stage != 3:
        return job is None or bool(found)
    return not uses_fsdp(job)


def objective(context: RuleContext) -> bool:
    """Say whether training is more than next-token prediction over packed rows with a step after backward."""
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


RESHARD = "parallelism.reshard_after_forward"
PRECISION = ("reduce", "gradients", "optimizer_states", "master")
"""Keys of ``precision`` that count under conditions."""


def keys_that_may_idle(plan: Plan) -> list[str]:
    """Return the keys that a plan states and that count under conditions; most state none."""
    p, t = plan.parallelism, plan.training
    found = []
    if p.reshard_after_forward is False:
        found.append(RESHARD)
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


class Gated(Record):
    """What has to be known of a rule before it is asked."""

    code: str
    module: str
    """The name of the rule's module in ``memcheck.rules``."""
    when: Callable[[RuleContext], bool]
    """The rule's own (``Rule.when``): where it does not hold, the check finds nothing and is not loaded."""
    needs_estimate: bool = False
    blocking: bool = False
    batch: bool = False

    @property
    def rule(self) -> Rule:
        """The rule, loaded from its module."""
        found: Rule = import_module(f"memcheck.rules.{self.module}").RULE
        return found

    def check(self, context: RuleContext) -> Iterable[Finding]:
        """Return the rule's findings."""
        if not self.when(context):
            return ()
        check = _checks.get(self.module)
        if check is None:
            check = _checks[self.module] = self.rule.check or (lambda _: iter(()))
        return check(context)


_checks: dict[str, Callable[[RuleContext], Iterable[Finding]]] = {}
"""The check of each rule that was loaded, by code: a search asks for them thousands of times."""
