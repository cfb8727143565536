"""Idefics 2: SigLIP on pictures of any size, a gated network, and a perceiver that makes as many tokens of each.

modeling_idefics2.py of transformers 5.23.

Idefics 2: positions of pictures of any size, a gated network, a perceiver of as many latents for each picture.

modeling_idefics2.py of transformers 5.23: Idefics2VisionEmbeddings, Idefics2Connector, Idefics2PerceiverLayer.
"""

from __future__ import annotations

from memcheck.autograd import kernels
from memcheck.autograd.context import Context
from memcheck.autograd.eager import EagerSteps, eager
from memcheck.autograd.kernels import MASK_ALIGNMENT
from memcheck.autograd.modules import activation, rms_norm_pieces
from memcheck.autograd.operator import GRAD_UNCHANGED, add, cast, cat, copy, mul, operator, repeat_kv
from memcheck.autograd.tensor import Value, promote, round_up
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import TowerForward
from memcheck.families.towers.forward_parts import (
    hold_pixel_values,
    last_hidden_state,
    linear_layer,
    patch_convolution,
    return_image_tokens,
)
from memcheck.families.towers.siglip import IDEFICS_PIXELS, siglip, with_padding_mask
from memcheck.models.decoder import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision


def read(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of ``model_type: idefics2``: SigLIP's tower and a perceiver with a fixed number of latents for
    each picture.
    """
    outer, language = model.outer, model.language
    outer.ignore("use_cache")
    tower = siglip(config, model, "idefics2:idefics2", attention="masked", pixels=IDEFICS_PIXELS)
    config.ignore("tie_word_embeddings")
    section, hidden = outer.section("perceiver_config"), language.hidden_size
    section.ignore("model_type", "hidden_size", "rms_norm_eps", "initializer_range", "tie_word_embeddings")
    section.dropout("attention_dropout")
    perceiver = Perceiver(
        latents=section.integer("resampler_n_latents", default=64),
        heads=section.integer("resampler_n_heads", default=16),
        kv_heads=section.integer("num_key_value_heads", default=4),
        head_dim=section.integer("resampler_head_dim", default=96),
        activation=section.activation(default="silu"),
    )
    if perceiver.heads % perceiver.kv_heads:
        section.fail("num_key_value_heads", f"{perceiver.heads} heads cannot share {perceiver.kv_heads} of keys")
    depth = section.integer("resampler_depth", default=3, maximum=MAX_LAYERS)
    text = outer.raw("text_config")
    inner = ConfigReader(text, "idefics2", "text_config.") if isinstance(text, dict) else outer
    projection = _gated_mlp_tensors(
        "modality_projection", tower.hidden, inner.integer("intermediate_size", default=14336), hidden
    )
    layers = tuple(
        t for i in range(depth) for t in _perceiver_layer_tensors(f"perceiver_resampler.layers.{i}", hidden, perceiver)
    )
    return tower._replace(
        projector_tensors=(
            *projection,
            ParameterTensor("perceiver_resampler.latents", (perceiver.latents, hidden), "projector"),
            *layers,
            ParameterTensor("perceiver_resampler.norm.weight", (hidden,), "norm"),
        ),
        perceiver=perceiver,
        tokens_per_picture=perceiver.latents,
        activation=inner.activation(default="silu"),
        rows_per_tile=0,
        largest_picture=tower.rows_per_tile,
        mask_bytes_per_pixel=8,
        separator_tokens=2,
        path="vision_model",
        projector_path="connector",
    )


def _gated_mlp_tensors(name: str, inputs: int, inner: int, outputs: int) -> tuple[ParameterTensor, ...]:
    """List the tensors of a gated MLP from ``inputs`` through ``inner`` to ``outputs`` channels."""
    return (
        *linear(f"{name}.gate_proj", inner, inputs, "projector", "none"),
        *linear(f"{name}.up_proj", inner, inputs, "projector", "none"),
        *linear(f"{name}.down_proj", outputs, inner, "projector", "none"),
    )


def _perceiver_layer_tensors(name: str, hidden: int, perceiver: Perceiver) -> tuple[ParameterTensor, ...]:
    """List the parameters of one perceiver layer, in the order of the forward pass. ``hidden``: the width of its
    rows.
    """
    heads, kv = perceiver.heads * perceiver.head_dim, perceiver.kv_heads * perceiver.head_dim
    return (
        ParameterTensor(f"{name}.input_latents_norm.weight", (hidden,), "norm"),
        ParameterTensor(f"{name}.input_context_norm.weight", (hidden,), "norm"),
        *linear(f"{name}.self_attn.q_proj", heads, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.k_proj", kv, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.v_proj", kv, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.o_proj", hidden, heads, "projector", "none"),
        ParameterTensor(f"{name}.post_attention_layernorm.weight", (hidden,), "norm"),
        *_gated_mlp_tensors(f"{name}.mlp", hidden, 4 * hidden, hidden),
    )


TENSORS_PER_LAYER = 10
"""Tensors of a perceiver's layer: two norms, four matrices, a norm, three matrices."""


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute the patch embedding and learned positions: [patches, hidden], and the values that live while layers run.

    The input-gradient hook is on the module ``embeddings``. Positions are looked up for every patch of every picture.
    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    weight, bias, table = vision.stem_tensors
    pixels = hold_pixel_values(ctx, vision, ctx.tokens, ctx.setting.param_dtype)  # the real pictures of the batch
    x = patch_convolution(ctx, vision, ctx.tokens, weight, bias, pixels=pixels)
    del pixels
    return with_padding_mask(ctx, add_position_per_patch(ctx, x, table), require_grad=require_grad)


def add_position_per_patch(ctx: Context, x: Value, table: ParameterTensor) -> Value:
    """Add ``position_embedding(position_ids)`` to ``x`` [patches, hidden], looked up in ``table`` for every patch."""
    tape = ctx.tape
    parameter = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    positions = tape.new(x.shape, parameter.dtype, "positions")
    out = tape.value(x.shape, promote(x.dtype, parameter.dtype), "add positions")
    del positions
    input_gradient = GRAD_UNCHANGED if x.dtype == out.dtype else "to backward"
    table_gradient = (table.shape, parameter.dtype, "embedding backward")
    return operator(tape, out, (x, tape.parameter(parameter)), [input_gradient, table_gradient])


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm`` and ``connector``: a gated MLP, and a perceiver of ``latents`` rows for each
    picture.
    """
    tape, perceiver = ctx.tape, vision.perceiver
    x = last_hidden_state(ctx, vision, x)
    if perceiver is None:
        return x
    gate, up, down, latents, *layer_tensors, norm = vision.projector_tensors
    context = _gated_mlp(ctx, x, (gate, up, down), vision.activation)
    del x
    parameter = ctx.parameter(latents.name, latents.shape)
    pictures = max(1, ctx.setting.images)
    shape, dtype = latents.shape, parameter.dtype
    hidden_states = Value(
        tape.new((0,), dtype, "latents"), (pictures * shape[0], shape[1]), dtype
    )  # expanded without memory
    hidden_states = operator(tape, hidden_states, tape.parameter(parameter), (shape, dtype, "sum"))
    for i in range(0, len(layer_tensors), TENSORS_PER_LAYER):
        hidden_states = _perceiver_layer(
            ctx, perceiver, tuple(layer_tensors[i : i + TENSORS_PER_LAYER]), hidden_states, context
        )
    hidden_states = rms_norm_pieces(tape, hidden_states, ctx.parameter(norm.name, norm.shape))
    return return_image_tokens(ctx, hidden_states, joins=True)


def _gated_mlp(ctx: Context, x: Value, tensors: tuple[ParameterTensor, ...], kind: str) -> Value:
    """Compute the gated MLP ``down_proj(act_fn(gate_proj(x)) * up_proj(x))``."""
    gate, up, down = tensors
    gated = activation(ctx.tape, linear_layer(ctx, x, gate), kind)
    up_output = linear_layer(ctx, x, up)
    del x
    inner = mul(ctx.tape, gated, up_output)
    del gated, up_output
    return linear_layer(ctx, inner, down)


def _perceiver_layer(
    ctx: Context, perceiver: Perceiver, tensors: tuple[ParameterTensor, ...], latents: Value, context: Value
) -> Value:
    """Compute Idefics2PerceiverLayer: the latents attend to a picture's patches and to themselves, under a padding
    mask.

    ``latents``: [pictures * latents, hidden]; ``context``: [patches, hidden].
    """
    tape = ctx.tape
    latents_norm, context_norm, query, key, value, output, mlp_norm, *mlp = tensors
    normed = rms_norm_pieces(tape, latents, ctx.parameter(latents_norm.name, latents_norm.shape))
    normed_context = rms_norm_pieces(tape, context, ctx.parameter(context_norm.name, context_norm.shape))
    keys_input = cat(tape, (normed_context, normed), (context.shape[0] + latents.shape[0], context.shape[1]))
    del normed_context
    q, k, v = linear_layer(ctx, normed, query), linear_layer(ctx, keys_input, key), linear_layer(ctx, keys_input, value)
    del normed, keys_input
    out = _perceiver_attention(ctx, perceiver, q, k, v)
    del q, k, v
    x = add(tape, latents, linear_layer(ctx, out, output), "residual")
    del out, latents
    normed = rms_norm_pieces(tape, x, ctx.parameter(mlp_norm.name, mlp_norm.shape))
    return add(tape, x, _gated_mlp(ctx, normed, tuple(mlp), perceiver.activation), "residual")


def _perceiver_attention(ctx: Context, perceiver: Perceiver, q: Value, k: Value, v: Value) -> Value:
    """Compute attention of each picture's latents over its patches and latents: [latents, heads * head_dim].

    Keys and values are repeated for the query heads, except for flash kernels (sdpa_attention.py).
    """
    tape, pictures = ctx.tape, max(1, ctx.setting.images)
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    queries_per_picture, keys_per_picture = q.shape[0] // pictures, k.shape[0] // pictures
    shape = (q.shape[0], perceiver.heads * perceiver.head_dim)
    q = q.view(pictures, perceiver.heads, queries_per_picture, perceiver.head_dim)
    k, v = (t.view(pictures, perceiver.kv_heads, keys_per_picture, perceiver.head_dim) for t in (k, v))
    if perceiver.kv_heads != perceiver.heads and ctx.setting.attention not in ("flash", "flex"):
        k, v = repeat_kv(tape, k, perceiver.heads), repeat_kv(tape, v, perceiver.heads)
    if ctx.setting.attention == "eager":
        out = eager(tape, q, k, v, EagerSteps(ctx.setting.param_dtype))
        return copy(tape, out, "contiguous").view(*shape)
    mask, kernel = None, "flash"
    if ctx.setting.attention not in ("flash", "flex"):
        aligned, kernel = round_up(keys_per_picture, MASK_ALIGNMENT), "efficient"
        mask = tape.new((pictures, 1, queries_per_picture, aligned), q.dtype, "attention mask")
    out = kernels.flash(tape, q, k, v, perceiver.head_dim, label=f"{kernel} attention", extra=mask)
    return out.view(*shape)


FORWARDS = {
    "idefics2": TowerForward(stem, project, wrapped_modules=("attention", "projector")),
}
"""By name, the forward passes of a kind of tower."""
