"""The pass between steps: forward without gradients, on top of parameters and optimizer states.

Source: transformers 5.23 trainer.py (``evaluation_loop``, ``prediction_step``), trainer_pt_utils.py
(``EvalLoopContainer``, ``nested_concat``): kept logits grow by concatenation, which holds the old and the new whole,
and the loop's variable holds one batch more.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Instant
from memcheck.accounts.unit import Part
from memcheck.autograd.context import Context
from memcheck.autograd.tensor import ITEM_BYTES, Tape, Value, rounded
from memcheck.frameworks.torch.end_tensors import embedding_tensors, head_tensors
from memcheck.frameworks.torch.end_units import head_of, run_head
from memcheck.frameworks.torch.forward_only_pass import layer_gathers, passing
from memcheck.frameworks.torch.fsdp import gathered_dtype, group, wraps
from memcheck.frameworks.torch.rank_tensors import as_built
from memcheck.frameworks.torch.trained_parts import is_tied
from memcheck.frameworks.torch.units import base_setting
from memcheck.job.types import Objective, TrainingJob
from memcheck.models.types import Architecture


def evaluation_instant(job: TrainingJob, rests: Instant, gathered: int = 0) -> Instant:
    """The highest moment of the evaluation. ``rests``: what is allocated between steps.

    ``gathered``: bytes of the parameters that DeepSpeed's engine has gathered while it runs forward (ZeRO-3).
    """
    found = job.evaluation
    architecture = job.architecture
    assert found is not None and isinstance(architecture, Architecture)  # noqa: S101, PT018 - the caller asks for both
    job = job._replace(
        micro_batch_size=found.micro_batch_size, sequence_length=found.sequence_length or job.sequence_length
    )
    if found.keeps_logits and job.objective.name == "sft":
        job = job._replace(objective=Objective())  # a fused head makes them after all
    high, kept = _step(job, as_built(job, architecture))
    steps = found.steps if found.keeps_logits else 1
    kept = kept if found.keeps_logits else 0
    last = steps - 1
    forward = high + kept * (last + (last >= 2))
    concatenated = kept * (2 * last + 2)
    tokens = job.rows * job.sequence_length
    inputs = 3 * rounded(8 * tokens)
    components = dict(rests.components_bytes)
    most, operation = max((forward, "forward pass of the evaluation"), (concatenated, "concatenating kept logits"))
    for name, count in (("logits_and_loss", most), ("activations", inputs), ("communication_buffers", gathered)):
        if count:
            components[name] = components.get(name, 0) + count
    return Instant(
        name="evaluation", operation=operation, allocated_bytes=sum(components.values()), components_bytes=components
    )


def _step(job: TrainingJob, a: Architecture) -> tuple[int, int]:
    """A batch at its highest, and the bytes of the logits that it returns."""
    base = base_setting(job, a, None)._replace(input_grad=False)
    layers, casts = passing(a, base)
    tape = Tape(autocast=base.autocast)
    tape.grad_enabled = False
    ctx = Context(tape, base)
    part = Part(0, a.num_layers, embedding=True, head=True)
    head = head_of(job, a, base, part, None, (0, 0))
    tied = is_tied(a, base.tensor)
    gathered = 0
    if wraps(job):
        ends = (
            *embedding_tensors(a, base.tensor, base.trained),
            *head_tensors(a, base.tensor, tied, head.trained, (base.trained, base.trained), base.adapter is not None),
        )
        divided = [(t, job.layout.shard_group) for t in ends]
        found = group(divided, job.recipe, casts=gathered_dtype(job) is not None, waits=job.recipe.reduce)
        gathered = found.gathered
        layers += layer_gathers(job, a, base)
        layers = max(layers, found.flat)
    held = tape.new((gathered,), "int8", "gathered parameters of the root") if gathered else None
    before = tape.new((layers,), "int8", "layers")
    del before
    copies = [tape.new((casts,), "int8", "autocast copies")] if casts else []
    shape = (ctx.residual_tokens * base.streams, ctx.hidden)
    x = Value(tape.new(shape, base.params, "last hidden state"), shape, base.params)
    loss = run_head(ctx, head, x)
    high = tape.peak
    wide = job.framework.wide_outputs and job.recipe.recipe.endswith("-mixed")
    logits = 0
    for value in ctx.kept:
        item = 4 if wide else ITEM_BYTES[value.dtype]
        logits += rounded(value.numel * item)
    if wide and ctx.kept:
        # convert_outputs_to_fp32 after the loss: the logits in both dtypes, and autocast's copies still there
        high = max(high, tape.live + logits)
    if head.objective.outside and job.objective.code == "trl-0.29" and job.objective.name in ("dpo", "ipo"):
        logits = rounded(ctx.tokens * a.vocab_size * ITEM_BYTES["fp32" if wide else base.params])
    ctx.kept.clear()
    del held, copies, loss
    return high, logits
