"""Divergences between a student and a teacher, of all logits or tile by tile.

Sources: TRL 0.29.1 and 1.16 experimental/gkd/gkd_trainer.py (``generalized_jsd_loss``), TRL 1.16
trainer/distillation_trainer.py (``_chunked_divergence_loss``) and kernels/chunked_divergence.py; torch
aten/src/ATen/native/Loss.cpp (``kl_div`` with ``log_target``: ``exp(target) * (target - input)``).
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import Weights
from memcheck.autograd.loss import TILE_TOKENS, TILE_VOCABULARY, log_softmax, logsumexp
from memcheck.autograd.operator import add, cat, index, mul, operator, scale, shift, slices, subtract, unary
from memcheck.autograd.tensor import Parameter, Storage, Tape, Value
from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
from memcheck.frameworks.transformers.forward_only_pass import Outputs, leave, second_hidden, second_outputs
from memcheck.frameworks.transformers.preference import total
from memcheck.job.types import Objective
from memcheck.record import Record

FP32_STATISTICS = 9
"""Numbers of each token that the tiles are folded into."""


def generalized_jsd(
    ctx: Context, objective: Objective, box: list[Outputs], vocab: int, second: ForwardOnlyPass | None
) -> Value:
    """Replay GKDTrainer.compute_loss: the generalized Jensen-Shannon divergence of student and teacher logits.

    ``box``: a list with the only reference to the student's outputs. ``second``: the teacher's forward; None: this is
    the teacher-free replay of the student alone. The logits of completions are [batch, completion, vocab].
    """
    tape, setting = ctx.tape, ctx.setting
    student_outputs = box.pop()
    if second is None:
        return total(tape, (student_outputs.logits,))
    teacher_outputs = second_outputs(ctx, second, wide=objective.fp32_outputs)
    cuts_prompt = (
        objective.loss_code == "trl-0.29"
    )  # later versions keep the prompt's logits, and mask them by the labels
    completion = max(1, setting.sequence - max(objective.prompt_tokens, 1)) if cuts_prompt else setting.sequence - 1
    shape = (setting.batch, completion, vocab)
    student = slices(tape, student_outputs.logits, shape)[0]
    teacher = Value(teacher_outputs.logits.storage, shape, teacher_outputs.logits.dtype)
    scored_tokens = setting.batch * max(1, setting.sequence - max(objective.prompt_tokens, 1))
    loss = total(tape, (_divergence(tape, [student, teacher], objective.beta, scored_tokens),))
    del student_outputs, teacher_outputs, student, teacher
    return loss


def _divergence(tape: Tape, logits: list[Value], beta: float, scored: int) -> Value:
    """Replay ``generalized_jsd_loss`` statement by statement. ``logits``: student's and teacher's, [batch, tokens,
    vocab].

    ``beta`` 0 and 1 are the two KL divergences. ``scored``: number of tokens that are not part of a prompt.
    """
    student_logits = scale(tape, logits[0], "student logits / temperature")
    teacher_logits = scale(tape, logits[1], "teacher logits / temperature")
    logits.clear()
    student = log_softmax(tape, student_logits)
    teacher = log_softmax(tape, teacher_logits)
    if beta in (0, 1):
        jsd = _kl_div(tape, student, teacher) if beta == 0 else _kl_div(tape, teacher, student)
    else:
        weighted_log_probs = [shift(tape, student, "log(1 - beta)"), shift(tape, teacher, "log(beta)")]
        stacked = cat(tape, tuple(weighted_log_probs), (2, *student.shape), "stack")
        weighted_log_probs.clear()
        mixture = logsumexp(tape, stacked, over_first_dim=True)
        del stacked
        kl_teacher = _kl_div(tape, mixture, teacher)
        kl_student = _kl_div(tape, mixture, student)
        weighted = [scale(tape, kl_teacher, "beta * kl"), scale(tape, kl_student, "(1 - beta) * kl")]
        jsd = add(tape, weighted[0], weighted[1], "jsd")
        weighted.clear()
    scored_index = tape.new((scored, 2), "int64", "scored tokens")
    jsd = index(tape, jsd, scored_index, (scored, jsd.shape[-1]), "jsd[mask]")
    return operator(tape, tape.value((1,), "fp32", "sum"), jsd, "expanded gradient")


def _kl_div(tape: Tape, x: Value, target: Value) -> Value:
    """Replay ``F.kl_div(x, target, reduction="none", log_target=True)``, which makes tensors of x's shape."""
    exponent = unary(tape, target, "exp")
    return mul(tape, exponent, subtract(tape, target, x), "kl_div")


class TiledLogits(Record):
    """Logits of student and teacher that are computed one tile of tokens and vocabulary after the other."""

    tokens: int
    """Tokens that are scored."""
    vocabulary: int
    compute_dtype: str
    """Dtype in which the products are computed."""

    def buffers(self, tape: Tape) -> list[Storage]:
        """Allocate the two fp32 buffers of a tile. A vocabulary that is smaller than a tile does not shrink them."""
        shape = (min(self.tokens, TILE_TOKENS), TILE_VOCABULARY)
        return [tape.new(shape, "fp32", "tile of the student"), tape.new(shape, "fp32", "tile of the teacher")]

    def gradient_shapes(self) -> list[tuple[int, int]]:
        """Return the shapes of the tiles whose gradients backward replays: the first, the second and the last one.

        The others need no more memory. The second tile is allocated while the first is still alive. Tiles go over the
        vocabulary for one block of tokens after the other. An fp32 gradient is written into a buffer: no tile has one.
        """
        if self.compute_dtype == "fp32":
            return []
        first = (min(self.tokens, TILE_TOKENS), min(self.vocabulary, TILE_VOCABULARY))
        if (self.tokens, self.vocabulary) == first:
            return [first]
        last = ((self.tokens - 1) % TILE_TOKENS + 1, (self.vocabulary - 1) % TILE_VOCABULARY + 1)
        if self.vocabulary > TILE_VOCABULARY:  # the second tile has the same tokens, and the next words
            second = (first[0], min(self.vocabulary - TILE_VOCABULARY, TILE_VOCABULARY))
        else:
            second = (min(self.tokens - TILE_TOKENS, TILE_TOKENS), first[1])
        return [first, second] if second == last else [first, second, last]


def chunked_divergence(
    ctx: Context, objective: Objective, second: ForwardOnlyPass | None, box: list[Value], weights: Weights
) -> Value:
    """Replay DistillationTrainer's chunked divergence, which never has all logits: two fp32 tiles of them at a time.

    ``second``: the teacher's forward. ``box``: a list with the only reference to the student's hidden states, [tokens,
    hidden]. ``weights``: of the student's head.
    """
    tape, setting = ctx.tape, ctx.setting
    hidden_states = box.pop()
    scored_tokens = max(1, setting.batch * (setting.sequence - max(objective.prompt_tokens, 1)))
    student = index(
        tape,
        slices(tape, hidden_states, hidden_states.shape)[0],
        tape.new((scored_tokens, 2), "int64", "valid"),
        (scored_tokens, hidden_states.shape[-1]),
        "h_s[valid]",
    )
    teacher = teacher_states = None
    if second is not None:
        outer_autocast = tape.autocast
        teacher_states, pass_variables = second_hidden(ctx, second)
        teacher = tape.value((scored_tokens, second.head.hidden), teacher_states.dtype, "h_t[valid]")
        leave(ctx, pass_variables)
        tape.autocast = outer_autocast
    tiles = TiledLogits(scored_tokens, weights.weight.shape[0], setting.autocast_dtype or student.dtype)
    statistics = tape.new((FP32_STATISTICS, scored_tokens), "fp32", "running sums")
    buffers = tiles.buffers(tape)
    buffers.clear()
    del statistics, hidden_states, teacher_states  # arguments and variables of the functions around the kernel
    return _loss_of_tiles(tape, tiles, student, teacher, weights.weight)


def _loss_of_tiles(tape: Tape, tiles: TiledLogits, student: Value, teacher: Value | None, weight: Parameter) -> Value:
    """Record the autograd Function of the chunked divergence, and return the mean over the scored tokens.

    ``student``, ``teacher``: hidden states of the scored tokens, [tokens, hidden], which are saved. Backward computes
    the logits again, and sums the gradients of hidden states and of ``weight`` [vocab, hidden] in fp32.
    """
    out = tape.value((tiles.tokens,), "fp32", "divergence")
    saved = (
        student.storage,
        teacher.storage if teacher is not None else None,
        tape.new((3, tiles.tokens), "fp32", "logsumexps"),
    )
    # the shapes and dtypes of both gradients; the closure must not hold the student's hidden states
    hidden_spec = (student.shape, student.dtype) if student.needs_grad else None
    head_spec = ((tiles.vocabulary, student.shape[-1]), weight.dtype) if weight.requires_grad else None

    def divergence_backward(grad: Storage) -> list[Storage | None]:
        """Allocate what backward has for each tile, and return the gradients of hidden states and head."""
        fp32_hidden_grad = tape.new(hidden_spec[0], "fp32", "hidden gradient in fp32") if hidden_spec else None
        fp32_head_grad = tape.new(head_spec[0], "fp32", "head gradient in fp32") if head_spec else None
        buffers, tile_grad = tiles.buffers(tape), None
        for tile_shape in tiles.gradient_shapes():  # `grad_tile`, a variable until the next one is made, and to the end
            tile_grad = tape.new(tile_shape, tiles.compute_dtype, "gradient of a tile")
        hidden_grad, head_grad = fp32_hidden_grad, fp32_head_grad
        if hidden_spec and hidden_spec[1] != "fp32":
            hidden_grad = tape.new(*hidden_spec, "hidden gradient")
        if head_spec and head_spec[1] != "fp32":
            head_grad = tape.new(*head_spec, "head gradient")
        del fp32_hidden_grad, fp32_head_grad, buffers, tile_grad
        return [hidden_grad, head_grad]

    return total(tape, (tape.record(out, (student, tape.parameter(weight)), divergence_backward, saves=saved),))
