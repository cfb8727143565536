"""A decoder layer as unsloth writes it, and the door to those of transformers' classes.

Source: unsloth 2026.8 ``models/llama.py`` (LlamaDecoderLayer_fast_forward, LlamaAttention_fast_forward),
``kernels/rms_layernorm.py``, ``kernels/rope_embedding.py``, ``utils/attention_dispatch.py`` (xFormers).
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.curve import Forward
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import activation, liger_rms_norm, normalise
from memcheck.autograd.operator import GRAD_UNCHANGED, add, cast, mul, operator, repeat_kv
from memcheck.autograd.tensor import Value
from memcheck.frameworks.transformers import layers as classes
from memcheck.frameworks.transformers.head import Head, head_unit
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.unsloth import lora
from memcheck.models.parameters import linear_tensors
from memcheck.models.types import Attention, Block, Mlp, Norm

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.autograd.kernels import Weights

__all__ = ["block", "head_unit", "loss_in_pieces", "norm", "recomputing"]

GATED = ("silu", "swish", "gelu_pytorch_tanh", "gelu")
"""Activations with a kernel (``kernels/swiglu.py``, ``kernels/geglu.py``)."""


def block(ctx: Context, layer: Block, x: Value) -> Value:
    """Run one decoder layer, ``x``: [tokens, hidden]; so is what is returned."""
    if ctx.setting.style.modeling_files or not isinstance(layer.mixer, Attention) or not isinstance(layer.mlp, Mlp):
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
    if spec is None or ctx.setting.style.modeling_files or not spec.kind.startswith("rmsnorm"):
        return normalise(ctx, spec, x, name)
    weight, _ = ctx.norm_weight(spec, name)
    return liger_rms_norm(ctx.tape, x, weight, in_place=spec.kind != "rmsnorm-unit-offset")


def loss_in_pieces(ctx: Context, head: Head, hidden: Value, weights: Weights) -> Value | None:
    """Compute head and loss. ``hidden``: [tokens, hidden]. Returns the loss, or None if the model's class has it."""
    from memcheck.frameworks.unsloth.loss import fused_loss, whole_logits_loss

    if head.loss.kind == "standard":
        return None
    return (whole_logits_loss if head.loss.kind == "in-place" else fused_loss)(ctx, head, hidden, weights)


def _attention(ctx: Context, attention: Attention, x: Value) -> Value:
    """Run LlamaAttention_fast_forward: q and k are turned in place, xFormers gets keys and values of every head."""
    tape = ctx.tape
    tensors = linear_tensors(attention.tensors)
    layers = [
        ctx.weights(tensor, attention.qkv_bias, rows=rows)
        for tensor, rows in zip(tensors, (1, attention.kv_heads, attention.kv_heads), strict=False)
    ]
    if lora.fits(layers):
        q, k, v = lora.qkv(ctx, x, layers)
    else:
        q, k, v = (linear(tape, x, layer, tensor.name) for layer, tensor in zip(layers, tensors, strict=False))
    del x
    shapes = [
        (ctx.batch, heads, ctx.sequence, attention.head_dim)
        for heads in (attention.heads, attention.kv_heads, attention.kv_heads)
    ]
    q, k, v = (each.view(*shape) for each, shape in zip((q, k, v), shapes, strict=True))
    q, k = norm(ctx, attention.query_norm, q, "qk_norm"), norm(ctx, attention.key_norm, k, "qk_norm")
    # Fast_RoPE_Embedding: in place of `Q.transpose(1, 2).contiguous()`, which q is already
    q, k = (operator(tape, Value(each.storage, each.shape, each.dtype), each, GRAD_UNCHANGED) for each in (q, k))
    if tape.autocast:
        q, k, v = (cast(tape, each, tape.autocast) for each in (q, k, v))
    keys_and_values = (k, v)  # variables to the end
    if attention.kv_heads != attention.heads:
        k, v = (repeat_kv(tape, each, attention.heads, copies=True) for each in (k, v))
    out = kernels.flash(tape, q, k, v, attention.head_dim, label="xFormers attention")
    rows = out.view(ctx.tokens, attention.heads * attention.head_dim)
    layer = ctx.weights(tensors[3], attention.out_bias)
    result = lora.output(ctx, rows, layer) if lora.fits([layer]) else linear(tape, rows, layer, tensors[3].name)
    del q, k, v, keys_and_values, out, rows
    return result


def _feed_forward(ctx: Context, config: Mlp, x: Value) -> Value:
    """Run the MLP: unsloth's LoRA_MLP if all three matrices have plain adapters, else transformers' code.

    ``x``: [tokens, hidden], as is the result.
    """
    tensors = linear_tensors(config.tensors)
    if (
        not config.gated
        or config.fused_gate_up
        or config.activation not in GATED
        or len(tensors) != 3
        or config.dropout
    ):
        return mlp(ctx, config, x)
    adapter = ctx.setting.adapter
    if adapter is None or adapter.dropout or adapter.dora:
        return mlp(ctx, config, x)
    layers = [ctx.weights(tensor, config.bias, adaptable=config.adaptable) for tensor in tensors]
    if not lora.fits(layers):
        gate, up, down = layers
        inner = mul(
            ctx.tape,
            activation(ctx.tape, linear(ctx.tape, x, gate, tensors[0].name), config.activation),
            linear(ctx.tape, x, up, tensors[1].name),
        )
        return linear(ctx.tape, inner, down, tensors[2].name)
    return lora.swiglu(ctx, x, layers)
