"""A key is set, and nothing in this job reads it.

## What it does

Reports keys that the framework has, and that this layout, method or recipe makes meaningless. The step is the same
without the key.

- `reshard_after_forward: false` without FSDP: below `zero_stage: 3`, or with one rank to shard over.
- `gradient_sync: last` with one replica, one micro-batch per step, or a pipeline. Under FSDP2, Accelerate before 1.11
  reduces every micro-batch.
- `gradient_as_bucket_view: true` without DDP: at `zero_stage: 3`, or with one replica.
- `pipeline_schedule` without a pipeline.
- `precision.reduce` without FSDP: DDP reduces gradients in their own dtype.
- `precision.gradients` outside Megatron: autograd's gradients have the dtype of their parameters.
- `precision.optimizer_states`: torch's optimizers take the dtype of the tensor, bitsandbytes' have 32 or 8 bits.
- `precision.master` with adapters, which are their own master copy.
- `freeze` with adapters: everything else is frozen already.
- `expert_imbalance` without expert parallelism, `expert_tensor` without experts.
- `loss.upcast: false` if logits are fp32 anyway or inside a fused kernel.
- `loss.keep_logits: true` if the loss makes the logits; `every_n_layers` without recompute.
- `zero_stage`, `shard_group`, `sequence` and other keys of a training step, while serving.

## Why it matters

A reader of the plan believes that gradients are reduced in bf16 or that parameters stay gathered. They do not.

## Example

    parallelism: {zero_stage: 1, reshard_after_forward: false}     # nothing is gathered that could be kept

## How to fix

Remove the key, or change the setting that the finding names.

## Options

None. Where a framework has nothing for a key at all, MEM408 says so.

## Source

torch `_fsdp_param_group.py` (`post_forward`, `post_backward`),
`pipelining/stage.py` (`backward_maybe_with_nosync`), `nn/parallel/distributed.py`,
`c10d/reducer.cpp`, `csrc/autograd/engine.cpp` (`validate_outputs`), `optim/adamw.py` (`zeros_like`); bitsandbytes
`optim/optimizer.py` (`init_state`); PEFT `tuners/tuners_utils.py`
(`_mark_only_adapters_as_trainable`); Megatron-core `megatron_fsdp/param_and_grad_buffer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from memcheck.accounts.state import LOW_BITS
from memcheck.frameworks.torch.data_parallel import uses_fsdp
from memcheck.frameworks.torch.ddp import buckets
from memcheck.job.layout import EACH
from memcheck.job.recipe import keeps_full_states
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Moe
from memcheck.plan.finding import Finding
from memcheck.rules.budget import shown
from memcheck.rules.defaulted import deviates, stated
from memcheck.rules.types import Rule, RuleContext
from memcheck.rules.when import keys_that_may_idle, may_idle

ADAPTERS_OWN = "only adapters are trained, and theirs have the dtype `lora.dtype`"
OF_A_STEP = (
    "sequence",
    "pipeline_schedule",
    "virtual_stages",
    "zero_stage",
    "shard_group",
    "reshard_after_forward",
    "gradient_sync",
    "gradient_as_bucket_view",
)
"""Keys of ``parallelism`` that only training reads."""


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per stated key that changes nothing."""
    job, framework = context.training, context.framework
    if job is None or framework is None:
        yield from _serving(context)
        return
    for key in keys_that_may_idle(context.plan):
        if key in framework.lacks:
            continue
        why = CASES[key](job)
        if why and _counts(context, job, key):
            yield _finding(context, key, why)


def _counts(context: RuleContext, job: TrainingJob, key: str) -> bool:
    """Say whether the value is another one than the job would have without the key."""
    if (key not in PRECISION and key != "parallelism.gradient_sync") or context.framework is None:
        return True
    if key in DROPPED:
        return bool(stated(context.plan, key) != getattr(job.recipe, key.rpartition(".")[2]))
    if key == "parallelism.gradient_sync" and stated(context.plan, key) != job.layout.gradient_sync:
        return True
    return deviates(context.plan, job, context.framework, key)


def _finding(context: RuleContext, key: str, why: str) -> Finding:
    """Return the finding for a key without effect. ``why``: as a clause."""
    pointer = "/" + key.replace(".", "/")
    return RULE.finding(
        context,
        f"`{key.rpartition('.')[2]}: {shown(stated(context.plan, key))}` changes nothing here: {why}",
        pointer,
        help=f"remove `{key}`, or change what keeps it from counting",
        related=(("the stage", "/parallelism/zero_stage"), ("the method", "/training/method")),
    )


def _serving(context: RuleContext) -> Iterator[Finding]:
    """Yield findings for keys of a training step in a plan that serves a model."""
    for name in OF_A_STEP:
        key = f"parallelism.{name}"
        if getattr(context.plan.parallelism, name) not in (None, 0, 1, False):
            yield _finding(context, key, "the plan serves a model, and only a training step reads it")


def _reshard(job: TrainingJob) -> str:
    if job.layout.zero_stage == 3 and uses_fsdp(job):
        return ""
    return "nothing is gathered, because no parameters are sharded"


def _sync(job: TrainingJob) -> str:
    """Say why ``gradient_sync`` has no effect; an empty text if it has one."""
    layout = job.layout
    if layout.data * layout.context == 1:
        return "there is one replica, and nothing to reduce"
    if job.gradient_accumulation_steps == 1:
        return "a step is one micro-batch, which is the last one"
    if uses_fsdp(job) and layout.gradient_sync == "every":
        return EACH
    return "a pipeline reduces with the last micro-batch either way" if layout.pipeline > 1 else ""


def _view(job: TrainingJob) -> str:
    if buckets(job).exist:
        return ""
    return "FSDP reduces without DDP's buckets" if uses_fsdp(job) else "there is one replica, and DDP has no buckets"


def _schedule(job: TrainingJob) -> str:
    """Say why ``pipeline_schedule`` has no effect; an empty text if it has one."""
    usual = "interleaved-1f1b" if job.layout.virtual_stages > 1 else "1f1b"
    if job.layout.pipeline > 1 or job.layout.pipeline_schedule == usual:
        return ""
    return "there is no pipeline"


def _reduce(job: TrainingJob) -> str:
    """Say why the dtype of reductions has no effect; an empty text if it has one."""
    if uses_fsdp(job):
        return ""
    several = job.layout.data * job.layout.context > 1
    return "DDP reduces gradients in their own dtype" if several else "there is one replica, and nothing to reduce"


def _gradients(job: TrainingJob) -> str:
    """Say why the dtype of gradients has no effect; an empty text if it has one."""
    if job.framework.sums_gradients_in_buffers:
        return "a gradient buffer is as wide as the parameters, fp32, or wider" if job.recipe.params == "fp32" else ""
    if job.method != "full":
        return ADAPTERS_OWN
    return "autograd makes gradients in the dtype of their parameters, `precision.params`"


def _states(job: TrainingJob) -> str:
    """Say why the dtype of optimizer states has no effect; an empty text if it has one."""
    if keeps_full_states(job.optimizer, job.framework):
        return f"bitsandbytes' {job.optimizer.name} keeps its states in fp32"
    if job.optimizer.name in LOW_BITS:
        return "torchao's states have dtypes of their own"
    if job.optimizer.name.endswith("8bit"):
        return "8-bit states have a dtype of their own"
    if job.method != "full":
        return ADAPTERS_OWN
    return "torch's optimizers make states like the parameters that they step, `precision.params` or `master`"


def _master(job: TrainingJob) -> str:
    return "only adapters are trained, which are their own master copy" if job.method != "full" else ""


def _imbalance(job: TrainingJob) -> str:
    return "every rank computes all experts, because `expert` is 1" if job.layout.expert == 1 else ""


def _expert_tensor(job: TrainingJob) -> str:
    """Say why ``expert_tensor`` has no effect; an empty text if it has one."""
    model = job.architecture
    if isinstance(model, Architecture) and not any(isinstance(block.mlp, Moe) for block, _ in model.blocks):
        return "the model has no experts"
    return ""


def _upcast(job: TrainingJob) -> str:
    if job.loss.kind == "fused-linear":
        return "the fused kernel makes logits piece by piece, in a way of its own"
    return "logits are fp32, because the model computes in it" if job.recipe.compute == "fp32" else ""


def _logits(job: TrainingJob) -> str:
    kind = job.loss.kind
    return f"a {kind} loss gives the loop no logits to keep" if kind in ("chunked", "fused-linear") else ""


def _every(job: TrainingJob) -> str:
    return "nothing is recomputed" if job.checkpointing.mode == "none" else ""


def _freeze(job: TrainingJob) -> str:
    return f"method {job.method} freezes everything but its adapters" if job.method != "full" else ""


CASES: dict[str, Callable[[TrainingJob], str]] = {
    "parallelism.reshard_after_forward": _reshard,
    "parallelism.gradient_sync": _sync,
    "parallelism.gradient_as_bucket_view": _view,
    "parallelism.pipeline_schedule": _schedule,
    "training.precision.reduce": _reduce,
    "training.precision.gradients": _gradients,
    "training.precision.optimizer_states": _states,
    "training.precision.master": _master,
    "parallelism.expert_tensor": _expert_tensor,
    "training.expert_imbalance": _imbalance,
    "training.loss.upcast": _upcast,
    "training.loss.keep_logits": _logits,
    "training.activation_checkpointing.every_n_layers": _every,
    "training.freeze": _freeze,
}
"""For each key, why a job does not read it: an empty string where it does."""
PRECISION = tuple(key for key in CASES if ".precision." in key)
DROPPED = ("training.precision.gradients", "training.precision.optimizer_states")
"""Keys whose stated dtype is not applied where nothing reads it: the job keeps the dtype that it has without the key.
"""


RULE = Rule(
    code="MEM416",
    name="setting-without-effect",
    severity="warning",
    summary="A key is set, and nothing in this job reads it.",
    doc=__doc__,
    check=check,
    when=may_idle,
    batch=True,
)
