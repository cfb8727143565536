"""nanotron's decoder layers: Llama's, and Qwen 2's, which SmolLM3 runs on.

Sources: nanotron ``models/llama.py`` (CausalSelfAttention._forward_training, MLP, LlamaDecoderLayer),
``models/qwen.py`` (Qwen2Attention._forward_packed, Qwen2MLP, Qwen2DecoderLayer); flash-attn
``flash_attn_interface.py``, ``csrc/flash_attn/flash_api.cpp`` (mha_varlen_bwd), ``layers/rotary.py``.

Queries and keys are rotated where they lie. Qwen 2's ``input_layernorm`` is assigned twice, the second time the one in
pieces, whatever ``_fused_rms_norm`` says.

nanotron's parallel linear layers and its norms: what each keeps, gathers and makes.

Sources: nanotron ``parallel/tensor_parallel/functional.py`` (column_linear, row_linear,
_ColumnLinearAsyncCommunication, _ColumnLinearNoAsyncCommunicationReduceScatterMode, _RowLinearAsyncCommunication),
``distributed_differentiable_primitives.py``, ``nn/layer_norm.py``; flash-attn ``ops/triton/layer_norm.py``.

``REDUCE_SCATTER`` is sequence parallelism: rows are gathered in front of a column-parallel layer, into one buffer that
is never freed unless ``tp_recompute_allgather`` is false: then into a tensor that the layer keeps.

nanotron's embedding, head and loss.

Sources: nanotron ``parallel/tensor_parallel/nn.py`` (TensorParallelEmbedding), ``functional.py``
(_ShardedCrossEntropy), ``models/llama.py`` (LlamaModel.forward_with_hidden_states, Loss), ``models/qwen.py``.
"""

from __future__ import annotations

from functools import partial

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.kernels import matmul
from memcheck.autograd.modules import rms_norm_pieces
from memcheck.autograd.operator import add, cast, cat, copy, mul, operator, unary
from memcheck.autograd.tensor import Parameter, Storage, Value, ceil_div, round_up
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.embedding import MegatronEmbedding
from memcheck.frameworks.megatron.head import Gradients, MegatronHead
from memcheck.frameworks.megatron.recompute import checkpoint
from memcheck.models.types import Attention, Block, Mlp, Norm

NORM_PROGRAMS = 132 * 8
"""Rows of a norm's partial weight gradients: eight for each multiprocessor of an H100
(flash-attn ``ops/triton/layer_norm.py``, _layer_norm_bwd)."""


def scatters(setting: Setting) -> bool:
    """``tp_mode: REDUCE_SCATTER`` over several ranks."""
    return setting.sequence_parallel and setting.tensor_parallel > 1


def gathers_again(setting: Setting) -> bool:
    """``tp_recompute_allgather``."""
    return bool(setting.option("tp_recompute_allgather", default=True))


def is_async(setting: Setting) -> bool:
    """``tp_linear_async_communication``."""
    return bool(setting.option("tp_linear_async_communication", default=False))


def _require_rms_norm(spec: Norm | None) -> Norm | None:
    if spec is not None and spec.kind != "rmsnorm":
        raise UnsupportedError(f"nanotron has no norm of the kind {spec.kind}")
    return spec


def norm(ctx: Context, spec: Norm | None, x: Value, name: str = "norm") -> Value:
    """Apply nanotron's ``TritonRMSNorm`` to ``x`` [tokens, width]: it saves its input and an fp32 rstd per row.

    ``spec``: the norm; any other than an RMSNorm is refused. Backward sums dW over the kernel's programs in fp32.
    """
    weight, _ = ctx.norm_weight(_require_rms_norm(spec), name)
    if weight is None:
        return x
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    out = tape.value(shape, dtype, name)
    saved = (x.storage, tape.new(shape[:-1], "fp32", name + " rstd"))
    needs_grad, width = x.needs_grad, shape[-1]

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, and dW summed over the kernel's programs in fp32."""
        dx = tape.new(shape, dtype, name + " backward")
        partial_dw = tape.new((NORM_PROGRAMS, width), "fp32", name + " partial dW")
        fp32_dw = tape.new((width,), "fp32", name + " dW")
        del partial_dw
        dw = tape.new((width,), dtype, name + " dW")
        del fp32_dw
        return [dx if needs_grad else None, dw]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=saved)


def unfused_norm(ctx: Context, spec: Norm | None, x: Value, name: str) -> Value:
    """Compute ``LlamaRMSNorm`` of ``x`` [tokens, hidden], operator by operator."""
    weight, _ = ctx.norm_weight(_require_rms_norm(spec), name)
    return rms_norm_pieces(ctx.tape, x, weight)


def column(ctx: Context, x: Value, name: str, outputs: int, *, bias: bool = False) -> Value:
    """Compute a column-parallel linear layer: [tokens, outputs]. ``outputs``: of this rank."""
    weight = ctx.parameter(name, (outputs, x.shape[-1]))
    bias_parameter = ctx.parameter(name + ".bias", (outputs,)) if bias else None
    if scatters(ctx.setting):
        return _gather_and_multiply(ctx, x, weight, bias_parameter, name)
    if is_async(ctx.setting):
        return _async_column_product(ctx, x, weight, bias_parameter, name)
    return matmul(ctx.tape, x, weight, name, bias=bias_parameter)


def _async_column_product(ctx: Context, x: Value, weight: Parameter, bias: Parameter | None, name: str) -> Value:
    """Compute a column-parallel product with asynchronous communication and without sequence parallelism.

    ``x``: [tokens, inputs], saved. Backward computes dX before dW, since dX is all-reduced while dW is computed.
    """
    tape, shape = ctx.tape, x.shape
    dtype, needs_grad = x.dtype, x.needs_grad
    out = tape.value((*shape[:-1], weight.shape[0]), dtype, name)
    biases = [] if bias is None else [bias]

    def run(grad: Storage) -> list[Storage | None]:
        dx = tape.new(shape, dtype, name + " dX")
        db = [tape.new(b.shape, b.dtype, name + " db") for b in biases]
        return [dx if needs_grad else None, tape.new(weight.shape, weight.dtype, name + " dW"), *db]

    return tape.record(
        out, (x, *(tape.parameter(parameter) for parameter in (weight, *biases))), run, saves=(x.storage,)
    )


def _gather_and_multiply(ctx: Context, x: Value, weight: Parameter, bias: Parameter | None, name: str) -> Value:
    """All-gather the tokens of the tensor-parallel group, and multiply them by the weight: [tokens, outputs].

    ``x``: this rank's tokens. With ``tp_recompute_allgather`` all tokens are gathered into a shared buffer, and again
    in backward; without it into a tensor that the layer saves.
    """
    tape, setting = ctx.tape, ctx.setting
    shape, dtype = x.shape, x.dtype
    gathered_shape, asynchronous = (ctx.tokens, shape[-1]), is_async(setting)
    gathered = None if gathers_again(setting) else tape.new(gathered_shape, dtype, name + " all-gather")
    out = tape.value((ctx.tokens, weight.shape[0]), dtype, name)
    saved_input = x.storage if gathered is None else gathered
    needs_grad = x.needs_grad
    biases = [] if bias is None else [bias]

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, reduce-scattered, and dW, which asynchronous communication computes last."""
        dw = None if asynchronous else tape.new(weight.shape, weight.dtype, name + " dW")
        dx = tape.new(gathered_shape, dtype, name + " dX")
        local_dx = tape.new(shape, dtype, name + " reduce-scatter")
        db = [tape.new(b.shape, b.dtype, name + " db") for b in biases]
        if dw is None:
            dw = tape.new(weight.shape, weight.dtype, name + " dW")
        del dx
        return [local_dx if needs_grad else None, dw, *db]

    return tape.record(
        out, (x, *(tape.parameter(parameter) for parameter in (weight, *biases))), run, saves=(saved_input,)
    )


def row(ctx: Context, x: Value, name: str, outputs: int, *, strided: bool = False) -> Value:
    """Compute a row-parallel layer, all-reduced in place or reduce-scattered under sequence parallelism.

    ``strided``: its input is not contiguous, so that the product copies it.
    """
    tape, setting = ctx.tape, ctx.setting
    weight = ctx.parameter(name, (outputs, x.shape[-1]))
    if is_async(setting):
        return _async_row_product(ctx, x, weight, name, strided=strided)
    if strided:
        x = copy(tape, x, name + " input")
    if not scatters(setting):
        return matmul(tape, x, weight, name)
    out = matmul(tape, x, weight, name)
    del x
    scattered = tape.value((ctx.residual_tokens, out.shape[-1]), out.dtype, name + " reduce-scatter")
    return operator(tape, scattered, out, name + " all-gather")


def _async_row_product(ctx: Context, x: Value, weight: Parameter, name: str, *, strided: bool) -> Value:
    """Compute a row-parallel product and its reduce-scatter in one autograd Function: [tokens / tp, outputs].

    ``strided``: the input is not contiguous, so that each product copies it; the Function saves the strided one.
    Backward gathers the output's gradient into a shared buffer, and computes dX before dW.
    """
    tape, shape, dtype = ctx.tape, x.shape, x.dtype
    contiguous_input = tape.new(shape, dtype, name + " input") if strided else None
    out = tape.value((ctx.tokens, weight.shape[0]), dtype, name)
    del contiguous_input
    if scatters(ctx.setting):
        partial, out = out, tape.value((ctx.residual_tokens, weight.shape[0]), dtype, name + " reduce-scatter")
        del partial

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: dX, then dW, for which a strided input is copied."""
        dx = tape.new(shape, dtype, name + " dX")
        contiguous_input = tape.new(shape, dtype, name + " input") if strided else None
        dw = tape.new(weight.shape, weight.dtype, name + " dW")
        del contiguous_input
        return [dx, dw]

    return tape.record(out, (x, tape.parameter(weight)), run, saves=(x.storage,))


PADDED_ROWS = 128
"""Rows that flash-attn's backward adds to each sequence."""


def is_qwen(setting: Setting) -> bool:
    """Whether the model is ``Qwen2ForTraining``, else ``LlamaForTraining``."""
    return setting.option("model_class", "llama") == "qwen2"


def nanotron_layers(ctx: Context, blocks: tuple[Block, ...], x: Value, *, recompute: bool) -> Value:
    """Compute consecutive layers, ``x``: [tokens, hidden]; so is the result.

    ``recompute``: each layer runs in a reentrant checkpoint (nanotron's ``recompute_layer``).
    """
    for block in blocks:
        x = checkpoint(ctx, partial(_recomputed_block, block), (x,)) if recompute else _block(ctx, block, x)
    return x


def _recomputed_block(block: Block, ctx: Context, inputs: tuple[Value, ...]) -> Value:
    return _block(ctx, block, inputs[0])


def _block(ctx: Context, block: Block, x: Value) -> Value:
    """Compute one decoder layer [tokens, hidden] (``_core_forward``); attention's output stays in a variable to the
    end.
    """
    attention, mlp = block.mixer, block.mlp
    if not isinstance(attention, Attention) or not isinstance(mlp, Mlp):
        raise UnsupportedError("only attention and dense feed-forward layers of nanotron have a memory model")
    input_norm = unfused_norm if is_qwen(ctx.setting) else norm
    hidden = input_norm(ctx, block.input_norm, x, "input_layernorm")
    output = _packed_attention(ctx, attention, hidden) if is_qwen(ctx.setting) else _attention(ctx, attention, hidden)
    hidden = add(ctx.tape, output, x, "residual")
    del x
    mlp_output = _mlp(ctx, mlp, norm(ctx, block.mlp_norm, hidden, "post_attention_layernorm"))
    out = add(ctx.tape, mlp_output, hidden, "residual")
    del output
    return out


def _widths(ctx: Context, attention: Attention) -> tuple[int, int]:
    """Columns of this rank's queries, and of its keys."""
    return attention.heads // ctx.tp * attention.head_dim, attention.kv_heads // ctx.tp * attention.head_dim


def _attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Compute Llama's attention: q, k and v are copied separately, then k and v are joined and interleaved in copies.

    The caller's variables hold the first copies until the layer's output is computed.
    """
    if attention.qkv_bias:
        pointer = "/training/options/model_class"
        raise UnsupportedError("nanotron's Llama has no biases", "write `model_class: qwen2`", pointer)
    tape, (query_width, kv_width) = ctx.tape, _widths(ctx, attention)
    tokens = ctx.tokens
    qkv = column(ctx, x, "qkv_proj", query_width + 2 * kv_width)
    if attention.kv_heads != attention.heads:
        views = tape.views(qkv, (tokens, query_width), (tokens, kv_width), (tokens, kv_width))
        q, k, v = (copy(tape, view, "contiguous") for view in views)
        del views
    else:
        q, k, v = tape.views(copy(tape, qkv, "permute"), (tokens, query_width), (tokens, kv_width), (tokens, kv_width))
    joined = cat(tape, (k, v), (tokens, 2 * kv_width), "cat keys and values")
    interleaved = copy(tape, joined, "permute keys and values")
    del joined
    keys, values = tape.views(interleaved, (tokens, kv_width), (tokens, kv_width))
    out = _flash(ctx, attention, q, keys, values)
    del keys, values, interleaved
    result = row(ctx, out, "o_proj", ctx.hidden, strided=ctx.setting.batch > 1)
    del out, q, k, v, qkv, x
    return result


def _packed_attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Compute Qwen 2's attention: q, and k with v, are slices of one tensor; their gradients are padded to its size."""
    query_width, kv_width = _widths(ctx, attention)
    tokens = ctx.tokens
    qkv = column(ctx, x, "qkv_proj", query_width + 2 * kv_width, bias=attention.qkv_bias)
    q = _slice(ctx, qkv, (tokens, query_width))
    kv = _slice(ctx, qkv, (tokens, 2 * kv_width))
    out = _flash(ctx, attention, q, kv, None)
    result = row(ctx, out, "o_proj", ctx.hidden)
    del out, q, kv, qkv, x
    return result


def _slice(ctx: Context, x: Value, shape: tuple[int, ...]) -> Value:
    """Compute ``x[..., :n]``: a view, whose backward makes zeros of the whole."""
    tape = ctx.tape
    return operator(tape, Value(x.storage, shape, x.dtype), x, "slice backward")


def _flash(ctx: Context, attention: Attention, q: Value, k: Value, v: Value | None) -> Value:
    """Run flash-attn 2 on the rows of all sequences: [tokens, heads * head_dim]. Without ``v``, ``k`` holds both.

    Backward allocates fp32 sums of the queries' gradients, one fp32 number per row and head, and dK and dV for every
    query head where several share one.
    """
    tape, heads, dim = ctx.tape, attention.heads // ctx.tp, attention.head_dim
    tokens, padded_tokens = ctx.tokens, ctx.tokens + PADDED_ROWS * ctx.setting.batch
    out = Value(tape.output("attention", q.shape, q.dtype, "flash attention"), q.shape, q.dtype)
    logsumexp = tape.new((tokens, heads), "fp32", "flash attention logsumexp")
    inputs = (q, k) if v is None else (q, k, v)
    head_dim_multiple = 32 if dim <= 128 else 64  # as flash_api.cpp has it
    padded_head_dim = round_up(dim, head_dim_multiple)
    backward_temporaries = [
        ((padded_tokens, heads), "fp32", "softmax_d"),
        ((padded_tokens, heads * padded_head_dim), "fp32", "dq_accum"),
    ]
    if attention.kv_heads != attention.heads:
        backward_temporaries += [((tokens, heads * dim), q.dtype, "dk, dv of every query head")] * 2
    return operator(
        tape, out, inputs, "flash attention backward", saves=(*inputs, out, logsumexp), later=backward_temporaries
    )


def _mlp(ctx: Context, mlp: Mlp, x: Value) -> Value:
    """Compute ``down_proj(silu(gate) * up)``; gate and up are one product, which stays in a variable to the end."""
    tape, width = ctx.tape, mlp.width // ctx.tp
    if not mlp.gated:
        raise UnsupportedError("nanotron's feed-forward layers are gated")
    merged = column(ctx, x, "gate_up_proj", 2 * width)
    gate, up = tape.views(merged, (ctx.tokens, width), (ctx.tokens, width))
    product = mul(tape, unary(tape, gate, "silu" if mlp.activation == "swish" else mlp.activation), up, "glu")
    del gate, up
    out = row(ctx, product, "down_proj", ctx.hidden)
    del product, merged, x
    return out


def embedding_forward(ctx: Context, embedding: MegatronEmbedding) -> Value:
    """Look up token embeddings in this rank's shard of the vocabulary: [this rank's tokens, hidden].

    With several shards, tokens of other shards are masked. Under sequence parallelism the rows are reduce-scattered.
    """
    tape, setting = ctx.tape, ctx.setting
    x = _look_up(ctx, embedding)
    shape, dtype = x.shape, x.dtype
    if ctx.tp > 1:  # rows of other shards' tokens are set to zero (TensorParallelEmbedding)
        mask = tape.new((ctx.tokens,), "bool", "token mask")
        masked = tape.value(shape, dtype, "masked embedding")
        x = operator(tape, masked, x, (shape, dtype, "masked embedding backward"), saves=(mask,))
        del masked
    if scatters(setting):
        scattered = tape.value((ctx.residual_tokens, setting.hidden), dtype, "reduce-scatter embedding")
        x = operator(tape, scattered, x, (shape, dtype, "all-gather embedding gradient"))
    return x


def _look_up(ctx: Context, embedding: MegatronEmbedding) -> Value:
    """Look all tokens up in this rank's shard of the table: [tokens, hidden]. Saves their ids if there are shards."""
    tape, setting = ctx.tape, ctx.setting
    has_grad = setting.has_grad or embedding.tied  # the head's backward has computed a gradient of the table before
    table_shape = (ceil_div(embedding.vocab, ctx.tp), setting.hidden)
    weight = ctx.register(
        Parameter("token_embedding", table_shape, setting.param_dtype, requires_grad=True, has_grad=has_grad)
    )
    dtype, tied = setting.compute_dtype, embedding.tied
    saved_ids = [tape.new((ctx.tokens,), "int64", "masked token ids")] if ctx.tp > 1 else []
    out = tape.value((ctx.tokens, setting.hidden), dtype, "token embedding")

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: the shard's gradient. A tied table's is added to the head's, a transposed view, out of place."""
        own_gradient = tape.new(table_shape, dtype, "embedding backward")
        if not tied:
            return [own_gradient]
        summed = tape.new(table_shape, dtype, "sum of a tied table's gradients")
        del own_gradient
        return [summed]

    return tape.record(out, (tape.parameter(weight),), run, saves=saved_ids)


def head_forward(ctx: Context, head: MegatronHead, x: Value, gradients: Gradients) -> Value:
    """Compute the final norm, the logits of this rank's shard of the vocabulary, and the loss of each token: [tokens].

    Llama's model casts the logits to fp32 before it returns, Qwen 2's loss does. Either way a variable of the model's
    forward holds the logits that it passes to the loss, until the loss returns. ``gradients``: Megatron's, not used.
    """
    del gradients
    tape = ctx.tape
    normed = norm(ctx, head.final_norm, x, "final_layer_norm")
    del x
    tape.component = "logits_and_loss"
    logits = column(ctx, normed, "lm_head", ceil_div(head.vocab, ctx.tp))
    del normed
    if not is_qwen(ctx.setting):
        logits = cast(tape, logits, "fp32", "cast_to_fp32")
        return _cross_entropy(ctx, logits)
    return _cross_entropy(ctx, cast(tape, logits, "fp32", "sharded_logits.to"))


def _cross_entropy(ctx: Context, logits: Value) -> Value:
    """Compute ``_ShardedCrossEntropy``: the shifted logits are a second tensor, in which all that follows happens in
    place.
    """
    tape, shape = ctx.tape, logits.shape
    rows = shape[:-1]
    highest = tape.new(rows, "fp32", "logits_max")
    probabilities = tape.new(shape, "fp32", "sharded_logits - logits_max")
    kept = (probabilities, tape.new(rows, "bool", "target mask"), tape.new(rows, "int64", "masked target"))
    del highest
    out = tape.value(rows, "fp32", "loss")

    def run(grad: Storage) -> list[Storage | None]:
        return [kept[0]]

    del probabilities
    return tape.record(out, (logits,), run, saves=kept)
