"""A decoder layer as unsloth writes it, and the door to those of transformers' classes.

Source: unsloth 2026.8 ``models/llama.py`` (LlamaDecoderLayer_fast_forward, LlamaAttention_fast_forward),
``kernels/rms_layernorm.py``, ``kernels/rope_embedding.py``, ``utils/attention_dispatch.py`` (xFormers).

unsloth's products with adapters: one autograd Function for q, k and v, one for the feed-forward, one for o.

Source: unsloth 2026.8 ``kernels/fast_lora.py`` (LoRA_QKV, LoRA_MLP, LoRA_W), ``kernels/utils.py`` (matmul_lora,
fast_dequantize), ``kernels/swiglu.py``. They save their input, and gate and up. A forward dequantises into a buffer
that all layers share (:func:`rotary_tables`), a backward into a new tensor.

unsloth's losses: head and cross entropy together in pieces, or of whole logits before 2024.11.

Sources: unsloth_zoo 2026.8 ``fused_losses/cross_entropy_loss.py`` (UnslothFusedLoss, get_chunk_size); unsloth
``models/llama.py`` (_CausalLM_fast_forward), ``kernels/cross_entropy_loss.py``; accelerate ``utils/operations.py``
(ConvertOutputsToFp32).

What sets the model code of unsloth's releases apart.

Tensors that unsloth holds in addition to a model's parameters: rotary caches, and a buffer that all layers share.

Sources: unsloth 2026.8 ``models/llama.py`` (LlamaRotaryEmbedding), ``kernels/utils.py`` (fast_dequantize,
``use_global_buffer``); unsloth 2024.8 ``models/llama.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from memcheck.autograd import kernels
from memcheck.autograd.context import Context, Setting, Style
from memcheck.autograd.curve import Forward
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.loss import cross_entropy_in_place, in_pieces
from memcheck.autograd.modules import activation, liger_rms_norm, normalise
from memcheck.autograd.operator import GRAD_UNCHANGED, add, cast, mul, operator, repeat_kv
from memcheck.autograd.tensor import ITEM_BYTES, Node, Parameter, Storage, Tape, Value, ceil_div, rounded
from memcheck.frameworks.transformers import layers as classes
from memcheck.frameworks.transformers import rotary as transformers_rotary
from memcheck.frameworks.transformers.head import Head, head_unit
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.profile import STYLE
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Architecture, Attention, Block, Mlp, Norm


class FormerStyle(Style):
    """unsloth before 2025.1, and any unsloth with transformers before 4.48: every layer has its own cos and sin, and
    every product dequantises its weight into a new tensor.
    """


SOURCE = "unsloth 2026.8 models and kernels, unsloth_zoo 2026.8 (memcheck.frameworks.unsloth)"
OWN = Style(folder="unsloth", activation_layout="batch-first", source=SOURCE, offload_buffers=2)
"""The layers that unsloth writes itself, which are given no mask in training (``LlamaModel_fast_forward``). Inputs of
layers return from the host into two buffers (gradient_checkpointing.py, GPU_BUFFERS, GPU_BUFFERS_B).
"""
FORMER = FormerStyle(
    folder="unsloth", activation_layout="batch-first", source="unsloth 2024.8 models/llama.py and kernels"
)
COMPILED = STYLE._replace(folder="unsloth", source=SOURCE, offload_buffers=2)
"""transformers' classes, which unsloth_zoo compiles."""


def fits(layers: Sequence[Weights]) -> bool:
    """Whether the Functions run: each layer has a plain adapter without dropout, and no bias (``patch_peft_model``)."""
    for layer in layers:
        is_plain = layer.bias is None and layer.magnitude is None and not layer.dropout
        if layer.lora_a is None or not is_plain:
            return False
    return True


def _adapters(layers: Sequence[Weights]) -> list[Parameter]:
    return [each for layer in layers for each in (layer.lora_a, layer.lora_b) if each is not None]


def _narrow(tape: Tape, layers: Sequence[Weights], dtype: str, label: str) -> list[Storage]:
    """Allocate a tensor of each adapter matrix's shape, in the dtype of the product."""
    return [tape.new(each.shape, dtype, label) for each in _adapters(layers)]


def _forward(ctx: Context, x: Value, layer: Weights, label: str) -> Value:
    """Compute ``matmul_lora``: the product, to which the adapter's is added in place. ``x``: [tokens, inputs]."""
    tape = ctx.tape
    weight = _dequantized(tape, layer, x.dtype) if isinstance(ctx.setting.style, FormerStyle) else None
    out = tape.value((*x.shape[:-1], layer.weight.shape[0]), x.dtype, label)
    del weight
    for each in (layer.lora_a, layer.lora_b):
        if each is not None:
            cast = tape.new(each.shape, x.dtype, label + " adapter, cast")
            del cast
    return out


def _dequantized(tape: Tape, layer: Weights, dtype: str) -> Storage | None:
    """Allocate the whole base weight in the product's dtype; None where it is stored in that dtype."""
    return tape.new(layer.weight.shape, dtype, "dequantized weight") if layer.quantized else None


def _into_input(tape: Tape, x: Value, layers: Sequence[Weights]) -> None:
    """Compute the input's gradient, product by product, in the storage of the input (``out = X``)."""
    for layer in layers:
        weight = _dequantized(tape, layer, x.dtype)
        del weight


def qkv(ctx: Context, x: Value, layers: Sequence[Weights]) -> list[Value]:
    """Compute LoRA_QKV: q, k and v, each [tokens, outputs], of ``x`` [tokens, hidden]. It saves only ``x``.

    ``layers``: the three matrices with their adapters. Backward runs once all three gradients exist, and writes the
    input's gradient over the saved input.
    """
    tape = ctx.tape
    outputs = [
        _forward(ctx, x, layer, label) for layer, label in zip(layers, ("q_proj", "k_proj", "v_proj"), strict=True)
    ]
    storage, bare, dtype = x.storage, Value(None, x.shape, x.dtype), x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: cast the adapters, allocate their gradients, and write the input's gradient into the saved
        input.
        """
        casts = _narrow(tape, layers, dtype, "adapter, cast")
        gradients = _narrow(tape, layers, dtype, "adapter gradient")
        _into_input(tape, bare, layers)
        del casts
        return [storage if storage is not None else grad, *gradients]

    inputs = (x, *(tape.parameter(each) for each in _adapters(layers)))
    carrier = tape.record(Value(None, (), dtype), inputs, run, saves=(storage,), validated=True)
    if isinstance(carrier.origin, Node):
        carrier.origin.view_gradients = []
        for out in outputs:
            tape.record(out, (carrier,), lambda grad: [grad])
    return outputs


def swiglu(ctx: Context, x: Value, layers: Sequence[Weights]) -> Value:
    """Compute LoRA_MLP of ``x`` [tokens, hidden]: it saves ``x``, and gate and up, [tokens, width] each.

    ``layers``: gate, up and down with their adapters. Backward allocates one more [tokens, width], writes over gate and
    up, and writes the input's gradient over the saved input.
    """
    tape = ctx.tape
    gate, up = (
        _forward(ctx, x, layer, label) for layer, label in zip(layers[:2], ("gate_proj", "up_proj"), strict=True)
    )
    inner = tape.new(gate.shape, x.dtype, "swiglu")
    out = tape.value((*x.shape[:-1], layers[2].weight.shape[0]), x.dtype, "down_proj")
    del inner
    storage, bare = x.storage, Value(None, x.shape, x.dtype)
    width, dtype = gate.shape, x.dtype
    former = isinstance(ctx.setting.style, FormerStyle)

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: allocate the gradients of the activation and of the adapters; write the input's over the input."""
        casts = _narrow(tape, layers, dtype, "adapter, cast")
        weight = _dequantized(tape, layers[2], dtype) if former else None
        inner_gradient = tape.new(width, dtype, "gradient of swiglu")
        del weight
        gradients = _narrow(tape, layers, dtype, "adapter gradient")
        _into_input(tape, bare, layers[:2])
        del casts, inner_gradient
        return [storage if storage is not None else grad, *gradients]

    inputs = (x, *(tape.parameter(each) for each in _adapters(layers)))
    return tape.record(out, inputs, run, saves=(storage, gate.storage, up.storage), validated=True)


def output(ctx: Context, x: Value, layer: Weights) -> Value:
    """Compute LoRA_W, the output projection of attention: it saves ``x`` [tokens, inputs].

    ``layer``: the matrix with its adapter.
    """
    tape = ctx.tape
    out = _forward(ctx, x, layer, "o_proj")
    shape, dtype = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: allocate the adapters' gradients, dequantise the weight, and allocate the input's gradient."""
        del grad
        casts = _narrow(tape, (layer,), dtype, "adapter, cast")
        gradients = _narrow(tape, (layer,), dtype, "adapter gradient")
        weight = _dequantized(tape, layer, dtype)
        input_gradient = tape.new(shape, dtype, "o_proj dX")
        del casts, weight
        return [input_gradient, *gradients]

    inputs = (x, *(tape.parameter(each) for each in _adapters((layer,))))
    return tape.record(out, inputs, run, saves=(x.storage,), validated=True)


__all__ = ["block", "head_unit", "loss_in_pieces", "norm", "recomputing", "rotary_caches", "rotary_tables"]

GATED = ("silu", "swish", "gelu_pytorch_tanh", "gelu")
"""Activations with a kernel (``kernels/swiglu.py``, ``kernels/geglu.py``)."""


def block(ctx: Context, layer: Block, x: Value) -> Value:
    """Run one decoder layer, ``x``: [tokens, hidden]; so is what is returned."""
    if (
        ctx.setting.style.runs_transformers_modules
        or not isinstance(layer.mixer, Attention)
        or not isinstance(layer.mlp, Mlp)
    ):
        return classes.block(ctx, layer, x)
    hidden_states = _attention(ctx, layer.mixer, norm(ctx, layer.input_norm, x))
    x = add(ctx.tape, x, hidden_states, "residual")
    del hidden_states
    hidden_states = _feed_forward(ctx, layer.mlp, norm(ctx, layer.mlp_norm, x))
    return add(ctx.tape, x, hidden_states, "residual")


def recomputing(layer: Block, mode: str) -> tuple[Forward, bool]:
    """Return the layer's forward under a recompute mode, and whether the whole layer is checkpointed."""
    return lambda ctx, x: block(ctx, layer, x), mode == "full"


def norm(ctx: Context, spec: Norm | None, x: Value, name: str = "norm") -> Value:
    """Run unsloth's Fast_RMS_Layernorm, or transformers' norm where it does not run: [tokens, hidden].

    It saves its input and one fp32 number per row. Backward writes the input's gradient over the incoming one, except
    for Gemma's norms.
    """
    if spec is None or ctx.setting.style.runs_transformers_modules or not spec.kind.startswith("rmsnorm"):
        return normalise(ctx, spec, x, name)
    weight, _ = ctx.norm_weight(spec, name)
    return liger_rms_norm(ctx.tape, x, weight, in_place=spec.kind != "rmsnorm-unit-offset")


def loss_in_pieces(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value | None:
    """Compute head and loss. ``hidden``: [tokens, hidden]. Returns the loss, or None if the model's class has it."""
    if head.loss.kind == "standard":
        return None
    return (whole_logits_loss if head.loss.kind == "in-place" else fused_loss)(ctx, head, hidden, weights)


def _attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Run LlamaAttention_fast_forward: q and k are rotated in place, xFormers gets keys and values of every head.

    ``x``: [tokens, hidden], as is the result.
    """
    tape = ctx.tape
    *qkv_tensors, output_tensor = linear_tensors(attention.tensors)
    kv_heads = attention.kv_heads
    layers = [
        ctx.weights(tensor, attention.qkv_bias, rows=rows)
        for tensor, rows in zip(qkv_tensors, (1, kv_heads, kv_heads), strict=True)
    ]
    if fits(layers):
        q, k, v = qkv(ctx, x, layers)
    else:
        q, k, v = (linear(tape, x, layer, tensor.name) for layer, tensor in zip(layers, qkv_tensors, strict=True))
    del x
    kv_shape = (ctx.batch, kv_heads, ctx.sequence, attention.head_dim)
    q = q.view(ctx.batch, attention.heads, ctx.sequence, attention.head_dim)
    k, v = k.view(*kv_shape), v.view(*kv_shape)
    q, k = norm(ctx, attention.query_norm, q, "qk_norm"), norm(ctx, attention.key_norm, k, "qk_norm")
    # Fast_RoPE_Embedding: in place of `Q.transpose(1, 2).contiguous()`, which q is already
    q, k = (operator(tape, Value(t.storage, t.shape, t.dtype), t, GRAD_UNCHANGED) for t in (q, k))
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    keys_and_values = (k, v)  # variables to the end
    if attention.kv_heads != attention.heads:
        k, v = (repeat_kv(tape, t, attention.heads, copies=True) for t in (k, v))
    out = kernels.flash(tape, q, k, v, attention.head_dim, label="xFormers attention")
    rows = out.view(ctx.tokens, attention.heads * attention.head_dim)
    layer = ctx.weights(output_tensor, attention.out_bias)
    result = output(ctx, rows, layer) if fits([layer]) else linear(tape, rows, layer, output_tensor.name)
    del q, k, v, keys_and_values, out, rows
    return result


def _feed_forward(ctx: Context, config: Mlp, x: Value) -> Value:
    """Run the MLP: unsloth's LoRA_MLP if all three matrices have plain adapters, else transformers' code.

    ``x``: [tokens, hidden], as is the result.
    """
    tensors = linear_tensors(config.tensors)
    has_three_matrices = config.gated and not config.fused_gate_up and len(tensors) == 3
    adapter = ctx.setting.adapter
    is_plain_lora = adapter is not None and not adapter.dropout and not adapter.dora
    if not has_three_matrices or config.activation not in GATED or config.dropout or not is_plain_lora:
        return mlp(ctx, config, x)
    layers = [ctx.weights(tensor, config.bias, adaptable=config.adaptable) for tensor in tensors]
    if not fits(layers):
        gate, up, down = layers
        inner = mul(
            ctx.tape,
            activation(ctx.tape, linear(ctx.tape, x, gate, tensors[0].name), config.activation),
            linear(ctx.tape, x, up, tensors[1].name),
        )
        return linear(ctx.tape, inner, down, tensors[2].name)
    return swiglu(ctx, x, layers)


TARGET_BYTES = 4 * 2**30
"""What the logits of a piece may be in fp32; less where less than twice of it is free (``_get_chunk_multiplier``)."""


def pieces_of(tokens: int, vocabulary: int) -> int:
    """Return in how many pieces the tokens are scored: one, or a multiple of four."""
    share = 4 * tokens * vocabulary / TARGET_BYTES
    return 1 if share <= 1 else 4 * ceil(share / 4)


def fused_loss(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value:
    """Compute UnslothFusedLoss of ``hidden`` [tokens, hidden]: its forward computes the gradients, piece by piece of
    tokens.

    Each piece is one compiled graph: its logits stay in the head's dtype, and Inductor writes their gradient over them.
    ``weights``: of the head.
    """
    tape, weight = ctx.tape, weights.weight
    dtype, trained = weight.dtype, weight.requires_grad
    tokens, vocabulary = hidden.shape[0], weight.shape[0]
    gradient = tape.new(hidden.shape, hidden.dtype, "gradient of the hidden states")
    head_gradient = tape.new(weight.shape, dtype, "gradient of the head") if trained else None
    piece = ceil_div(tokens, pieces_of(tokens, vocabulary)) if head.loss.kind == "chunked" else tokens
    for size, _ in in_pieces(tokens, piece):
        _piece_of_fused_loss(ctx, head, (size, hidden.dtype), weight)
    out = tape.value((1,), "fp32", "loss")
    shape, hidden_dtype, kept = hidden.shape, hidden.dtype, (gradient, head_gradient)

    def run(grad: Storage) -> list[Storage | None]:
        """Multiply both gradients by that of the loss (``grad_inputs * scale_factor``)."""
        del grad
        scaled = tape.new(shape, hidden_dtype, "scaled gradient")
        return [scaled, tape.new(weight.shape, dtype, "scaled gradient of the head") if trained else None]

    del gradient, head_gradient
    return tape.record(out, (hidden, tape.parameter(weight)), run, saves=kept)


def _piece_of_fused_loss(ctx: Context, head: Head, rows: tuple[int, str], weight: Parameter) -> None:
    """Allocate what one compiled graph of UnslothFusedLoss makes, forward and backward; all of it dies at its end.

    ``rows``: number and dtype of the piece's hidden states. ``weight``: the head's, [vocabulary, hidden].
    """
    tape, dtype, (size, hidden_dtype) = ctx.tape, weight.dtype, rows
    narrow = tape.new((size, ctx.hidden), dtype, "head input") if hidden_dtype != dtype else None
    logits = tape.new((size, weight.shape[0]), dtype, "logits of a piece")
    _capped(tape, head, logits)
    piece_gradient = tape.new((size, ctx.hidden), dtype, "gradient of a piece")
    if weight.requires_grad:
        head_gradient = tape.new(weight.shape, dtype, "gradient of the head, of a piece")
        del head_gradient
    del narrow, logits, piece_gradient


def _capped(tape: Tape, head: Head, logits: Storage) -> None:
    """Allocate the hyperbolic tangent of capped logits, which is kept for the gradient: [tokens, vocabulary]."""
    if head.caps_logits:
        kept = tape.new(logits.shape, logits.dtype, "tanh of a piece")
        del kept


def whole_logits_loss(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value:
    """Compute Fast_CrossEntropyLoss of whole logits, [tokens, vocabulary], over which backward writes their gradient.

    accelerate copies the model's output to fp32 as its forward returns, and the Trainer drops it.
    """
    tape = ctx.tape
    logits = linear(tape, cast(tape, hidden, weights.weight.dtype), weights, "lm_head")
    del hidden
    loss = cross_entropy_in_place(tape, logits)
    outputs = tape.new(logits.shape, "fp32", "logits in fp32") if logits.dtype != "fp32" else None
    del outputs
    del logits
    return loss


FIRST_POSITIONS = 4 * 8192
"""Rows of a layer's first cos and sin (``current_rope_size``)."""
BLOCK = 64
"""4-bit weights that share a constant, which is restored to fp32."""


def rotary_tables(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of cos and sin, and of the buffer into which unsloth's own layers dequantise every weight.

    transformers' classes make cos and sin in each forward. unsloth's have them for every position of the model, in 16
    bits. Until the attention of transformers 4.48 each layer had its own, of 32,768 positions at first, and no buffer.
    """
    if setting.style.runs_transformers_modules:
        return transformers_rotary.rotary_tables(architecture, setting)
    row_bytes = transformers_rotary.rotary_width(architecture) * ITEM_BYTES["bf16"]
    model_positions = max(1, architecture.max_position_embeddings)
    if isinstance(setting.style, FormerStyle):
        positions = max(setting.sequence, min(FIRST_POSITIONS, model_positions))
        cos_bytes = sin_bytes = rounded(positions * row_bytes)
        return architecture.num_layers * (cos_bytes + sin_bytes)
    cos_bytes = sin_bytes = rounded(max(setting.sequence, model_positions) * row_bytes)
    return cos_bytes + sin_bytes + _dequantized_buffer(architecture, setting)


def rotary_caches(architecture: Architecture, sequence: int, layers: int, *, adapted: bool) -> int:
    """Return 0: what layers hold is in :func:`rotary_tables`."""
    del architecture, sequence, layers, adapted
    return 0


def _dequantized_buffer(architecture: Architecture, setting: Setting) -> int:
    """Return the bytes of the buffer for a dequantised matrix, as large as the largest of any layer; 0 without
    quantisation.

    It is in 16 bits; its quantisation constants, one per block, are in fp32.
    """
    adapter = setting.adapter
    if adapter is None or adapter.base_format is None:
        return 0
    largest = 0
    for block, _ in architecture.blocks:
        for component in (block.mixer, block.mlp):
            if isinstance(component, (Attention, Mlp)):
                largest = max([largest, *(tensor.count for tensor in linear_tensors(component.tensors))])
    return rounded(largest * ITEM_BYTES[setting.param_dtype]) + rounded(4 * largest // BLOCK)
