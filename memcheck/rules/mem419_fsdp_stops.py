"""FSDP does not run this step: it ends in an error of dtypes, shapes or shards.

## What it does

Reports steps that end in an error of torch's FSDP:

- FSDP2 needs one dtype for all trained parameters of a group. A group is a layer, or all parameters outside the layers.
- FSDP1 needs one dtype for all parameters of a unit, because it flattens them into one tensor.
- FSDP1 gathers adapters on their own, in the dtype of mixed precision. Before that, peft has cast the adapters' inputs
  to the dtype of the shards. The two dtypes must be equal.
- After the forward pass of its root, FSDP1 has only a shard of the head, and a chunked loss needs the whole head.
- transformers' Adafactor adds FSDP2's sharded tensors to plain ones.
- torch's Adafactor squares in place a tensor of which each rank has a part.
- Accelerate from 1.14 on puts a tied matrix into two groups of FSDP2, where adapters train a whole copy of it.

## Why it matters

The job ends in an error in its first step or before it. More memory does not help. Some of transformers' classes keep
parameters in fp32 for every dtype of the checkpoint (`_keep_in_fp32_modules_strict`; in fp16 also
`_keep_in_fp32_modules`). An example is T5's last matrices in fp16. Trained in 16 bits alone, they are in one group
with the others.

## Example

    model: t5-3b
    parallelism: {zero_stage: 3}
    training: {framework: huggingface, precision: fp16-pure}

## How to fix

The finding says which applies:

- mixed precision, which has all parameters in fp32;
- adapters in the dtype of the products;
- FSDP2 in place of FSDP1;
- a fused loss in place of a chunked one.

## Options

None.

## Source

torch 2.13 `distributed/fsdp/_fully_shard/_fsdp_param_group.py` (`_init_mp_dtypes`), `distributed/fsdp/_flat_param.py`
(`_validate_tensors_to_flatten`, `reshard`), `optim/_adafactor.py`; peft `tuners/tuners_utils.py`
(`_cast_input_dtype`); transformers 5.23 `optimization.py` (`Adafactor.step`); accelerate 1.15 `utils/fsdp_utils.py`;
each was run in real processes.
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.frameworks.torch.fsdp_limits import fsdp_limits
from memcheck.plan.finding import Finding
from memcheck.rules.types import Rule, RuleContext, stated
from memcheck.rules.when import wraps_layers


def check(context: RuleContext) -> Iterator[Finding]:
    """Yield one finding per reason."""
    job, model, framework = context.training, context.architecture, context.framework
    if job is None or model is None or framework is None or framework.has_sharding_engine:
        return
    for stop in fsdp_limits(job, model):
        yield RULE.finding(
            context,
            stop.message,
            stated(context.document, stop.pointer, stop.pointer.rpartition("/")[0]),
            help=stop.help,
            related=(("the stage", "/parallelism/zero_stage"),),
        )


RULE = Rule(
    code="MEM419",
    name="fsdp-stops",
    severity="error",
    summary="FSDP does not run this step: it ends in an error of dtypes, shapes or shards.",
    doc=__doc__,
    check=check,
    when=wraps_layers,
)
