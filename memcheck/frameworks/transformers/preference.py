"""Losses over log-probabilities of completions, as TRL computes them after the model's forward.

Each function is written with upstream's variables, because these decide which logits live how long. Sources: TRL 0.29.1
trainer/dpo_trainer.py (``_compute_loss``), experimental/orpo, cpo and kto; TRL 0.24.0 trainer/dpo_trainer.py
(``concatenated_forward``); TRL 1.16 trainer/dpo_trainer.py, kto_trainer.py; ms-swift 3602360a rlhf_trainers/
dpo_trainer.py, kto_trainer.py, rlhf_mixin.py; open-instruct e6c3044a dpo_utils.py, padding_free_collator.py.

How a loss over log-probabilities sees a batch, and what it makes of the scores.

LLaMA-Factory's preference losses: log-probabilities of all rows at once, from logits in fp32.

Source: hiyouga/LLaMA-Factory ff6d4d12 train/dpo/trainer.py and train/kto/trainer.py (``concatenated_forward``,
``get_batch_loss_metrics``), train/trainer_utils.py (``get_batch_logps``). The loss is ``pref_loss`` on numbers a row.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.loss import entropies, log_softmax, nll_loss, selective_log_softmax
from memcheck.autograd.operator import cast, copy, gather_last, operator, slices
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.forward_only_pass import Outputs, second_outputs
from memcheck.job.types import LLAMA_FACTORY, MS_SWIFT, OPEN_INSTRUCT, Objective


class Batch:
    """Sizes of a forward pass and of the logits that its loss reads.

    ``rows``: sequences of the pass. ``sequence``: tokens per row. ``vocab``: logits per token.
    """

    __slots__ = ("completion", "rows", "sequence", "vocab")

    def __init__(self, ctx: Context, objective: Objective, vocab: int) -> None:
        self.rows, self.sequence, self.vocab = ctx.setting.batch, ctx.setting.sequence, vocab
        self.completion = max(1, self.sequence - objective.prompt_tokens)
        """Tokens per row after the prompt, whose log-probabilities count."""

    @property
    def whole(self) -> tuple[int, int, int]:
        """Shape of all logits: [rows, sequence, vocab]."""
        return (self.rows, self.sequence, self.vocab)

    @property
    def shifted(self) -> tuple[int, int, int]:
        """Shape of the logits that predict a token of the row: [rows, sequence - 1, vocab]."""
        return (self.rows, self.sequence - 1, self.vocab)


def total(tape: Tape, scores: tuple[Value, ...]) -> Value:
    """Compute the loss from log-probabilities: sums, ratios and a mean, at most one number per token."""
    return operator(tape, tape.value((1,), "fp32", "loss"), scores, "gradient of scores")


def preference_loss(
    ctx: Context, objective: Objective, box: list[Outputs], vocab: int, second: ForwardOnlyPass | None
) -> Value:
    """Compute the preference loss of what the model returned, as the trainer's code does it.

    ``box``: a list with the only reference to the outputs. ``second``: the forward pass of the reference model, or
    None.
    """
    batch = Batch(ctx, objective, vocab)
    if objective.loss_code == LLAMA_FACTORY:
        llama_factory_loss = kto_loss if objective.name == "kto" else pairwise_loss
        return llama_factory_loss(ctx, box, batch, second, wide=objective.fp32_outputs)
    if objective.loss_code == MS_SWIFT:
        return _ms_swift_loss(ctx, box, batch, second, wide=objective.fp32_outputs)
    if objective.loss_code == OPEN_INSTRUCT:
        return _open_instruct_dpo(ctx, box, batch, second, wide=objective.fp32_outputs)
    if objective.name == "kto":
        if objective.loss_code == "trl-1.6":
            return _of_views(ctx, box, batch, second, wide=objective.fp32_outputs, selects=True)
        return _kto(ctx, box, batch, second, wide=objective.fp32_outputs)
    if objective.name in ("dpo", "ipo"):
        run = {"trl-0.29": _dpo, "trl-1.6": _of_views}.get(objective.loss_code, _dpo_trl_024)
        return run(ctx, box, batch, second, wide=objective.fp32_outputs)
    return _orpo_or_cpo(ctx, box, batch, nll=objective.name != "simpo")


def _dpo(ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool) -> Value:
    """Replay DPOTrainer._compute_loss of TRL 0.29, and return the loss.

    Logits, their shifted copies and the reference's are local variables until it returns. ``box``: a list with the only
    reference to the policy's outputs. ``batch``: rows and tokens. ``second``: the reference's forward; None: there is
    none. ``wide``: accelerate casts outputs to fp32.
    """
    tape = ctx.tape
    outputs = box.pop()
    shift_logits = copy(tape, slices(tape, outputs.logits, batch.shifted)[0], "shifted logits")
    loss = total(tape, (selective_log_softmax(tape, shift_logits),))
    variables: list[Outputs | Value] = [outputs]
    if second is not None:
        ref_outputs = second_outputs(ctx, second, wide=wide)
        ref_shift_logits = copy(tape, _without_last_token(ref_outputs.logits, batch), "shifted logits of the reference")
        selective_log_softmax(tape, ref_shift_logits)
        variables += [ref_outputs, ref_shift_logits]
    entropies(tape, batch.rows * (batch.sequence - 1), batch.vocab, shift_logits.dtype)
    chosen = tape.new((batch.rows // 2 * batch.completion, batch.vocab), shift_logits.dtype, "completion logits")
    del chosen, variables
    return loss


def _of_views(
    ctx: Context,
    box: list[Outputs],
    batch: Batch,
    second: ForwardOnlyPass | None,
    *,
    wide: bool,
    selects: bool = False,
) -> Value:
    """Replay _compute_loss of TRL's DPOTrainer, 1.6 to 1.14, and KTOTrainer, 1.9 to 1.14.

    Shifted logits are views, which the entropy copies. ``selects``: copies of the chosen and the rejected rows follow.
    """
    tape = ctx.tape
    outputs = box.pop()
    loss = total(tape, (selective_log_softmax(tape, slices(tape, outputs.logits, batch.shifted)[0]),))
    variables: list[Outputs | Value] = [outputs]
    if second is not None:
        ref_outputs = second_outputs(ctx, second, wide=wide)
        selective_log_softmax(tape, _without_last_token(ref_outputs.logits, batch))
        variables.append(ref_outputs)
    flat_logits = tape.new(batch.shifted, outputs.logits.dtype, "shifted logits of the entropy")
    entropies(tape, batch.rows * (batch.sequence - 1), batch.vocab, outputs.logits.dtype)
    del flat_logits
    selected = tape.new(batch.shifted, outputs.logits.dtype, "selected rows") if selects else None
    chosen = tape.new((batch.rows // 2 * batch.completion, batch.vocab), outputs.logits.dtype, "completion logits")
    del chosen, selected, variables, outputs
    return loss


def _ms_swift_loss(
    ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool
) -> Value:
    """Replay ms-swift's DPOTrainer.concatenated_forward or KTOTrainer.forward, where logits are local to each pass.

    Parameters as in :func:`_dpo`. ``use_logits_to_keep`` drops the logits of prompts that all rows of a micro-batch
    have: none are assumed. KTO's passes over mismatched pairs need less memory than the ones after them, and are left
    out.
    """
    loss = total(ctx.tape, (_log_probabilities(ctx, box, batch),))
    if second is not None:
        _log_probabilities(ctx, [second_outputs(ctx, second, wide=wide)], batch)
    return loss


def _log_probabilities(ctx: Context, box: list[Outputs], batch: Batch) -> Value:
    """Compute the log-probability of every token, [batch, sequence], and drop the logits."""
    outputs = box.pop()
    scores = selective_log_softmax(ctx.tape, outputs.logits.view(*batch.whole))
    del outputs
    return scores


def _open_instruct_dpo(
    ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool
) -> Value:
    """Replay open-instruct's concatenated_forward, where logits are local to each pass.

    Parameters as in :func:`_dpo`.
    """
    loss = total(ctx.tape, (_fp32_log_probabilities(ctx, box, batch),))
    if second is not None:
        _fp32_log_probabilities(ctx, [second_outputs(ctx, second, wide=wide)], batch)
    return loss


def _fp32_log_probabilities(ctx: Context, box: list[Outputs], batch: Batch) -> Value:
    """Compute the log-probability of every token, [batch, sequence], from logits in fp32."""
    logits = box.pop().logits
    fp32_logits = cast(ctx.tape, logits, "fp32", "logits in fp32")
    labels = ctx.tape.new(batch.whole[:2], "int64", "shifted labels")
    scores = gather_last(ctx.tape, log_softmax(ctx.tape, fp32_logits), labels, batch.whole[:2])
    del logits, fp32_logits
    return scores


def _dpo_trl_024(
    ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool
) -> Value:
    """Replay DPOTrainer.concatenated_forward of TRL 0.24, which asks for the hidden states of all layers.

    It runs for the policy, then for the reference. Parameters as in :func:`_dpo`.
    """
    tape = ctx.tape
    loss = total(tape, (_trl_024_pass(ctx, box, batch),))
    if second is not None:
        reference_outputs = [second_outputs(ctx, second, wide=wide, states=True)]
        _trl_024_pass(ctx, reference_outputs, batch)
    return loss


def _trl_024_pass(ctx: Context, box: list[Outputs], batch: Batch) -> Value:
    """Compute the log-probability of every token as TRL 0.24: [rows, completion tokens].

    It also copies the logits of the chosen rows, the first half of the batch, for its metrics. ``box``: a list with the
    only reference to the model's outputs.
    """
    tape = ctx.tape
    outputs = box.pop()
    logits = outputs.logits.view(*batch.whole)
    scores = selective_log_softmax(tape, logits)
    chosen_logits = tape.new((batch.rows // 2 * batch.completion, batch.vocab), logits.dtype, "completion logits")
    del chosen_logits, outputs
    return scores


def _without_last_token(logits: Value, batch: Batch) -> Value:
    """View the logits without the last token of each row, and without a graph."""
    return Value(logits.storage, batch.shifted, logits.dtype)


def _orpo_or_cpo(ctx: Context, box: list[Outputs], batch: Batch, *, nll: bool) -> Value:
    """Replay ORPOTrainer's or CPOTrainer's concatenated_forward: the chosen rows' cross entropy, then all rows' scores.

    ``box``: a list with the only reference to the outputs. Views of the logits (``chosen_logits``) hold them until the
    metrics are computed. ``nll``: whether the loss has the cross entropy (SimPO's does not).
    """
    tape = ctx.tape
    outputs = box.pop()
    all_logits = outputs.logits
    batch_rows, tokens, vocab = batch.shifted
    loss_terms: list[Value] = []
    if nll:
        chosen = slices(tape, all_logits, (batch_rows // 2, batch.sequence, vocab))[0]
        chosen = slices(tape, chosen, (batch_rows // 2, tokens, vocab))[0]
        shifted = copy(tape, chosen, "shifted logits of the chosen rows")
        del chosen
        loss_terms.append(nll_loss(tape, log_softmax(tape, shifted)))
        del shifted
    loss_terms.append(selective_log_softmax(tape, slices(tape, all_logits, batch.shifted)[0]))
    loss = total(tape, tuple(loss_terms))
    del outputs, all_logits
    return loss


def _kto(ctx: Context, box: list[Outputs], batch: Batch, second: ForwardOnlyPass | None, *, wide: bool) -> Value:
    """Replay KTOTrainer.get_batch_loss_metrics: copies of the policy's logits live to its end, where they are summed.

    Parameters as in :func:`_dpo`. The passes over mismatched pairs (``_compute_kl_logps``) need less memory than the
    passes after them, and are left out.
    """
    scores, copied_logits = _kto_forward(ctx, box, batch)
    loss = total(ctx.tape, (scores,))
    reference_logits: list[Storage] = []
    if second is not None:
        reference_outputs = [second_outputs(ctx, second, wide=wide)]
        _, reference_logits = _kto_forward(ctx, reference_outputs, batch)
        # upstream binds both copies to `_`, which keeps that of the undesired rows alone
        reference_logits = reference_logits[1:]
    del copied_logits, reference_logits
    return loss


def _kto_forward(ctx: Context, box: list[Outputs], batch: Batch) -> tuple[Value, list[Storage]]:
    """Compute the log-probabilities of completions, and copy the logits of desired and of undesired rows.

    ``box``: a list with the only reference to the outputs of a model. Returns the log-probabilities and both copies,
    [rows, sequence, vocab] each.
    """
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
    """Replay LLaMA-Factory's ``get_batch_logps``; return fp32 logits and the log-probabilities of their labels.

    ``box``: a list with the only reference to the model's outputs, which is taken out of it. ``batch``: sizes. Returns
    logits [rows, sequence, vocab] and log-probabilities [rows, sequence - 1].
    """
    tape = ctx.tape
    logits = cast(tape, box.pop().logits, "fp32", "logits in fp32")
    labels = tape.new(batch.shifted[:2], "int64", "labels")
    mask = tape.new(batch.shifted[:2], "bool", "loss mask")  # a variable to the end, and read after the gather alone
    scored = slices(tape, logits, batch.shifted)[0]
    # aten/native/cuda/SoftMax.cu, host_softmax: `input_.contiguous()`, which one row without its last token is
    contiguous_logits = tape.new(batch.shifted, "fp32", "logits without the last token") if batch.rows > 1 else None
    log_probabilities = log_softmax(tape, scored)
    del contiguous_logits
    scores = gather_last(tape, log_probabilities, labels, batch.shifted[:2])
    del mask
    return logits, scores
