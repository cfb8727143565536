"""LLaMA-Factory's preference losses: log-probabilities of all rows at once, from logits in fp32.

Source: hiyouga/LLaMA-Factory ff6d4d12 train/dpo/trainer.py and train/kto/trainer.py (``concatenated_forward``,
``get_batch_loss_metrics``), train/trainer_utils.py (``get_batch_logps``). The loss is ``pref_loss`` on numbers a row.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.loss import log_softmax
from memcheck.autograd.operator import cast, gather_last, slices
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.forward_only_pass import Outputs, second_outputs
from memcheck.frameworks.transformers.preference_batch import Batch, total


def pairwise_loss(
    ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool
) -> Value:
    """Replay LLaMA-Factory's CustomDPOTrainer for DPO, IPO, ORPO and SimPO, and return the loss.

    ``box``: a list with the only reference to the policy's outputs, whose logits live to the end of the metrics.
    ``batch``: rows and tokens. ``second``: the reference's forward, whose logits die with it; None: there is none.
    ``wide``: accelerate casts outputs to fp32.
    """
    all_logits, scores = _forward(ctx, box, batch)
    loss = total(ctx.tape, (scores,))
    if second is not None:
        _forward(ctx, [second_outputs(ctx, second, wide=wide)], batch)
    del all_logits
    return loss


def kto_loss(ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool) -> Value:
    """Replay LLaMA-Factory's CustomKTOTrainer, and return the loss; parameters as in :func:`pairwise_loss`.

    Policy and reference each run a second pass over mismatched pairs, then copy logits of desirable and undesirable
    answers. The policy's second pass is left out: it needs less memory than the reference's, which comes later.
    """
    scores, copies = _tagged(ctx, box, batch)
    loss = total(ctx.tape, (scores,))
    if second is not None:
        target_logits, _ = _forward(ctx, [second_outputs(ctx, second, wide=wide)], batch)
        _forward(ctx, [second_outputs(ctx, second, wide=wide)], batch)
        reference_copies = _by_tag(ctx.tape, target_logits, batch)
        del target_logits, reference_copies
    del copies
    return loss


def _tagged(ctx: Context, box: list[Outputs], batch: Batch) -> tuple[Value, list[Storage]]:
    target_logits, scores = _forward(ctx, box, batch)
    return scores, _by_tag(ctx.tape, target_logits, batch)


def _by_tag(tape: Tape, logits: Value, batch: Batch) -> list[Storage]:
    """Copy ``target_logits[batch["kto_tags"]]`` and the other rows: together as large as the logits."""
    half = batch.rows // 2
    return [
        tape.new((count, batch.sequence, batch.vocab), logits.dtype, "logits by tag")
        for count in (batch.rows - half, half)
        if count
    ]


def _forward(ctx: Context, box: list[Outputs], batch: Batch) -> tuple[Value, Value]:
    """Compute the logits in fp32, and the log-probabilities [rows, tokens] of their labels."""
    tape = ctx.tape
    logits = cast(tape, box.pop().logits, "fp32", "logits in fp32")
    labels = tape.new(batch.shifted[:2], "int64", "labels")
    mask = tape.new(batch.shifted[:2], "bool", "loss mask")
    scored = slices(tape, logits, batch.shifted)[0]
    # aten/native/cuda/SoftMax.cu, host_softmax: `input_.contiguous()`, which one row without its last token is
    contiguous_logits = tape.new(batch.shifted, "fp32", "logits without the last token") if batch.rows > 1 else None
    log_probabilities = log_softmax(tape, scored)
    del contiguous_logits
    scores = gather_last(tape, log_probabilities, labels, batch.shifted[:2])
    del mask
    return logits, scores
