"""SigLIP, as Gemma 3, PaliGemma, DeepSeek-VL, Idefics 3 and SmolVLM have it: square tiles without a class token.

modeling_siglip.py, modeling_gemma3.py, modeling_paligemma.py, modeling_idefics3.py of transformers 5.23.

SigLIP's stem: a convolution and a table of positions (modeling_siglip.py, SiglipVisionEmbeddings.forward).

Gemma 3: average pooling, an RMSNorm and a bare matrix (modeling_gemma3.py, Gemma3MultiModalProjector.forward).

PaliGemma: one matrix (modeling_paligemma.py, PaliGemmaMultiModalProjector.forward).

DeepSeek-VL: SigLIP's normed rows through two matrices (modeling_deepseek_vl.py, DeepseekVLAligner.forward).

Idefics 3 and SmolVLM: pixels are shuffled, then one matrix (modeling_idefics3.py, Idefics3Connector.forward).
"""

from __future__ import annotations

import math

from memcheck.autograd.context import Context
from memcheck.autograd.kernels import product
from memcheck.autograd.modules import rms_norm_pieces
from memcheck.autograd.operator import copy
from memcheck.autograd.tensor import Value, round_up
from memcheck.families.multimodal import TowerContext
from memcheck.families.tower import (
    SIGLIP,
    LayerSizes,
    Limits,
    Pixels,
    ProcessedPicture,
    TowerForward,
    no_clips,
    no_limits,
    norm_pair,
    patch_convolution_tensors,
    read_layer_sizes,
    read_pixels,
    tower_layer,
    tower_mlp,
    two_matrices,
)
from memcheck.families.towers.forward_parts import (
    add_position_embedding,
    average_pool,
    hold_pixel_values,
    last_hidden_state,
    linear_layer,
    patch_convolution,
    pixel_shuffle,
    projector_mlp,
    require_input_grads,
    return_image_tokens,
)
from memcheck.families.towers.processors import DEFAULT_PROCESSOR, equal_tiles
from memcheck.models.decoder import linear
from memcheck.models.reader import ConfigReader
from memcheck.models.types import ParameterTensor
from memcheck.models.vision import Vision

IDEFICS3_TILES, MAX_IMAGE_SIDE = 4, 4096
"""Tiles of Idefics 3's longest side, and ``MAX_IMAGE_SIZE`` of its class in pixels."""


SIGLIP_LAYERS, SIGLIP_PIXELS = (
    LayerSizes(width=768, heads=12, inner=3072, depth=12),
    Pixels(3, side_pixels=224, patch_side=16),
)
IDEFICS3_LAYERS, IDEFICS_PIXELS = SIGLIP_LAYERS._replace(width=1152, heads=16), SIGLIP_PIXELS._replace(patch_side=32)
"""What the classes take where a configuration is silent."""


def read_gemma3(config: ConfigReader, model: TowerContext) -> Vision:
    """Read Gemma 3's tower: average pooling to ``mm_tokens_per_image``, an RMSNorm, and a matrix that is a bare
    parameter.
    """
    outputs, tower = model.language.hidden_size, siglip(config, model, "siglip:gemma3", attention="separate")
    tokens = model.outer.integer("mm_tokens_per_image", default=256)
    projector = (
        ParameterTensor("mm_input_projection_weight", (tower.hidden, outputs), "projector"),
        ParameterTensor("mm_soft_emb_norm.weight", (tower.hidden,), "norm"),
    )
    return tower._replace(
        projector_tensors=projector,
        tokens_per_tile=tokens,
        patches_per_token=tower.rows_per_tile // tokens,
        processor="processors:process_square",
        separator_tokens=4,
        unused_tensors=pooling_head(config, tower),
    )


def read_paligemma(config: ConfigReader, model: TowerContext) -> Vision:
    """Read PaliGemma's tower: every patch is an image token, projected by one matrix."""
    outputs, tower = model.language.hidden_size, siglip(config, model, "siglip:paligemma", attention="separate")
    model.outer.ignore("projection_dim", "hidden_size", "num_image_tokens", "vocab_size")
    config.ignore("projection_dim", "projector_hidden_act", "num_image_tokens", "vocab_size")
    return tower._replace(
        projector_tensors=linear("linear", outputs, tower.hidden, "projector", "none", bias=True),
        tokens_per_tile=tower.rows_per_tile,
        patches_per_token=1,
        processor="processors:process_square",
        unused_tensors=pooling_head(config, tower),
    )


def read_idefics3(config: ConfigReader, model: TowerContext) -> Vision:
    """Read the tower of Idefics 3 and SmolVLM: tiles with a padding mask, pixel shuffle by ``scale_factor``, one
    matrix.
    """
    scale = model.outer.integer("scale_factor", default=2)
    tower = siglip(config, model, "siglip:idefics3", attention="masked", layers=IDEFICS3_LAYERS, pixels=IDEFICS_PIXELS)
    config.ignore("size", "max_image_size", "tie_word_embeddings", "use_base_siglip")
    model.outer.ignore("use_cache", "pixel_shuffle_factor", "use_reentrant_checkpointing")
    shuffled_width = tower.hidden * scale * scale
    return tower._replace(
        projector_tensors=linear(
            "modality_projection.proj", model.language.hidden_size, shuffled_width, "projector", "none"
        ),
        tokens_per_tile=tower.rows_per_tile // (scale * scale),
        patches_per_token=scale * scale,
        processor="siglip:process_idefics3",
        mask_bytes_per_pixel=8,
        path="vision_model",
        projector_path="connector",
    )


def read_deepseek(config: ConfigReader, model: TowerContext) -> Vision:
    """Read DeepSeek-VL's tower: every patch is an image token, projected by two matrices."""
    outputs, tower = model.language.hidden_size, siglip(config, model, "siglip:deepseek_vl", attention="separate")
    return tower._replace(
        projector_tensors=two_matrices(("linear1", "linear2"), tower.hidden, outputs, outputs),
        tokens_per_tile=tower.rows_per_tile,
        patches_per_token=1,
        processor="processors:process_square",
        unused_tensors=pooling_head(config, tower),
        path="vision_model",
        projector_path="aligner",
    )


def siglip(
    config: ConfigReader,
    model: TowerContext,
    kind: str,
    attention: str,
    *,
    layers: LayerSizes = SIGLIP_LAYERS,
    pixels: Pixels = SIGLIP_PIXELS,
) -> Vision:
    """Read SigLIP's tower without a projector.

    ``kind``: its forward passes, as :attr:`Vision.kind`. ``attention``: form of the layers' attention, as
    :attr:`TowerAttention.kind`. ``layers``, ``pixels``: what its class takes where the configuration states none.
    """
    size, pixels = read_layer_sizes(config, layers), read_pixels(config, pixels)
    config.ignore("layer_norm_eps", "initializer_range", "rope_parameters")
    config.dropout("attention_dropout")
    mlp = tower_mlp(size.width, size.inner, config.activation(default="gelu_pytorch_tanh"), SIGLIP.mlp)
    positions = ParameterTensor("embeddings.position_embedding.weight", (pixels.patches, size.width), "position")
    return Vision(
        kind=kind,
        hidden=size.width,
        blocks=((tower_layer(size.width, size.heads, mlp, attention), size.depth),),
        values_per_patch=pixels.channels,
        patches_per_token=1,
        token_width=model.language.hidden_size,
        stem_tensors=(*patch_convolution_tensors("embeddings.patch_embedding", size.width, pixels), positions),
        projector_tensors=(),
        embedding_can_be_hooked=True,
        closing_tensors=norm_pair("post_layernorm", size.width),
        rows_per_tile=pixels.patches,
        patch_side=pixels.patch_side,
        heads=size.heads,
        path="vision_tower",
        projector_path="multi_modal_projector",
    )


def pooling_head(config: ConfigReader, tower: Vision) -> tuple[ParameterTensor, ...]:
    """List the tensors of the attention pooling that nothing reads (``vision_use_head``).

    Source: SiglipMultiheadAttentionPoolingHead.
    """
    if not config.flag("vision_use_head", default=True):
        return ()
    hidden, mlp = tower.hidden, tower.blocks[0][0].mlp
    inner = getattr(mlp, "width", 0)
    return (
        ParameterTensor("head.probe", (1, 1, hidden), "vision"),
        ParameterTensor("head.attention.in_proj_weight", (3 * hidden, hidden), "attention"),
        ParameterTensor("head.attention.in_proj_bias", (3 * hidden,), "attention"),
        *linear("head.attention.out_proj", hidden, hidden, "attention", "none", bias=True),
        *norm_pair("head.layernorm", hidden),
        *tower_mlp(hidden, inner, "gelu", ("head.mlp.fc1", "head.mlp.fc2")).tensors,
    )


def siglip_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``: patches and learned positions, [patches, hidden]. The hook is on ``patch_embedding``.

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    weight, bias, table = vision.stem_tensors
    x, live = require_input_grads(patch_convolution(ctx, vision, ctx.tokens, weight, bias), require_grad=require_grad)
    return add_position_embedding(ctx, x, table), live


def gemma3_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm``, average pooling, an RMSNorm and the projection: [image tokens, outputs]."""
    tape = ctx.tape
    matrix, norm = vision.projector_tensors
    x = last_hidden_state(ctx, vision, x)
    x = average_pool(ctx, vision, copy(tape, x, "contiguous"))
    x = rms_norm_pieces(tape, x, ctx.parameter(norm.name, norm.shape), unit_offset=True)
    x = copy(tape, x, "contiguous")  # the pooled channels lie apart: the product copies what it is given
    weight = tape.parameter(ctx.parameter(matrix.name, matrix.shape))
    transposed = Value(None, matrix.shape[::-1], weight.dtype, weight.origin)
    return return_image_tokens(ctx, product(tape, x, transposed, matrix.name), joins=False)


def paligemma_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm`` and ``multi_modal_projector``, one matrix: [image tokens, text hidden]."""
    x = last_hidden_state(ctx, vision, x)
    return return_image_tokens(ctx, linear_layer(ctx, x, vision.projector_tensors[0], bias=True), joins=False)


def deepseek_vl_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm`` and ``aligner``, two matrices: [image tokens, text hidden]."""
    return return_image_tokens(
        ctx, projector_mlp(ctx, vision, last_hidden_state(ctx, vision, x), vision.projector_tensors), joins=False
    )


def idefics3_stem(ctx: Context, vision: Vision, require_grad: bool) -> tuple[Value, list[Value]]:
    """Compute ``embeddings``, the module that the hook is on. Positions are looked up for every tile.

    ``require_grad``: make the hooked module's output require a gradient (``enable_input_require_grads``).
    """
    weight, bias, table = vision.stem_tensors
    pixels = hold_pixel_values(ctx, vision, ctx.tokens, ctx.setting.param_dtype)  # the real pictures of the batch
    x = patch_convolution(ctx, vision, ctx.tokens, weight, bias, pixels=pixels)
    del pixels
    x = add_position_embedding(ctx, x, table)
    return with_padding_mask(ctx, x, require_grad=require_grad)


def with_padding_mask(ctx: Context, x: Value, *, require_grad: bool) -> tuple[Value, list[Value]]:
    """Return the rows, and the padding mask [pictures, 1, patches, patches] that every layer is given."""
    x, live = require_input_grads(x, require_grad=require_grad)
    if ctx.setting.attention not in ("flash", "flex"):
        patches_per_picture = ctx.tokens // max(1, ctx.setting.images)
        shape = (
            ctx.setting.images,
            1,
            patches_per_picture,
            patches_per_picture,
        )  # an argument of every layer, which checkpoints keep
        masks = live if ctx.setting.tower_checkpointed else ctx.extra_outputs
        dtype = x.dtype if ctx.setting.attention == "eager" else "bool"  # masking_utils.py: added to the scores, or not
        masks.append(ctx.tape.value(shape, dtype, "padding mask"))
    return x, live


def idefics3_project(ctx: Context, vision: Vision, x: Value) -> Value:
    """Compute ``post_layernorm`` and ``connector``: pixel shuffle and one matrix."""
    x = pixel_shuffle(ctx, vision, last_hidden_state(ctx, vision, x))
    return return_image_tokens(ctx, linear_layer(ctx, x, vision.projector_tensors[0]), joins=True)


FORWARDS = {
    "gemma3": TowerForward(siglip_stem, gemma3_project, wrapped_modules=("layers", "embedding")),
    "paligemma": TowerForward(siglip_stem, paligemma_project, wrapped_modules=("layers", "embedding")),
    "deepseek_vl": TowerForward(siglip_stem, deepseek_vl_project, wrapped_modules=("layers", "embedding")),
    "idefics3": TowerForward(idefics3_stem, idefics3_project, wrapped_modules=("attention",)),
}


def process_idefics3(vision: Vision, height: int, width: int, frames: int | None, limits: Limits) -> ProcessedPicture:
    """Count the tiles and image tokens of a picture: its longest side is scaled to four tiles, and an overview is
    added.

    The other side is rounded up to whole tiles.

    ``height``, ``width``: of the picture or of a frame, in pixels. ``frames``: of a clip; None for a picture.
    ``limits``: on its pixels, as the plan states them.
    """
    no_clips(frames)
    no_limits(limits)
    tile_side = vision.patch_side * math.isqrt(vision.rows_per_tile)
    rows, columns = idefics3_grid(height, width, tile_side, IDEFICS3_TILES * tile_side)
    separators = rows * columns * 2 + rows + 4
    default = ("longest_edge", IDEFICS3_TILES * tile_side, DEFAULT_PROCESSOR)
    return equal_tiles(vision, rows * columns + 1, separators)._replace(defaults=(default,))


def idefics3_grid(height: int, width: int, tile_side: int, longest_edge: int) -> tuple[int, int]:
    """Return rows and columns of the tiles into which a picture is cut.

    ``height``, ``width``, ``tile_side``, ``longest_edge``: in pixels.
    """
    ratio = width / height
    if width >= height:
        width, height = longest_edge, int(longest_edge / ratio)
        height += height % 2
    else:
        height, width = longest_edge, int(longest_edge * ratio)
        width += width % 2
    height, width = max(height, 1), max(width, 1)
    if max(height, width) > MAX_IMAGE_SIDE:
        shrink = MAX_IMAGE_SIDE / max(height, width)
        height, width = max(1, int(height * shrink)), max(1, int(width * shrink))
    ratio = width / height
    if width >= height:
        width = round_up(width, tile_side)
        height = round_up(int(width / ratio), tile_side)
    else:
        height = round_up(height, tile_side)
        width = round_up(int(height * ratio), tile_side)
    return height // tile_side, width // tile_side
