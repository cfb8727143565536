"""The plan needs more memory than the GPU has.

## What it does

Predicts what the worst pipeline rank needs at its peak: tensors, what the caching allocator cannot return, the CUDA
or ROCm context and the communicators. Compares it with what the driver gives a process on that GPU. What the
allocator caches beyond that is visible in `nvidia-smi` but not counted: it is returned before an allocation fails.

## Why it matters

The job ends in `torch.OutOfMemoryError`, often not in the first step: the optimizer step, a longer batch or gradient
accumulation set the peak. A gate that says so costs seconds; a queued node costs hours.

## Example

    hardware: {gpu: a100-40gb}
    training: {framework: pytorch, precision: bf16-mixed, sequence_length: 4096}   # an 8B model: 16 bytes a parameter

## How to fix

The finding lists remedies that the same engine re-computed. First come those that keep hardware and result, then
those that change the result, then other hardware. In short:

- shard the states: `parallelism.zero_stage`, `tensor`, `pipeline`;
- recompute activations: `training.activation_checkpointing`;
- do not materialise the logits: `training.loss: fused-linear`;
- lower `training.micro_batch_size` and accumulate.

If the job has died already, `memcheck why job.out --plan plan.yaml` compares its log with the plan.

## Options

`hardware.gpu` may carry its own `memory_gib`; `policy.overhead` replaces the itemised overhead by a flat fraction.

## Source

Usable memory per GPU is what `torch.cuda.mem_get_info()` reports at best, not the number on the box.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.memory.fit import TOO_LARGE, gpu_fit
from memcheck.plan.finding import Finding
from memcheck.rules.budget import doubt, gib, key_pointer, need, peak, related
from memcheck.rules.defaulted import hanging
from memcheck.rules.types import MEASURED, Rule, RuleContext
from memcheck.rules.when import strained


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding when what is needed exceeds the capacity."""
    estimate = context.estimate
    if estimate is None or gpu_fit(estimate, context.fail_above) != TOO_LARGE:
        return
    missing = estimate.needed_bytes - estimate.capacity_bytes
    yield RULE.finding(
        context,
        f"{need(context, estimate)}, {gib(missing)} too much{doubt(context, estimate)}; "
        f"{peak(context, estimate)}{hanging(context, estimate)}",
        key_pointer(context, estimate),
        help="shard the states, recompute activations, lower the micro-batch, or take a larger GPU",
        related=related(context),
    )


RULE = Rule(
    code="MEM101",
    name="exceeds-capacity",
    severity="error",
    summary="The plan needs more memory than the GPU has.",
    doc=__doc__,
    check=check,
    when=strained,
    precision=MEASURED,
    needs_estimate=True,
)
