"""torchtune's losses over preferences and from a teacher, with the variables of its recipes.

Sources: torchtune bd2a0fc7c recipes/lora_dpo_single_device.py, lora_dpo_distributed.py, full_dpo_distributed.py
(``concatenated_forward``), recipes/knowledge_distillation_single_device.py, knowledge_distillation_distributed.py
(``_loss_step``), rlhf/sequence_processing.py, modules/loss/kd_losses.py, modules/transformer.py (``unembed``).
"""

from __future__ import annotations

from memcheck.autograd.attention import softmax
from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast, cat, mul, scale
from memcheck.autograd.indexing import gather_last, slices
from memcheck.autograd.loss import cross_entropy, log_softmax
from memcheck.autograd.matrix import Weights, linear
from memcheck.autograd.operator import PASSED, operator
from memcheck.autograd.pieces import counted_as, in_pieces
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.frameworks.transformers.forward_only_pass import leave, second_hidden, second_outputs
from memcheck.frameworks.transformers.head import Head
from memcheck.frameworks.transformers.preference_batch import Batch, total
from memcheck.job.types import DISTILLED


def own_loss(ctx: Context, head: Head, box: list[Value], weights: Weights) -> Value:
    """Head and loss. ``box``: holds the only reference to the normed hidden states."""
    run = _distilled if head.objective.name in DISTILLED else _preferred
    return run(ctx, head, box, weights)


def _preferred(ctx: Context, head: Head, box: list[Value], weights: Weights) -> Value:
    """DPO: logits in fp32 of all rows, then those of the reference; each pass's die with their means.

    The recipes of adapters do not delete the reference's: those of the micro-batch before are there until the policy's
    scores are.
    """
    tape, objective = ctx.tape, head.objective
    batch = Batch(ctx, objective, head.vocab)
    forgotten = [tape.new(batch.whole, "fp32", "logits of the reference before")] if objective.holds_reference else []
    all_logits = linear(tape, box.pop(), weights, "output")
    all_logits = cast(tape, all_logits, "fp32", "output.float()")
    all_logits = all_logits.view(*batch.whole)
    halves = objective.reference == "resident"
    loss = total(tape, _log_probabilities(tape, all_logits, batch, halves=halves))
    del all_logits
    forgotten.clear()
    if head.second is not None:
        theirs = second_outputs(ctx, head.second, wide=objective.wide_outputs).logits
        _log_probabilities(tape, theirs.view(*batch.whole), batch, halves=halves)
        if objective.holds_reference:
            ctx.kept.append(theirs)
        del theirs
    return loss


def _log_probabilities(tape: Tape, all_logits: Value, batch: Batch, *, halves: bool) -> tuple[Value, ...]:
    """``get_batch_log_probs``, of all rows or of the chosen and the rejected ones."""
    rows, tokens, vocab = batch.shifted
    count = 2 if halves else 1
    found = []
    for _ in range(count):
        logits = all_logits
        if halves:
            logits = slices(tape, logits, (rows // 2, batch.sequence, vocab))[0]
        logits = slices(tape, logits, (rows // count, tokens, vocab))[0]
        labels = tape.new((rows // count, tokens), "int64", "labels")
        mask = tape.new((rows // count, tokens), "bool", "loss mask")
        divided = scale(tape, logits, "logits / temperature")
        del logits
        log_probabilities = log_softmax(tape, divided)
        del divided
        found.append(gather_last(tape, log_probabilities, labels, (rows // count, tokens)))
        del log_probabilities, labels, mask
    return tuple(found)


def _distilled(ctx: Context, head: Head, box: list[Value], weights: Weights) -> Value:
    """Logits of both models in chunks, all of which live; then the divergence and the class loss, chunk by chunk."""
    tape, copies = ctx.tape, [each for _, each in in_pieces(head.loss.chunks, 1)]
    rows = -(-ctx.tokens // head.loss.chunks)
    logits = _chunked_output(tape, box, (rows, ctx.hidden), weights, copies)
    theirs: list[Value] = []
    if head.second is not None:
        other = head.second.head
        weight = Parameter("lm_head", (other.vocab, other.hidden), other.dtype, other.trained, has_grad=True)
        bias = Parameter("lm_head.bias", (other.vocab,), other.dtype, other.trained, has_grad=True)
        normed, around = second_hidden(ctx, head.second)
        mine = [normed]
        del normed
        their_weights = Weights(weight, bias if other.bias else None)
        theirs = _chunked_output(tape, mine, (rows, other.hidden), their_weights, copies)
        leave(ctx, around)
    losses: list[Value] = []
    for student, teacher, alike in zip(logits, theirs, copies, strict=True) if theirs else ():
        with counted_as(tape, alike):
            losses += _divergence(tape, student, teacher, head.objective.beta)
    for student, alike in zip(logits, copies, strict=True):
        with counted_as(tape, alike):
            losses.append(cross_entropy(tape, student, upcast=True))
    del logits, theirs, student
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _chunked_output(
    tape: Tape, box: list[Value], shape: tuple[int, int], weights: Weights, copies: list[int]
) -> list[Value]:
    """``[self.output(chunk) for chunk in h.tensor_split(...)]``."""
    parts = tape.views(box.pop(), *((shape,) * len(copies)))
    logits = []
    for alike in copies:
        part = parts.pop(0)
        with counted_as(tape, alike):
            logits.append(linear(tape, part, weights, "output"))
        del part
    return logits


def _divergence(tape: Tape, student: Value, teacher: Value, beta: float) -> list[Value]:
    """ForwardKLLoss, ReverseKLLoss, or the sum of both."""
    found = []
    if beta < 1:
        found.append(_forward_kl(tape, student, teacher))
    if beta > 0:
        found.append(_reverse_kl(tape, student, teacher))
    return found


def _forward_kl(tape: Tape, student: Value, teacher: Value) -> Value:
    teacher_prob = softmax(tape, teacher, "fp32")
    inf_mask = _isinf(tape, student)
    student_logprob = _wide_log_softmax(tape, student)
    prod_probs = _masked(tape, mul(tape, teacher_prob, student_logprob, "product"), inf_mask)
    return _summed(tape, prod_probs)


def _reverse_kl(tape: Tape, student: Value, teacher: Value) -> Value:
    student_prob = softmax(tape, student, "fp32")
    student_logprob = _wide_log_softmax(tape, student)
    teacher_logprob = _wide_log_softmax(tape, teacher)
    masks = [_isinf(tape, student), _isinf(tape, teacher)]
    inf_mask = tape.new(student.shape, "bool", "either is infinite")
    masks.clear()
    prod_probs = _masked(tape, mul(tape, student_prob, teacher_logprob, "product"), inf_mask)
    other = _masked(tape, mul(tape, student_prob, student_logprob, "product"), inf_mask)
    prod_probs = _subtract_in_place(tape, prod_probs, other)
    del other
    return _summed(tape, prod_probs)


def _wide_log_softmax(tape: Tape, logits: Value) -> Value:
    """``log_softmax(logits, dtype=float32)``: of bf16 in two operators (aten/native/SoftMax.cpp)."""
    return log_softmax(tape, cast(tape, logits, "fp32", "logits in fp32"))


def _isinf(tape: Tape, logits: Value) -> Storage:
    """``abs(logits) == inf``."""
    absolute = tape.new(logits.shape, logits.dtype, "abs")
    mask = tape.new(logits.shape, "bool", "isinf")
    del absolute
    return mask


def _masked(tape: Tape, x: Value, mask: Storage) -> Value:
    """``torch.masked_fill(x, mask, 0)``: keeps the mask."""
    return operator(tape, tape.value(x.shape, x.dtype, "masked_fill"), x, "masked_fill backward", saves=(mask,))


def _subtract_in_place(tape: Tape, a: Value, b: Value) -> Value:
    """``a -= b``: b's gradient is a negated copy."""
    return operator(tape, Value(a.storage, a.shape, a.dtype), (a, b), [PASSED, "sub backward"])


def _summed(tape: Tape, x: Value) -> Value:
    """``torch.sum(x, -1)``, whose gradient is a view of one number a row."""
    return operator(tape, tape.value(x.shape[:-1], x.dtype, "sum"), x, PASSED)
