"""Zamba 2's hybrid layer: a block of attention and feed-forward network whose tensors several layers share, in front of
Mamba-2.

Source: transformers 5.23 models/zamba2/modeling_zamba2.py (Zamba2HybridLayer, Zamba2AttentionDecoderLayer,
Zamba2Attention, Zamba2MLP, Zamba2MambaDecoderLayer).

A layer of two attentions and two dense networks, with experts that read what the first network reads.

modeling_longcat_flash.py of transformers 5.23, LongcatFlashDecoderLayer.forward.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import linear
from memcheck.autograd.modules import activation, normalise
from memcheck.autograd.operator import add, cat, mul
from memcheck.autograd.tensor import Leaf, Value
from memcheck.frameworks.transformers.attention import as_heads
from memcheck.frameworks.transformers.kernel_choice import attend, keeps_strides
from memcheck.frameworks.transformers.layers import mixer_forward
from memcheck.frameworks.transformers.mixer import recurrent_mixer
from memcheck.frameworks.transformers.mlp import mlp
from memcheck.frameworks.transformers.moe import routed_experts
from memcheck.frameworks.transformers.rotary import apply_rotary
from memcheck.models.types import Attention, Block, Mixer, Mlp, Moe, ParameterTensor

Tensors = dict[str, ParameterTensor]


def shared_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run Zamba 2's hybrid layer: ``mamba(norm(x + linear(shared(x, embedding)))) + x``, all [tokens, hidden].

    Several layers share the tensors of ``shared``. Its output lives to the layer's end. Source: modeling_zamba2.py.
    """
    tape, attention_config, mlp_config = ctx.tape, block.mixer, block.mlp
    if not isinstance(attention_config, Attention) or not isinstance(mlp_config, Mlp):
        return x
    if not isinstance(block.second_mixer, Mixer):
        return x
    own_tensors = {t.name.removesuffix(".weight"): t for t in block.extra_tensors}
    for unused_tensor in (t for t in block.extra_tensors if t.fixed):
        ctx.constant(unused_tensor)
    ctx.weights_of_later_layer, ctx.weights_of_earlier_layer = block.shared_with.later, block.shared_with.earlier
    ctx.own_adapters = True
    try:
        shared = _transformer(ctx, block, attention_config, mlp_config, own_tensors, x)
    finally:
        ctx.weights_of_later_layer = ctx.weights_of_earlier_layer = ctx.own_adapters = False
    shared = linear(tape, shared, ctx.replicated(own_tensors["linear"]), "linear")
    frame = tape.frame
    if frame is not None and frame.recomputed is None and shared.storage is not None:
        # the Mamba layer inside is a checkpoint of its own, which holds its arguments from the first pass on
        ctx.inner_checkpoint_saved.append(shared.storage)
    hidden_states = normalise(ctx, block.mixer_output_norm, add(tape, x, shared, "stream + shared"))
    hidden_states = recurrent_mixer(ctx, block.second_mixer, hidden_states)
    out = add(tape, x, hidden_states, "residual")
    del shared, hidden_states
    return out


def _transformer(
    ctx: Context, block: Block, attention: Attention, mlp_config: Mlp, own_tensors: Tensors, x: Value
) -> Value:
    """Run Zamba 2's shared attention and MLP without residual additions, on ``x`` [tokens, hidden] and the embedding.

    Both are concatenated to [tokens, 2 * hidden]. The embedding's bytes are counted elsewhere. ``own_tensors``:
    low-rank matrices that each layer has by itself.
    """
    tape, width = ctx.tape, x.shape[-1]
    original = Value(None, x.shape, x.dtype, Leaf())
    hidden_states = cat(tape, (x, original), (x.shape[0], 2 * width), "cat embedding")
    del original
    hidden_states = normalise(ctx, block.input_norm, hidden_states)
    hidden_states = _attention(ctx, attention, own_tensors, hidden_states, x.dtype)
    hidden_states = normalise(ctx, block.mlp_norm, hidden_states)
    if mlp_config.fused_gate_up:
        return _feed_forward(ctx, mlp_config, own_tensors, hidden_states)
    return mlp(ctx, mlp_config, hidden_states)


def _adapted(ctx: Context, own_tensors: Tensors, name: str, x: Value, output: Value) -> Value:
    """Add this layer's low-rank update (Zamba 2's adapter) to the ``output`` of a shared matrix, [tokens, outputs].

    ``name``: of the two low-rank matrices. ``x``: the matrix's input.
    """
    if f"{name}.0" not in own_tensors:
        return output
    shared_flags = ctx.weights_of_later_layer, ctx.weights_of_earlier_layer
    ctx.weights_of_later_layer = ctx.weights_of_earlier_layer = False
    low_rank = linear(ctx.tape, x, ctx.replicated(own_tensors[f"{name}.0"]), name)
    update = linear(ctx.tape, low_rank, ctx.replicated(own_tensors[f"{name}.1"]), name)
    ctx.weights_of_later_layer, ctx.weights_of_earlier_layer = shared_flags
    return add(ctx.tape, output, update, "adapter")


def _attention(ctx: Context, attention: Attention, own_tensors: Tensors, x: Value, stream: str) -> Value:
    """Run the shared attention: [tokens, 2 * hidden] to [tokens, hidden]. ``stream``: dtype of cos and sin."""
    tape, heads = ctx.tape, []
    copies = not keeps_strides(ctx, attention)
    tensors = [t for t in attention.tensors if t.linear]
    for letter, tensor, count in zip(
        "qkv", tensors, (attention.heads, attention.kv_heads, attention.kv_heads), strict=False
    ):
        projected = linear(tape, x, ctx.weights(tensor, bias=False), tensor.name)
        projected = _adapted(ctx, own_tensors, f"linear_{letter}_adapter", x, projected)
        is_rotated = attention.rotary_dim > 0 and letter != "v"
        heads.append(as_heads(ctx, attention, projected, count, None, copies=copies or is_rotated))
        del projected
    q, k, v = heads
    heads.clear()
    if attention.rotary_dim:
        q, k = apply_rotary(ctx, attention, q, k, stream)
    out = attend(ctx, attention, q, k, v).view(ctx.tokens, attention.heads * attention.head_dim)
    result = linear(tape, out, ctx.weights(tensors[3], bias=False), tensors[3].name)
    del q, k, v, out
    return result


def _feed_forward(ctx: Context, mlp: Mlp, own_tensors: Tensors, x: Value) -> Value:
    """Run the shared feed-forward; gate and up are views with names until the module returns."""
    tape = ctx.tape
    up_tensor, down_tensor = (t for t in mlp.tensors if t.linear)
    gate_and_up = linear(tape, x, ctx.weights(up_tensor, mlp.bias), up_tensor.name)
    gate_and_up = _adapted(ctx, own_tensors, "gate_up_proj_adapter", x, gate_and_up)
    half = (ctx.tokens, gate_and_up.shape[-1] // 2)
    gate, up = tape.views(gate_and_up, half, half)
    del gate_and_up, x
    inner = mul(tape, activation(tape, gate, mlp.activation), up)
    out = linear(tape, inner, ctx.weights(down_tensor, mlp.bias), down_tensor.name)
    del gate, up, inner
    return out


def dual_attention_block(ctx: Context, block: Block, x: Value) -> Value:
    """Run LongCat Flash's layer: two attentions, two dense networks, and experts that read the first network's input.

    ``x``: [tokens, hidden]; so is what is returned. The experts' output is added at the end of the layer
    (``shortcut_mlp_output``).
    """
    tape, stream, mlp_config = ctx.tape, x.dtype, block.mlp
    if block.mixer is None or block.second_mixer is None or not isinstance(mlp_config, Moe):
        return x
    first_mlp, second_mlp = _networks(mlp_config)
    hidden_states = mixer_forward(ctx, block.mixer, normalise(ctx, block.input_norm, x), stream)
    x = add(tape, x, hidden_states, "residual")
    hidden_states = normalise(ctx, block.mlp_norm, x)
    shortcut = routed_experts(ctx, mlp_config, hidden_states)
    hidden_states = mlp(ctx, first_mlp, hidden_states)
    x = add(tape, x, hidden_states, "residual")
    hidden_states = mixer_forward(ctx, block.second_mixer, normalise(ctx, block.mixer_output_norm, x), stream)
    x = add(tape, x, hidden_states, "residual")
    hidden_states = mlp(ctx, second_mlp, normalise(ctx, block.mlp_output_norm, x))
    both = add(tape, x, hidden_states, "residual")
    return add(tape, both, shortcut, "shortcut")


def _networks(moe: Moe) -> list[Mlp]:
    """Return the two dense feed-forward networks of the layer, which the record holds as shared experts of one
    mixture.
    """
    tensors = [t for t in moe.tensors if t.group == "shared_experts"]
    half = len(tensors) // 2
    return [
        Mlp(
            moe.shared.width // 2,
            moe.gated,
            moe.activation,
            tensors=tuple(network_tensors),
            adaptable=moe.adaptable,
            bias=False,
        )
        for network_tensors in (tensors[:half], tensors[half:])
    ]
