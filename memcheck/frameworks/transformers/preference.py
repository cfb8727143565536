"""Losses over log-probabilities of completions, as TRL computes them after the model's forward.

Each function is written with upstream's variables, because these decide which logits live how long. Sources: TRL 0.29.1
trainer/dpo_trainer.py (``_compute_loss``), experimental/orpo, cpo and kto; TRL 0.24.0 trainer/dpo_trainer.py
(``concatenated_forward``); TRL 1.16 trainer/dpo_trainer.py, kto_trainer.py; ms-swift 3602360a rlhf_trainers/
dpo_trainer.py, kto_trainer.py, rlhf_mixin.py; open-instruct e6c3044a dpo_utils.py, padding_free_collator.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, copy
from memcheck.autograd.indexing import gather_last, slices
from memcheck.autograd.log_probabilities import entropies, selective_log_softmax
from memcheck.autograd.loss import log_softmax, nll_loss
from memcheck.autograd.tensor import Storage, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.forward_only_pass import Outputs, second_outputs
from memcheck.frameworks.transformers.preference_batch import Batch, total
from memcheck.job.types import LLAMA_FACTORY, MS_SWIFT, OPEN_INSTRUCT, Objective


def preference_loss(
    ctx: Context, objective: Objective, box: list[Outputs], vocab: int, second: ForwardOnlyPass | None
) -> Value:
    """The loss of what the model returned. ``box``: holds the only reference to it."""
    batch = Batch(ctx, objective, vocab)
    if objective.code == LLAMA_FACTORY:
        from memcheck.frameworks.transformers.llama_factory import kto_loss, pairwise_loss

        theirs = kto_loss if objective.name == "kto" else pairwise_loss
        return theirs(ctx, box, batch, second, wide=objective.wide_outputs)
    if objective.code == MS_SWIFT:
        return _scored_pass(ctx, box, batch, second, wide=objective.wide_outputs)
    if objective.code == OPEN_INSTRUCT:
        return _of_every_token(ctx, box, batch, second, wide=objective.wide_outputs)
    if objective.name == "kto":
        return _kto(ctx, box, batch, second, wide=objective.wide_outputs)
    if objective.name in ("dpo", "ipo"):
        run = _dpo if objective.code == "trl-0.29" else _dpo_with_states
        return run(ctx, box, batch, second, wide=objective.wide_outputs)
    return _odds(ctx, box, batch, nll=objective.name != "simpo")


def _dpo(ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool) -> Value:
    """DPOTrainer._compute_loss of TRL 0.29: logits, their shifted copies and the reference's are local variables."""
    tape = ctx.tape
    outputs = box.pop()
    shift_logits = copy(tape, slices(tape, outputs.logits, batch.shifted)[0], "shifted logits")
    loss = total(tape, (selective_log_softmax(tape, shift_logits),))
    variables: list[Outputs | Value] = [outputs]
    if second is not None:
        ref_outputs = second_outputs(ctx, second, wide=wide)
        ref_shift_logits = copy(tape, _rows(ref_outputs.logits, batch), "shifted logits of the reference")
        selective_log_softmax(tape, ref_shift_logits)
        variables += [ref_outputs, ref_shift_logits]
    entropies(tape, batch.rows * (batch.sequence - 1), batch.vocab, shift_logits.dtype)
    chosen = tape.new((batch.rows // 2 * batch.completion, batch.vocab), shift_logits.dtype, "completion logits")
    del chosen, variables
    return loss


def _scored_pass(
    ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool
) -> Value:
    """ms-swift's DPOTrainer.concatenated_forward and KTOTrainer.forward: logits are local to each pass.

    Metrics take means of each token's logits. ``use_logits_to_keep`` leaves out what precedes every completion of a
    micro-batch, which is nothing if one row has no prompt. KTO's passes over mismatched pairs come first in each.
    """
    loss = total(ctx.tape, (_scored(ctx, box, batch),))
    if second is not None:
        _scored(ctx, [second_outputs(ctx, second, wide=wide)], batch)
    return loss


def _scored(ctx: Context, box: list[Outputs], batch: Batch) -> Value:
    outputs = box.pop()
    scores = selective_log_softmax(ctx.tape, outputs.logits.view(*batch.whole))
    del outputs
    return scores


def _of_every_token(
    ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool
) -> Value:
    """open-instruct's concatenated_forward, whose logits are local to each pass."""
    loss = total(ctx.tape, (_widened(ctx, box, batch),))
    if second is not None:
        _widened(ctx, [second_outputs(ctx, second, wide=wide)], batch)
    return loss


def _widened(ctx: Context, box: list[Outputs], batch: Batch) -> Value:
    """The scores of whole rows, from logits in fp32."""
    logits = box.pop().logits
    wide = cast(ctx.tape, logits, "fp32", "logits in fp32")
    labels = ctx.tape.new(batch.whole[:2], "int64", "shifted labels")
    scores = gather_last(ctx.tape, log_softmax(ctx.tape, wide), labels, batch.whole[:2])
    del logits, wide
    return scores


def _dpo_with_states(
    ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool
) -> Value:
    """DPOTrainer.concatenated_forward of TRL 0.24: twice, each time with the hidden states of all layers."""
    tape = ctx.tape
    loss = total(tape, (_concatenated(ctx, box, batch),))
    if second is not None:
        theirs = [second_outputs(ctx, second, wide=wide, states=True)]
        _concatenated(ctx, theirs, batch)
    return loss


def _concatenated(ctx: Context, box: list[Outputs], batch: Batch) -> Value:
    tape = ctx.tape
    outputs = box.pop()
    logits = outputs.logits.view(*batch.whole)
    scores = selective_log_softmax(tape, logits)
    chosen = tape.new((batch.rows // 2 * batch.completion, batch.vocab), logits.dtype, "completion logits")
    del chosen, outputs
    return scores


def _rows(logits: Value, batch: Batch) -> Value:
    """The logits but for the last token of each row, without a graph."""
    return Value(logits.storage, batch.shifted, logits.dtype)


def _odds(ctx: Context, box: list[Outputs], batch: Batch, *, nll: bool) -> Value:
    """ORPOTrainer and CPOTrainer.concatenated_forward: the chosen rows' cross-entropy, then every row's scores.

    Views of the logits (``chosen_logits``) hold them until the metrics are taken.
    """
    tape = ctx.tape
    outputs = box.pop()
    all_logits = outputs.logits
    rows, tokens, vocab = batch.shifted
    found: list[Value] = []
    if nll:
        chosen = slices(tape, all_logits, (rows // 2, batch.sequence, vocab))[0]
        chosen = slices(tape, chosen, (rows // 2, tokens, vocab))[0]
        shifted = copy(tape, chosen, "shifted logits of the chosen rows")
        del chosen
        found.append(nll_loss(tape, log_softmax(tape, shifted)))
        del shifted
    found.append(selective_log_softmax(tape, slices(tape, all_logits, batch.shifted)[0]))
    loss = total(tape, tuple(found))
    del outputs, all_logits
    return loss


def _kto(ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool) -> Value:
    """KTOTrainer.get_batch_loss_metrics: copies of the policy's logits live to its end, for their sums.

    The passes over mismatched pairs (``_compute_kl_logps``) hold less than those that follow them.
    """
    scores, copies = _kto_forward(ctx, box, batch)
    loss = total(ctx.tape, (scores,))
    rest: list[Storage] = []
    if second is not None:
        theirs = [second_outputs(ctx, second, wide=wide)]
        _, rest = _kto_forward(ctx, theirs, batch)
        rest = rest[1:]  # `_, _`: the last one stays
    del copies, rest
    return loss


def _kto_forward(ctx: Context, box: list[Outputs], batch: Batch) -> tuple[Value, list[Storage]]:
    tape = ctx.tape
    outputs = box.pop()
    completion_logits = outputs.logits
    scores = selective_log_softmax(tape, slices(tape, completion_logits, batch.shifted)[0])
    half = batch.rows // 2
    copies = [
        tape.new((count, batch.sequence, batch.vocab), completion_logits.dtype, "logits of desired rows")
        for count in (batch.rows - half, half)
        if count
    ]
    del outputs, completion_logits
    return scores, copies
