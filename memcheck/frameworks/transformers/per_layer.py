"""Per-layer embeddings of Gemma 4: looked up once for all layers, multiplied into each layer's output.

Source: transformers 5.23 models/gemma4/modeling_gemma4.py (get_per_layer_inputs, project_per_layer_inputs,
Gemma4TextDecoderLayer.forward).
"""

from __future__ import annotations

from memcheck.autograd.context import Context, adapts
from memcheck.autograd.kernels import Weights, embedding, linear
from memcheck.autograd.modules import activation, normalise, rms_norm_pieces
from memcheck.autograd.operator import add, mul, operator, scale
from memcheck.autograd.tensor import Leaf, Parameter, Storage, Value
from memcheck.models.types import Block, Norm, PerLayer

PROJECTION = "per_layer_model_projection"
"""A linear layer outside the decoder layers: peft adapts it as it adapts theirs."""


def look_up(ctx: Context, per_layer: PerLayer, rows: int, x: Value, *, trained: bool) -> Value:
    """Compute Gemma 3n's per-layer inputs of all layers: rows of one table plus a normed projection of the embedding.

    ``x``: [tokens, hidden], returned unchanged. ``rows``: of the table. ``trained``: the table gets a gradient. The
    inputs, [tokens, layers * width], are saved until the first layer's backward. Their gradient is counted with the
    head, which runs backward first.
    """
    tape, setting = ctx.tape, ctx.setting
    dtype = x.dtype
    table = ctx.register(
        Parameter(
            "embed_tokens_per_layer", (rows, per_layer.total), setting.param_dtype, trained, has_grad=setting.has_grad
        )
    )
    looked_up = scale(tape, embedding(tape, table, (ctx.tokens,), dtype), "embedding scale")
    weights = Weights(ctx.parameter(PROJECTION, (per_layer.total, setting.hidden)))
    if setting.adapter is not None and adapts(setting.adapter, PROJECTION):
        weights = ctx.adapted(PROJECTION, weights, setting.adapter)
    projected = scale(tape, linear(tape, x, weights, PROJECTION), "projection scale")
    weight = ctx.parameter("per_layer_projection_norm.weight", (per_layer.width,))
    heads = projected.view(ctx.tokens * (per_layer.total // per_layer.width), per_layer.width)
    del projected
    normed = rms_norm_pieces(tape, heads, weight, weight_in_fp32=True).view(ctx.tokens, per_layer.total)
    del heads
    inputs = scale(tape, add(tape, normed, looked_up, "per-layer inputs"), "per-layer scale")
    del normed, looked_up

    def inputs_backward(grad: Storage) -> list[Storage | None]:
        return [grad, tape.new((0,), dtype, "gradient of per-layer inputs")]

    return tape.record(Value(x.storage, x.shape, dtype), (x, inputs), inputs_backward, saves=(inputs.storage,))


def with_per_layer_input(ctx: Context, block: Block, x: Value) -> Value:
    """``x + norm(projection(act(gate(x)) * per_layer_input))``; a slice's gradient is as wide as all layers' inputs."""
    return add(ctx.tape, x, per_layer_part(ctx, block, x), "residual") if isinstance(block.extension, PerLayer) else x


def per_layer_part(ctx: Context, block: Block, x: Value) -> Value:
    """Compute ``norm(projection(act(gate(x)) * per_layer_input))``, [tokens, hidden].

    The layer's input is a slice, and its gradient is as wide as the inputs of all layers.
    """
    tape, extension = ctx.tape, block.extension
    if not isinstance(extension, PerLayer):
        return x
    tensors = {t.name.removesuffix(".weight"): t for t in block.extra_tensors}
    gate, projection = tensors["per_layer_input_gate"], tensors["per_layer_projection"]
    hidden_states = linear(tape, x, ctx.replicated(gate), gate.name)
    hidden_states = activation(tape, hidden_states, extension.activation)
    all_shape, layer_shape, dtype = (
        (ctx.tokens, extension.total),
        (ctx.tokens, extension.width),
        ctx.setting.param_dtype,
    )
    all_inputs = Value(None, all_shape, dtype, Leaf())
    layer_input = operator(
        tape, Value(None, layer_shape, dtype), all_inputs, (all_shape, dtype, "slice of per-layer inputs")
    )
    hidden_states = mul(tape, hidden_states, layer_input)
    hidden_states = linear(tape, hidden_states, ctx.replicated(projection), projection.name)
    name = "post_per_layer_input_norm"
    return normalise(ctx, Norm("rmsnorm-fp32-weight", x.shape[-1], name=name), hidden_states, name)
