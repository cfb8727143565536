"""The last unit of a model: final norm, language-model head, loss."""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor
from memcheck.autograd import Tape, Value, backward
from memcheck.autograd.context import Context, Setting, adapts_head, wider
from memcheck.autograd.curve import Curve, checkpointed, curve_of, end_forward, grad_hook_peak, peak_of
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.loss import (
    compiled_cross_entropy,
    counted_as,
    cross_entropy,
    entropies,
    fused_linear,
    in_pieces,
    widened,
)
from memcheck.autograd.modules import activation, enter_tensor_parallel, normalise
from memcheck.autograd.operator import cast, cat, dropout, operator, scale, shift, unary
from memcheck.autograd.tensor import Dim, Leaf, Parameter, ceil_div, rounded_bytes
from memcheck.frameworks.registry import layers_of, own_losses_of
from memcheck.job.types import DISTILLED, OWN, Loss, Objective, TrainingJob
from memcheck.models.types import Norm, ParameterTensor, TaskHead
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:  # loaded for a loss that asks for a second pass, or for what the model returns
    from memcheck.frameworks.forward_only_pass import ForwardOnlyPass
    from memcheck.frameworks.transformers.forward_only_pass import Outputs


class HeadTransform(Record):
    """What runs between BERT's last hidden state and its LM head: a linear layer, its activation and a LayerNorm."""

    name: str
    """Name of the linear layer."""
    activation: str
    outputs: int
    """Width of the linear layer's output where it is that of the token table (ELECTRA); 0: the hidden size."""
    bias: bool
    """The linear layer has a bias."""
    norm_bias: bool
    """The LayerNorm has a bias."""
    inner_width: int
    """Width between two linear layers, which no norm follows (UltraBERT); 0: there is one layer."""


class Head(Record):
    """What the last unit consists of. Hashable."""

    vocab: int
    """Rows of the head's matrix."""
    bias: bool
    """The matrix has a bias."""
    final_norm: Norm | None
    caps_logits: bool
    """Logits are capped: ``cap * tanh(logits / cap)`` (Gemma 2)."""
    tied: bool
    """The matrix is the token embedding's."""
    loss: Loss
    trained: bool = True
    """The matrix gets a gradient."""
    scales_logits: bool = False
    """Logits are multiplied by a constant (Cohere, Granite)."""
    shared_gradient_width: int = 0
    """Width of a gradient to which every layer adds, and which the embedding takes (Gemma 4's per-layer inputs)."""
    transform: HeadTransform | None = None
    collapses_streams: bool = False
    """Streams are collapsed by learned weights (DeepSeek V4), not by their mean."""
    dropout: float = 0.0
    """Dropout after the final norm."""
    returns_hidden_states: bool = False
    """The model's output has what the head reads, in addition to the logits (T5Gemma)."""
    logit_offset_dtype: str = ""
    """Dtype of a buffer of one number a word that is added to the logits (BART); empty: none is."""
    caps_hidden_states: bool = False
    """What the head reads is capped, not the logits."""
    divides_hidden_states: bool = False
    """What the head reads is divided by a constant."""
    casts_logits_to_fp32: bool = False
    """The model's forward casts the logits to fp32, and returns those."""
    loss_is_compiled: bool = False
    """torch.compile runs the loss as one graph."""
    previous_graph_bytes: int = 0
    """Bytes that the graph of the step before holds until this one's logits replace the old ones."""
    width: int = 0
    """Columns of the matrix where they are not the hidden size (OPT-350m, ELECTRA); 0: they are."""
    projects_out: bool = False
    """A matrix after the final norm makes the rows as wide as the head's matrix (OPT-350m)."""
    grad_dtype: str | None = None
    """Dtype to which autograd casts every gradient of the head, where it is used outside of FSDP2's forward: its group
    learns of the backward only after them."""
    task: TaskHead | None = None
    objective: Objective = Objective()
    reference_pass: ForwardOnlyPass | None = None
    """The forward pass of a reference that the loss runs."""
    hidden_states_in_output_bytes: int = 0
    """Bytes of hidden states that only the model's output holds, where the loss asks for them."""
    all_hidden_states_bytes: int = 0
    """Bytes of all hidden states."""

    @property
    def makes_logits_in_loss(self) -> bool:
        """Whether the loss is computed from hidden states: it makes what logits it needs itself."""
        objective = self.objective
        has_own_loss = objective.loss_code == OWN or objective.loss_from_hidden_states or objective.loss_in_chunks
        return self.task is not None or has_own_loss


def head_curve(head: Head, setting: Setting, dtype: str, *, inventory: bool = False) -> Curve:
    """Replay forward and backward of final norm, LM head and loss, and return the memory curve in bytes.

    ``dtype``: of the last hidden state, [residual tokens * streams, hidden]. ``saved_bytes`` of the curve is what is
    alive when backward starts. Existing gradients and optimizer states are not in the curve.
    """
    tape = Tape(autocast=setting.autocast_dtype, inventory=inventory)
    tape.dtensor_gradients = setting.uses_dtensor
    ctx = Context(tape, setting)
    input_leaf = Leaf() if setting.needs_input_gradient else None
    shape = (ctx.residual_tokens * setting.streams, ctx.hidden)
    last_hidden = Value(tape.new(shape, dtype, "last hidden state"), shape, dtype, input_leaf)
    loss = head_forward(ctx, head, last_hidden)
    forward_peak, peak_before_logits = peak_of(tape), ctx.final_norm_peak
    del last_hidden
    live_after_forward = tape.live
    tape.casts.clear()
    ctx.unused_outputs = []
    if not head.loss.keep_logits and not head.objective.holds_reference:
        ctx.model_outputs.clear()
    saved = end_forward(tape)
    backward(tape, loss, [tape.new((1,), "fp32", "output gradient")])
    curve = curve_of(tape, forward_peak, saved)
    # until the whole model's backward ends: the output that the training loop refers to, a gradient to which all layers
    # add, and a tied head's gradient that waits for the embedding's
    until_backward_ends = sum(v.storage.bytes for v in ctx.model_outputs if v.storage is not None)
    until_backward_ends += rounded_bytes((ctx.tokens, head.shared_gradient_width), dtype)
    for parameter in ctx.parameters:
        if parameter.grad_buffer is not None and not parameter.first_micro_batch:
            until_backward_ends += parameter.grad_buffer.bytes
    del input_leaf, loss
    return curve._replace(
        autocast_cache_bytes=live_after_forward - saved.bytes,
        until_backward_ends=until_backward_ends,
        peak_before_loss=peak_before_logits,
        input_gradient_bytes=rounded_bytes(shape, dtype) if setting.needs_input_gradient else 0,
        weight_backward_bytes=tape.weight_backward_bytes,
        later_grad_hook_peak=grad_hook_peak(tape, first=1),
    )


def head_forward(ctx: Context, head: Head, x: Value) -> Value:
    """Run final norm, LM head and loss on the last hidden state, and return the loss.

    ``x``: [residual tokens * streams, hidden]. The logits, [tokens, vocab / tp], are put on ``ctx.model_outputs``: the
    model's output refers to them until the trainer drops it. The peak is reset before the head, so that FSDP's
    all-gather of the head can be placed. Source: transformers 5.23, ``LlamaForCausalLM.forward``.
    """
    tape = ctx.tape
    hidden_states = _final_norm(ctx, head, x)
    hidden_states, last_hidden_state = _before_head(ctx, head, hidden_states)
    hidden_states = enter_tensor_parallel(ctx, hidden_states)  # the head's first hook
    hidden_states, head_input = _head_input(ctx, head, hidden_states)
    ctx.final_norm_peak = peak_of(tape)
    tape.reset_peak()
    tape.component = "logits_and_loss"
    if head.makes_logits_in_loss:
        hidden_box = [hidden_states]
        del hidden_states, last_hidden_state  # the list has the only reference, which the loss drops
        return _loss_of_hidden_states(ctx, head, hidden_box)
    weights = _head_weights(ctx, head)
    chunked = layers_of(ctx.setting.style).loss_in_pieces(ctx, head, hidden_states, weights)
    if chunked is not None:
        return chunked
    if head.loss.kind == "fused-linear":
        return fused_linear(tape, hidden_states, weights.weight)
    logits = _logits(ctx, head, hidden_states, weights)
    del hidden_states
    if head.objective.loss_after_model:  # the trainer computes the loss, from the model's output
        outputs_box = [logits, last_hidden_state]
        del logits, last_hidden_state
        return _trainer_loss(ctx, head, [_model_output(ctx, head, outputs_box)])
    ctx.model_outputs += [logits, last_hidden_state] if head.returns_hidden_states else [logits]
    if head.loss_is_compiled:
        del last_hidden_state  # the compiled graph drops it before the loss
        return compiled_cross_entropy(tape, logits)
    loss = cross_entropy(
        tape,
        logits,
        upcast=head.loss.upcast,
        parallel=head.loss.kind == "vocab-parallel",
        copied=bool(head.loss.shifts),
        in_place=head.loss.kind == "in-place",
    )
    if head.objective.reads_logits:
        del last_hidden_state, head_input  # variables of the model's forward, which has returned
        _log_metrics(ctx, head, logits)
    return loss


def _head_weights(ctx: Context, head: Head) -> Weights:
    """Register the head's matrix [vocab / tp, width] and bias, with the adapter whose targets name the head.

    A tied matrix is the embedding's. Its gradient waits for the embedding's backward, which steps the table.
    """
    setting = ctx.setting
    shard = Dim(ceil_div(head.vocab, ctx.tp), "V/tp" if ctx.tp > 1 else "V")
    shape = (shard, head.width or ctx.hidden)
    weight = ctx.register(Parameter("lm_head", shape, ctx.dtype_of("lm_head"), head.trained, has_grad=setting.has_grad))
    weight.cast_to = wider(weight.dtype, head.grad_dtype) or weight.cast_to
    adds_or_steps = setting.has_grad or setting.optimizer_in_backward is not None
    weight.awaits_tied_gradient = head.tied and head.trained and adds_or_steps
    if weight.awaits_tied_gradient:
        weight.consume_gradient = None
    weights = Weights(weight, ctx.parameter("lm_head.bias", (shard,)) if head.bias else None)
    if setting.adapter is None:
        return ctx.faked(weights, tied=head.tied)
    # peft never quantises the head
    return ctx.adapted("lm_head", weights, setting.adapter) if adapts_head(setting.adapter) else weights


def _loss_of_hidden_states(ctx: Context, head: Head, box: list[Value]) -> Value:
    """Compute a loss that makes its logits itself, from the hidden states that the head reads.

    ``box``: a list with the only reference to them, [tokens, hidden], so that the loss can free them.
    """
    if head.task is not None:
        from memcheck.frameworks.transformers.task_heads import task_loss

        return task_loss(ctx, head.task, box, trained=head.trained)
    weights = _head_weights(ctx, head)
    if head.objective.loss_code == OWN:
        return own_losses_of(ctx.setting.style).own_loss(ctx, head, box, weights)
    if head.objective.loss_in_chunks:
        from memcheck.frameworks.transformers.fused_head import chunked_loss

        return chunked_loss(ctx, head, box, weights)
    from memcheck.frameworks.transformers.fused_head import fused_loss

    return fused_loss(ctx, head.objective, head.reference_pass, box, weights)


def _final_norm(ctx: Context, head: Head, x: Value) -> Value:
    """Merge parallel residual streams, apply the final norm, and project its output as OPT-350m does.

    ``x``: the last hidden state, [residual tokens * streams, hidden]. Only the graph holds it from here on, as after
    ``hidden_states = self.norm(hidden_states)``.
    """
    hidden_states = layers_of(ctx.setting.style).norm(ctx, head.final_norm, _merge_streams(ctx, head, x))
    if head.projects_out:
        matrix = ParameterTensor("project_out.weight", (head.width, ctx.setting.hidden), "embedding", linear=True)
        hidden_states = linear(ctx.tape, hidden_states, ctx.weights(matrix, bias=False), "project_out")
    if head.final_norm is not None or head.projects_out:
        x.storage = None
    return hidden_states


def _merge_streams(ctx: Context, head: Head, x: Value) -> Value:
    """Merge the parallel residual streams (AltUp, hyper-connections) into one hidden state, [tokens, hidden].

    ``x``: [tokens * streams, hidden]. DeepSeek V4 merges with learned weights, Gemma 3n takes the mean of projections.
    """
    if ctx.setting.streams == 1:
        return x
    if head.collapses_streams:
        from memcheck.frameworks.transformers.hyper_connections import collapsed_streams

        return collapsed_streams(ctx, x)
    from memcheck.frameworks.transformers.altup import join_streams

    out = join_streams(ctx, x, ctx.setting.streams)
    x.storage = None  # `hidden_states = torch.stack(...)`
    return out


def _model_output(ctx: Context, head: Head, outputs_box: list[Value]) -> Outputs:
    """End the model's forward: leave autocast, and return the model's output, which refers to logits and hidden states.

    ``outputs_box``: a list [logits, last hidden state], which is emptied, so that no variable of the caller keeps them
    alive.
    """
    from memcheck.frameworks.transformers.forward_only_pass import Outputs, returned

    tape = ctx.tape
    logits, last_hidden = outputs_box
    outputs_box.clear()
    hidden_states = []
    if head.all_hidden_states_bytes:
        hidden_states = [tape.new((head.hidden_states_in_output_bytes,), "int8", "hidden states of all layers")]
        hidden_states += [last_hidden.storage] if last_hidden.storage is not None else []
    del last_hidden
    tape.casts.clear()
    tape.autocast = None
    outputs = returned(
        ctx, Outputs(logits, hidden_states, head.all_hidden_states_bytes), wide=head.objective.fp32_outputs
    )
    ctx.final_norm_peak = peak_of(tape)
    tape.reset_peak()
    return outputs


def _trainer_loss(ctx: Context, head: Head, box: list[Outputs]) -> Value:
    """Compute a loss that TRL runs on the model's output: a distillation or a preference loss."""
    if head.objective.name in DISTILLED:
        from memcheck.frameworks.transformers.distillation import generalized_jsd

        return generalized_jsd(ctx, head.objective, box, head.vocab, head.reference_pass)
    from memcheck.frameworks.transformers.preference import preference_loss

    return preference_loss(ctx, head.objective, box, head.vocab, head.reference_pass)


def _log_metrics(ctx: Context, head: Head, logits: Value) -> None:
    """Run the metrics of TRL's SFTTrainer after the model's own loss: the entropy per token, and the token accuracy.

    ``logits``: [batch * sequence, vocab]. The accuracy reads a shifted copy, [batch, sequence - 1, vocab].
    """
    tape, batch, sequence = ctx.tape, ctx.setting.batch, ctx.setting.sequence
    tape.casts.clear()
    ctx.final_norm_peak = peak_of(tape)
    tape.reset_peak()
    outputs = Value(logits.storage, logits.shape, logits.dtype)
    if head.objective.fp32_outputs:
        outputs = tape.value(logits.shape, "fp32", "logits in fp32")
        if not head.loss.keep_logits:
            logits.storage = None
            ctx.model_outputs.clear()
    entropies(tape, batch * sequence, head.vocab, outputs.dtype)
    shifted = tape.new((batch, sequence - 1, head.vocab), outputs.dtype, "shifted logits")
    del shifted


def _head_input(ctx: Context, head: Head, hidden_states: Value) -> tuple[Value, Value | None]:
    """Divide what the head reads by a constant, if the family does, and return it twice.

    The second is the variable that keeps the divided tensor alive to the end of the forward, or None.
    """
    if not head.divides_hidden_states:
        return hidden_states, None
    hidden_states = scale(ctx.tape, hidden_states, "head input")
    return hidden_states, hidden_states


def _before_head(ctx: Context, head: Head, hidden_states: Value) -> tuple[Value, Value]:
    """Apply what runs between the final norm and the LM head: soft cap, head transform, dropout.

    Returns the input of the head and ``outputs.last_hidden_state``, a variable until the model's forward returns.
    """
    if head.caps_hidden_states:
        hidden_states = scale(ctx.tape, unary(ctx.tape, scale(ctx.tape, hidden_states, "softcap"), "tanh"), "softcap")
    if head.transform is None:
        out = dropout(ctx.tape, hidden_states, head.dropout)
        return out, out
    return dropout(ctx.tape, _transformed(ctx, head.transform, hidden_states), head.dropout), hidden_states


def _transformed(ctx: Context, transform: HeadTransform, hidden_states: Value) -> Value:
    """Run BERT's BertPredictionHeadTransform on ``hidden_states`` [tokens, hidden], and return [tokens, outputs]."""
    if transform.inner_width:
        from memcheck.frameworks.transformers.task_heads import activated_twice

        return activated_twice(ctx, (transform.name, transform.activation), transform.inner_width, hidden_states)
    outputs = transform.outputs or ctx.hidden
    matrix = ParameterTensor(transform.name, (outputs, ctx.hidden), "head", linear=True)
    hidden_states = linear(ctx.tape, hidden_states, ctx.weights(matrix, transform.bias), "transform")
    hidden_states = activation(ctx.tape, hidden_states, transform.activation)
    norm = Norm("layernorm", outputs, bias=transform.norm_bias, name="transform.LayerNorm")
    return normalise(ctx, norm, hidden_states, "transform.LayerNorm")


def _logits(ctx: Context, head: Head, hidden_states: Value, weights: Weights) -> Value:
    """Compute the logits of ``hidden_states`` [tokens, hidden]: product, casts, bias, scale and soft cap of the family.

    ``weights``: of the head. Returns [tokens, vocab / tp], or [tokens, vocab] unless the loss runs on vocabulary
    shards.
    """
    tape = ctx.tape
    if head.casts_logits_to_fp32 or weights.weight.dtype != ctx.setting.param_dtype:  # `.to(self.lm_head.weight.dtype)`
        hidden_states = cast(tape, hidden_states, weights.weight.dtype)
    logits = linear(tape, hidden_states, weights, "lm_head")
    del hidden_states
    if head.casts_logits_to_fp32:
        logits = cast(tape, logits, "fp32", "logits.float()")
    if head.logit_offset_dtype:
        logits = shift(tape, logits, "final_logits_bias", head.logit_offset_dtype)
    if head.scales_logits or head.caps_logits:
        from memcheck.frameworks.transformers.forward_only_pass import capped

        logits = capped(ctx, logits, scaled=head.scales_logits, softcap=head.caps_logits)
    if ctx.tp > 1 and head.loss.kind != "vocab-parallel":
        logits = _gather_vocabulary(ctx, head, logits)
    return cast(tape, logits, "fp32", "logits.float()") if head.loss.shifts == "rebound" else logits


def _gather_vocabulary(ctx: Context, head: Head, shard: Value) -> Value:
    """Gather the logits of all tensor-parallel ranks: [tokens, vocab / tp] becomes [tokens, vocab].

    DTensor's redistribute from Shard(-1) to Replicate all-gathers along dim 0, then concatenates along the vocabulary.
    """
    tape = ctx.tape
    full = (ctx.tokens, head.vocab)
    gathered = tape.new(full, shard.dtype, "all-gather logits")
    out = tape.value(full, shard.dtype, "cat logits")
    del gathered
    return operator(tape, out, shard, "slice logits gradient")


def loss_in_pieces(ctx: Context, head: Head, hidden_states: Value, weights: Weights) -> Value | None:
    """Compute head and loss on chunks of tokens, each checkpointed, so that one chunk's logits are alive at a time.

    ``hidden_states``: [tokens, hidden]. Returns the sum of the losses, or None if the loss is not chunked.
    """
    if head.loss.kind != "chunked":
        return None
    tape = ctx.tape
    chunks = head.loss.chunks
    chunk_tokens = ceil_div(ctx.tokens, chunks)
    sizes = in_pieces(chunk_tokens * chunks, chunk_tokens)
    chunk_inputs = tape.views(hidden_states, *(((chunk_tokens, ctx.hidden),) * len(sizes)))
    del hidden_states
    losses = []
    for _, copies in sizes:
        chunk_input = chunk_inputs.pop(0)
        with counted_as(tape, copies):
            losses.append(checkpointed(ctx, lambda c, v: _loss_of_piece(c, head, v, weights), chunk_input))
        del chunk_input
    return cat(tape, tuple(losses), (1,), "sum of losses")


def _loss_of_piece(ctx: Context, head: Head, chunk: Value, weights: Weights) -> Value:
    """Compute the logits [chunk tokens, vocab] of one ``chunk`` of hidden states, and their cross entropy."""
    logits = linear(ctx.tape, chunk, weights, "lm_head")
    wide = widened(ctx.tape, logits, upcast=head.loss.upcast)
    del logits  # here: Python 3.10 would hold an argument until the function it is given to returns
    return cross_entropy(ctx.tape, wide, upcast=False)


_cached_curve = lru_cache(maxsize=512)(head_curve)


def head_unit(
    job: TrainingJob,
    head: Head,
    setting: Setting,
    tensors: tuple[LocalTensor, ...],
    adds: bool,
    inventory: bool,
) -> Unit:
    """Build the account of final norm, head and loss: their tensors, and their memory curves under autograd.

    ``adds``: with gradient accumulation some micro-batch adds to gradients that exist; its curve is ``later_curve``.
    """
    dtype = setting.residual_dtype or setting.param_dtype
    first_curve = _cached_curve(head, setting, dtype, inventory=inventory)
    adding_curve = (
        _cached_curve(head, setting.for_later_micro_batches(), dtype, inventory=inventory) if adds else first_curve
    )
    return Unit(kind="head", name="head and loss", tensors=tensors, first_curve=first_curve, later_curve=adding_curve)
