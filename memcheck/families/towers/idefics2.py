"""Idefics 2: SigLIP on pictures of any size, a gated network, and a perceiver that makes as many tokens of each.

modeling_idefics2.py of transformers 5.23.

Idefics 2: positions of pictures of any size, a gated network, a perceiver of as many latents for each picture.

modeling_idefics2.py of transformers 5.23: Idefics2VisionEmbeddings, Idefics2Connector, Idefics2PerceiverLayer.
"""

from __future__ import annotations

from memcheck.autograd import attention as kernels
from memcheck.autograd.attention import MASK_ALIGNMENT
from memcheck.autograd.context import Context
from memcheck.autograd.eager import eager
from memcheck.autograd.elementwise import add, cast, cat, copy, mul
from memcheck.autograd.indexing import repeat_kv
from memcheck.autograd.modules import activation
from memcheck.autograd.norm import rms_norm_pieces
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Storage, Value, promote
from memcheck.families.multimodal import AroundTower
from memcheck.families.tower import TowerForward
from memcheck.families.towers.forward_parts import (
    hold_pixel_values,
    last_hidden_state,
    linear_layer,
    patch_convolution,
    return_image_tokens,
)
from memcheck.families.towers.siglip import IDEFICS2, masked, siglip
from memcheck.models.parts.matrices import linear
from memcheck.models.reader import MAX_LAYERS, ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Perceiver, Vision


def read(config: ConfigReader, model: AroundTower) -> Vision:
    """``model_type: idefics2``."""
    outer, language = model.outer, model.language
    outer.ignore("use_cache")
    tower = siglip(config, model, "idefics2:idefics2", attention="masked", defaults=IDEFICS2)
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
    projection = _gated("modality_projection", tower.hidden, inner.integer("intermediate_size", default=14336), hidden)
    layers = tuple(t for i in range(depth) for t in _layer(f"perceiver_resampler.layers.{i}", hidden, perceiver))
    return tower._replace(
        projector=(
            *projection,
            ParameterTensor("perceiver_resampler.latents", (perceiver.latents, hidden), "projector"),
            *layers,
            ParameterTensor("perceiver_resampler.norm.weight", (hidden,), "norm"),
        ),
        perceiver=perceiver,
        resampled=perceiver.latents,
        activation=inner.activation(default="silu"),
        tile=0,
        side=tower.tile,
        mask_bytes=8,
        separators=2,
        path="vision_model",
        projector_path="connector",
    )


def _gated(name: str, inputs: int, inner: int, outputs: int) -> tuple[ParameterTensor, ...]:
    return (
        *linear(f"{name}.gate_proj", inner, inputs, "projector", "none"),
        *linear(f"{name}.up_proj", inner, inputs, "projector", "none"),
        *linear(f"{name}.down_proj", outputs, inner, "projector", "none"),
    )


def _layer(name: str, hidden: int, perceiver: Perceiver) -> tuple[ParameterTensor, ...]:
    """The parameters of one perceiver layer, in the order of the forward pass. ``hidden``: the width of its rows."""
    heads, kv = perceiver.heads * perceiver.head_dim, perceiver.kv_heads * perceiver.head_dim
    return (
        ParameterTensor(f"{name}.input_latents_norm.weight", (hidden,), "norm"),
        ParameterTensor(f"{name}.input_context_norm.weight", (hidden,), "norm"),
        *linear(f"{name}.self_attn.q_proj", heads, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.k_proj", kv, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.v_proj", kv, hidden, "projector", "none"),
        *linear(f"{name}.self_attn.o_proj", hidden, heads, "projector", "none"),
        ParameterTensor(f"{name}.post_attention_layernorm.weight", (hidden,), "norm"),
        *_gated(f"{name}.mlp", hidden, 4 * hidden, hidden),
    )


EACH = 10
"""Tensors of a perceiver's layer: two norms, four matrices, a norm, three matrices."""


def stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """``embeddings``, the module that the hook is on. Positions are looked up for every row of every picture."""
    weight, bias, table = vision.stem
    pixels = hold_pixel_values(ctx, vision, ctx.tokens, ctx.setting.param_dtype)  # the real pictures of the batch
    x = patch_convolution(ctx, vision, ctx.tokens, weight, bias, pixels=pixels)
    del pixels
    return masked(ctx, with_positions_of_rows(ctx, x, table), require_grad=require_grad)


def with_positions_of_rows(ctx: Context, x: Value, table: ParameterTensor) -> Value:
    """``embeddings + position_embedding(position_ids)``, where each row has a position of its own."""
    tape = ctx.tape
    p = ctx.parameter(table.name.removesuffix(".weight"), table.shape)
    found = tape.new(x.shape, p.dtype, "positions")
    out = tape.value(x.shape, promote(x.dtype, p.dtype), "add positions")
    del found
    wants, learns, shape, dtype = x.origin is not None, p.requires_grad, table.shape, p.dtype
    rows, stream = x.shape, x.dtype

    def run(grad: Storage) -> list[Storage | None]:
        passed = None if not wants else grad if grad.dtype == stream else tape.new(rows, stream, "to backward")
        return [passed, tape.new(shape, dtype, "embedding backward") if learns else None]

    return tape.record(out, (x, tape.parameter(p)), run)


def project(ctx: Context, vision: Vision, x: Value) -> Value:
    """``post_layernorm`` and ``connector``."""
    tape, perceiver = ctx.tape, vision.perceiver
    x = last_hidden_state(ctx, vision, x)
    if perceiver is None:
        return x
    gate, up, down, latents, *others, norm = vision.projector
    context = _network(ctx, x, (gate, up, down), vision.activation)
    del x
    p = ctx.parameter(latents.name, latents.shape)
    pictures = max(1, ctx.setting.images)
    shape, dtype = latents.shape, p.dtype
    y = Value(tape.new((0,), dtype, "latents"), (pictures * shape[0], shape[1]), dtype)  # expanded without memory
    y = operator(tape, y, tape.parameter(p), (shape, dtype, "sum"))
    for i in range(0, len(others), EACH):
        y = _perceiver_layer(ctx, perceiver, tuple(others[i : i + EACH]), y, context)
    y = rms_norm_pieces(tape, y, ctx.parameter(norm.name, norm.shape))
    return return_image_tokens(ctx, y, joins=True)


def _network(ctx: Context, x: Value, tensors: tuple[ParameterTensor, ...], kind: str) -> Value:
    """``down_proj(act_fn(gate_proj(x)) * up_proj(x))``."""
    gate, up, down = tensors
    acted = activation(ctx.tape, linear_layer(ctx, x, gate), kind)
    raised = linear_layer(ctx, x, up)
    del x
    inner = mul(ctx.tape, acted, raised)
    del acted, raised
    return linear_layer(ctx, inner, down)


def _perceiver_layer(
    ctx: Context, perceiver: Perceiver, tensors: tuple[ParameterTensor, ...], latents: Value, context: Value
) -> Value:
    """Idefics2PerceiverLayer: latents read the rows and themselves, under a mask of the rows' padding."""
    tape = ctx.tape
    first, second, query, key, value, output, third, *network = tensors
    normed = rms_norm_pieces(tape, latents, ctx.parameter(first.name, first.shape))
    rows = rms_norm_pieces(tape, context, ctx.parameter(second.name, second.shape))
    both = cat(tape, (rows, normed), (context.shape[0] + latents.shape[0], context.shape[1]))
    del rows
    q, k, v = linear_layer(ctx, normed, query), linear_layer(ctx, both, key), linear_layer(ctx, both, value)
    del normed, both
    out = _attended(ctx, perceiver, q, k, v)
    del q, k, v
    x = add(tape, latents, linear_layer(ctx, out, output), "residual")
    del out, latents
    normed = rms_norm_pieces(tape, x, ctx.parameter(third.name, third.shape))
    return add(tape, x, _network(ctx, normed, tuple(network), perceiver.activation), "residual")


def _attended(ctx: Context, perceiver: Perceiver, q: Value, k: Value, v: Value) -> Value:
    """Each picture's latents over its rows and latents; k and v are repeated for the heads (sdpa_attention.py)."""
    tape, n = ctx.tape, max(1, ctx.setting.images)
    if tape.autocast:
        q, k, v = (cast(tape, t, tape.autocast) for t in (q, k, v))
    few, many = q.shape[0] // n, k.shape[0] // n
    shape = (q.shape[0], perceiver.heads * perceiver.head_dim)
    q = q.view(n, perceiver.heads, few, perceiver.head_dim)
    k, v = (t.view(n, perceiver.kv_heads, many, perceiver.head_dim) for t in (k, v))
    if perceiver.kv_heads != perceiver.heads and ctx.setting.attention not in ("flash", "flex"):
        k, v = repeat_kv(tape, k, perceiver.heads), repeat_kv(tape, v, perceiver.heads)
    if ctx.setting.attention == "eager":
        out = eager(tape, q, k, v, mask_dtype=ctx.setting.param_dtype)
        return copy(tape, out, "contiguous").view(*shape)
    mask, kernel = None, "flash"
    if ctx.setting.attention not in ("flash", "flex"):
        aligned, kernel = -(-many // MASK_ALIGNMENT) * MASK_ALIGNMENT, "efficient"
        mask = tape.new((n, 1, few, aligned), q.dtype, "attention mask")
    out = kernels.flash(tape, q, k, v, perceiver.head_dim, label=f"{kernel} attention", extra=mask)
    return out.view(*shape)


FORWARDS = {
    "idefics2": TowerForward(stem, project, wrapped=("attention", "projector")),
}
"""By name, the forward passes of a kind of tower."""
