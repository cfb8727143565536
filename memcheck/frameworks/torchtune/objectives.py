"""torchtune's losses over preferences and from a teacher, with the variables of its recipes.

Sources: torchtune bd2a0fc7c recipes/lora_dpo_single_device.py, lora_dpo_distributed.py, full_dpo_distributed.py
(``concatenated_forward``), recipes/knowledge_distillation_single_device.py, knowledge_distillation_distributed.py
(``_loss_step``), rlhf/sequence_processing.py, modules/loss/kd_losses.py, modules/transformer.py (``unembed``).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import Weights, linear, softmax
from memcheck.autograd.loss import counted_as, cross_entropy, in_pieces, log_softmax
from memcheck.autograd.operator import GRAD_UNCHANGED, cast, cat, gather_last, mul, operator, scale, slices
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value, ceil_div
from memcheck.frameworks.transformers.forward_only_pass import leave, second_hidden, second_outputs
from memcheck.frameworks.transformers.head import Head
from memcheck.frameworks.transformers.preference import Batch, total
from memcheck.job.types import DISTILLED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.frameworks.forward_only_pass import ForwardOnlyPass


def own_loss(ctx: Context, head: Head, box: list[Value], weights: Weights) -> Value:
    """Compute head and loss of torchtune's DPO and distillation recipes.

    ``box``: a list with the only reference to the normed hidden states, [tokens, hidden].
    """
    run = _distillation_loss if head.objective.name in DISTILLED else _dpo_loss
    return run(ctx, head, box, weights)


def _dpo_loss(ctx: Context, head: Head, box: list[Value], weights: Weights) -> Value:
    """Replay torchtune's DPO recipes, and return the loss: fp32 logits of all rows for the policy, then the reference.

    ``box``: a list with the only reference to the hidden states. ``weights``: of the head. The LoRA recipes do not
    delete the reference's logits: those of the previous micro-batch live until the policy's log-probabilities exist.
    """
    tape, objective = ctx.tape, head.objective
    batch = Batch(ctx, objective, head.vocab)
    last_reference_logits = []
    if objective.holds_reference:
        last_reference_logits.append(tape.new(batch.whole, "fp32", "logits of the reference before"))
    all_logits = linear(tape, box.pop(), weights, "output")
    all_logits = cast(tape, all_logits, "fp32", "output.float()")
    all_logits = all_logits.view(*batch.whole)
    halves = objective.reference == "resident"
    loss = total(tape, _log_probabilities(tape, all_logits, batch, halves=halves))
    del all_logits
    last_reference_logits.clear()
    if head.reference_pass is not None:
        reference_logits = second_outputs(ctx, head.reference_pass, wide=objective.fp32_outputs).logits
        _log_probabilities(tape, reference_logits.view(*batch.whole), batch, halves=halves)
        if objective.holds_reference:
            ctx.model_outputs.append(reference_logits)
        del reference_logits
    return loss


def _log_probabilities(tape: Tape, all_logits: Value, batch: Batch, *, halves: bool) -> tuple[Value, ...]:
    """Replay ``get_batch_log_probs`` and return log-probabilities, [rows, tokens].

    ``all_logits``: [rows, tokens, vocab]. ``halves``: chosen and rejected rows are computed one after the other, and
    two tensors are returned.
    """
    rows, tokens, vocab = batch.shifted
    count = 2 if halves else 1
    log_probabilities_of_rows = []
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
        log_probabilities_of_rows.append(gather_last(tape, log_probabilities, labels, (rows // count, tokens)))
        del log_probabilities, labels, mask
    return tuple(log_probabilities_of_rows)


def _distillation_loss(ctx: Context, head: Head, box: list[Value], weights: Weights) -> Value:
    """Replay the distillation recipe: chunked logits of student and teacher, which all live, then the losses chunk by
    chunk.

    The divergence of all chunks comes first, the cross entropy of all chunks second. ``box``: a list with the only
    reference to the student's hidden states, [tokens, hidden]. ``weights``: of the student's head.
    """
    tape, copies = ctx.tape, [chunk_copies for _, chunk_copies in in_pieces(head.loss.chunks, 1)]
    chunk_tokens = ceil_div(ctx.tokens, head.loss.chunks)
    student_logits = _chunked_output(tape, box, (chunk_tokens, ctx.hidden), weights, copies)
    teacher_logits: list[Value] = []
    if head.reference_pass is not None:
        teacher_logits = _teacher_logits(ctx, head.reference_pass, chunk_tokens, copies)
    losses: list[Value] = []
    for student, teacher, copies_of_chunk in zip(student_logits, teacher_logits, copies, strict=False):
        with counted_as(tape, copies_of_chunk):
            losses += _divergence(tape, student, teacher, head.objective.beta)
    for student, copies_of_chunk in zip(student_logits, copies, strict=True):
        with counted_as(tape, copies_of_chunk):
            losses.append(cross_entropy(tape, student, upcast=True))
    del student_logits, teacher_logits, student
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _teacher_logits(ctx: Context, teacher: ForwardOnlyPass, chunk_tokens: int, copies: list[int]) -> list[Value]:
    """Run the teacher's forward without gradients, and return the logits of each chunk, [chunk_tokens, vocab].

    ``copies``: for how many equal chunks each replayed chunk counts.
    """
    head = teacher.head
    weight = Parameter("lm_head", (head.vocab, head.hidden), head.weight_dtype, head.trained, has_grad=True)
    bias = (
        Parameter("lm_head.bias", (head.vocab,), head.weight_dtype, head.trained, has_grad=True) if head.bias else None
    )
    normed, pass_variables = second_hidden(ctx, teacher)
    hidden = [normed]
    del normed  # the list has the only reference: the states die when the chunks' logits exist
    logits = _chunked_output(ctx.tape, hidden, (chunk_tokens, head.hidden), Weights(weight, bias), copies)
    leave(ctx, pass_variables)
    return logits


def _chunked_output(
    tape: Tape, box: list[Value], shape: tuple[int, int], weights: Weights, copies: list[int]
) -> list[Value]:
    """Compute the logits of each chunk of tokens: ``[self.output(chunk) for chunk in h.tensor_split(...)]``.

    ``box``: a list with the only reference to the hidden states, [tokens, hidden]. ``shape``: of a chunk of them.
    ``copies``: for how many equal chunks each replayed chunk counts.
    """
    chunks = tape.views(box.pop(), *((shape,) * len(copies)))
    logits = []
    for copies_of_chunk in copies:
        chunk = chunks.pop(0)
        with counted_as(tape, copies_of_chunk):
            logits.append(linear(tape, chunk, weights, "output"))
        del chunk
    return logits


def _divergence(tape: Tape, student: Value, teacher: Value, beta: float) -> list[Value]:
    """Compute ForwardKLLoss, ReverseKLLoss, or both for a ``beta`` between 0 and 1."""
    losses = []
    if beta < 1:
        losses.append(_forward_kl(tape, student, teacher))
    if beta > 0:
        losses.append(_reverse_kl(tape, student, teacher))
    return losses


def _forward_kl(tape: Tape, student: Value, teacher: Value) -> Value:
    """Replay ForwardKLLoss: ``softmax(teacher) * log_softmax(student)`` of [tokens, vocab], summed per token."""
    teacher_prob = softmax(tape, teacher, "fp32")
    inf_mask = _isinf(tape, student)
    student_logprob = _fp32_log_softmax(tape, student)
    prod_probs = _masked(tape, mul(tape, teacher_prob, student_logprob, "product"), inf_mask)
    return _summed(tape, prod_probs)


def _reverse_kl(tape: Tape, student: Value, teacher: Value) -> Value:
    """Replay ReverseKLLoss: ``softmax(student) * (log_softmax(teacher) - log_softmax(student))``, summed per token."""
    student_prob = softmax(tape, student, "fp32")
    student_logprob = _fp32_log_softmax(tape, student)
    teacher_logprob = _fp32_log_softmax(tape, teacher)
    masks = [_isinf(tape, student), _isinf(tape, teacher)]
    inf_mask = tape.new(student.shape, "bool", "either is infinite")
    masks.clear()
    prod_probs = _masked(tape, mul(tape, student_prob, teacher_logprob, "product"), inf_mask)
    student_terms = _masked(tape, mul(tape, student_prob, student_logprob, "product"), inf_mask)
    prod_probs = _subtract_in_place(tape, prod_probs, student_terms)
    del student_terms
    return _summed(tape, prod_probs)


def _fp32_log_softmax(tape: Tape, logits: Value) -> Value:
    """Compute ``log_softmax(logits, dtype=float32)``, for bf16 in two operators (aten/native/SoftMax.cpp)."""
    return log_softmax(tape, cast(tape, logits, "fp32", "logits in fp32"))


def _isinf(tape: Tape, logits: Value) -> Storage:
    """Compute the mask of infinite logits: ``abs(logits) == inf``."""
    absolute = tape.new(logits.shape, logits.dtype, "abs")
    mask = tape.new(logits.shape, "bool", "isinf")
    del absolute
    return mask


def _masked(tape: Tape, x: Value, mask: Storage) -> Value:
    """Replay ``torch.masked_fill(x, mask, 0)``; autograd keeps the mask."""
    return operator(tape, tape.value(x.shape, x.dtype, "masked_fill"), x, "masked_fill backward", saves=(mask,))


def _subtract_in_place(tape: Tape, a: Value, b: Value) -> Value:
    """Replay ``a -= b``; the gradient of b is a negated copy."""
    return operator(tape, Value(a.storage, a.shape, a.dtype), (a, b), [GRAD_UNCHANGED, "sub backward"])


def _summed(tape: Tape, x: Value) -> Value:
    """Compute ``torch.sum(x, -1)``; its gradient is an expanded view of one number per row."""
    return operator(tape, tape.value(x.shape[:-1], x.dtype, "sum"), x, GRAD_UNCHANGED)
