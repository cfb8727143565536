"""Divergences between a student and a teacher, of all logits or tile by tile.

Sources: TRL 0.29.1 and 1.16 experimental/gkd/gkd_trainer.py (``generalized_jsd_loss``), TRL 1.16
trainer/distillation_trainer.py (``_chunked_divergence_loss``) and kernels/chunked_divergence.py; torch
aten/src/ATen/native/Loss.cpp (``kl_div`` with ``log_target``: ``exp(target) * (target - input)``).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import add, cat, mul, scale, shift, subtract, unary
from memcheck.autograd.indexing import index, slices
from memcheck.autograd.log_probabilities import TILE_TOKENS, TILE_VOCABULARY, logsumexp
from memcheck.autograd.loss import log_softmax
from memcheck.autograd.matrix import Weights
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Tape, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.forward_only_pass import Outputs, leave, second_hidden, second_outputs
from memcheck.frameworks.transformers.preference_batch import total
from memcheck.job.types import Objective

FP32_STATISTICS = 9
"""Numbers of each token that the tiles are folded into."""


def generalized_jsd(
    ctx: Context, objective: Objective, box: list[Outputs], vocab: int, second: ForwardOnlyPass | None
) -> Value:
    """GKDTrainer.compute_loss: the logits of both models, those of scored tokens divided by a temperature of one."""
    tape, s = ctx.tape, ctx.setting
    student_outputs = box.pop()
    if second is None:
        return total(tape, (student_outputs.logits,))
    teacher_outputs = second_outputs(ctx, second, wide=objective.wide_outputs)
    sliced = objective.code == "trl-0.29"  # later ones leave the prompt to the labels
    completion = max(1, s.sequence - max(objective.prompt_length, 1)) if sliced else s.sequence - 1
    shape = (s.batch, completion, vocab)
    student = slices(tape, student_outputs.logits, shape)[0]
    teacher = Value(teacher_outputs.logits.storage, shape, teacher_outputs.logits.dtype)
    scored = s.batch * max(1, s.sequence - max(objective.prompt_length, 1))
    loss = total(tape, (_divergence(tape, [student, teacher], objective.beta, scored),))
    del student_outputs, teacher_outputs, student, teacher
    return loss


def _divergence(tape: Tape, logits: list[Value], beta: float, scored: int) -> Value:
    """``generalized_jsd_loss``, statement by statement. ``scored``: tokens that are no prompt's."""
    student_logits = scale(tape, logits[0], "student logits / temperature")
    teacher_logits = scale(tape, logits[1], "teacher logits / temperature")
    logits.clear()
    student = log_softmax(tape, student_logits)
    teacher = log_softmax(tape, teacher_logits)
    if beta in (0, 1):
        jsd = _kl_div(tape, student, teacher) if beta == 0 else _kl_div(tape, teacher, student)
    else:
        both = [shift(tape, student, "log(1 - beta)"), shift(tape, teacher, "log(beta)")]
        stacked = cat(tape, tuple(both), (2, *student.shape), "stack")
        both.clear()
        mixture = logsumexp(tape, stacked, first=True)
        del stacked
        kl_teacher = _kl_div(tape, mixture, teacher)
        kl_student = _kl_div(tape, mixture, student)
        weighted = [scale(tape, kl_teacher, "beta * kl"), scale(tape, kl_student, "(1 - beta) * kl")]
        jsd = add(tape, weighted[0], weighted[1], "jsd")
        weighted.clear()
    where = tape.new((scored, 2), "int64", "scored tokens")
    jsd = index(tape, jsd, where, (scored, jsd.shape[-1]), "jsd[mask]")
    return operator(tape, tape.value((1,), "fp32", "sum"), jsd, "expanded gradient")


def _kl_div(tape: Tape, x: Value, target: Value) -> Value:
    """``F.kl_div(x, target, reduction="none", log_target=True)``."""
    exponent = unary(tape, target, "exp")
    return mul(tape, exponent, subtract(tape, target, x), "kl_div")


def chunked_divergence(
    ctx: Context, objective: Objective, second: ForwardOnlyPass | None, box: list[Value], weights: Weights
) -> Value:
    """DistillationTrainer: hidden states of both models, and two fp32 tiles of logits at a time.

    The teacher's hidden states are kept for the backward, which makes its tiles again.
    """
    tape, s = ctx.tape, ctx.setting
    h, weight = box.pop(), weights.weight
    scored = max(1, s.batch * (s.sequence - max(objective.prompt_length, 1)))
    hidden, vocab = h.shape[-1], weight.shape[0]
    mine = index(
        tape, slices(tape, h, h.shape)[0], tape.new((scored, 2), "int64", "valid"), (scored, hidden), "h_s[valid]"
    )
    theirs = whole = None
    if second is not None:
        enabled = tape.autocast
        whole, around = second_hidden(ctx, second)
        theirs = tape.value((scored, second.head.hidden), whole.dtype, "h_t[valid]")
        leave(ctx, around)
        tape.autocast = enabled
    compute = s.autocast or mine.dtype
    tile = (min(scored, TILE_TOKENS), TILE_VOCABULARY)  # of the buffers, which a smaller vocabulary does not fill
    gradients = [] if compute == "fp32" else _gradient_tiles(scored, vocab)
    statistics = tape.new((FP32_STATISTICS, scored), "fp32", "running sums")
    tiles = [tape.new(tile, "fp32", "tile of the student"), tape.new(tile, "fp32", "tile of the teacher")]
    tiles.clear()
    del statistics, h, whole  # arguments and variables of those that have called this
    out = tape.value((scored,), "fp32", "divergence")
    kept = (mine.storage, theirs.storage if theirs is not None else None, tape.new((3, scored), "fp32", "logsumexps"))
    wants, trained = mine.origin is not None, weight.requires_grad
    shape, dtype, w_shape, w_dtype = (scored, hidden), mine.dtype, (vocab, hidden), weight.dtype

    def run(grad: Storage) -> list[Storage | None]:
        wide_x = tape.new(shape, "fp32", "hidden gradient in fp32") if wants else None
        wide_w = tape.new(w_shape, "fp32", "head gradient in fp32") if trained else None
        tiles = [tape.new(tile, "fp32", "tile of the student"), tape.new(tile, "fp32", "tile of the teacher")]
        narrow = None
        for each in gradients:  # `grad_tile`, a variable until the next one is made, and to the end
            narrow = tape.new(each, compute, "gradient of a tile")
        gx = wide_x if dtype == "fp32" or wide_x is None else tape.new(shape, dtype, "hidden gradient")
        gw = wide_w if w_dtype == "fp32" or wide_w is None else tape.new(w_shape, w_dtype, "head gradient")
        del wide_x, wide_w, tiles, narrow
        return [gx, gw]

    return total(tape, (tape.record(out, (mine, tape.parameter(weight)), run, saves=kept),))


def _gradient_tiles(tokens: int, vocabulary: int) -> list[tuple[int, int]]:
    """The tiles to walk, as ``(tokens, vocabulary)``: the first, the last, and the second, which may be the highest.

    The second tile may be the highest because the first one is still live.

    They go over the vocabulary, for some tokens after the other.
    """
    first = (min(tokens, TILE_TOKENS), min(vocabulary, TILE_VOCABULARY))
    if (tokens, vocabulary) == first:
        return [first]
    last = ((tokens - 1) % TILE_TOKENS + 1, (vocabulary - 1) % TILE_VOCABULARY + 1)
    if vocabulary > TILE_VOCABULARY:
        second = first if vocabulary >= 2 * TILE_VOCABULARY else (first[0], last[1])
    else:
        second = first if tokens >= 2 * TILE_TOKENS else last
    return [first, second] if second == last else [first, second, last]
